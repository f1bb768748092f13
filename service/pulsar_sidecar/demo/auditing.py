"""The audit step: audits find the ledgers that the brokers leaked, and the sidecar deletes them.

The demo runs the commands that a user would type, and reads the figures from their output.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pulsar_sidecar.local_cluster.software import find_java
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import Clock, attempts
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.formatting import format_count

_JOB: Final = "pyspark_jobs.orphan_ledgers.job"
_FINDINGS: Final = 2
_COMMAND_SECONDS: Final = 900
_GONE_SECONDS: Final = 90.0
_CALM_SECONDS: Final = 120.0
_NEXT_LOOK_SECONDS: Final = 20.0
_ROWS: Final = "1000000"
_TABLES: Final = ("orphans", "missing", "unattributed", "usage")
_EVERY_TABLE: Final = (*(f"--{table}" for table in _TABLES), "--limit", _ROWS)

IMPATIENT: Final = (
    "--min-age-hours", "0", "--allow-young", "--look-window-hours", "0", "--max-share", "1", "--max-shrink", "1",
    "--bookkeeper-exclusive-to-cluster",
)  # fmt: skip
"""Options that skip the wait of three days, and accept that leaks are a large share of a small cluster."""


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of an audit, in ledgers: unreferenced, referenced but gone, and without a known owner."""

    orphans: int
    missing: int
    unattributed: int

    @property
    def clean(self) -> bool:
        """True if there are no findings."""
        return not (self.orphans or self.missing or self.unattributed)

    def __str__(self) -> str:
        return (
            f"{self.orphans} unreferenced, {self.missing} missing and "
            f"{format_count(self.unattributed, 'unattributed ledger')}"
        )


@dataclass(frozen=True, slots=True)
class AuditResult:
    """Findings of the audits, and the ledgers that are left.

    Attributes:
        first_deletable: ledgers deletable in the first audit, which must be none.
        planned: ledgers in the plan of the second audit.
        leaked: ledgers that leaked before; ``leaked_in_plan`` of them were in the plan.
        left: leaked or planned ledgers that still exist at the end.
        at_end: findings of the last audit, without references that dangled before the sidecar started.
        spark_agrees: True if the Spark job's plan and tables were the same.
        report: page to look at.
    """

    first_deletable: int
    planned: int
    leaked: int
    leaked_in_plan: int
    left: int
    at_end: Findings
    spark_agrees: bool
    report: Path

    @property
    def succeeded(self) -> bool:
        """True if both engines found all leaks, not before the second audit, and none of them is left."""
        found = self.leaked_in_plan == self.leaked and not self.first_deletable
        return found and self.spark_agrees and not self.left and self.at_end.clean


class Commands:
    """Runner of the commands that a user would type, each in its own process, with a report of them."""

    def __init__(self, directory: Path, report: Report) -> None:
        self._report = report
        self._directory = directory

    def run(self, *arguments: str) -> str:
        """Run a command of the sidecar and return its standard output.

        Raises:
            TemporaryError: the command failed; findings are not a failure.
        """
        self._report(f"   $ pulsar-sidecar {' '.join(arguments)}")
        return self._sidecar(*arguments)

    def shown(self, audit: str, *more: str) -> dict[str, Any]:
        """Return the JSON that ``audit show`` prints of an audit."""
        return dict(json.loads(self._sidecar("audit", "show", audit, "--format", "json", *more)))

    def run_on_spark(self, *options: str) -> None:
        """Run the Spark job with these options; raise the errors of `run`."""
        java_home = str(Path(find_java().executable).resolve().parents[1])
        self._start([sys.executable, "-m", _JOB, *options], os.environ | {"JAVA_HOME": java_home})

    def path(self, name: str) -> Path:
        """Return the path of a command's output."""
        return self._directory / name

    def _sidecar(self, *arguments: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
        return self._start([sys.executable, "-m", "pulsar_sidecar", *arguments], inherited)

    def _start(self, command: list[str], environment: Mapping[str, str]) -> str:
        self._directory.mkdir(exist_ok=True)
        what = " ".join(command[2:5])
        try:
            ended = subprocess.run(  # noqa: S603 - our own command line, without a shell
                command, cwd=self._directory, env=environment,
                capture_output=True, text=True, check=False, timeout=_COMMAND_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise TemporaryError(f"{what} took longer than {_COMMAND_SECONDS} s; look at the machine's load") from error
        if ended.returncode not in (0, _FINDINGS):
            raise TemporaryError(f"{what} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return ended.stdout


@dataclass(frozen=True, slots=True)
class AuditScenario:
    """Audits of the cluster before and after the plan is applied; ``existing`` filters ledgers that exist."""

    commands: Commands
    addresses: ClusterAddresses
    clock: Clock
    report: Report
    existing: Callable[[frozenset[LedgerId]], frozenset[LedgerId]]

    def run(self, leaked: frozenset[LedgerId], dangling: frozenset[LedgerId]) -> AuditResult:
        """Audit twice, approve and apply the plan, and audit again.

        Args:
            leaked: ledgers to find.
            dangling: ledgers that were missing before the sidecar started; nothing restores them.
        """
        self.report(
            "   a ledger is deletable if two audits, half a day apart, found it unreferenced and three days old;"
        )
        self.report(f"   the demo skips both waits: {' '.join(IMPATIENT)}")
        first = self._audit("first", None)
        self.report("   the first audit makes no ledger deletable; the second one makes the plan")
        second = self._audit("second", "first")
        spark_agrees = self._agrees_on_spark(second)
        deletable = {row["ledger_id"] for row in second["orphans"]["rows"] if row["standing"] == "condemned"}
        if deletable:
            for line in self.commands.run("audit", "explain", "second", str(min(deletable))).splitlines():
                self.report(f"     | {line}")
        self._apply(second["summary"])
        left = self._wait_until_gone(leaked | {LedgerId(ledger_id) for ledger_id in deletable})
        return AuditResult(
            first_deletable=_planned(first["summary"]),
            planned=_planned(second["summary"]),
            leaked=len(leaked),
            leaked_in_plan=len(leaked & deletable),
            left=len(left),
            at_end=self._final_findings(dangling),
            spark_agrees=spark_agrees,
            report=self.commands.path("second") / "report.html",
        )

    def _audit(self, name: str, previous: str | None) -> dict[str, Any]:
        listing, dump = f"{name}-listing", f"{name}-dump"
        store = self.addresses.metadata_store_url
        self.commands.run("ledgers", "list", "--metadata-store-url", store, "--with-metadata", "--output", listing)
        self.commands.run("metadata", "dump", "--source", store, "--output", dump)
        self.commands.run("audit", "run", *_inputs(name, previous), "--output", name, *IMPATIENT)
        shown = self.commands.shown(name, *_EVERY_TABLE)
        summary = shown["summary"]
        for status, count in summary["orphans"].items():
            self.report(f"   audit {name}: {format_count(count['ledgers'], 'unreferenced ledger')} {status}")
        if not summary["orphans"]:
            self.report(f"   audit {name}: no unreferenced ledger among {summary['existing']['ledgers']}")
        return shown

    def _agrees_on_spark(self, embedded: dict[str, Any]) -> bool:
        self.report("   the same dump and listing again, with the Spark job")
        self.commands.run_on_spark(*_inputs("second", "first"), "--output", "second-on-spark", *IMPATIENT)
        differing = differences(embedded, self.commands.shown("second-on-spark", *_EVERY_TABLE))
        same = "the same: the plan, and every row of the four tables"
        self.report(f"   its answer is {'ANOTHER one: ' + ', '.join(differing) if differing else same}")
        return not differing

    def _apply(self, summary: dict[str, Any]) -> None:
        if not _planned(summary):
            self.report("   nothing is deletable, so there is nothing to apply")
            return
        plan = summary["plan"]["sha256"]
        self.report(f"   the plan's hash is approved ({plan[:12]}...), and the plan goes to the sidecar")
        self.commands.run(
            "audit", "apply", "second", "--execute", "--plan", plan,
            "--metadata-store-url", self.addresses.metadata_store_url,
            "--broker-service-url", self.addresses.broker_service_url,
        )  # fmt: skip

    def _wait_until_gone(self, ledger_ids: frozenset[LedgerId]) -> frozenset[LedgerId]:
        left = ledger_ids
        for _ in attempts(self.clock, _GONE_SECONDS, 1.0):
            if not (left := self.existing(ledger_ids)):
                break
        self.report(f"   {len(left)} of the {format_count(len(ledger_ids), 'ledger')} are left")
        return left

    def _final_findings(self, dangling: frozenset[LedgerId]) -> Findings:
        """Return findings of the last audit, repeated for a while because brokers store some changes a minute late."""
        give_up = self.clock.monotonic_seconds() + _CALM_SECONDS
        look = 1
        while True:
            findings = findings_of(self._audit(f"last-{look}", "second"), dangling)
            if findings.clean or self.clock.monotonic_seconds() >= give_up:
                return findings
            self.report(f"   {findings}; what brokers have not stored yet looks like that for a minute; once more")
            self.clock.wait_seconds(_NEXT_LOOK_SECONDS)
            look += 1


def differences(embedded: dict[str, Any], spark: dict[str, Any]) -> list[str]:
    """Return the differences of two audits of the same inputs, as ``audit show`` prints them: the plan, or tables."""
    plans = [] if embedded["summary"]["plan"] == spark["summary"]["plan"] else ["plan"]
    return plans + [table for table in _TABLES if _rows(embedded, table) != _rows(spark, table)]


def findings_of(shown: dict[str, Any], dangling: frozenset[LedgerId]) -> Findings:
    """Return an audit's findings from the output of ``audit show``, without references that dangled before."""
    summary = shown["summary"]
    return Findings(
        orphans=sum(count["ledgers"] for count in summary["orphans"].values()),
        missing=len({row["ledger_id"] for row in shown["missing"]["rows"]} - dangling),
        unattributed=summary["unattributed"]["ledgers"],
    )


def _rows(shown: dict[str, Any], table: str) -> tuple[int, list[str]]:
    """Return the total number of rows, and the shown ones, sorted."""
    return shown[table]["all"], sorted(json.dumps(row, sort_keys=True) for row in shown[table]["rows"])


def _inputs(name: str, previous: str | None) -> list[str]:
    before = [] if previous is None else ["--previous", previous]
    return ["--dump", f"{name}-dump", "--listing", f"{name}-listing", *before]


def _planned(summary: dict[str, Any]) -> int:
    return 0 if summary["plan"] is None else int(summary["plan"]["rows"])
