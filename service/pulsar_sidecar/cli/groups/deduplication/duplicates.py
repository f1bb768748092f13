"""``pulsar-sidecar deduplication duplicates``: what is wrong with the messages of an extract."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.connecting import Context, NewDirectory
from pulsar_sidecar.cli.groups.deduplication.show import app
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesRequest

_DUPLICATES_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 nothing was found in what could be seen, but not everything could, "
    "or wrong usage or an error, the reason is on standard error."
)


@app.command(epilog=_DUPLICATES_EXIT_CODES)
def duplicates(
    ctx: Context,
    extract: Annotated[Path, typer.Option(metavar="DIR", help="What deduplication extract made.")],
    directory: NewDirectory,
) -> None:
    """Find the duplicates in an extract, of any number of topics: the same findings as those of verify.

    Every file of the extract is compared with its manifest first, and one that is not whole is refused. The result is
    a directory: tables of findings, producers and topics, a report (report.html) and a summary. What the extract could
    not see is in the report, and such a topic is never called clean. Nothing outside the extract is read: 10 million
    messages take less than a minute on two cores.

    The Spark job pyspark_jobs/duplicates/job.py takes the same options and gives the same tables.

    Example: pulsar-sidecar deduplication duplicates --extract extracts/monday --output duplicates/monday
    """
    concluded = ctx.obj.programs.look_for_duplicates(DuplicatesRequest(extract, directory), output.info)
    output.result(f"{output.printable(concluded.verdict)}\nnext: {output.printable(concluded.next_step)}")
    raise typer.Exit(concluded.exit_code)
