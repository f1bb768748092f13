"""Entries that have an index: one bitmap per ledger (``Bucket.delayedIndexBitMap``)."""

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from pulsar_sidecar.model.ids import LedgerId


class PositionBits:
    """Positions as bitmaps. Invariant: no bitmap is empty.

    Attributes:
        ledgers: bitmaps by ledger id.
    """

    __slots__ = ("ledgers",)

    def __init__(self, ledgers: "Mapping[LedgerId, BitMap] | None" = None) -> None:
        self.ledgers = dict(ledgers or {})

    @classmethod
    def union(cls, parts: "Iterable[Mapping[LedgerId, BitMap]]") -> "PositionBits":
        """Return the union of the parts, which stay unchanged."""
        united = cls()
        for part in parts:
            for ledger_id, entries in part.items():
                united.add_all(ledger_id, entries)
        return united

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        entries = self.ledgers.get(LedgerId(ledger_id))
        return entries is not None and entry_id in entries

    def of(self, ledger_id: int) -> BitMap | None:
        return self.ledgers.get(LedgerId(ledger_id))

    def add(self, ledger_id: int, entry_id: int) -> None:
        """Add a position, if it is missing."""
        self.ledgers.setdefault(LedgerId(ledger_id), BitMap()).add(entry_id)

    def add_all(self, ledger_id: int, entries: BitMap) -> None:
        """Add entries of one ledger, without keeping ``entries`` itself."""
        mine = self.ledgers.get(LedgerId(ledger_id))
        if mine is None:
            self.ledgers[LedgerId(ledger_id)] = entries.copy()
        else:
            mine |= entries

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Remove a position; return True if it was present."""
        if not self.contains(ledger_id, entry_id):
            return False
        mine = self.ledgers[LedgerId(ledger_id)]
        mine.remove(entry_id)
        if not mine:
            del self.ledgers[LedgerId(ledger_id)]
        return True

    def remove_all(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Remove entries of one ledger, and return those that were present."""
        mine = self.ledgers.get(LedgerId(ledger_id))
        if mine is None:
            return BitMap()
        removed = mine & entries
        mine -= removed
        if not mine:
            del self.ledgers[LedgerId(ledger_id)]
        return removed
