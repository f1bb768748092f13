"""``pulsar-sidecar delayed-index``: what brokers keep of delayed messages in buckets (PIP-195)."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_bytes, format_columns, format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    OptionalScope,
    Subscription,
    Topic,
    scope_path,
    show_answer,
    subscription_path,
)
from pulsar_sidecar.cli.groups.waiting_messages import due_rows, known_count, span, utc

_NAME_WIDTH = 14
_TRACKERS = {
    "in-memory": "in memory",
    "broken": "BROKEN: the subscription would stop delivering",
}

app = new_group("delayed-index", "Show, check, repair and build brokers' delayed indexes.")


@app.command("show", epilog=EXIT_CODES)
def show(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    segments: Annotated[bool, typer.Option("--segments", help="Show each segment of each bucket.")] = False,
    ask_broker: Annotated[
        bool, typer.Option("--ask-broker", help="Ask the broker that has the topic loaded which tracker it runs.")
    ] = False,
) -> None:
    """Show the buckets of a topic's subscriptions: ledgers, segments, messages left and done, due times, bytes.

    The service reads the metadata store and one entry of each bucket, and loads no topic. It counts acknowledgements as
    stored; a loaded topic may have more. Of a partitioned topic it shows each partition.

    Brokers do not report which tracker a subscription runs on, so for a loaded topic with buckets the answer is
    `unknown`. With --ask-broker the service concludes it from the size of the tracker's queues in the broker's
    statistics; if both trackers may have that size, the answer stays `unknown`.

    Example: pulsar-sidecar delayed-index show persistent://public/default/orders -s billing
    """
    path = f"{subscription_path(topic, subscription)}/delayedIndex"
    indexes = ctx.obj.client().call("GET", path, parameters={"askBroker": "true" if ask_broker else None})
    paragraphs = ["\n".join(_lines(index, segments=segments)) for index in indexes]
    output.answer(indexes, ["\n\n".join(paragraphs) or "no durable subscription"], ctx.obj.format)


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
    answer = show_answer(ctx, "GET", f"{scope_path(scope)}/delayedCalendar", parameters=parameters, lines=_calendar)
    problems = [part for part in answer["subscriptions"] if part["problem"]]
    if answer["unread"] or answer["unreadable"] or problems:
        output.info(
            "not everything was counted; read more with --limit, and see the problems with --output-format json"
        )
        raise typer.Exit(ExitCode.NOT_ALL)


def _calendar(answer: Mapping[str, Any]) -> Iterator[str]:
    places = answer["subscriptions"]
    unknown = sum(part["problem"] is not None for part in places)
    missing = f", not counting {unknown:,} that could not be read" if unknown else ""
    where = f"{format_count(len(places) - unknown, 'subscription')} of topics and partitions{missing}"
    yield f"{format_count(answer['delayed'], 'delayed message')} waiting, in {where}"
    counted = {
        "fromBuckets": "of them and of those that are due counted in buckets",
        "due": "due and not acknowledged",
        "undelayed": "without a due time",
        "unreadable": "unreadable",
        "unread": "entries beyond the limit, not read",
    }
    yield from (f"  {answer[name]:,} {text}" for name, text in counted.items() if answer[name])
    problems = [f"  {part['topic']} {part['subscription']}: {part['problem']}" for part in places if part["problem"]]
    yield from problems
    times = {time["fromMs"] // 1000: time["messages"] for time in answer["times"]}
    if not times:
        return
    step, late = answer["stepSeconds"], -(-answer["resolutionMs"] // 1000)
    accuracy = f", due up to {span(late)} later than shown" if late else ""
    yield from due_rows(times, step, accuracy)


def _lines(index: Mapping[str, Any], *, segments: bool) -> Iterator[str]:
    yield f"{index['topic']}  {index['subscription']}"
    yield _line("marked delete", index["markDeletePosition"] or "unknown")
    for name, field in (("configured", "configured"), ("runs on", "running"), ("next load", "nextLoad")):
        state = index[field]
        yield _line(name, f"{_TRACKERS.get(state['tracker'], state['tracker'])} ({state['reason']})")
    if index["problem"]:
        yield _line("problem", index["problem"])
    buckets = index["buckets"] or ()
    yield _line("buckets", _total(index) if buckets else "unknown" if index["buckets"] is None else "none")
    if buckets:
        rows = [row for bucket in buckets for row in (_row(bucket), *(_segments(bucket) if segments else ()))]
        yield from (f"  {line}" for line in format_columns(rows).splitlines())
    for bucket in buckets:
        if bucket["problem"]:
            yield _line("problem", f"{bucket['name']}: {bucket['problem']}")


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _total(index: Mapping[str, Any]) -> str:
    counts = (
        f"{format_count(index['indexes'], 'message')}, {known_count(index['left'])} left, "
        f"{known_count(index['done'])} done"
    )
    missing = f", not counting {index['unreadable']:,} unreadable" if index["unreadable"] else ""
    return f"{len(index['buckets']):,} with {counts}, {format_bytes(index['sizeBytes'])}{missing}"


def _row(bucket: Mapping[str, Any]) -> dict[str, str]:
    covered = "?" if bucket["startLedgerId"] is None else f"{bucket['startLedgerId']}-{bucket['endLedgerId']}"
    return {
        "ledgers": covered,
        "segments": known_count(None if bucket["segments"] is None else len(bucket["segments"])),
        **_counts(bucket),
        "size": "?" if bucket["sizeBytes"] is None else format_bytes(bucket["sizeBytes"]),
        "in ledger": str(bucket["ledgerId"]),
        "state": bucket["state"] or "?",
    }


def _segments(bucket: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for segment in bucket["segments"] or ():
        done = None if segment["left"] is None else segment["indexes"] - segment["left"]
        yield {"segments": f"entry {segment['entry']}", **_counts(segment | {"done": done})}


def _counts(part: Mapping[str, Any]) -> dict[str, str]:
    first, last = part["firstDueMs"], part["lastDueMs"]
    return {
        "left": known_count(part["left"]),
        "done": known_count(part["done"]),
        "due from (UTC)": "-" if first is None else utc(first // 1000),
        "due to (UTC)": "-" if last is None else utc(last // 1000),
    }
