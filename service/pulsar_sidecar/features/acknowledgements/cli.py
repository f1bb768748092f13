"""``pulsar-sidecar subscriptions``, and the commands of the policy that pauses dispatch (PIP-299)."""

from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from pulsar_sidecar.cli import output
from pulsar_sidecar.cli.command_groups import EXIT_CODES, ExitCode, new_group
from pulsar_sidecar.cli.connecting import (
    Context,
    NamespaceArgument,
    OptionalScope,
    Subscription,
    Topic,
    namespace_path,
    scope_path,
    show_answer,
    show_policy,
    show_result,
    subscription_path,
    topic_path,
)
from pulsar_sidecar.cli.shared_groups import namespaces_app, topics_app
from pulsar_sidecar.features.acknowledgements import results
from pulsar_sidecar.features.acknowledgements.results import PauseState, StoredPlace
from pulsar_sidecar.reports.formatting import format_bytes, format_columns, format_count

_PAUSES = {
    PauseState.OFF: "continues, whatever is lost (no policy enables the pause)",
    PauseState.NOT_APPLICABLE: "continues: only Shared and Key_Shared subscriptions pause",
    PauseState.ARMED: "continues; it pauses when there are too many ranges",
    PauseState.IN_FORCE: "PAUSED: no new messages are read until ranges merge; due delayed messages and redeliveries"
    " continue",
    PauseState.UNKNOWN: "may be paused: brokers do not report whether the topic's own policy is false or unset",
}
_WRITES = {
    StoredPlace.CURSOR_LEDGER: "fits",
    StoredPlace.METADATA_STORE: "TOO LARGE for an entry: the broker writes to the node, and breaks its connections to"
    " bookies",
    None: "FITS NOWHERE: the broker hangs when it writes this",
}
_VALUES = {True: "true", False: "false", None: "unset"}
_NAME_WIDTH = 24
_LEVELS = " .:=#"

app = new_group("subscriptions", "Show how close subscriptions are to the unacked-range limit (PIP-299).")


@app.command("ack-state", epilog=EXIT_CODES)
def ack_state(
    ctx: Context,
    topic: Topic,
    subscription: Subscription = None,
    ranges: Annotated[
        int, typer.Option(min=0, max=100_000, help="Maximum number of lost ranges in --output-format json.")
    ] = 20,
    width: Annotated[int, typer.Option(min=10, max=500, help="Width of the plot in characters.")] = 60,
) -> None:
    """Show a cursor's acknowledgements: ranges held, ranges that fit, stored state, and losses in a crash.

    A broker stores at most managedLedgerMaxUnackedRangesToPersist ranges (10,000 by default) and keeps the others only
    in memory: those messages are delivered again when the broker restarts. With
    dispatcherPauseOnAckStatePersistentEnabled it stops dispatching instead, and its statistics do not show it: this
    command does. The command changes and creates nothing, and loads the topic.

    Example: pulsar-sidecar subscriptions ack-state persistent://public/default/orders -s billing
    """
    path = f"{subscription_path(topic, subscription)}/ackState"
    show_result(ctx, list[results.AckState], path, _states, {"ranges": ranges, "stretches": width})


@app.command("fullest", epilog=EXIT_CODES, short_help="List subscriptions at or near the unacked-range limit.")
def fullest(
    ctx: Context,
    scope: OptionalScope = None,
    holes: Annotated[
        bool, typer.Option("--holes", help="Only subscriptions with acknowledgements beyond the mark-delete position.")
    ] = False,
    contains: Annotated[
        str, typer.Option("--contains", metavar="TEXT", help="Only topics or subscriptions whose names contain this.")
    ] = "",
    offset: Annotated[int, typer.Option(min=0, help="Number of subscriptions to skip.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of subscriptions shown.")] = 50,
) -> None:
    """List the subscriptions with the most stored acknowledged ranges, and how each compares with the limit.

    A subscription is full when it has more ranges than managedLedgerMaxUnackedRangesToPersist. The service reads the
    metadata store and the bookies, and loads no topic; a loaded topic may have acknowledged more since its broker last
    wrote. `ack-state` reads the broker's memory. Exit code 4: not everything could be read.

    Example: pulsar-sidecar subscriptions fullest public/default
    """
    parameters = {"offset": offset, "limit": limit, "holes": "true" if holes else None, "contains": contains or None}
    path = f"{scope_path(scope)}/storedAckStates"
    if show_result(ctx, results.StoredAckStates, path, _fullest, parameters).unreadable:
        raise typer.Exit(ExitCode.NOT_ALL)


def _fullest(answer: results.StoredAckStates) -> Iterator[str]:
    yield (
        f"{format_count(answer.subscriptions, 'subscription')} of "
        f"{format_count(answer.topics, 'topic or partition', 'topics or partitions')}: {answer.full:,} full, "
        f"{answer.nearly_full:,} nearly full (of at most {format_count(answer.max_unacked_ranges_to_persist, 'range')})"
    )
    rows = [
        {
            "topic": state.topic,
            "subscription": state.subscription,
            "ranges": f"{state.ranges:,}",
            "status": state.fullness.value,
            "unacknowledged": f"{state.entries - state.acknowledged:,}",
        }
        for state in answer.states
    ]
    if rows:
        yield from format_columns(rows).splitlines()
    left = answer.found - len(rows)
    if left > 0:
        yield f"{left:,} more; see them with --offset or --limit"
    yield from (f"not read: {reason}" for reason in answer.reasons)


def _states(states: Sequence[results.AckState]) -> Iterator[str]:
    yield "\n\n".join("\n".join(_lines(state)) for state in states) or "no durable subscription"


def _lines(state: results.AckState) -> Iterator[str]:
    kind = state.type or "no type yet"
    yield f"{state.topic}  {state.subscription}  ({kind}, {format_count(state.consumers, 'consumer')})"
    yield _line("acknowledged up to", state.mark_delete_position)
    yield _line("beyond it", _ranges(state))
    yield _line("bytes", _bytes(state))
    yield _line("dispatch", _PAUSES[state.pause])
    policies = state.policies
    namespace, broker = _VALUES[policies.namespace], _VALUES[policies.broker]
    yield _line("policy", f"topic {policies.topic}, namespace {namespace}, broker {broker}")
    yield _line("stored", _stored(state.stored))
    yield from _plot(state.stretches)
    yield _line("if the broker died now", _redelivered(state.after_crash))
    yield _line("if the topic unloads", _redelivered(state.after_unload))
    if state.replicated:
        beyond = format_count(state.individually_acknowledged_entries, "entry")
        yield _line(
            "in other clusters", f"replicated up to there, at each snapshot; {beyond} beyond it: not replicated"
        )
    if state.unacked_messages:
        yield _line("in any case", f"{state.unacked_messages:,} delivered, unacknowledged messages are delivered again")


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _ranges(state: results.AckState) -> str:
    count, limit = state.non_contiguous_deleted_messages_ranges, state.max_unacked_ranges_to_persist
    room = f"room for {state.ranges_left:,} more" if count <= limit else f"{count - limit:,} too many"
    entries, size = state.individually_acknowledged_entries, format_bytes(state.serialized_size_bytes)
    return (
        f"{format_count(count, 'range')} of {limit:,} that fit ({room}), {format_count(entries, 'entry')}, "
        f"{size} when written"
    )


def _bytes(state: results.AckState) -> str:
    entry = f"{format_bytes(state.entry_bytes)} of {format_bytes(state.max_entry_bytes)} in an entry"
    node = f"{format_bytes(state.node_bytes)} of {format_bytes(state.max_node_bytes)} in a node"
    unloadable = "NO BROKER CAN LOAD THE TOPIC AGAIN until maxMessageSize is raised"
    return f"{entry}, {node}: {_WRITES[state.next_write] if state.loadable else unloadable}"


def _stored(stored: results.StoredAcknowledgements | None) -> str:
    if stored is None:
        return "nothing yet"
    place = "in the metadata store"
    if stored.cursor_ledger is not None:
        place = f"in ledger {stored.cursor_ledger}, entry {stored.entry}"
    batches = f", {format_count(stored.batch_deleted_indexes, 'batch')} in part" if stored.batch_deleted_indexes else ""
    return (
        f"{place}: up to {stored.mark_delete_position} and {format_count(stored.ranges, 'range')}{batches}, "
        + format_bytes(stored.size_bytes)
    )


def _plot(stretches: Sequence[results.Stretch]) -> Iterator[str]:
    if not stretches:
        return
    whole = sum(stretch.entries for stretch in stretches)
    yield _line("entries", f"{whole:,} from {stretches[0].first}, a character is about {whole // len(stretches):,}")
    yield _line("  acknowledged", f"|{''.join(level(each.acknowledged, each.entries) for each in stretches)}|")
    yield _line("  stored", f"|{''.join(level(each.stored, each.entries) for each in stretches)}|")


def level(part: float, whole: float) -> str:
    """Return a character for a share: a blank only for nothing, the darkest only for everything."""
    if part <= 0 or whole <= 0:
        return _LEVELS[0]
    if part >= whole:
        return _LEVELS[-1]
    middle = len(_LEVELS) - 2
    return _LEVELS[1 + min(middle - 1, int(part / whole * middle))]


def _redelivered(lost: results.Redelivery) -> str:
    if not lost.entries:
        return "no acknowledged entry is delivered again"
    shown = ", ".join(lost.ranges[:3])
    more = ", ..." if lost.range_count > 3 else ""
    return f"{format_count(lost.entries, 'acknowledged entry')} delivered again" + (f": {shown}{more}" if shown else "")


# --- the policy ----------------------------------------------------------------------------------------------------


_NAME = "dispatcher-pause-on-ack-state-persistent"
_ROUTE = "dispatcherPauseOnAckStatePersistent"
_Applied = Annotated[
    bool,
    typer.Option(
        "--applied", "-ap", help="The policy in effect: the topic's, else the namespace's, else the broker's."
    ),
]
_Force = Annotated[
    bool, typer.Option("--force", "-f", help="Remove it even if the broker then stores a false that overrides a true.")
]


@topics_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_topic(ctx: Context, topic: Topic, applied: _Applied = False) -> None:
    """Print true if the topic's own policy is true; with --applied the policy in effect, null if unknown.

    Example: pulsar-sidecar topics get-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders -ap
    """
    show_policy(ctx, f"{topic_path(topic)}/{_ROUTE}", applied=applied)


@topics_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_topic(ctx: Context, topic: Topic) -> None:
    """Pause a topic's dispatch while acknowledgements do not fit.

    Example: pulsar-sidecar topics set-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    _set(ctx, topic_path(topic))


@topics_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_topic(ctx: Context, topic: Topic, force: _Force = False) -> None:
    """Remove the topic's own policy. Brokers cannot always remove it; the command prints the result.

    Example: pulsar-sidecar topics remove-dispatcher-pause-on-ack-state-persistent persistent://public/default/orders
    """
    path = f"{topic_path(topic)}/{_ROUTE}"
    show_answer(ctx, "DELETE", path, parameters={"force": "true" if force else None})


@namespaces_app.command(f"get-{_NAME}", epilog=EXIT_CODES)
def get_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Print the namespace's policy, or null if it is not set.

    Example: pulsar-sidecar namespaces get-dispatcher-pause-on-ack-state-persistent public/default
    """
    show_policy(ctx, f"{namespace_path(namespace)}/{_ROUTE}")


@namespaces_app.command(f"set-{_NAME}", epilog=EXIT_CODES)
def set_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Pause a namespace's dispatch while acknowledgements do not fit; a topic's own policy overrides it.

    Example: pulsar-sidecar namespaces set-dispatcher-pause-on-ack-state-persistent public/default
    """
    _set(ctx, namespace_path(namespace))


@namespaces_app.command(f"remove-{_NAME}", epilog=EXIT_CODES)
def remove_of_namespace(ctx: Context, namespace: NamespaceArgument) -> None:
    """Remove the namespace's policy; its brokers' configuration applies again, and the command prints the result.

    Example: pulsar-sidecar namespaces remove-dispatcher-pause-on-ack-state-persistent public/default
    """
    show_answer(ctx, "DELETE", f"{namespace_path(namespace)}/{_ROUTE}")


def _set(ctx: Context, place: str) -> None:
    ctx.obj.client().call("POST", f"{place}/{_ROUTE}")
    output.info("set to true")
