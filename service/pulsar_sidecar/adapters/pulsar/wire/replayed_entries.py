"""Entries as a broker replays them for deduplication (``MessageDeduplication.replayCursor``)."""

from collections.abc import Iterator

from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.pulsar.wire.encoding import as_java_long, metadata_of
from pulsar_sidecar.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.ledger_ownership.exact_decoding import exact_text
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import LedgerEntry, UnseenEntries
from pulsar_sidecar.model.names import TopicName


class BookieReplayedEntries:
    """`deduplication.ports.StoredMessages`."""

    def __init__(self, entries: BookieTopicEntries) -> None:
        self._entries = entries

    def read(self, topic: TopicName, first: Position) -> Iterator[ReplayedEntry | UndecodableEntry | UnseenEntries]:
        for each in self._entries.read(topic, first):
            yield _replayed(each) if isinstance(each, LedgerEntry) else each


def _replayed(entry: LedgerEntry) -> ReplayedEntry | UndecodableEntry:
    position = Position(entry.ledger_id, entry.entry_id)
    try:
        metadata, _ = metadata_of(entry.payload)
        producer = exact_text(metadata.producer_name)
    except UndecodableError as error:
        return UndecodableEntry(position, str(error))
    sequence_id = max(as_java_long(metadata.highest_sequence_id), as_java_long(metadata.sequence_id))
    is_marker = metadata.HasField("marker_type")
    return ReplayedEntry(position, producer, sequence_id, metadata.publish_time, is_marker)
