"""``pulsar-sidecar deduplication show|check``: stored deduplication state (PIP-6), and a check of brokers."""

from collections.abc import Iterator
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode
from pulsar_sidecar.cli.connecting import (
    Context,
    NamespaceArgument,
    Topic,
    namespace_path,
    show_result,
    topic_path,
)
from pulsar_sidecar.cli.shared_groups import deduplication_app
from pulsar_sidecar.cli.words import known_count, span
from pulsar_sidecar.features.deduplication.results import (
    CheckOutcome,
    DeduplicationCheck,
    DeduplicationView,
    Replay,
    SnapshotLimits,
    SnapshotView,
)
from pulsar_sidecar.reports.formatting import format_bytes, format_columns, format_count

_NAME_WIDTH = 15
_CHECK_EXIT_CODES = (
    "Exit codes: 0 the duplicate was refused; 2 the message was stored twice; 1 the service answered with an error, or "
    "wrong usage; 3 no answer came; 4 the broker did not decide, or the check's topic is left behind."
)


@deduplication_app.command(
    "show", epilog=EXIT_CODES, short_help="Show a topic's policy, snapshot, replay and retained ledgers."
)
def show(
    ctx: Context,
    topic: Topic,
    replay: Annotated[
        bool, typer.Option("--replay", help="Rebuild the map: the snapshot, then every later entry from the bookies.")
    ] = False,
    limit: Annotated[
        int,
        typer.Option(min=1, max=100_000_000, help="Maximum number of entries that --replay reads of each partition."),
    ] = 500_000,
    producers: Annotated[int, typer.Option(min=0, help="Maximum number of producers listed.")] = 20,
    ask_broker: Annotated[
        bool, typer.Option("--ask-broker", help="Read a loaded topic's status from its broker.")
    ] = False,
) -> None:
    """Show a topic's deduplication: the level that decides, snapshot, cost of the next topic load, retained ledgers.

    The service reads the metadata store and a few entries, and loads no topic. --replay shows the snapshot's map beside
    the map that a broker would recover. Exit code 4: not everything could be read, or the replayed map is incomplete.

    Example: pulsar-sidecar deduplication show persistent://public/default/orders --replay
    """
    parameters: dict[str, str | int | None] = {"askBroker": "true" if ask_broker else None}
    if replay:
        parameters |= {"replay": "true", "limit": limit}
    silent = "; no broker has the topic loaded" if ask_broker else ""

    def lines(views: list[DeduplicationView]) -> list[str]:
        return ["\n\n".join("\n".join(_lines(view, producers, silent)) for view in views)]

    views = show_result(ctx, list[DeduplicationView], f"{topic_path(topic)}/deduplication", lines, parameters)
    if any(view.problem or (view.replay and not view.replay.is_whole) for view in views):
        output.info("not everything could be read; see the problems")
        raise typer.Exit(ExitCode.NOT_ALL)


@deduplication_app.command(
    epilog=_CHECK_EXIT_CODES, short_help="Publish twice to a new topic, and show its broker's reaction."
)
def check(ctx: Context, namespace: NamespaceArgument) -> None:
    """Publish twice under one sequence id to a new topic of a namespace, and show the broker's reaction.

    The topic has a new name (pulsar-sidecar-deduplication-check-...), and the service deletes it afterwards. No
    existing topic is touched.

    Example: pulsar-sidecar deduplication check public/default
    """
    path = f"{namespace_path(namespace)}/deduplication/check"
    found = show_result(ctx, DeduplicationCheck, path, _check_lines, method="POST")
    if found.left_behind or found.outcome is CheckOutcome.UNKNOWN:
        raise typer.Exit(ExitCode.NOT_ALL)
    if found.outcome is CheckOutcome.STORED_TWICE:
        raise typer.Exit(ExitCode.FINDINGS)


def _lines(view: DeduplicationView, most: int, silent: str) -> Iterator[str]:
    """Yield the lines of a view; ``silent`` stands for a missing status."""
    yield view.topic
    status = f"; the broker reports: {view.status}" if view.status else silent
    yield _line("deduplication", f"{view.decision.reason}{status}")
    snapshot, replayed = view.snapshot, view.replay
    if snapshot:
        yield _line("snapshot", _snapshot(snapshot))
        yield _line("limits", _limits(snapshot, view.limits))
        yield _line("since", _since(view))
        yield _line("holds back", _held(view))
    for remark in view.remarks:
        yield _line("remark", remark)
    if replayed:
        yield _line("replay", _replay(replayed))
        yield from (_line("problem", problem) for problem in replayed.problems)
    if view.problem:
        yield _line("problem", view.problem)
    if snapshot:
        yield from _table(snapshot, replayed, most)


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _snapshot(snapshot: SnapshotView) -> str:
    place = "the cursor's node"
    if snapshot.ledger_id is not None:
        place = f"entry {snapshot.entry_id} of ledger {snapshot.ledger_id}"
    age = "" if snapshot.age_ms is None else f"; messages there were published {span(snapshot.age_ms // 1000)} ago"
    replicators = format_count(len(snapshot.replicators), "replicator")
    besides = f" and {replicators}" if snapshot.replicators else ""
    return f"at {snapshot.position}, {format_count(len(snapshot.producers), 'producer')}{besides}, in {place}{age}"


def _limits(snapshot: SnapshotView, limits: SnapshotLimits) -> str:
    return (
        f"{snapshot.names:,} of {known_count(limits.max_producers)} names; {format_bytes(snapshot.size_bytes)}, of "
        f"{format_bytes(limits.max_entry_bytes)} in an entry and {format_bytes(limits.max_node_bytes)} in a node of "
        "a stock ZooKeeper"
    )


def _since(view: DeduplicationView) -> str:
    if view.since is None:
        return "unknown"
    load = f"a topic load replays them in about {view.replay_seconds:,.1f} s"
    if view.decision.enabled is False:
        load = "a topic load replays none of them"
    return f"{format_count(view.since.entries, 'entry')}, {format_bytes(view.since.size_bytes)}: {load}"


def _held(view: DeduplicationView) -> str:
    held, alone = view.held, view.held_alone
    if held is None or not held.ledgers:
        return "unknown" if held is None else "nothing"
    besides = "what other cursors hold is unknown"
    if alone is not None:
        besides = f"no other cursor holds {len(alone.ledgers):,} of them, {format_bytes(alone.size_bytes)}"
    return f"{format_count(len(held.ledgers), 'ledger')}, {format_bytes(held.size_bytes)}; {besides}"


def _replay(replayed: Replay) -> str:
    end = f" up to {replayed.last}" if replayed.last else ""
    verdict = (
        "a broker that loads and deduplicates the topic now gets this map"
        if replayed.is_whole
        else "a broker may get another map"
    )
    return f"{format_count(replayed.entries, 'entry')}{end}, {replayed.markers:,} of them markers; {verdict}"


def _table(snapshot: SnapshotView, replayed: Replay | None, most: int) -> Iterator[str]:
    if replayed:
        theirs = {name for each in snapshot.replicators for name in each.names}
        rows = [
            {"producer": row.name, "snapshot": _id(row.stored), "replayed": _id(row.replayed)}
            for row in replayed.rows
            if row.name not in theirs
        ]
    else:
        rows = [{"producer": row.name, "snapshot": _id(row.last_sequence_id)} for row in snapshot.producers]
    kept = ("snapshot", "replayed") if replayed else ("snapshot",)
    rows += [{"producer": row.producer} | dict.fromkeys(kept, row.position) for row in snapshot.replicators]
    if rows[:most]:
        yield from (f"  {line}" for line in format_columns(rows[:most]).splitlines())
    if len(rows) > most:
        yield f"  and {len(rows) - most:,} more; show them with --producers or --output-format json"


def _id(number: int | None) -> str:
    return "-" if number is None else str(number)


def _check_lines(found: DeduplicationCheck) -> Iterator[str]:
    policy = found.policy
    yield f"{found.namespace}: {found.outcome}"
    yield f"  {found.reason}"
    yield f"  policy   deduplication is {'on' if policy.applied else 'off'}, decided by the {policy.decided_by}"
    yield f"  status   {found.status or 'unknown'}"
    if found.as_configured is False:
        yield "  the broker did not follow the policy; search its log for the topic, then unload the namespace"
    elif not policy.applied:
        yield f"  switch it on with: pulsar-sidecar namespaces set-deduplication {found.namespace} --enable"
    if found.left_behind:
        yield f"  {found.left_behind}"
