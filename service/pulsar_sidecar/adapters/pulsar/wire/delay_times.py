"""Entries' due times in bulk, from bookies alone: asking a broker would load the topic."""

from pyroaring import BitMap

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar.wire.encoding import metadata_of
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata


class BookieDelayTimes:
    """`delayed_delivery.index.ports.DelayTimes`; safe for use by several threads."""

    def __init__(self, entries: BookieEntries) -> None:
        self._entries = entries

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        answer = self._entries.read_many(ledger_id, metadata, map(EntryId, entries), _deliver_at_ms)
        if len(answer.found) != len(entries):
            entry_id, why = min(
                answer.unreadable.items(), default=(min(answer.missing, default=-1), "no bookie has it")
            )
            raise TemporaryError(
                f"entry {ledger_id}:{entry_id} cannot be read ({why}), so it is not known when it is due; try again"
            )
        rows = sorted(answer.found.items())
        return DelayedIndexes.of((due_ms, ledger_id, entry_id) for entry_id, due_ms in rows if due_ms > 0)


def _deliver_at_ms(payload: bytes) -> int:
    """0 for what no broker's tracker holds by itself."""
    metadata, _ = metadata_of(payload)
    if metadata.HasField("txnid_most_bits") or metadata.HasField("marker_type"):
        return 0
    return max(0, metadata.deliver_at_time)
