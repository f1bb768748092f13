"""Stored cursors and ledger lengths of topics, which need not be loaded by a broker.

A cursor is in its node, or in an entry of its ledger that the broker knows to be stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries, StoredEntry
from pulsar_sidecar.features.acknowledgements.stored import (
    StoredCursor,
    stored_in_entry,
    stored_in_node,
    subscription_properties_bytes,
)
from pulsar_sidecar.features.deduplication.snapshots import Snapshot, lost_snapshot, snapshot_in_entry, snapshot_in_node
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName, encode_cursor
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.ports import LedgerLengths
from pulsar_sidecar.ownership.references import LedgerReference, cursor_references, managed_ledger_references


class BookieStoredCursors:
    """Stored cursors for all features.

    Implements `acknowledgements.ports.StoredCursors`, `delayed_messages.ports.StoredAckState`,
    `deduplication.ports.StoredSnapshots` and `ownership.ports.CursorPositions`.
    """

    def __init__(self, store: MetadataStore, entries: BookieEntries, ledgers_root: str) -> None:
        self._store = store
        self._entries = entries
        self._root = ledgers_root

    def stored(
        self, topic: TopicName, subscription: str, lengths: Mapping[LedgerId, int], cursor: Cursor
    ) -> StoredCursor | None:
        return self._recovered(topic, subscription, lengths, (cursor.ledger, cursor.ledger_last_entry))

    def read(
        self, topic: TopicName, subscription: str, known_ledger: LedgerId | None, known_last_entry: int
    ) -> PositionRanges | None:
        # The entries of the topic's closed ledgers: a stored range over several ends in the last at most.
        node = self._store.read(managed_ledger_path(topic.managed_ledger_name))
        listed = {} if node is None else managed_ledger_references(node.data).ledgers
        lengths = {ledger_id: ledger.entries for ledger_id, ledger in listed.items()}
        found = self._recovered(topic, subscription, lengths, (known_ledger, EntryId(known_last_entry)))
        return None if found is None else found.acknowledged

    def acknowledged(
        self, cursors: Sequence[bytes], lengths: Mapping[LedgerId, int]
    ) -> Sequence[PositionRanges | Unreadable]:
        return [self._last_written(data, lengths) for data in cursors]

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        return [self._snapshot(data) for data in cursors]

    def _last_written(self, data: bytes, lengths: Mapping[LedgerId, int]) -> PositionRanges | Unreadable:
        try:
            entry = self._last_entry(data)
            # After an empty cursor ledger, a broker recovers the node's position (`recoverFromLedger`).
            if entry is None or isinstance(entry, Absent):
                return stored_in_node(data, lengths).acknowledged
            return stored_in_entry(entry.payload, lengths, entry.ledger_id, entry.entry_id).acknowledged
        except SidecarError as error:
            return Unreadable(str(error))

    def _snapshot(self, data: bytes) -> Snapshot | Unreadable:
        try:
            entry = self._last_entry(data)
            if isinstance(entry, Absent):
                return lost_snapshot(data, "the cursor's ledger has no entry")
            if entry is None:
                return snapshot_in_node(data)
            return snapshot_in_entry(entry.payload, entry.ledger_id, entry.entry_id)
        except NotFoundError as error:
            return lost_snapshot(data, str(error))
        except SidecarError as error:
            return Unreadable(str(error))

    def _last_entry(self, data: bytes) -> StoredEntry | Absent | None:
        """Return the last entry of the cursor's ledger, `Absent` if it has none; None if the cursor has no ledger.

        Raises:
            NotFoundError: the ledger is gone.
        """
        cursor_ledger = cursor_references(data).cursor_ledger
        if cursor_ledger is None:
            return None
        node = self._store.read(ledger_path(cursor_ledger, self._root))
        if node is None:
            raise NotFoundError(f"the cursor's ledger {cursor_ledger} is gone")
        return self._entries.read_last(cursor_ledger, decode_ledger_metadata(node.data)) or Absent()

    def _recovered(
        self,
        topic: TopicName,
        subscription: str,
        lengths: Mapping[LedgerId, int],
        known: tuple[LedgerId | None, EntryId],
    ) -> StoredCursor | None:
        node = self._store.read(cursor_path(topic.managed_ledger_name, encode_cursor(subscription)))
        if node is None:
            return None
        cursor_ledger = cursor_references(node.data).cursor_ledger
        if cursor_ledger is None or known == (cursor_ledger, -1):
            return stored_in_node(node.data, lengths)
        known_ledger, known_last_entry = known
        if known_ledger != cursor_ledger:
            raise TemporaryError(f"the cursor of {subscription} on {topic} has just moved to another ledger; try again")
        ledger = self._store.read(ledger_path(cursor_ledger, self._root))
        if ledger is None:
            raise TemporaryError(
                f"ledger {cursor_ledger} of the cursor of {subscription} on {topic} is gone; try again"
            )
        entry = self._entries.read(cursor_ledger, decode_ledger_metadata(ledger.data), known_last_entry)
        stored = stored_in_entry(entry.payload, lengths, cursor_ledger, known_last_entry)
        return replace(stored, subscription_properties_bytes=subscription_properties_bytes(node.data))


class BookieLedgerLengths(LedgerLengths):
    """A managed ledger's list lacks the length of the ledger that is written to."""

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

    def _measured(self, ledger_id: LedgerId, listed: LedgerReference) -> LedgerReference:
        node = self._store.read(ledger_path(ledger_id, self._root))
        if node is None:
            # A broker that loads the topic would not find an entry either.
            return replace(listed, entries=0, size_bytes=0)
        metadata = decode_ledger_metadata(node.data)
        if metadata.state is LedgerState.CLOSED:
            return replace(listed, entries=metadata.last_entry_id + 1, size_bytes=metadata.length_bytes)
        stored = self._entries.read_last(ledger_id, metadata)
        if stored is None:
            return replace(listed, entries=0, size_bytes=0)
        return replace(listed, entries=stored.entry_id + 1, size_bytes=stored.ledger_bytes)
