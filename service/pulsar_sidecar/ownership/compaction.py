"""The compacted ledgers that a topic references, which are easy to miss.

While a topic is loaded, no node holds the id of its compacted ledger, only the last entry of its
``__compaction`` cursor's ledger. An audit of the metadata store alone would take a live compacted view for an orphan.
"""

from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerEntry, LedgerMetadata
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import CursorReferences, position_entry_compacted_ledger

TAIL_ENTRIES = 2
"""The newest entry may not be acknowledged; then the one before it is what a broker would recover."""


class LedgerEntries(Protocol):
    """Entries as the bookies hold them, read without fencing and without recovery."""

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        """Return the entries with the ``count`` highest ids that any bookie of the last ensemble holds, ascending.

        Of an open ledger the newest may not be acknowledged yet. Raises `TemporaryError` when too few bookies
        answered to be sure of having seen the last acknowledged entry. Empty only if the bookies hold no entry.
        """

    def readable(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        """Return True if the first and the last entry of a closed ledger can be read, or if it has no entries."""


class CursorLedgerGoneError(TemporaryError):
    """Raised when a cursor's node names a ledger that does not exist: half of a topic was deleted."""


@dataclass(frozen=True, slots=True)
class CompactedLedgers:
    """Reader of the compacted ledgers that a ``__compaction`` cursor may reference."""

    store: MetadataStore
    entries: LedgerEntries
    ledgers_root: str

    def referenced(self, cursor: CursorReferences) -> frozenset[LedgerId]:
        """Return all ids that the cursor's durable or newest position carries.

        While the topic is loaded, only the last entries of the cursor's ledger hold them.

        Raises:
            CursorLedgerGoneError: the cursor's ledger does not exist, so no broker can read the ids.
            TemporaryError: the ids could not be read, so nothing is known.
        """
        if cursor.cursor_ledger is None:
            return frozenset() if cursor.compacted_ledger is None else frozenset({cursor.compacted_ledger})
        node = self.store.read(ledger_path(cursor.cursor_ledger, self.ledgers_root))
        if node is None:
            raise CursorLedgerGoneError(f"the compaction cursor's ledger {cursor.cursor_ledger} has no metadata")
        metadata = decode_ledger_metadata(node.data)
        tail = self.entries.read_tail(cursor.cursor_ledger, metadata, TAIL_ENTRIES)
        after = self.store.read(node.path)
        if after is None or after.version != node.version:
            raise TemporaryError(
                f"the compaction cursor's ledger {cursor.cursor_ledger} moved to other bookies; try again"
            )
        if not tail:
            raise TemporaryError(f"no bookie holds an entry of the compaction cursor's ledger {cursor.cursor_ledger}")
        ids = (position_entry_compacted_ledger(entry.payload) for entry in tail)
        return frozenset(ledger_id for ledger_id in ids if ledger_id is not None)
