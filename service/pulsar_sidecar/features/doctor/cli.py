"""``pulsar-sidecar doctor``, the first command of a new operator."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import ExitCode
from pulsar_sidecar.cli.commands.serving import command_with_settings
from pulsar_sidecar.cli.connecting import Context
from pulsar_sidecar.features.doctor.findings import Finding, Level, counted

_HELP = """Check that the cluster meets the sidecar's requirements.

Takes the settings of `serve`. Queries brokers, ZooKeeper and bookies; checks versions, rights, settings, topic policies
and clocks. Prints one line for each check, with the remedy. Changes only the node by which the sidecar reads
ZooKeeper's clock. Exit code 2: a check failed.

Example: pulsar-sidecar doctor --web-service-url http://broker:8080 --broker-service-url pulsar://broker:6650
--metadata-store-url zk:zookeeper:2181"""


def _doctor(ctx: Context, flags: Mapping[str, str | None], config: Path | None) -> None:
    findings = ctx.obj.programs.run_doctor(flags, config)
    document = [
        {"level": each.level.value, "subject": each.subject, "finding": each.text, "remedy": each.remedy}
        for each in findings
    ]
    output.answer(document, _lines(findings), ctx.obj.format)
    if any(finding.level is Level.FAILED for finding in findings):
        raise typer.Exit(ExitCode.FINDINGS)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    width = max((len(finding.subject) for finding in findings), default=0)
    for finding in findings:
        remedy = f"; {finding.remedy}" if finding.remedy else ""
        yield f"{finding.level.value:8}{finding.subject:{width}}  {finding.text}{remedy}"
    yield counted(findings)


app = command_with_settings("doctor", _HELP, _doctor)
