"""Compact indexes, sorted in packed form: as one number each if 64 bits suffice.

Invariant: the order is that of Java's ``TripleLongPriorityQueue``: due time, ledger, entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pulsar_sidecar.features.delayed_index.segment_bytes import Longs
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

Unsigned = npt.NDArray[np.unsignedinteger[Any]]

_KEY_BITS: Final = 64
_FEW_ENTRIES: Final = 32
_LEDGERS_LISTED: Final = 1 << 16
"""Span of ledger ids up to which listing the present ids is faster than sorting them."""


@dataclass(slots=True, eq=False)
class PackedIndexes:
    """Delayed messages in any order, usually 9 bytes each: 4 of time, 1 of ledger, 4 of entry.

    Instances never change; the class is not frozen because each pop creates a slice of each run.

    Attributes:
        first_ms: time from which ``offsets`` count, milliseconds since the epoch.
        offsets: due times minus ``first_ms``.
        ledger_ids: distinct ledger ids, ascending; may include ledgers without remaining indexes.
        codes: indexes into ``ledger_ids``.
        entries: entry ids.
    """

    first_ms: int
    offsets: Unsigned
    ledger_ids: Longs
    codes: Unsigned
    entries: Unsigned

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def nbytes(self) -> int:
        return sum(_held(column) for column in (self.offsets, self.codes, self.entries, self.ledger_ids))

    def time_at(self, row: int) -> int:
        return self.first_ms + int(self.offsets[row])

    def count_until(self, until_ms: int) -> int:
        """Return the number of rows due by ``until_ms``; the rows must be sorted."""
        offset = until_ms - self.first_ms
        if offset < 0:
            return 0
        if offset >= np.iinfo(self.offsets.dtype).max:
            return len(self)
        # A number of the column's own type: with any other type numpy would convert the whole column.
        return int(self.offsets.searchsorted(self.offsets.dtype.type(offset), side="right"))

    def rows(self, start: int, end: int) -> "PackedIndexes":
        """Return these rows without copying."""
        chosen = slice(start, end)
        return PackedIndexes(
            self.first_ms, self.offsets[chosen], self.ledger_ids, self.codes[chosen], self.entries[chosen]
        )

    def after(self, start: int) -> "PackedIndexes":
        """Return the remaining rows, copied once they are less than half of the held memory, to release it."""
        rest = self.rows(start, len(self))
        if 2 * rest.offsets.nbytes >= _held(self.offsets):
            return rest
        return PackedIndexes(
            rest.first_ms, rest.offsets.copy(), rest.ledger_ids, rest.codes.copy(), rest.entries.copy()
        )

    def position_at(self, row: int) -> Position:
        return Position(LedgerId(int(self.ledger_ids[self.codes[row]])), EntryId(int(self.entries[row])))

    def rows_of_entries(self, entry_ids: Sequence[int]) -> list[int]:
        """Return the rows, ascending, that have one of these entries in any ledger."""
        most = np.iinfo(self.entries.dtype).max
        known = [self.entries.dtype.type(each) for each in entry_ids if each <= most]
        if len(known) > _FEW_ENTRIES:
            return np.flatnonzero(np.isin(self.entries, np.array(known))).tolist()
        found = np.zeros(len(self), np.bool_)
        for entry_id in known:
            found |= self.entries == entry_id
        return found.nonzero()[0].tolist()

    def unpacked(self) -> DelayedIndexes:
        """Return the indexes as three columns of 64 bits."""
        times = self.offsets.astype(np.int64)
        times += self.first_ms
        return DelayedIndexes(times, self.ledger_ids[self.codes], self.entries.astype(np.int64))


NO_PACKED: Final = PackedIndexes(
    0, np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.uint8)
)


def pack(indexes: DelayedIndexes) -> PackedIndexes:
    """Return the indexes in fewer bytes, in the same order."""
    times, ledgers = indexes.deliver_at_ms, indexes.ledgers
    if not len(times):
        return NO_PACKED
    first_ms = int(times.min())
    ledger_ids, codes = _coded(ledgers)
    return PackedIndexes(
        first_ms,
        _narrow(times - first_ms, int(times.max()) - first_ms),
        ledger_ids,
        _narrow(codes, len(ledger_ids) - 1),
        _narrow(indexes.entries, int(indexes.entries.max())),
    )


def sort_packed(parts: Sequence[PackedIndexes], *, parts_are_sorted: bool) -> PackedIndexes:
    """Return all rows of the parts, sorted."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return NO_PACKED
    if len(parts) == 1 and parts_are_sorted:
        return parts[0]
    first_ms = min(part.first_ms for part in parts)
    ledger_ids = parts[0].ledger_ids if len(parts) == 1 else np.unique(np.concatenate([p.ledger_ids for p in parts]))
    offsets = np.concatenate([_moved(part.offsets, part.first_ms - first_ms) for part in parts])
    codes = np.concatenate([_recoded(part, ledger_ids) for part in parts])
    entries = np.concatenate([part.entries.astype(np.uint64) for part in parts])
    last_offset, last_entry = int(offsets.max()), int(entries.max())
    code_shift = last_entry.bit_length()
    time_shift = code_shift + (len(ledger_ids) - 1).bit_length()
    if last_offset.bit_length() + time_shift <= _KEY_BITS:
        keys = offsets << np.uint64(time_shift) | codes << np.uint64(code_shift) | entries
        keys.sort(kind="stable" if parts_are_sorted else None)
        entries = keys & np.uint64((1 << code_shift) - 1)
        codes = keys >> np.uint64(code_shift) & np.uint64((1 << (time_shift - code_shift)) - 1)
        offsets = keys >> np.uint64(time_shift) if time_shift < _KEY_BITS else np.zeros_like(keys)
    else:
        order = np.lexsort((entries, codes, offsets))
        offsets, codes, entries = offsets[order], codes[order], entries[order]
    return PackedIndexes(
        first_ms,
        _narrow(offsets, last_offset),
        ledger_ids,
        _narrow(codes, len(ledger_ids) - 1),
        _narrow(entries, last_entry),
    )


def _coded(ledgers: Longs) -> tuple[Longs, npt.NDArray[np.integer[Any]]]:
    lowest, highest = int(ledgers.min()), int(ledgers.max())
    if lowest == highest:
        return ledgers[:1].copy(), np.zeros(len(ledgers), np.uint8)
    if highest - lowest >= _LEDGERS_LISTED:
        return np.unique(ledgers, return_inverse=True)
    places = ledgers - lowest
    is_there = np.zeros(highest - lowest + 1, np.bool_)
    is_there[places] = True
    return np.flatnonzero(is_there) + lowest, (np.cumsum(is_there) - 1)[places]


def _moved(offsets: Unsigned, by_ms: int) -> npt.NDArray[np.uint64]:
    wide = offsets.astype(np.uint64)
    wide += np.uint64(by_ms)
    return wide


def _recoded(part: PackedIndexes, ledger_ids: Longs) -> npt.NDArray[np.uint64]:
    return np.searchsorted(ledger_ids, part.ledger_ids).astype(np.uint64)[part.codes]


def _narrow(column: npt.NDArray[np.integer[Any]], most: int) -> Unsigned:
    return column.astype(np.min_scalar_type(most))


def _held(column: npt.NDArray[Any]) -> int:
    return column.nbytes if column.base is None else int(column.base.nbytes)
