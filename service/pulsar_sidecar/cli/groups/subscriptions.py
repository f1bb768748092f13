"""``pulsar-sidecar subscriptions``: what brokers' statistics do not show of subscriptions."""

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

_PAUSES = {
    "off": "continues whatever is lost (no policy enables the pause)",
    "not applicable": "continues: only Shared and Key_Shared subscriptions pause",
    "armed": "continues; it pauses when there are too many ranges",
    "in force": "PAUSED: no new messages are read until ranges merge; due delayed messages and redeliveries continue",
    "unknown": "may be paused: brokers do not report whether the topic's own policy is false or unset",
}
_WRITES = {
    "cursor ledger": "fits",
    "metadata store": "TOO LARGE for an entry: the broker writes to the node, and breaks its connections to bookies",
    None: "FITS NOWHERE: the broker hangs when it writes this",
}
_NAME_WIDTH = 24
_LEVELS = " .:=#"

app = new_group("subscriptions", "Show how full acknowledgement states are (PIP-299).")


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
    """Show a cursor's acknowledgements: how many ranges it holds, how many fit, what is stored, what would be lost.

    A broker stores at most managedLedgerMaxUnackedRangesToPersist ranges (10,000 by default) and keeps the others only
    in memory: those messages are delivered again when the broker restarts. With
    dispatcherPauseOnAckStatePersistentEnabled it stops dispatching instead, and its statistics do not show it: this
    command does. The command changes and creates nothing, and loads the topic.

    Example: pulsar-sidecar subscriptions ack-state persistent://public/default/orders -s billing
    """
    path = f"{subscription_path(topic, subscription)}/ackState"
    states = ctx.obj.client().call("GET", path, parameters={"ranges": ranges, "stretches": width})
    paragraphs = ["\n".join(_lines(state)) for state in states]
    output.answer(states, ["\n\n".join(paragraphs) or "no durable subscription"], ctx.obj.format)


@app.command("fullest", epilog=EXIT_CODES, short_help="Find subscriptions that are full, or will be soon.")
def fullest(
    ctx: Context,
    scope: OptionalScope = None,
    holes: Annotated[
        bool, typer.Option("--holes", help="Only subscriptions with acknowledgements beyond the mark-delete position.")
    ] = False,
    contains: Annotated[
        str, typer.Option("--contains", metavar="TEXT", help="Only topics or subscriptions with this in their names.")
    ] = "",
    offset: Annotated[int, typer.Option(min=0, help="Number of subscriptions to pass over.")] = 0,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of subscriptions shown.")] = 50,
) -> None:
    """Find the subscriptions with the most acknowledged ranges, as stored: full, nearly full, or with room.

    A subscription is full when it has more ranges than managedLedgerMaxUnackedRangesToPersist. The service reads the
    metadata store and the bookies, and loads no topic; a loaded topic may have acknowledged more since its broker last
    wrote. `ack-state` asks the broker. Exit code 4: not everything could be read.

    Example: pulsar-sidecar subscriptions fullest public/default
    """
    parameters = {"offset": offset, "limit": limit, "holes": "true" if holes else None, "contains": contains or None}
    path = f"{scope_path(scope)}/storedAckStates"
    answer = show_answer(ctx, "GET", path, parameters=parameters, lines=_fullest)
    if answer["unreadable"]:
        raise typer.Exit(ExitCode.NOT_ALL)


def _fullest(answer: Mapping[str, Any]) -> Iterator[str]:
    fits = answer["maxUnackedRangesToPersist"]
    yield (
        f"{format_count(answer['subscriptions'], 'subscription')} of "
        f"{format_count(answer['topics'], 'topic or partition', 'topics or partitions')}: "
        f"{answer['full']:,} full, {answer['nearlyFull']:,} nearly full (of at most {format_count(fits, 'range')})"
    )
    rows = [
        {
            "topic": state["topic"],
            "subscription": state["subscription"],
            "ranges": f"{state['ranges']:,}",
            "fullness": state["fullness"],
            "unacknowledged": f"{state['entries'] - state['acknowledged']:,}",
        }
        for state in answer["states"]
    ]
    if rows:
        yield from format_columns(rows).splitlines()
    left = answer["found"] - len(rows)
    if left > 0:
        yield f"{left:,} more; see them with --offset or --limit"
    yield from (f"not read: {reason}" for reason in answer["reasons"])


def _lines(state: Mapping[str, Any]) -> Iterator[str]:
    kind = state["type"] or "no type yet"
    yield f"{state['topic']}  {state['subscription']}  ({kind}, {format_count(state['consumers'], 'consumer')})"
    yield _line("acknowledged up to", state["markDeletePosition"])
    yield _line("beyond it", _ranges(state))
    yield _line("bytes", _bytes(state))
    yield _line("dispatch", _PAUSES.get(state["pause"], state["pause"]))
    yield _line("policy", _policies(state["policies"]))
    yield _line("stored", _stored(state["stored"]))
    yield from _plot(state)
    yield _line("if the broker died now", _again(state["afterCrash"]))
    yield _line("if the topic unloads", _again(state["afterUnload"]))
    if state["unackedMessages"]:
        yield _line(
            "in any case", f"{state['unackedMessages']:,} delivered, unacknowledged messages are delivered again"
        )


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _ranges(state: Mapping[str, Any]) -> str:
    count, limit = state["nonContiguousDeletedMessagesRanges"], state["maxUnackedRangesToPersist"]
    room = f"room for {state['rangesLeft']:,} more" if count <= limit else f"{count - limit:,} too many"
    entries, size = state["individuallyAcknowledgedEntries"], format_bytes(state["serializedSizeBytes"])
    return (
        f"{format_count(count, 'range')} of {limit:,} that fit ({room}), {format_count(entries, 'entry')}, "
        f"{size} when written"
    )


def _bytes(state: Mapping[str, Any]) -> str:
    entry, node = (
        f"{format_bytes(state[f'{name}Bytes'])} of {format_bytes(state[f'max{name.title()}Bytes'])}"
        for name in ("entry", "node")
    )
    sizes = f"{entry} in an entry, {node} in a node: "
    if not state["loadable"]:
        return sizes + "NO BROKER CAN LOAD THE TOPIC AGAIN until maxMessageSize is raised"
    return sizes + _WRITES[state["nextWrite"]]


def _policies(policies: Mapping[str, Any]) -> str:
    values = {True: "true", False: "false", None: "unset"}
    return f"topic {policies['topic']}, namespace {values[policies['namespace']]}, broker {values[policies['broker']]}"


def _stored(stored: Mapping[str, Any] | None) -> str:
    if stored is None:
        return "nothing yet"
    place = "in the metadata store"
    if stored["cursorLedger"] is not None:
        place = f"in ledger {stored['cursorLedger']}, entry {stored['entry']}"
    batches = (
        f", {format_count(stored['batchDeletedIndexes'], 'batch')} in part" if stored["batchDeletedIndexes"] else ""
    )
    return (
        f"{place}: up to {stored['markDeletePosition']} and {format_count(stored['ranges'], 'range')}{batches}, "
        + format_bytes(stored["sizeBytes"])
    )


def _plot(state: Mapping[str, Any]) -> Iterator[str]:
    stretches = state["stretches"]
    if not stretches:
        return
    whole = sum(stretch["entries"] for stretch in stretches)
    yield _line("entries", f"{whole:,} from {stretches[0]['first']}, a character is about {whole // len(stretches):,}")
    for name in ("acknowledged", "stored"):
        plot = "".join(level(stretch[name], stretch["entries"]) for stretch in stretches)
        yield _line(f"  {name}", f"|{plot}|")


def level(part: float, whole: float) -> str:
    """One character for a share: a blank for nothing, the darkest for everything, never either of them in between."""
    if part <= 0 or whole <= 0:
        return _LEVELS[0]
    if part >= whole:
        return _LEVELS[-1]
    middle = len(_LEVELS) - 2
    return _LEVELS[1 + min(middle - 1, int(part / whole * middle))]


def _again(lost: Mapping[str, Any]) -> str:
    if not lost["entries"]:
        return "no acknowledged entry is delivered again"
    shown = ", ".join(lost["ranges"][:3])
    more = ", ..." if lost["rangeCount"] > 3 else ""
    return f"{format_count(lost['entries'], 'acknowledged entry')} delivered again" + (
        f": {shown}{more}" if shown else ""
    )
