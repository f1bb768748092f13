"""Positions in a managed ledger."""

from dataclasses import dataclass

from service.model.ids import EntryId, LedgerId


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A ledger and an entry in it, as Pulsar prints it: ``ledgerId:entryId``."""

    ledger_id: LedgerId
    entry_id: EntryId

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"
