"""``pulsar-sidecar rehearse``: consequences of a broker's death, before a restart."""

from collections.abc import Iterator
from typing import Annotated
from urllib.parse import quote

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import Context, show_result
from pulsar_sidecar.cli.words import iso_time
from pulsar_sidecar.features.rehearsal import results
from pulsar_sidecar.features.rehearsal.requests import USUAL, broker_address
from pulsar_sidecar.reports.formatting import format_columns, format_count

app = new_group("rehearse", "Show what a broker's death would cost, before a restart.")


@app.callback()
def rehearse() -> None:
    """Show what a broker's death would cost, before a restart."""


@app.command(epilog=EXIT_CODES)
def broker(
    ctx: Context,
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="The broker's web service: host:port, or its URL.")],
    topics: Annotated[
        int, typer.Option(min=1, max=100_000, help="Maximum number of topics looked at, busiest first.")
    ] = USUAL.topics,
    limit: Annotated[int, typer.Option(min=0, max=1_000, help="Maximum number of topics shown.")] = USUAL.rows,
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            max=3_600,
            help="Time limit; unread values are then unknown. Above 50: --request-timeout, too.",
        ),
    ] = USUAL.seconds,
) -> None:
    """Show the work if this broker died now: redeliveries, rebuilding, topic loads; and its duration.

    Totals first, each with its source, then the topics with the most to do. The command changes nothing. It queries the
    broker itself, so it cannot rehearse one that hangs. Exit code 4: a number lacks topics whose look-up failed.

    Example: pulsar-sidecar rehearse broker http://10.0.0.7:8080
    """
    output.info(f"looking at {topics:,} topics at most, for {seconds:g} s at most")
    path = f"/admin/v2/rehearsal/brokers/{quote(broker_address(broker), safe='')}"
    parameters = {"topics": topics, "limit": limit, "seconds": seconds}
    found = show_result(ctx, results.Rehearsal, path, _lines, parameters)
    if any(total.unknown_topics for total in found.totals):
        raise typer.Exit(ExitCode.NOT_ALL)


def _lines(found: results.Rehearsal) -> Iterator[str]:
    yield (
        f"if {found.broker} died now (as of {iso_time(found.as_of_ms)}): {format_count(found.bundles, 'bundle')}, "
        f"{format_count(found.topics, 'loaded topic')}, {found.examined:,} looked at"
    )
    for total in found.totals:
        yield from _total(total)
    yield from _times(found.times)
    yield from (f"WARNING: {warning}" for warning in found.warnings)
    yield from (f"deletion {one.operation_id} of {one.subject}: {one.state}" for one in found.deletions)
    if found.worst:
        yield ""
        rows = [
            {
                "topic": topic.topic,
                "acknowledged": _number(topic.acknowledged_again),
                "in flight": _number(topic.in_flight),
                "replayed": _number(topic.replayed_entries),
                "delayed": _number(topic.delayed),
                "read for it": _number(topic.read_for_index),
                "clients": _number(None if topic.producers is None else topic.producers + (topic.consumers or 0)),
            }
            for topic in found.worst
        ]
        yield from format_columns(rows).splitlines()
    yield from (f"not known: {reason}" for reason in found.not_known)
    yield from (f"assumption: {assumption}" for assumption in found.assumptions)


def _total(total: results.Total) -> Iterator[str]:
    lacking = f"; unknown for {format_count(total.unknown_topics, 'topic')}" if total.unknown_topics else ""
    on = f" on {format_count(total.topics, 'topic')}" if total.count and total.count != total.topics else ""
    yield f"{_number(total.count):>14} {total.consequence.value}{on}{lacking}"
    yield f"{'':>15}from {total.derived_from}"


def _times(times: results.Times) -> Iterator[str]:
    yield f"{times.takeover_seconds:>14g} s at most without an owner, if it is killed; none if it is shut down cleanly"
    yield f"{times.replays:>14} s of replays before topics serve"
    yield f"{times.indexes:>14} s of reading to index delayed messages"
    yield from (f"{'':>15}from {source}" for source in times.derived_from)


def _number(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"
