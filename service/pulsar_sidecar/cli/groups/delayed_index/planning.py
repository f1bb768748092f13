"""``pulsar-sidecar delayed-index overdue|forecast|simulate``: overdue messages, and the cost of loads and settings."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from pulsar_sidecar.analysis.formatting import format_bytes, format_count
from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    Subscription,
    Topic,
    show_answer,
    topic_or_namespace_path,
    topic_path,
)
from pulsar_sidecar.cli.groups.delayed_index.show import app
from pulsar_sidecar.cli.words import iso_time

_Limit = Annotated[
    int, typer.Option(min=1, max=100_000_000, help="Maximum number of entries to read from the backlog.")
]
_FIGURES = (
    ("buckets", "buckets", "{:,}"),
    ("sealed", "buckets written", "{:,}"),
    ("merges", "merges", "{:,}"),
    ("segments", "segments", "{:,}"),
    ("indexesInMemory", "indexes in memory", "{:,}"),
    ("memoryBytes", "broker's memory", "{:,} B"),
    ("snapshotBytes", "snapshots", "{:,} B"),
    ("largestSnapshotBytes", "largest snapshot", "{:,} B"),
)


@app.command(epilog=EXIT_CODES)
def overdue(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    late_seconds: Annotated[
        float, typer.Option(min=0, help="Minimum time since the due time, in seconds, of an overdue message.")
    ] = 10.0,
    limit: _Limit = 1_000_000,
) -> None:
    """Show messages that are due and not acknowledged; the reason if it is known, and the remedy.

    The service reads the backlog from the bookies, and the reason from the broker's statistics. It changes nothing, and
    loads the topic. Exit code 4: --limit was reached before the end of the backlog, or an entry could not be read.

    Example: pulsar-sidecar delayed-index overdue persistent://public/default/orders -s billing
    """
    parameters = {"subscription": subscription, "lateMs": round(late_seconds * 1000), "limit": limit}
    path = f"{topic_path(topic)}/delayedIndex/overdue"
    report = show_answer(ctx, "GET", path, parameters=parameters, lines=_overdue_lines)
    if not report["complete"]:
        output.info(f"the backlog has more than {format_count(report['entriesRead'], 'entry')}; read more with --limit")
    if not report["complete"] or any(each["unreadable"] for each in report["subscriptions"]):
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def forecast(
    ctx: Context,
    name: Annotated[
        str, typer.Argument(metavar="TOPIC|NAMESPACE", help="persistent://tenant/namespace/topic or tenant/namespace")
    ],
) -> None:
    """Show what loading a topic would cost its broker now: entries to read again, seconds, memory.

    For a namespace, the command shows the ten most expensive topics or partitions. It asks no broker about a topic and
    loads none. The figures rest on assumptions, which it shows as well. Exit code 4: something could not be read, and
    is not in the figures.

    Example: pulsar-sidecar delayed-index forecast public/default
    """
    found = show_answer(ctx, "GET", f"{topic_or_namespace_path(name)}/delayedIndex/forecast", lines=_forecast_lines)
    if found["unreadable"]:
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def simulate(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    min_index_count: Annotated[
        int | None, typer.Option(min=1, help="delayedDeliveryMinIndexCountPerBucket. Default: the brokers'.")
    ] = None,
    time_step: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="SECONDS",
            help="delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds. Default: the brokers'.",
        ),
    ] = None,
    max_indexes_per_segment: Annotated[
        int | None,
        typer.Option(
            min=-1, help="delayedDeliveryMaxIndexesPerBucketSnapshotSegment; -1 for any number. Default: the brokers'."
        ),
    ] = None,
    max_num_buckets: Annotated[
        int | None,
        typer.Option(min=-1, help="delayedDeliveryMaxNumBuckets; -1 for any number. Default: the brokers'."),
    ] = None,
    shared_index: Annotated[
        bool,
        typer.Option(
            "--shared-index", help="PIP-195's delayedDeliverySharedIndexEnabled: one index for all subscriptions."
        ),
    ] = False,
    cancelled: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEDGER:ENTRY",
            help="A message to cancel in PIP-423's tracker: would a restart forget it? Repeatable.",
        ),
    ] = None,
    limit: _Limit = 1_000_000,
) -> None:
    """Compare a bucket tracker with other settings with today's: put the topic's delayed messages into it.

    The service reads the entries from the bookies into a tracker of its own. It changes nothing in the cluster and
    loads no topic. With --shared-index all subscriptions share one index, beside today's of each together. With
    --cancelled it shows which cancellations a restart would forget if brokers kept them in their buckets.

    Exit code 4: --limit was reached before the end of the backlog, or an entry could not be read.

    Example: pulsar-sidecar delayed-index simulate persistent://public/default/orders --min-index-count 10000
    --time-step 60 --max-num-buckets 50
    """
    parameters = {
        "subscription": subscription,
        "minIndexCount": min_index_count,
        "timeStepSeconds": time_step,
        "maxIndexesPerSegment": max_indexes_per_segment,
        "maxNumBuckets": max_num_buckets,
        "sharedIndex": shared_index or None,
        "cancelled": cancelled,
        "limit": limit,
    }
    path = f"{topic_path(topic)}/delayedIndex/simulate"
    found = show_answer(ctx, "GET", path, parameters=parameters, lines=_simulation_lines)
    if not all(each["complete"] for each in found):
        output.info("a backlog has more entries than the limit; read more with --limit")
    if any(each["unreadable"] or not each["complete"] for each in found):
        raise typer.Exit(ExitCode.NOT_ALL)


# --- as text -------------------------------------------------------------------------------------------------------


def _overdue_lines(report: Mapping[str, Any]) -> Iterator[str]:
    late = [each for each in report["subscriptions"] if each["messages"] or each["unreadable"]]
    if not late:
        yield "nothing is overdue" + (
            "" if report["complete"] else f" in the first {format_count(report['entriesRead'], 'entry')}"
        )
    for each in late:
        yield f"{each['topic']}  {each['subscription']}: {format_count(each['messages'], 'message')} overdue"
        if each["messages"]:
            yield f"  due       {iso_time(each['firstDueMs'])} to {iso_time(each['lastDueMs'])}"
            yield f"  the first {', '.join(one['messageId'] for one in each['sample'])}"
        for one in each["reasons"]:
            yield f"  reason    {one['reason']}: {one['remedy']}"
        if each["messages"] and not each["reasons"]:
            yield "  reason    not known: the broker's statistics show nothing that stops them"
        if each["unreadable"]:
            yield f"  {format_count(each['unreadable'], 'entry')} could not be read"


def _forecast_lines(found: Mapping[str, Any]) -> Iterator[str]:
    tracker = "with" if found["bucketsConfigured"] else "without"
    yield (
        f"{format_count(found['topics'], 'topic or partition', 'topics or partitions')}, brokers {tracker} the "
        f"bucket tracker: {_cost(found['total'])}"
    )
    for topic in found["worst"]:
        yield ""
        yield f"{topic['topic']}: {_cost(topic['asConfigured'])}"
        yield f"  with buckets     {_cost(topic['withBuckets'])}"
        yield f"  without buckets  {_cost(topic['withoutBuckets'])}"
        for each in topic["subscriptions"]:
            waiting = (
                f"{format_count(each['waiting'], 'entry')} waiting, {each['indexed']:,} of them in "
                f"{format_count(each['buckets'], 'bucket')}"
            )
            yield f"  {each['subscription']}: {waiting}; {_cost(each['asConfigured'])}"
            if each["unusable"]:
                yield f"    a broker does not use the buckets: {each['unusable']}"
    yield from (f"not in these figures: {reason}" for reason in found["unreadable"])
    yield ""
    yield from (f"assumed: {text}" for text in found["assumptions"])


def _simulation_lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for each in found:
        others = f"{format_count(each['others'], 'other entry')}"
        if each["unreadable"]:
            others += f", {each['unreadable']:,} of them unreadable"
        yield f"{each['topic']}  {each['subscription']}: {format_count(each['delayed'], 'delayed message')}, {others}"
        today, other = each["today"], each["simulated"]
        yield f"  {'':20}{'today':>24}{'simulated':>24}"
        for name in ("minIndexCount", "timeStepSeconds", "maxIndexesPerSegment", "maxNumBuckets"):
            yield f"  {name:20}{_setting(today, name):>24}{_setting(other, name):>24}"
        for name, text, form in _FIGURES:
            yield f"  {text:20}{form.format(today[name]):>24}{form.format(other[name]):>24}"
        loads = [one["load"] for one in (today, other)]
        yield f"  {'next load reads':20}" + "".join(f"{load['entries']:>24,}" for load in loads)
        yield f"  {'next load takes':20}" + "".join(f"{load['seconds']:>22,.1f} s" for load in loads)
        for title, one in (("today", today), ("simulated", other)):
            if one["failure"]:
                yield f"  {title}: {one['failure']}"
            elif one["settings"] and one["settings"]["breaksDispatch"]:
                yield f"  {title}: a maxNumBuckets of 1, 2 or 3 stops a broker of 4.0.8 at its fourth bucket"
        if each["givenAlthoughAcknowledged"] is not None:
            given = format_count(each["givenAlthoughAcknowledged"], "position")
            yield f"  it gives {given} to subscriptions that acknowledged them"
        if each["cancellations"] is not None:
            yield from _cancellation_lines(each["cancellations"])
        yield ""
    yield from (f"assumed: {text}" for text in (found[0]["assumptions"] if found else ()))


def _cancellation_lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, consequence in (
        ("outlived", "in a bucket: kept at a restart"),
        ("forgotten", "in memory only: forgotten at a restart, and delivered"),
        ("unknown", "of no delayed message that waits"),
    ):
        if found[name]:
            yield f"  {format_count(len(found[name]), 'cancellation')} {consequence}: {', '.join(found[name])}"


def _setting(tracker: Mapping[str, Any], name: str) -> str:
    return "in memory" if tracker["settings"] is None else f"{tracker['settings'][name]:,}"


def _cost(cost: Mapping[str, Any]) -> str:
    return (
        f"{format_count(cost['entries'], 'entry')} to read, {cost['seconds']:,.1f} s, "
        f"{format_bytes(cost['memoryBytes'])}"
    )
