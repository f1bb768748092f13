"""Identifiers that must not be mixed up, and positions, which are made of two of them."""

from typing import NamedTuple, NewType

LedgerId = NewType("LedgerId", int)
"""A BookKeeper ledger id: a non-negative 63-bit integer, always compared as an integer."""

EntryId = NewType("EntryId", int)
"""An entry's number inside a ledger; -1 means "before the first entry"."""

NodeVersion = NewType("NodeVersion", int)
"""The data version of a metadata-store node, the subject of compare-and-set."""

BookieId = NewType("BookieId", str)
"""A bookie's id, by default ``host:port``."""

OperationId = NewType("OperationId", str)
"""Id of a two-phase topic deletion, from its first mark to its end."""

MAX_LEDGER_ID = 2**63 - 1
_MOST_DIGITS = len(str(MAX_LEDGER_ID))


def parse_ledger_id(text: str) -> LedgerId | None:
    """Return the id in a string of decimal ASCII digits, or None for any other string."""
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS or int(text) > MAX_LEDGER_ID:
        return None
    return LedgerId(int(text))


class Position(NamedTuple):
    """A ledger and an entry in it, as Pulsar prints it: ``ledgerId:entryId``; positions ascend as in a managed ledger.

    A tuple, because it is made and looked up for every entry of every bulk request.
    """

    ledger_id: LedgerId
    entry_id: EntryId

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"
