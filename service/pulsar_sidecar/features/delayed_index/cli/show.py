"""``pulsar-sidecar delayed-index show|calendar``: contents of brokers' buckets (PIP-195), and due times."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    OptionalScope,
    Subscription,
    Topic,
    scope_path,
    show_result,
    subscription_path,
)
from pulsar_sidecar.cli.words import known_count, span, utc
from pulsar_sidecar.features.delayed_index.cli.waiting import due_rows
from pulsar_sidecar.features.delayed_index.results.inspection import (
    BucketView,
    Calendar,
    IndexView,
    SegmentView,
    Tracker,
)
from pulsar_sidecar.reports.formatting import format_bytes, format_columns, format_count

_NAME_WIDTH = 14
_TRACKERS = {
    Tracker.IN_MEMORY: "in memory",
    Tracker.BROKEN: "BROKEN: the subscription would stop delivering",
}

app = new_group("delayed-index", "Show, check, repair and build brokers' delayed indexes.")


@app.command("show", epilog=EXIT_CODES)
def show(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    segments: Annotated[bool, typer.Option("--segments", help="Show each segment of each bucket.")] = False,
    ask_broker: Annotated[
        bool, typer.Option("--ask-broker", help="Read from the broker of a loaded topic which tracker it runs.")
    ] = False,
) -> None:
    """Show the buckets of a topic's subscriptions: ledgers, segments, messages left and done, due times, bytes.

    The service reads the metadata store and one entry of each bucket, and loads no topic. It counts acknowledgements as
    stored; a loaded topic may have more. Of a partitioned topic it shows each partition.

    Brokers do not report which tracker a subscription runs on, so for a loaded topic with buckets the tracker is
    `unknown`. With --ask-broker the service concludes it from the size of the tracker's queues in the broker's
    statistics; if both trackers may have that size, it stays `unknown`.

    Example: pulsar-sidecar delayed-index show persistent://public/default/orders -s billing
    """

    def lines(indexes: Sequence[IndexView]) -> list[str]:
        paragraphs = ["\n".join(_lines(index, segments=segments)) for index in indexes]
        return ["\n\n".join(paragraphs) or "no durable subscription"]

    path = f"{subscription_path(topic, subscription)}/delayedIndex"
    show_result(ctx, list[IndexView], path, lines, {"askBroker": "true" if ask_broker else None})


@app.command("calendar", epilog=EXIT_CODES)
def calendar(
    ctx: Context,
    scope: OptionalScope = None,
    subscription: Subscription = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Read the segments of buckets, not only their metadata, for exact due times."),
    ] = False,
    rows: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of rows.")] = 20,
    limit: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Maximum number of entries in no bucket to read.")
    ] = 200_000,
) -> None:
    """Show how many messages are due when: in a topic, a namespace, a tenant, or everywhere.

    The service counts messages in buckets by the buckets' metadata, which has a range of due times for up to some
    thousand messages; the table shows how much later they may be due, and --exact reads the due times. It reads
    messages in no bucket, which are all of them with the in-memory tracker, from their own entries. It loads no topic.
    Exit code 4: --limit was reached, or something could not be read.

    Example: pulsar-sidecar delayed-index calendar public/default --exact
    """
    parameters = {"subscription": subscription, "rows": rows, "limit": limit, "exact": "true" if exact else None}
    found = show_result(ctx, Calendar, f"{scope_path(scope)}/delayedCalendar", _calendar, parameters)
    if found.unread or found.unreadable or any(part.problem for part in found.subscriptions):
        output.info(
            "not everything was counted; read more with --limit, and see the problems with --output-format json"
        )
        raise typer.Exit(ExitCode.NOT_ALL)


def _calendar(found: Calendar) -> Iterator[str]:
    places = found.subscriptions
    unknown = sum(part.problem is not None for part in places)
    missing = f", not counting {unknown:,} that could not be read" if unknown else ""
    where = f"{format_count(len(places) - unknown, 'subscription')} of topics and partitions{missing}"
    yield f"{format_count(found.delayed, 'delayed message')} waiting, in {where}"
    counted = (
        (found.from_buckets, "of them and of those that are due counted in buckets"),
        (found.due, "due and not acknowledged"),
        (found.undelayed, "without a due time"),
        (found.unreadable, "unreadable"),
        (found.unread, "entries beyond the limit, not read"),
    )
    yield from (f"  {count:,} {text}" for count, text in counted if count)
    yield from (f"  {part.topic} {part.subscription}: {part.problem}" for part in places if part.problem)
    times = {time.from_ms // 1000: time.messages for time in found.times}
    if not times:
        return
    late = -(-found.resolution_ms // 1000)
    accuracy = f", due up to {span(late)} later than shown" if late else ""
    yield from due_rows(times, found.step_seconds, accuracy)


def _lines(index: IndexView, *, segments: bool) -> Iterator[str]:
    yield f"{index.topic}  {index.subscription}"
    yield _line("marked delete", index.mark_delete_position or "unknown")
    for name, state in (("configured", index.configured), ("runs on", index.running), ("next load", index.next_load)):
        yield _line(name, f"{_TRACKERS.get(state.tracker, state.tracker)} ({state.reason})")
    if index.problem:
        yield _line("problem", index.problem)
    buckets = index.buckets or ()
    yield _line("buckets", _total(index, buckets) if buckets else "unknown" if index.buckets is None else "none")
    if buckets:
        rows = [row for bucket in buckets for row in (_row(bucket), *(_segments(bucket) if segments else ()))]
        yield from (f"  {line}" for line in format_columns(rows).splitlines())
    for bucket in buckets:
        if bucket.problem:
            yield _line("problem", f"{bucket.name}: {bucket.problem}")


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _total(index: IndexView, buckets: Sequence[BucketView]) -> str:
    counts = (
        f"{format_count(index.indexes or 0, 'message')}, {known_count(index.left)} left, {known_count(index.done)} done"
    )
    missing = f", not counting {index.unreadable:,} unreadable" if index.unreadable else ""
    return f"{len(buckets):,} with {counts}, {format_bytes(index.size_bytes)}{missing}"


def _row(bucket: BucketView) -> dict[str, str]:
    covered = "?" if bucket.start_ledger_id is None else f"{bucket.start_ledger_id}-{bucket.end_ledger_id}"
    return {
        "ledgers": covered,
        "segments": known_count(None if bucket.segments is None else len(bucket.segments)),
        **_counts(bucket, bucket.done),
        "size": "?" if bucket.size_bytes is None else format_bytes(bucket.size_bytes),
        "in ledger": str(bucket.ledger_id),
        "state": bucket.state or "?",
    }


def _segments(bucket: BucketView) -> Iterator[dict[str, str]]:
    for segment in bucket.segments or ():
        done = None if segment.left is None else segment.indexes - segment.left
        yield {"segments": f"entry {segment.entry}", **_counts(segment, done)}


def _counts(part: BucketView | SegmentView, done: int | None) -> dict[str, str]:
    return {
        "left": known_count(part.left),
        "done": known_count(done),
        "due from (UTC)": "-" if part.first_due_ms is None else utc(part.first_due_ms // 1000),
        "due to (UTC)": "-" if part.last_due_ms is None else utc(part.last_due_ms // 1000),
    }
