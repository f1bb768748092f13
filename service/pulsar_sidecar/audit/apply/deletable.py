"""Condemned ledgers on their way to the deletion service."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DeletableLedger:
    """One row of a plan, as the deletion service wants to know it.

    ``kind`` is a `audit.tables.LedgerKind`, ``topic`` a full name, ``cursor_name`` decoded; ``row`` is its
    place in the plan, which becomes its sequence id.
    """

    row: int
    ledger_id: int
    kind: str
    topic: str
    cursor_name: str | None
    schema_id: str | None
    created_ms: int | None
    length_bytes: int | None


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of rows: sent now, or by an earlier run."""

    now: int = 0
    earlier: int = 0

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(self.now + other.now, self.earlier + other.earlier)


class DeletableSender(Protocol):
    """Records ledgers with the deletion service, each row once however often it is sent (PIP-6)."""

    def send(self, rows: Sequence[DeletableLedger]) -> Sent:
        """Have all of them durably recorded; rows ascend, within a call and from call to call.

        Raises:
            TemporaryError: not all of them are; sending them again is safe.
        """
        ...
