"""Acknowledgement states as a person reads them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pulsar_sidecar.cli.output import printable
from pulsar_sidecar.cli.plots import strip

_PAUSES = {
    "off": "goes on whatever is forgotten (no policy asks for a pause)",
    "not applicable": "goes on: only Shared and Key_Shared subscriptions pause",
    "armed": "goes on; it will pause when there are too many ranges",
    "in force": "PAUSED: no new messages are read until ranges merge; due and redelivered ones still come",
    "unknown": "may be paused: brokers do not tell whether the topic's own policy is false or unset",
}
_NAME_WIDTH = 24


def report(states: Sequence[Mapping[str, Any]]) -> str:
    """One paragraph for each subscription of each partition."""
    if not states:
        return "no durable subscription"
    return "\n\n".join("\n".join(_lines(state)) for state in states)


def _lines(state: Mapping[str, Any]) -> Iterator[str]:
    kind = state["type"] or "no type yet"
    yield printable(f"{state['topic']}  {state['subscription']}  ({kind}, {state['consumers']} consumers)")
    yield _line("acknowledged up to", state["markDeletePosition"])
    yield _line("beyond it", _ranges(state))
    yield _line("dispatch", _PAUSES.get(state["pause"], state["pause"]))
    yield _line("policy", _policies(state["policies"]))
    yield _line("stored", _stored(state["stored"]))
    yield from _plot(state)
    yield _line("if the broker died now", _again(state["afterCrash"]))
    yield _line("if the topic unloads", _again(state["afterUnload"]))
    if state["unackedMessages"]:
        yield _line(
            "in any case", f"{state['unackedMessages']:,} delivered messages that nobody acknowledged come again"
        )


def _line(name: str, text: str) -> str:
    return f"  {name:{_NAME_WIDTH}}{text}"


def _ranges(state: Mapping[str, Any]) -> str:
    count, limit = state["nonContiguousDeletedMessagesRanges"], state["maxUnackedRangesToPersist"]
    room = f"room for {state['rangesLeft']:,} more" if count <= limit else f"{count - limit:,} too many"
    entries, size = state["individuallyAcknowledgedEntries"], _size(state["serializedSizeBytes"])
    return f"{count:,} ranges of {limit:,} that fit ({room}), {entries:,} entries, {size} when written"


def _policies(policies: Mapping[str, Any]) -> str:
    says = {True: "true", False: "false", None: "unset"}
    return f"topic {policies['topic']}, namespace {says[policies['namespace']]}, broker {says[policies['broker']]}"


def _stored(stored: Mapping[str, Any] | None) -> str:
    if stored is None:
        return "nothing yet"
    place = "in the metadata store"
    if stored["cursorLedger"] is not None:
        place = f"in ledger {stored['cursorLedger']}, entry {stored['entry']}"
    batches = f", {stored['batchDeletedIndexes']:,} batches in part" if stored["batchDeletedIndexes"] else ""
    return f"{place}: up to {stored['markDeletePosition']} and {stored['ranges']:,} ranges{batches}, " + _size(
        stored["sizeBytes"]
    )


def _plot(state: Mapping[str, Any]) -> Iterator[str]:
    stretches = state["stretches"]
    if not stretches:
        return
    whole = sum(stretch["entries"] for stretch in stretches)
    yield _line("entries", f"{whole:,} from {stretches[0]['first']}, a character is about {whole // len(stretches):,}")
    for name in ("acknowledged", "stored"):
        yield _line(f"  {name}", f"|{strip([(stretch[name], stretch['entries']) for stretch in stretches])}|")


def _again(lost: Mapping[str, Any]) -> str:
    if not lost["entries"]:
        return "no acknowledged entry comes again"
    shown = ", ".join(lost["ranges"][:3])
    more = ", ..." if lost["rangeCount"] > 3 else ""
    return f"{lost['entries']:,} acknowledged entries come again" + (f": {shown}{more}" if shown else "")


def _size(size_bytes: int) -> str:
    return f"{size_bytes:,} bytes" if size_bytes < 10_000 else f"{size_bytes / 1000:,.0f} kB"
