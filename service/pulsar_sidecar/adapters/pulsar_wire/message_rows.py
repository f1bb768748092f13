"""Stored entries as rows of messages, each with its producer's sequence id.

A batch's ids are in its payload (``SingleMessageMetadata.sequence_id``), so batches are decoded: LZ4, ZLIB, ZSTD and
SNAPPY are known. A batch that cannot be decoded is one row with that state; a batch whose messages have no id of their
own is one row too, because brokers know the batch only by its lowest id. A broker replays entries for deduplication by
their metadata alone: `replayed_entries`.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from cachetools import LRUCache
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.adapters.pulsar_wire.encoding import as_java_long, batched, metadata_of
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.features.duplicates.rows import NOT_CHUNKED, WHOLE_BATCH, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import LedgerEntry, UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.payloads import payload_hash
from pulsar_sidecar.ownership.exact_decoding import MAX_UNCOMPRESSED_BYTES, exact_text, expand
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

_COMPRESSION: Final = api.MessageMetadata.COMPRESSION_FIELD_NUMBER
_HASH_BYTES: Final = 8
_MOST_CHUNKED: Final = 10_000
"""Number of chunked messages that are remembered; clients have far fewer in flight."""
_Payload = tuple[int, PayloadState]


class MessageRows:
    """Rows of the entries of one topic, in order; it remembers the chunks of the newest chunked messages."""

    def __init__(self) -> None:
        self._chunked: LRUCache[tuple[str, str], _Chunked] = LRUCache(_MOST_CHUNKED)

    def of(self, entry: LedgerEntry) -> Sequence[MessageRow]:
        """Return the rows of an entry, at least one.

        Raises:
            UndecodableError: the entry holds no message at all.
        """
        metadata, start = metadata_of(entry.payload)
        payload = entry.payload[start:]
        if metadata.num_chunks_from_msg > 1:
            return [_row(entry, metadata, 0, 1, self._chunk(metadata, payload))]
        is_batch = metadata.HasField("num_messages_in_batch")
        size = metadata.num_messages_in_batch if is_batch else 1
        # The lowest id of a batch is the only one of a batch of one.
        index = 0 if size == 1 else WHOLE_BATCH
        if metadata.encryption_keys:
            return [_row(entry, metadata, index, size, (0, PayloadState.ENCRYPTED))]
        try:
            plain = _uncompressed(metadata, payload)
            if not is_batch:
                return [_row(entry, metadata, 0, 1, (payload_hash(plain), PayloadState.READ))]
            return _rows_of_batch(entry, metadata, plain, size)
        except (UndecodableError, DecodeError, struct.error):
            return [_row(entry, metadata, index, size, (0, PayloadState.UNDECODABLE))]

    def _chunk(self, metadata: api.MessageMetadata, payload: bytes) -> _Payload:
        if metadata.encryption_keys:
            return 0, PayloadState.ENCRYPTED
        key = exact_text(metadata.producer_name), exact_text(metadata.uuid)
        if metadata.chunk_id == 0:
            # The message was resent from its beginning, or it is a new message: a uuid may come twice.
            self._chunked.pop(key, None)
        chunked = self._chunked.setdefault(key, _Chunked())
        chunked.take(metadata.chunk_id, payload)
        if metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            return payload_hash(payload), PayloadState.READ
        return chunked.hashed(metadata.num_chunks_from_msg)


class _Chunked:
    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_HASH_BYTES)
        self._next = 0

    def take(self, chunk_id: int, payload: bytes) -> None:
        # A chunk with another number was resent, or its predecessors were not seen.
        if chunk_id == self._next:
            self._digest.update(payload)
            self._next += 1

    def hashed(self, chunks: int) -> _Payload:
        if self._next != chunks:
            return 0, PayloadState.INCOMPLETE
        return int.from_bytes(self._digest.digest(), "big", signed=True), PayloadState.READ


def _uncompressed(metadata: api.MessageMetadata, payload: bytes) -> bytes:
    if not metadata.compression:
        # Protobuf treats a compression that the enum lacks as an unknown field.
        unknown = UnknownFieldSet(metadata)
        if len(unknown) and _COMPRESSION in {unknown[place].field_number for place in range(len(unknown))}:
            raise UndecodableError("a message is compressed in a way that this version does not know")
        return payload
    size_bytes = metadata.uncompressed_size
    if metadata.compression != api.ZLIB or size_bytes > MAX_UNCOMPRESSED_BYTES:
        return expand(metadata.compression, payload, size_bytes, "a message")
    try:
        # Java's stream ends without a marker if its buffer is full.
        plain = zlib.decompressobj().decompress(payload, size_bytes + 1)
    except zlib.error as error:
        raise UndecodableError(f"a message does not expand ({error})") from error
    if len(plain) != size_bytes:
        raise UndecodableError(f"a message expands to {len(plain)} bytes, not {size_bytes}")
    return plain


def _rows_of_batch(entry: LedgerEntry, metadata: api.MessageMetadata, plain: bytes, size: int) -> Sequence[MessageRow]:
    whole = _row(entry, metadata, WHOLE_BATCH, size, (0, PayloadState.UNDECODABLE))
    # All rows share all but the id, the index and the payload; positional arguments, because this is the hot path
    # of bulk reads.
    producer, lowest, ledger_id, entry_id, _, _, chunk_id, chunks, publish_time_ms, _, kind, _, replicated_from = whole
    read = PayloadState.READ
    rows = []
    for index, (single, payload) in enumerate(batched(plain, 0, size)):
        number = single.sequence_id
        if not number and not single.HasField("sequence_id"):
            if size > 1:
                return [whole._replace(payload_hash=payload_hash(plain), payload_state=read)]
            number = lowest
        rows.append(
            MessageRow(
                producer, as_java_long(number), ledger_id, entry_id, index, size, chunk_id,
                chunks, publish_time_ms, payload_hash(payload), kind, read, replicated_from,
            )
        )  # fmt: skip
    return rows or [whole]


def _row(
    entry: LedgerEntry, metadata: api.MessageMetadata, batch_index: int, batch_size: int, payload: _Payload
) -> MessageRow:
    chunks = metadata.num_chunks_from_msg
    return MessageRow(
        exact_text(metadata.producer_name),
        as_java_long(metadata.sequence_id),
        entry.ledger_id,
        entry.entry_id,
        batch_index,
        batch_size,
        metadata.chunk_id if chunks > 1 else NOT_CHUNKED,
        max(1, chunks),
        as_java_long(metadata.publish_time),
        payload[0],
        _kind(metadata),
        payload[1],
        exact_text(metadata.replicated_from) if metadata.HasField("replicated_from") else None,
    )


def _kind(metadata: api.MessageMetadata) -> MessageKind:
    if metadata.HasField("marker_type"):
        return MessageKind.MARKER
    if metadata.HasField("replicated_from"):
        return MessageKind.REPLICATED
    if metadata.HasField("txnid_most_bits"):
        return MessageKind.TRANSACTIONAL
    return MessageKind.MESSAGE


class BookieTopicMessages:
    """`deduplication.verifying.verify.TopicMessages` over the bookies."""

    def __init__(self, entries: BookieTopicEntries) -> None:
        self._entries = entries

    def read(self, topic: TopicName, last: Position | None = None) -> Iterator[Sequence[MessageRow] | UnseenEntries]:
        rows = MessageRows()
        for entry in self._entries.read(topic) if last is None else self._entries.read(topic, last=last):
            if isinstance(entry, UnseenEntries):
                yield entry
                continue
            try:
                yield rows.of(entry)
            except UndecodableError as error:
                entry_id = entry.entry_id
                yield UnseenEntries(entry.ledger_id, entry_id, entry_id, UnseenCause.UNREADABLE, str(error))


def replayed_entries(
    entries: BookieTopicEntries, topic: TopicName, first: Position
) -> Iterator[ReplayedEntry | UndecodableEntry | UnseenEntries]:
    """Yield entries as `deduplication.ports.StoredMessages`."""
    for each in entries.read(topic, first):
        yield _replayed(each) if isinstance(each, LedgerEntry) else each


def _replayed(entry: LedgerEntry) -> ReplayedEntry | UndecodableEntry:
    position = Position(entry.ledger_id, entry.entry_id)
    try:
        metadata, _ = metadata_of(entry.payload)
        producer = exact_text(metadata.producer_name)
    except UndecodableError as error:
        return UndecodableEntry(position, str(error))
    origin = str(metadata.replicated_from) if metadata.HasField("replicated_from") else None
    sequence_id = max(as_java_long(metadata.highest_sequence_id), as_java_long(metadata.sequence_id))
    is_marker = metadata.HasField("marker_type")
    return ReplayedEntry(position, producer, sequence_id, metadata.publish_time, is_marker, origin)
