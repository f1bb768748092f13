"""How many entries the ledgers of a topic have, of a topic too that no broker has loaded."""

from collections.abc import Mapping
from dataclasses import replace

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
    """`ledger_ownership.ports.LedgerLengths`: a managed ledger's list does not measure the ledger written to last."""

    def __init__(self, store: MetadataStore, entries: BookieEntries, ledgers_root: str) -> None:
        self._store = store
        self._entries = entries
        self._root = ledgers_root

    def measured(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        last = max(ledgers, default=None)
        if last is None or ledgers[last].closed_ms:
            return ledgers
        try:
            return {**ledgers, last: self._measured(last, ledgers[last])}
        except SidecarError as error:
            return Unreadable(f"ledger {last} cannot be measured: {error}")

    def lengths(self, ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, int] | Unreadable:
        measured = self.measured(ledgers)
        if isinstance(measured, Unreadable):
            return measured
        return {ledger_id: reference.entries for ledger_id, reference in measured.items()}

    def _measured(self, ledger_id: LedgerId, listed: LedgerReference) -> LedgerReference:
        node = self._store.read(ledger_path(ledger_id, self._root))
        if node is None:
            # A broker that loads the topic finds no entry of it either.
            return replace(listed, entries=0, size_bytes=0)
        metadata = decode_ledger_metadata(node.data)
        if metadata.state is LedgerState.CLOSED:
            return replace(listed, entries=metadata.last_entry_id + 1, size_bytes=metadata.length_bytes)
        stored = self._entries.read_last(ledger_id, metadata)
        if stored is None:
            return replace(listed, entries=0, size_bytes=0)
        return replace(listed, entries=stored.entry_id + 1, size_bytes=stored.ledger_bytes)
