"""``pulsar-sidecar delayed-index overdue|forecast|simulate``: overdue messages, costs of topic loads and settings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Final

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    Subscription,
    Topic,
    show_result,
    topic_or_namespace_path,
    topic_path,
)
from pulsar_sidecar.cli.words import iso_time
from pulsar_sidecar.features.delayed_index.cli.show import app
from pulsar_sidecar.features.delayed_index.results.inspection import (
    Forecast,
    LoadCost,
    OverdueReport,
    SimulatedCancellations,
    SimulatedSettings,
    SimulatedTracker,
    Simulation,
)
from pulsar_sidecar.reports.formatting import format_bytes, format_count

_Limit = Annotated[
    int, typer.Option(min=1, max=100_000_000, help="Maximum number of entries to read from the backlog.")
]
_FIGURES: Final[Sequence[tuple[str, Callable[[SimulatedTracker], int], str]]] = (
    ("buckets", lambda tracker: tracker.buckets, ""),
    ("buckets written", lambda tracker: tracker.sealed, ""),
    ("merges", lambda tracker: tracker.merges, ""),
    ("segments", lambda tracker: tracker.segments, ""),
    ("indexes in memory", lambda tracker: tracker.indexes_in_memory, ""),
    ("broker's memory", lambda tracker: tracker.memory_bytes, " B"),
    ("snapshots", lambda tracker: tracker.snapshot_bytes, " B"),
    ("largest snapshot", lambda tracker: tracker.largest_snapshot_bytes, " B"),
    ("topic load reads", lambda tracker: tracker.load.entries, ""),
)
_SETTINGS: Final[Sequence[tuple[str, Callable[[SimulatedSettings], int]]]] = (
    ("minIndexCount", lambda settings: settings.min_index_count),
    ("timeStepSeconds", lambda settings: settings.time_step_seconds),
    ("maxIndexesPerSegment", lambda settings: settings.max_indexes_per_segment),
    ("maxNumBuckets", lambda settings: settings.max_num_buckets),
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
    report = show_result(ctx, OverdueReport, path, _overdue_lines, parameters)
    if not report.complete:
        output.info(f"the backlog has more than {format_count(report.entries_read, 'entry')}; read more with --limit")
    if not report.complete or any(each.unreadable for each in report.subscriptions):
        raise typer.Exit(ExitCode.NOT_ALL)


@app.command(epilog=EXIT_CODES)
def forecast(
    ctx: Context,
    name: Annotated[
        str, typer.Argument(metavar="TOPIC|NAMESPACE", help="persistent://tenant/namespace/topic or tenant/namespace")
    ],
) -> None:
    """Show what loading a topic would cost its broker now: entries to read again, seconds, memory.

    For a namespace, the command shows the ten most expensive topics or partitions. It queries no broker about a topic
    and loads none. The figures rest on assumptions, which it shows as well. Exit code 4: something could not be read,
    and is not in the figures.

    Example: pulsar-sidecar delayed-index forecast public/default
    """
    found = show_result(ctx, Forecast, f"{topic_or_namespace_path(name)}/delayedIndex/forecast", _forecast_lines)
    if found.unreadable:
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
            help="Message to cancel in PIP-423's tracker, to see if a restart forgets that. Repeatable.",
        ),
    ] = None,
    limit: _Limit = 1_000_000,
) -> None:
    """Compare a bucket tracker with other settings to today's tracker.

    The service reads the topic's delayed messages from the bookies into both. It changes nothing in the cluster and
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
    found = show_result(ctx, list[Simulation], path, _simulation_lines, parameters)
    if not all(each.complete for each in found):
        output.info("a backlog has more entries than the limit; read more with --limit")
    if any(each.unreadable or not each.complete for each in found):
        raise typer.Exit(ExitCode.NOT_ALL)


# --- as text -------------------------------------------------------------------------------------------------------


def _overdue_lines(report: OverdueReport) -> Iterator[str]:
    late = [each for each in report.subscriptions if each.messages or each.unreadable]
    if not late:
        yield "nothing is overdue" + (
            "" if report.complete else f" in the first {format_count(report.entries_read, 'entry')}"
        )
    for each in late:
        yield f"{each.topic}  {each.subscription}: {format_count(each.messages, 'message')} overdue"
        if each.first_due_ms is not None and each.last_due_ms is not None:
            yield f"  due       {iso_time(each.first_due_ms)} to {iso_time(each.last_due_ms)}"
            yield f"  the first {', '.join(one.message_id for one in each.sample)}"
        yield from (f"  reason    {one.reason}: {one.remedy}" for one in each.reasons)
        if each.messages and not each.reasons:
            yield "  reason    not known: the broker's statistics show nothing that stops them"
        if each.unreadable:
            yield f"  {format_count(each.unreadable, 'entry')} could not be read"


def _forecast_lines(found: Forecast) -> Iterator[str]:
    tracker = "with" if found.buckets_configured else "without"
    yield (
        f"{format_count(found.topics, 'topic or partition', 'topics or partitions')}, brokers {tracker} the "
        f"bucket tracker: {_cost(found.total)}"
    )
    for topic in found.worst:
        yield ""
        yield f"{topic.topic}: {_cost(topic.as_configured)}"
        yield f"  with buckets     {_cost(topic.with_buckets)}"
        yield f"  without buckets  {_cost(topic.without_buckets)}"
        for each in topic.subscriptions:
            buckets = format_count(each.buckets, "bucket")
            waiting = f"{format_count(each.waiting, 'entry')} waiting, {each.indexed:,} of them in {buckets}"
            yield f"  {each.subscription}: {waiting}; {_cost(each.as_configured)}"
            if each.unusable:
                yield f"    a broker does not use the buckets: {each.unusable}"
    yield from (f"not in these figures: {reason}" for reason in found.unreadable)
    yield ""
    yield from (f"assumed: {text}" for text in found.assumptions)


def _simulation_lines(found: Sequence[Simulation]) -> Iterator[str]:
    for each in found:
        others = f"{format_count(each.others, 'other entry')}"
        if each.unreadable:
            others += f", {each.unreadable:,} of them unreadable"
        yield f"{each.topic}  {each.subscription}: {format_count(each.delayed, 'delayed message')}, {others}"
        trackers = each.today, each.simulated
        yield f"  {'':20}{'today':>24}{'simulated':>24}"
        for name, setting in _SETTINGS:
            yield _row(
                name, ("in memory" if one.settings is None else f"{setting(one.settings):,}" for one in trackers)
            )
        for name, figure, unit in _FIGURES:
            yield _row(name, (f"{figure(one):,}{unit}" for one in trackers))
        yield _row("topic load takes", (f"{one.load.seconds:,.1f} s" for one in trackers))
        for title, one in (("today", each.today), ("simulated", each.simulated)):
            if one.failure:
                yield f"  {title}: {one.failure}"
            elif one.settings and one.settings.breaks_dispatch:
                yield f"  {title}: a maxNumBuckets of 1, 2 or 3 stops a broker of 4.0.8 at its fourth bucket"
        if each.given_although_acknowledged is not None:
            given = format_count(each.given_although_acknowledged, "position")
            yield f"  it gives {given} to subscriptions that acknowledged them"
        if each.cancellations is not None:
            yield from _cancellation_lines(each.cancellations)
        yield ""
    yield from (f"assumed: {text}" for text in (found[0].assumptions if found else ()))


def _row(name: str, values: Iterable[str]) -> str:
    return f"  {name:20}" + "".join(f"{value:>24}" for value in values)


def _cancellation_lines(found: SimulatedCancellations) -> Iterator[str]:
    for positions, consequence in (
        (found.outlived, "in a bucket: kept at a restart"),
        (found.forgotten, "in memory only: forgotten at a restart, and delivered"),
        (found.unknown, "of no delayed message that waits"),
    ):
        if positions:
            yield f"  {format_count(len(positions), 'cancellation')} {consequence}: {', '.join(positions)}"


def _cost(cost: LoadCost) -> str:
    memory = format_bytes(cost.memory_bytes)
    return f"{format_count(cost.entries, 'entry')} to read, {cost.seconds:,.1f} s, {memory}"
