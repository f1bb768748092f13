"""Keyed records as one entry: a batch as clients make it (``Commands.serializeSingleMessageInBatchWithPayload``).

Made by hand, because the Python client takes several times as long for each record, and wakes Python up for each
receipt.
An empty value is what makes compaction forget the key.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from pulsar_sidecar.adapters.pulsar.wire.message_metadata import metadata_of
from pulsar_sidecar.ledger_ownership.exact_decoding import exact_text
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_SIZE = struct.Struct(">I")
_KEY_TAG: Final = b"\x12"
"""``SingleMessageMetadata.partition_key``: field 2, bytes."""
_SIZE_TAG: Final = b"\x18"
"""``SingleMessageMetadata.payload_size``: field 3, a number."""
_ONE_BYTE: Final = 0x80


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """An entry's payload, and how many records it holds."""

    payload: bytes
    records: int

    def metadata(self, producer_name: str, sequence_id: int, publish_time_ms: int) -> api.MessageMetadata:
        """What stands before the payload."""
        return api.MessageMetadata(
            producer_name=producer_name,
            sequence_id=sequence_id,
            publish_time=publish_time_ms,
            uncompressed_size=len(self.payload),
            num_messages_in_batch=self.records,
        )


def keyed_batches(
    records: Iterable[tuple[str, bytes | None]], *, most_records: int, most_bytes: int
) -> Iterator[KeyedBatch]:
    """The records in order, in as few batches as fit; one larger than ``most_bytes`` gets a batch of its own."""
    parts: list[bytes] = []
    size_bytes = 0
    for key, value in records:
        part = _single(key.encode(), value or b"")
        if parts and (len(parts) >= most_records or size_bytes + len(part) > most_bytes):
            yield _joined(parts)
            parts, size_bytes = [], 0
        parts.append(part)
        size_bytes += len(part)
    if parts:
        yield _joined(parts)


@dataclass(frozen=True, slots=True)
class KeyedEntry:
    """An entry that was read.

    Attributes:
        records: keys and values in order, None for an empty value; without those that compaction left out.
        messages: how many there were, those that are left out included.
    """

    records: list[tuple[str, bytes | None]]
    messages: int


def keyed_entry(entry: bytes) -> KeyedEntry:
    """The records of an entry, whoever made it; what has no key is left out.

    Raises:
        UndecodableError: these bytes are no such entry.
    """
    metadata, start = metadata_of(entry)
    if metadata.compression or metadata.encryption_keys:
        raise UndecodableError("an entry of the log is compressed or encrypted, which nobody here has made")
    if not metadata.HasField("num_messages_in_batch"):
        key = exact_text(metadata.partition_key)
        return KeyedEntry([(key, entry[start:] or None)] if key else [], 1)
    try:
        count = metadata.num_messages_in_batch
        return KeyedEntry(list(_singles(entry, start, count)), count)
    except (struct.error, DecodeError) as error:
        raise UndecodableError(f"a batch of {len(entry)} bytes cannot be read ({error})") from error


def _singles(entry: bytes, position: int, count: int) -> Iterator[tuple[str, bytes | None]]:
    for _ in range(count):
        (length,) = _SIZE.unpack_from(entry, position)
        begin = position + _SIZE.size + length
        metadata = api.SingleMessageMetadata.FromString(entry[position + _SIZE.size : begin])
        position = begin + metadata.payload_size
        if position > len(entry):
            raise UndecodableError("a batch ends inside a record")
        if metadata.partition_key and not metadata.compacted_out:
            yield exact_text(metadata.partition_key), entry[begin:position] or None


def _joined(parts: Sequence[bytes]) -> KeyedBatch:
    return KeyedBatch(b"".join(parts), len(parts))


def _single(key: bytes, value: bytes) -> bytes:
    metadata = _KEY_TAG + _number(len(key)) + key + _SIZE_TAG + _number(len(value))
    return _SIZE.pack(len(metadata)) + metadata + value


def _number(value: int) -> bytes:
    """A varint of protobuf."""
    encoded = bytearray()
    while value >= _ONE_BYTE:
        encoded.append(value & 0x7F | _ONE_BYTE)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
