"""Reads a subscription's progress out of ``internalStats``: what is acknowledged, and what is not.

Invariant: a message counts as acknowledged only when the broker's own text says so; a text that cannot be read is an
error, never "nothing is acknowledged".
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from service.model.errors import TemporaryError
from service.model.ids import EntryId, LedgerId
from service.model.positions import Position

_RANGE: Final = re.compile(r"([(\[])(-?\d+):(-?\d+)\.\.(-?\d+):(-?\d+)([)\]])")
_POSITION: Final = re.compile(r"(-?\d+):(-?\d+)")


@dataclass(frozen=True, slots=True)
class _Range:
    """Positions after ``lower`` up to and including ``upper``."""

    lower: Position
    upper: Position


@dataclass(frozen=True, slots=True)
class CursorProgress:
    """A durable cursor's acknowledgements (``ManagedCursor``)."""

    mark_delete: Position
    _ranges: tuple[_Range, ...]

    def acknowledged(self, position: Position) -> bool:
        """Whether the entry is acknowledged as a whole."""
        if position <= self.mark_delete:
            return True
        return any(found.lower < position <= found.upper for found in self._ranges)


def cursor_progress(internal_stats: Mapping[str, object], cursor: str) -> CursorProgress:
    """The progress of one cursor in an ``internalStats`` answer.

    Raises:
        TemporaryError: the answer lacks the cursor, or its text cannot be read.
    """
    cursors = internal_stats.get("cursors")
    found = cursors.get(cursor) if isinstance(cursors, dict) else None
    if not isinstance(found, dict):
        raise TemporaryError(
            f"the broker does not show the subscription {cursor}; start the service again to create it"
        )
    mark_delete = _POSITION.fullmatch(str(found.get("markDeletePosition")))
    ranges_text = found.get("individuallyDeletedMessages")
    if mark_delete is None or not isinstance(ranges_text, str):
        raise TemporaryError(f"the broker's answer about the subscription {cursor} cannot be read; try again")
    return CursorProgress(_position(*mark_delete.groups()), _ranges(ranges_text, cursor))


def _ranges(text: str, cursor: str) -> tuple[_Range, ...]:
    matches = list(_RANGE.finditer(text))
    if _RANGE.sub("", text).strip("[], ") or any(match[6] != "]" for match in matches):
        raise TemporaryError(f"the acknowledged ranges of the subscription {cursor} cannot be read; try again")
    return tuple(_Range(_lower(match), _position(match[4], match[5])) for match in matches)


def _lower(match: re.Match[str]) -> Position:
    position = _position(match[2], match[3])
    if match[1] == "(":
        return position
    return Position(position.ledger_id, EntryId(position.entry_id - 1))


def _position(ledger: str, entry: str) -> Position:
    return Position(LedgerId(int(ledger)), EntryId(int(entry)))
