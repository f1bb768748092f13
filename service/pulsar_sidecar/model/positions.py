"""Positions in a managed ledger."""

from typing import NamedTuple

from pulsar_sidecar.model.ids import EntryId, LedgerId


class Position(NamedTuple):
    """A ledger and an entry in it, as Pulsar prints it: ``ledgerId:entryId``; positions ascend as in a managed ledger.

    A tuple, because it is made and looked up for every entry of every bulk request.
    """

    ledger_id: LedgerId
    entry_id: EntryId

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"
