"""``pulsar-sidecar deduplication duplicates``: what is wrong with the messages of an extract."""

from pathlib import Path
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.connecting import Context, NewDirectory
from pulsar_sidecar.cli.groups.deduplication.show import app
from pulsar_sidecar.deduplication.verifying.duplicates.requests import DuplicatesRequest

_DUPLICATES_EXIT_CODES = (
    "Exit codes: 0 clean; 2 there are findings; 1 nothing was found, but not everything could be read, "
    "or wrong usage or an error, the reason is on standard error."
)


@app.command(epilog=_DUPLICATES_EXIT_CODES, short_help="Find the duplicates in an extract.")
def duplicates(
    ctx: Context,
    extract: Annotated[Path, typer.Option(metavar="DIR", help="Directory that `deduplication extract` wrote.")],
    directory: NewDirectory,
) -> None:
    """Find the duplicates in an extract, of any number of topics: the same findings as those of verify.

    The command compares every file of the extract with its manifest first, and refuses an incomplete extract. It writes
    a directory: tables of findings, producers and topics, a report (report.html) and a summary. The report lists what
    the extract did not see, and such a topic is never called clean. The command reads nothing outside the extract: 10
    million messages take less than a minute on two cores.

    The Spark job pyspark_jobs/duplicates/job.py takes the same options and writes the same tables.

    Example: pulsar-sidecar deduplication duplicates --extract extracts/monday --output duplicates/monday
    """
    concluded = ctx.obj.programs.look_for_duplicates(DuplicatesRequest(extract, directory), output.info)
    document = {"sentence": concluded.sentence, "nextStep": concluded.next_step}
    output.answer(document, [concluded.sentence, f"next: {concluded.next_step}"], ctx.obj.format)
    raise typer.Exit(concluded.exit_code)
