"""What reading ownership needs from the world beside the metadata store."""

from typing import Protocol

from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry, LedgerMetadata


class LedgerEntries(Protocol):
    """Entries as the bookies hold them, read without fencing and without recovery."""

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        """The entries with the ``count`` highest ids that any bookie of the last ensemble holds, ascending.

        Of an open ledger the newest may not be acknowledged yet. Raises `TemporaryError` when too few bookies
        answered to be sure of having seen the last acknowledged entry. Empty only if the bookies hold no entry.
        """
        ...

    def readable(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Whether the first and the last entry of a closed ledger can be read; True for a ledger without entries."""
        ...
