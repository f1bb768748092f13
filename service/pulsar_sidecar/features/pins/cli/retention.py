"""``pulsar-sidecar retention``: what unloaded topics keep past their retention."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, ServiceRefusedError, new_group
from pulsar_sidecar.cli.connecting import Client, Context, OptionalScope, scope_path, show_made, topic_path
from pulsar_sidecar.cli.words import iso_time
from pulsar_sidecar.features.pins.results import (
    Reclaimable,
    SweepPlan,
    SweepRun,
    TrimmedTopic,
    TrimState,
    UnloadedTopics,
)
from pulsar_sidecar.features.pins.sweep_plan import plan_of
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.reports.formatting import format_bytes, format_columns, format_count

_SHOWN = 20
_MOST_FAILURES = 3
_FAILURES = frozenset({TrimState.FAILED, TrimState.UNFINISHED})

app = new_group("retention", "Find and trim what unloaded topics keep past their retention.")


@app.command(epilog=EXIT_CODES)
def sweep(
    ctx: Context,
    scope: OptionalScope = None,
    price_per_gb_month: Annotated[
        float | None,
        typer.Option(
            "--price-per-gb-month", metavar="PRICE", min=0, help="Price of 1,000,000,000 bytes on bookies for a month."
        ),
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Trim the topics. Default: only show them.")] = False,
    rate: Annotated[
        float, typer.Option("--rate", metavar="NUMBER", min=0.1, help="Maximum number of topics to load per minute.")
    ] = 60.0,
    max_load: Annotated[
        float,
        typer.Option(
            "--max-load",
            metavar="PERCENT",
            min=1,
            max=100,
            help="Stop when the use of a broker's CPU, direct memory or bandwidth exceeds this.",
        ),
    ] = 70.0,
) -> None:
    """Find topics that no broker has loaded, with ledgers past retention; trim them.

    Brokers trim only the topics that they have loaded, so these are not trimmed. The output has the bytes that a trim
    would free, by tenant, namespace and topic. Ledgers that a subscription still needs are not counted.

    Without --execute it loads no topic, and changes nothing. A topic is left, with the reason, if loading it could do
    more than trim it: brokers delete inactive topics, expire subscriptions and skip expired messages of the topics that
    they have loaded.

    With --execute a broker loads one topic after the other, the largest first, trims it and unloads it again. It stops
    when a broker's load rises. Whenever it ends, repeat it: it continues, and does nothing twice. Exit code 4: it
    stopped before the end, or a topic could not be trimmed.

    Example: pulsar-sidecar retention sweep public --price-per-gb-month 0.08

    Then: pulsar-sidecar retention sweep public --execute --rate 30
    """
    client = ctx.obj.client()
    pages = _pages(client, f"{scope_path(scope)}/pastRetention")
    plan = plan_of(pages, price_per_gb_month)
    if not execute:
        show_made(ctx, plan, _of_plan(plan))
        if plan.freed.topics:
            output.info("nothing was changed; trim them with --execute")
        return
    run = _carry_out(client, plan, 60 / rate, max_load)
    show_made(ctx, run, _of_run(run))
    if run.stopped or any(each.state in _FAILURES for each in run.others):
        raise typer.Exit(ExitCode.NOT_ALL)


def _carry_out(client: Client, plan: SweepPlan, pause_seconds: float, max_load: float) -> SweepRun:
    chosen = [topic for topic in plan.topics if topic.obstacle is None]
    done: list[TrimmedTopic] = []
    clock, stopped = SystemClock(), None
    with output.ProgressBar("topics trimmed", output.info, with_rate=True) as bar:
        for number, topic in enumerate(chosen, 1):
            began = clock.monotonic_seconds()
            done.append(_trimmed(client, topic.topic, max_load))
            stopped = _reason_to_stop(done)
            if stopped is not None:
                break
            bar.report(number, len(chosen), f"{format_bytes(sum(each.on_bookies_bytes for each in done))} on bookies")
            if number < len(chosen):
                clock.wait_seconds(pause_seconds - (clock.monotonic_seconds() - began))
    return SweepRun(
        planned_topics=len(chosen),
        trimmed_topics=sum(each.state is TrimState.TRIMMED for each in done),
        ledgers=sum(each.ledgers for each in done),
        bytes=sum(each.bytes for each in done),
        on_bookies_bytes=sum(each.on_bookies_bytes for each in done),
        others=tuple(each for each in done if each.detail),
        stopped=stopped,
    )


def _trimmed(client: Client, topic: str, max_load: float) -> TrimmedTopic:
    path = f"{topic_path(topic)}/pastRetention"
    try:
        return client.result(TrimmedTopic, "POST", path, parameters={"maxLoadPercent": max_load})
    except ServiceRefusedError as error:
        return TrimmedTopic(topic, TrimState.FAILED, str(error))


def _reason_to_stop(done: Sequence[TrimmedTopic]) -> str | None:
    if done[-1].state is TrimState.BROKERS_BUSY:
        return f"{done[-1].detail}; repeat the sweep when it is less busy, or with a higher --max-load"
    if [each.state for each in done[-_MOST_FAILURES:]] == [TrimState.FAILED] * _MOST_FAILURES:
        return f"the last {_MOST_FAILURES} topics failed: {done[-1].detail}; repeat the sweep once that is fixed"
    return None


def _of_run(run: SweepRun) -> Iterator[str]:
    yield f"trimmed {run.trimmed_topics:,} of {format_count(run.planned_topics, 'topic')}"
    freed = f"{format_bytes(run.bytes)} ({format_bytes(run.on_bookies_bytes)} on bookies, after their next collections)"
    yield f"deleted {format_count(run.ledgers, 'ledger')}, {freed}"
    yield from (f"{each.state}: {each.topic}: {each.detail}" for each in run.others)
    if run.stopped:
        yield f"stopped: {run.stopped}"


def _pages(client: Client, path: str) -> Sequence[UnloadedTopics]:
    pages: list[UnloadedTopics] = []
    examined = 0
    with output.ProgressBar("topics examined", output.info) as bar:
        while True:
            after = pages[-1].after if pages else None
            pages.append(client.result(UnloadedTopics, "GET", path, parameters={"after": after}))
            examined += pages[-1].examined
            if pages[-1].after is None:
                return pages
            bar.report(examined, examined + pages[-1].remaining)


def _of_plan(plan: SweepPlan) -> Iterator[str]:
    topics = format_count(plan.examined, "topic or partition", "topics or partitions")
    yield f"{topics} as of {iso_time(plan.read_ms)}: {plan.loaded:,} loaded, which brokers trim"
    yield f"trimming the others frees {_sizes(plan.freed)}"
    for title, groups in (("tenant", plan.tenants), ("namespace", plan.namespaces), ("skipped because", plan.left)):
        if groups:
            yield ""
            yield from format_columns([{title: each.name, **_row(each)} for each in groups[:_SHOWN]]).splitlines()
    if plan.topics:
        yield ""
        rows = [
            {
                "topic": each.topic,
                "ledgers": f"{each.ledgers:,}",
                "on bookies": format_bytes(each.on_bookies_bytes),
                "skipped because": f"{each.obstacle}: {each.detail}" if each.obstacle else "",
            }
            for each in plan.topics[:_SHOWN]
        ]
        yield from format_columns(rows).splitlines()
    if len(plan.topics) > _SHOWN:
        yield f"{len(plan.topics) - _SHOWN:,} more topics, which --output-format json lists"
    yield from (f"its list cannot be read: {topic}" for topic in plan.unreadable)


def _sizes(freed: Reclaimable) -> str:
    price = "" if freed.price_per_month is None else f", {freed.price_per_month:,.2f} a month"
    copies = f"{format_bytes(freed.bytes)} ({format_bytes(freed.on_bookies_bytes)} on bookies{price})"
    return f"{format_count(freed.ledgers, 'ledger')} of {format_count(freed.topics, 'topic')}, {copies}"


def _row(each: Reclaimable) -> dict[str, str]:
    price = {} if each.price_per_month is None else {"a month": f"{each.price_per_month:,.2f}"}
    return {
        "topics": f"{each.topics:,}",
        "ledgers": f"{each.ledgers:,}",
        "on bookies": format_bytes(each.on_bookies_bytes),
        **price,
    }
