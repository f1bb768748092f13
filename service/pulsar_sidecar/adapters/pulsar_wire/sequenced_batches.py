"""Entries with a sequence id on every message, encoded by hand: protobuf's own encoder takes longer than the rest.

The bytes equal protobuf's (a test compares them). A batch names its lowest and its highest id; brokers check the first
and remember the second; the C++ client sends only the first
(``docs/decisions/0014-exactly-once-over-our-own-producer.md``).
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pulsar_sidecar.features.publishing.messages import Batch, OutgoingMessage
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

_SIZE: Final = struct.Struct(">I")
_CHUNK_MARGIN_BYTES: Final = 256
"""Upper bound of the bytes before an entry's metadata and of a chunk's fields in them."""
_LOW_BITS: Final = 0x3FFF
_TWO_BYTES: Final = tuple(bytes((low & 0x7F | 0x80, low >> 7 | 0x80)) for low in range(_LOW_BITS + 1))
"""14 bits of a varint that continues."""
_LAST_BYTES: Final = tuple(
    bytes((low,)) if low < 0x80 else bytes((low & 0x7F | 0x80, low >> 7)) for low in range(_LOW_BITS + 1)
)
"""The last 14 bits of a varint."""
_PROPERTY: Final = b"\x0a"
_NAME: Final = b"\x0a"
_VALUE: Final = b"\x12"
_KEY: Final = b"\x12"
_PAYLOAD_SIZE: Final = b"\x18"
_EVENT_TIME: Final = b"\x28"
_SEQUENCE_ID: Final = b"\x40"
_UNSIGNED: Final = 2**64


class Entry(NamedTuple):
    """Content of one ``CommandSend``.

    Attributes:
        judged_by: the command's own sequence id.
        completes: True if its receipt is the batch's; of chunks, the last one's is.
        is_probe: True for the last chunk sent without the others, which the broker must refuse.
    """

    metadata: api.MessageMetadata
    payload: bytes
    judged_by: int
    is_chunk: bool = False
    completes: bool = True
    is_probe: bool = False


def varint(number: int) -> bytes:
    """Return the protobuf varint of a number from 0 to 2^64 - 1."""
    if number <= _LOW_BITS:
        return _LAST_BYTES[number]
    return _TWO_BYTES[number & _LOW_BITS] + varint(number >> 14)


def batch_payload(messages: Sequence[OutgoingMessage]) -> bytes:
    """Return the messages as ``Commands.serializeSingleMessageInBatchWithPayload`` writes them, concatenated."""
    parts: list[bytes] = []
    for payload, sequence_id, key, properties, event_time_ms in messages:
        assert sequence_id is not None
        head = _PAYLOAD_SIZE + varint(len(payload))
        if key is not None or properties:
            head = _names(key, properties) + head
        if event_time_ms is not None:
            head += _EVENT_TIME + varint(event_time_ms)
        head += _SEQUENCE_ID + varint(sequence_id)
        parts += (_SIZE.pack(len(head)), head, payload)
    return b"".join(parts)


def entries_of(
    batch: Batch, pushed: int, producer_name: str, publish_time_ms: int, max_message_bytes: int, attempt: str
) -> Iterator[Entry]:
    """Yield a batch's entries: one, or the chunks of one message; only the last chunk of a message that was pushed.

    ``attempt`` distinguishes the chunks of this attempt from those of an earlier one, which consumers may hold in part.

    Raises:
        PermanentError: the batch, or a message without its payload, is larger than a broker takes.
    """
    metadata = api.MessageMetadata(
        producer_name=producer_name, sequence_id=batch.first_sequence_id, publish_time=publish_time_ms
    )
    if len(batch.messages) > 1:
        yield _batch_entry(batch, metadata, max_message_bytes)
        return
    (message,) = batch.messages
    _describe(metadata, message)
    size_bytes = metadata.ByteSize()
    if size_bytes + len(message.payload) + _CHUNK_MARGIN_BYTES <= max_message_bytes:
        yield Entry(metadata, message.payload, batch.first_sequence_id)
        return
    metadata.uuid = f"{producer_name}-{batch.first_sequence_id}-{attempt}"
    chunk_bytes = max_message_bytes - metadata.ByteSize() - _CHUNK_MARGIN_BYTES
    if chunk_bytes <= 0:
        raise PermanentError(
            f"the key and the properties of message {batch.first_sequence_id} have {size_bytes} bytes, and the "
            f"broker's maxMessageSize is {max_message_bytes}"
        )
    yield from _chunks(metadata, message.payload, chunk_bytes, batch.first_sequence_id, pushed)


def _batch_entry(batch: Batch, metadata: api.MessageMetadata, max_message_bytes: int) -> Entry:
    payload = batch_payload(batch.messages)
    metadata.num_messages_in_batch = len(batch.messages)
    metadata.highest_sequence_id = batch.last_sequence_id
    metadata.uncompressed_size = len(payload)
    first = batch.messages[0]
    if first.key is not None:
        # As Java's batches, which have their first message's key.
        metadata.partition_key = first.key
    if metadata.ByteSize() + len(payload) + _CHUNK_MARGIN_BYTES > max_message_bytes:
        raise PermanentError(
            f"a batch of {len(payload)} bytes is more than the broker's maxMessageSize ({max_message_bytes}); lower "
            "the limit of batches"
        )
    return Entry(metadata, payload, batch.first_sequence_id)


def _describe(metadata: api.MessageMetadata, message: OutgoingMessage) -> None:
    metadata.uncompressed_size = len(message.payload)
    if message.key is not None:
        metadata.partition_key = message.key
    if message.event_time_ms is not None:
        metadata.event_time = message.event_time_ms
    metadata.properties.extend(api.KeyValue(key=name, value=value) for name, value in message.properties.items())


def _chunks(
    metadata: api.MessageMetadata, payload: bytes, chunk_bytes: int, sequence_id: int, pushed: int
) -> Iterator[Entry]:
    count = -(-len(payload) // chunk_bytes)
    metadata.num_chunks_from_msg = count
    metadata.total_chunk_msg_size = len(payload)
    is_probe = pushed >= sequence_id
    for chunk_id in range(count - 1 if is_probe else 0, count):
        is_last = chunk_id == count - 1
        chunk = api.MessageMetadata()
        chunk.CopyFrom(metadata)
        chunk.chunk_id = chunk_id
        # A broker that replays the topic takes the id of the producer's last entry, whatever that is.
        chunk.sequence_id = sequence_id if is_last else pushed % _UNSIGNED
        piece = payload[chunk_id * chunk_bytes : (chunk_id + 1) * chunk_bytes]
        yield Entry(chunk, piece, sequence_id, is_chunk=True, completes=is_last, is_probe=is_probe)


def _names(key: str | None, properties: Mapping[str, str]) -> bytes:
    parts: list[bytes] = []
    for name, value in properties.items():
        pair = _text(_NAME, name) + _text(_VALUE, value)
        parts += (_PROPERTY, varint(len(pair)), pair)
    if key is not None:
        parts.append(_text(_KEY, key))
    return b"".join(parts)


def _text(tag: bytes, text: str) -> bytes:
    encoded = text.encode()
    return tag + varint(len(encoded)) + encoded
