"""Which entries of which ledgers have an index: a bitmap a ledger (``Bucket.delayedIndexBitMap``)."""

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from pulsar_sidecar.model.ids import LedgerId


class PositionBits:
    """Invariant: no bitmap is empty.

    Attributes:
        ledgers: by ledger id.
    """

    __slots__ = ("ledgers",)

    def __init__(self, ledgers: "Mapping[LedgerId, BitMap] | None" = None) -> None:
        self.ledgers = dict(ledgers or {})

    @classmethod
    def union(cls, parts: "Iterable[Mapping[LedgerId, BitMap]]") -> "PositionBits":
        """What any part has; the parts stay as they are."""
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
        """One more; one that is in stays in."""
        self.ledgers.setdefault(LedgerId(ledger_id), BitMap()).add(entry_id)

    def add_all(self, ledger_id: int, entries: BitMap) -> None:
        """As many; ``entries`` itself is not kept."""
        mine = self.ledgers.get(LedgerId(ledger_id))
        if mine is None:
            self.ledgers[LedgerId(ledger_id)] = entries.copy()
        else:
            mine |= entries

    def remove(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was in."""
        if not self.contains(ledger_id, entry_id):
            return False
        mine = self.ledgers[LedgerId(ledger_id)]
        mine.remove(entry_id)
        if not mine:
            del self.ledgers[LedgerId(ledger_id)]
        return True

    def remove_all(self, ledger_id: int, entries: BitMap) -> BitMap:
        """Those that were in."""
        mine = self.ledgers.get(LedgerId(ledger_id))
        if mine is None:
            return BitMap()
        removed = mine & entries
        mine -= removed
        if not mine:
            del self.ledgers[LedgerId(ledger_id)]
        return removed
