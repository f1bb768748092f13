"""Reads a subscription's progress out of ``internalStats``: what is acknowledged, and what is not.

Invariant: a message counts as acknowledged only when the broker's own text says so; a text that cannot be read is an
error, never "nothing is acknowledged".
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges, within_ledgers
from pulsar_sidecar.model.positions import Position

_ONE: Final = r"[(\[]-?\d+:-?\d+\.\.-?\d+:-?\d+\]"
_ALL: Final = re.compile(rf"\[ *(?:{_ONE} *(?:, *{_ONE} *)*)?\]")
_BOUND: Final = re.compile(r"[(\[](?=-?\d)")
_ONLY_NUMBERS: Final = bytes(byte if byte in b"-0123456789" else ord(" ") for byte in range(256))
_POSITION: Final = re.compile(r"(-?\d+):(-?\d+)")
_COMPACTION_CURSOR: Final = "__compaction"


@dataclass(frozen=True, slots=True)
class Compaction:
    """A topic's last compaction.

    Attributes:
        ledger_id: what it wrote; another one after each compaction, -1 before the first.
        horizon: up to where readers of the compacted view get what it left.
    """

    ledger_id: LedgerId
    horizon: Position


def cursor_progress(internal_stats: Mapping[str, object], cursor: str) -> PositionRanges:
    """What one durable cursor (by its name in the store) has acknowledged as whole entries (``ManagedCursor``).

    Raises:
        TemporaryError: the answer lacks the cursor, or its text cannot be read.
    """
    found = cursor_stats(internal_stats, cursor)
    ranges_text = found.get("individuallyDeletedMessages")
    mark_delete = position_of_text(found.get("markDeletePosition"))
    try:
        quickly = _usual(mark_delete, str(ranges_text).encode())
        if quickly is not None:
            return quickly
        return PositionRanges.of(mark_delete, _ranges(_whole(ranges_text), ledger_lengths(internal_stats)))
    except ValueError as error:
        message = f"the acknowledged ranges of the subscription {cursor} cannot be read; try again"
        raise TemporaryError(message) from error


def cursor_stats(internal_stats: Mapping[str, object], cursor: str) -> Mapping[str, object]:
    """What the broker says of one cursor (``ManagedLedgerInternalStats.CursorStats``)."""
    cursors = internal_stats.get("cursors")
    found = cursors.get(cursor) if isinstance(cursors, dict) else None
    if not isinstance(found, dict):
        raise TemporaryError(f"the broker does not show the subscription {cursor}; does it exist? Then try again")
    return found


def ledger_lengths(internal_stats: Mapping[str, object]) -> dict[LedgerId, int]:
    """The entries of each of the topic's ledgers, the one that is written to included."""
    listed = internal_stats.get("ledgers")
    try:
        lengths = {LedgerId(int(each["ledgerId"])): int(each["entries"]) for each in listed or ()}  # type: ignore[attr-defined]
    except (KeyError, TypeError, ValueError) as error:
        raise TemporaryError("a broker's list of a topic's ledgers cannot be read; try again") from error
    if lengths:
        last = position_of_text(internal_stats.get("lastConfirmedEntry"))
        lengths[last.ledger_id] = max(lengths.get(last.ledger_id, 0), last.entry_id + 1)
    return lengths


def compaction_of(internal_stats: Mapping[str, object]) -> Compaction:
    """The topic's last compaction; of a topic that never was compacted, one that left nothing anywhere.

    Raises:
        TemporaryError: the answer cannot be read.
    """
    compacted = internal_stats.get("compactedLedger")
    ledger_id = compacted.get("ledgerId") if isinstance(compacted, dict) else None
    if not isinstance(ledger_id, int):
        raise TemporaryError("a broker does not tell of a topic's compaction; try again")
    if ledger_id < 0:
        return Compaction(LedgerId(-1), Position(LedgerId(-1), EntryId(-1)))
    cursor = cursor_stats(internal_stats, _COMPACTION_CURSOR)
    return Compaction(LedgerId(ledger_id), position_of_text(cursor.get("markDeletePosition")))


def position_of_text(text: object) -> Position:
    """A position as brokers print it, ``ledgerId:entryId``.

    Raises:
        TemporaryError: it is none.
    """
    match = _POSITION.fullmatch(str(text))
    if match is None:
        raise TemporaryError(f"a broker answered {text!r:.80} where a position was expected; try again")
    return _position(match[1], match[2])


def _usual(mark_delete: Position, text: bytes) -> PositionRanges | None:
    """Ranges of one ledger that all exclude their lower bound, as brokers mostly write them; None for others."""
    numbers = text.translate(_ONLY_NUMBERS).split()
    count = len(numbers) // 4
    between = text.translate(None, b"-0123456789 ")
    if not count or len(numbers) % 4 or between != b"[" + b",".join([b"(:..:]"] * count) + b"]":
        return None
    ledgers = {*numbers[0::4], *numbers[2::4]}
    if len(ledgers) > 1:
        return None
    firsts = [lower + 1 for lower in map(int, numbers[1::4])]
    return PositionRanges.of_one_ledger(
        mark_delete, LedgerId(int(ledgers.pop())), firsts, list(map(int, numbers[3::4]))
    )


def _whole(text: object) -> str:
    if not isinstance(text, str) or not _ALL.fullmatch(text):
        raise ValueError("this is no list of ranges")
    return text


def _ranges(text: str, lengths: Mapping[LedgerId, int]) -> Iterable[EntryRange]:
    # Ten thousand ranges are usual, so what can be done for all of them at once is.
    numbers = list(map(int, text.encode().translate(_ONLY_NUMBERS).split()))
    lower_ledgers, lowers, upper_ledgers, uppers = (numbers[start::4] for start in range(4))
    bounds = _BOUND.findall(text) if text.count("[") > 1 else "(" * len(lowers)
    firsts = [lower + (bound == "(") for lower, bound in zip(lowers, bounds, strict=True)]
    if lower_ledgers == upper_ledgers:
        return map(EntryRange._make, zip(upper_ledgers, firsts, uppers, strict=True))
    return (
        cut
        for lower_ledger, first, upper_ledger, upper in zip(lower_ledgers, firsts, upper_ledgers, uppers, strict=True)
        for cut in within_ledgers(_position(lower_ledger, first - 1), _position(upper_ledger, upper), lengths)
    )


def _position(ledger: str | int, entry: str | int) -> Position:
    return Position(LedgerId(int(ledger)), EntryId(int(entry)))
