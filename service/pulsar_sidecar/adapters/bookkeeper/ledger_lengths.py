"""How many entries the ledgers of a topic have, of a topic too that no broker has loaded."""

from collections.abc import Mapping

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import ledger_path
from pulsar_sidecar.ledger_ownership.references import LedgerReference
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import MetadataStore


class BookieLedgerLengths:
    """The index's `LedgerLengths`: a managed ledger's list counts no entries of the ledger that was written to last."""

    def __init__(self, store: MetadataStore, entries: BookieEntries, ledgers_root: str) -> None:
        self._store = store
        self._entries = entries
        self._root = ledgers_root

    def lengths(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, int] | Unreadable:
        found = {ledger_id: reference.entries for ledger_id, reference in ledgers.items()}
        last = max(ledgers, default=None)
        if last is None or ledgers[last].closed_ms:
            return found
        try:
            return found | {last: self._length(last)}
        except SidecarError as error:
            return Unreadable(f"ledger {last} cannot be measured: {error}")

    def _length(self, ledger_id: LedgerId) -> int:
        node = self._store.read(ledger_path(ledger_id, self._root))
        if node is None:
            # A broker that loads the topic finds no entry of it either.
            return 0
        metadata = decode_ledger_metadata(node.data)
        if metadata.state is LedgerState.CLOSED:
            return metadata.last_entry_id + 1
        return max((entry.entry_id + 1 for entry in self._entries.read_tail(ledger_id, metadata, 1)), default=0)
