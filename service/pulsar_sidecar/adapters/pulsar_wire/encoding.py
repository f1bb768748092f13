"""Codec of Pulsar's binary protocol: frames, entries as brokers store them, and entries in REST responses.

A frame is ``[totalSize][commandSize][BaseCommand]``, both sizes big-endian 32-bit numbers. A message's frame continues
with ``[0x0e01][CRC-32C of the rest][metadataSize][MessageMetadata][payload]``; its entry has the same form, after a
broker's own metadata (magic 0x0e02) if brokers are configured to add some (``Commands.parseMessageMetadata``). An
entry's checksum is ignored: its digest covered all of it.

Keyed records are one entry: a batch as clients make it (``Commands.serializeSingleMessageInBatchWithPayload``). This
module encodes it, because the Python client takes several times as long for each record, and wakes Python up for each
receipt. An empty value makes compaction drop the key.
"""

import json
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import google_crc32c
from google.protobuf.message import DecodeError, Message

from pulsar_sidecar.backlog.ports import Chunk, EntryFacts
from pulsar_sidecar.model.entry_sizes import DEFAULT_MAX_MESSAGE_SIZE, FRAME_PADDING
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.ownership.exact_decoding import exact_text
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

Record = tuple[str, bytes | None]
"""A key and its value, None for an empty one."""

_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
_CHECKSUM_MAGIC: Final = b"\x0e\x01"
_CHECKSUM_BYTES: Final = 4
_REMEMBERED_SIZES: Final = 4096
_BROKER_ENTRY_MAGIC: Final = b"\x0e\x02"
_FIELDS: Final = {
    field.message_type.full_name: field for field in api.BaseCommand.DESCRIPTOR.fields if field.message_type
}


# --- frames --------------------------------------------------------------------------------------------------------


def command_of(body: Message) -> api.BaseCommand:
    """Return a ``Command...`` as a `BaseCommand`; each type has the number of its field."""
    field = _FIELDS[body.DESCRIPTOR.full_name]
    fields: dict[str, Any] = {"type": field.number, field.name: body}
    return api.BaseCommand(**fields)


def encode(command: api.BaseCommand) -> bytes:
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + _SIZE.size, len(body)) + body


def encode_message(command: api.BaseCommand, metadata: api.MessageMetadata, payload: bytes) -> bytes:
    """Return the frame of a message (``Commands.serializeCommandSendWithSize``)."""
    body, head = command.SerializeToString(), metadata.SerializeToString()
    rest = _SIZE.pack(len(head)) + head + payload
    checked = _CHECKSUM_MAGIC + _SIZE.pack(google_crc32c.value(rest)) + rest
    return _SIZES.pack(_SIZE.size + len(body) + len(checked), len(body)) + body + checked


class FrameReader:
    """Reader of commands from a connection, which takes several at a time if they came together."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._most_bytes = DEFAULT_MAX_MESSAGE_SIZE + FRAME_PADDING

    def expect_messages_of(self, most_bytes: int) -> None:
        """Accept frames with messages up to this size; the brokers' default limit is always accepted."""
        self._most_bytes = max(self._most_bytes, most_bytes + FRAME_PADDING)

    def next(self) -> tuple[api.BaseCommand, bytes]:
        """Return the next command and its message, empty for none.

        Raises:
            OSError: the connection ended, or timed out: then the next call continues where this one stopped.
            TemporaryError: the bytes are not a frame of the protocol.
        """
        total = self._number(0)
        if not _SIZE.size <= total <= self._most_bytes:
            raise TemporaryError(f"a broker announced a frame of {total} bytes; is this Pulsar's binary port?")
        self._fill(_SIZE.size + total)
        command_bytes = self._number(_SIZE.size)
        if command_bytes > total - _SIZE.size:
            raise TemporaryError("a broker sent a command longer than its frame; is this Pulsar's binary port?")
        body = bytes(self._received[_SIZES.size : _SIZES.size + command_bytes])
        message = bytes(self._received[_SIZES.size + command_bytes : _SIZE.size + total])
        del self._received[: _SIZE.size + total]
        try:
            return api.BaseCommand.FromString(body), message
        except DecodeError as error:
            raise TemporaryError("a broker's command cannot be read; is this Pulsar's binary port?") from error

    @property
    def has_frame(self) -> bool:
        """True if a whole frame was received and not yet read."""
        if len(self._received) < _SIZE.size:
            return False
        return len(self._received) >= _SIZE.size + self._number(0)

    def _number(self, offset: int) -> int:
        self._fill(offset + _SIZE.size)
        (number,) = _SIZE.unpack_from(self._received, offset)
        return int(number)

    def _fill(self, size_bytes: int) -> None:
        while len(self._received) < size_bytes:
            piece = self._connection.recv(65536)
            if not piece:
                raise ConnectionResetError("the broker closed the connection")
            self._received += piece


# --- entries -------------------------------------------------------------------------------------------------------


def entry_facts(entry: bytes) -> EntryFacts:
    """Return an entry's own metadata; for a batch, the fields that all its messages share; raises as `metadata_of`."""
    metadata, payload_at = metadata_of(entry)
    chunk = None
    if metadata.num_chunks_from_msg > 1:
        chunk = Chunk(exact_text(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg)
    batch, key, producer_name = metadata.num_messages_in_batch, metadata.partition_key, metadata.producer_name
    properties = {pair.key: pair.value for pair in metadata.properties}
    for text in (key, producer_name, *properties, *properties.values()):
        if type(text) is not str:
            exact_text(text)
    # Positional arguments, because this is the hot path of bulk reads.
    return EntryFacts(
        metadata.deliver_at_time or None,
        metadata.publish_time,
        batch if batch > 1 else None,
        chunk,
        key or None,
        properties,
        producer_name,
        metadata.sequence_id,
        metadata.event_time or None,
        metadata.HasField("marker_type"),
        metadata.HasField("txnid_most_bits"),
        len(entry) - payload_at,
    )


def decisive_facts(entry: bytes) -> EntryFacts:
    """Return the facts that decide on a cancellation; a chunk's are whole. Raises as `metadata_of`."""
    metadata, _ = metadata_of(entry)
    if metadata.num_chunks_from_msg > 1:
        return entry_facts(entry)
    batch = metadata.num_messages_in_batch
    found = EntryFacts(metadata.deliver_at_time or None, metadata.publish_time, batch if batch > 1 else None)
    if metadata.HasField("marker_type") or metadata.HasField("txnid_most_bits"):
        return found._replace(marker=metadata.HasField("marker_type"), transaction=metadata.HasField("txnid_most_bits"))
    return found


def metadata_of(entry: bytes) -> tuple[api.MessageMetadata, int]:
    """Return an entry's metadata and its payload's offset; raise `UndecodableError` if it is not a message."""
    try:
        start = 0
        if entry.startswith(_BROKER_ENTRY_MAGIC):
            (length,) = _SIZE.unpack_from(entry, len(_BROKER_ENTRY_MAGIC))
            start = len(_BROKER_ENTRY_MAGIC) + _SIZE.size + length
        if entry.startswith(_CHECKSUM_MAGIC, start):
            start += len(_CHECKSUM_MAGIC) + _CHECKSUM_BYTES
        (length,) = _SIZE.unpack_from(entry, start)
        start += _SIZE.size
        if length > len(entry) - start:
            raise UndecodableError("an entry ends inside its metadata; read it again")
        metadata = api.MessageMetadata.FromString(entry[start : start + length])
    except (struct.error, DecodeError) as error:
        raise UndecodableError(f"an entry of {len(entry)} bytes holds no message ({error})") from error
    if not metadata.IsInitialized():
        raise UndecodableError(f"an entry of {len(entry)} bytes holds no message: its metadata lacks a required field")
    return metadata, start + length


# --- entries in headers of REST ------------------------------------------------------------------------------------


def entry_facts_in_headers(headers: Mapping[str, str]) -> EntryFacts:
    """Return the facts of `entry_facts` from REST headers, with the same errors; times are exact to the millisecond."""
    lowered = {name.lower(): value for name, value in headers.items()}

    def header(name: str) -> str | None:
        return lowered.get(f"x-pulsar-{name}")

    try:
        batch, chunks = int(header("num-batch-message") or 1), int(header("num-chunks-from-msg") or 1)
        uuid, chunk_id = header("uuid"), header("chunk-id")
        properties = json.loads(header("property") or "{}")
        return EntryFacts(
            deliver_at_ms=_milliseconds(header("deliver-at-time")),
            publish_time_ms=_milliseconds(lowered["x-pulsar-publish-time"]) or 0,
            messages_in_batch=batch if batch > 1 else None,
            chunk=Chunk(uuid, int(chunk_id), chunks)
            if uuid is not None and chunk_id is not None and chunks > 1
            else None,
            key=header("partition-key"),
            properties={str(name): str(value) for name, value in properties.items()},
            producer_name=header("producer-name") or "",
            sequence_id=int(header("sequence-id") or 0),
            event_time_ms=_milliseconds(header("event-time")),
            marker=header("marker-type") is not None,
            transaction=header("txnid-most-bits") is not None,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UndecodableError(f"a broker described a message in headers that cannot be read ({error})") from error


def _milliseconds(text: str | None) -> int | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r:.60} has no time zone")
    return round(moment.timestamp() * 1000)


# --- keyed records -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeyedBatch:
    """An entry's payload, and its records."""

    payload: bytes
    records: Sequence[Record]

    def metadata(self, producer_name: str, sequence_id: int, publish_time_ms: int) -> api.MessageMetadata:
        return api.MessageMetadata(
            producer_name=producer_name,
            sequence_id=sequence_id,
            publish_time=publish_time_ms,
            uncompressed_size=len(self.payload),
            num_messages_in_batch=len(self.records),
        )


def keyed_batches(records: Iterable[Record], *, most_records: int, most_bytes: int) -> Iterator[KeyedBatch]:
    """Yield the records in order, in as few batches as fit; one larger than ``most_bytes`` gets a batch of its own."""
    parts: list[bytes] = []
    batch: list[Record] = []
    size_bytes = 0
    for record in records:
        part = _single(record[0], record[1] or b"")
        if parts and (len(parts) >= most_records or size_bytes + len(part) > most_bytes):
            yield KeyedBatch(b"".join(parts), batch)
            parts, batch, size_bytes = [], [], 0
        parts.append(part)
        batch.append(record)
        size_bytes += len(part)
    if parts:
        yield KeyedBatch(b"".join(parts), batch)


def keyed_entry(entry: bytes, own: MutableMapping[bytes, Sequence[Record]]) -> tuple[Sequence[Record], int]:
    """Return an entry's records, and its number of messages before compaction; raises as `metadata_of`.

    ``own`` has the records of batches by payload: such an entry is taken from there instead of being decoded.
    """
    metadata, start = metadata_of(entry)
    if metadata.compression or metadata.encryption_keys:
        raise UndecodableError("an entry of the log is compressed or encrypted; the sidecar writes neither")
    if not metadata.HasField("num_messages_in_batch"):
        key = exact_text(metadata.partition_key)
        return [(key, entry[start:] or None)] if key else [], 1
    try:
        count = metadata.num_messages_in_batch
        known = own.pop(entry[start:], ())
        if len(known) == count:
            return known, count
        return list(_singles(entry, start, count)), count
    except (struct.error, DecodeError) as error:
        raise UndecodableError(f"a batch of {len(entry)} bytes cannot be read ({error})") from error


def as_java_long(number: int) -> int:
    """Convert an unsigned number of the wire to brokers' signed 64 bits."""
    return number - (1 << 64) if number >= 1 << 63 else number


def batched(batch: bytes, position: int, count: int) -> Iterator[tuple[api.SingleMessageMetadata, bytes]]:
    """Yield the messages of an uncompressed batch that begins at ``position``.

    Raises:
        UndecodableError: the batch ends inside a message.
        struct.error, DecodeError: the bytes are not a batch.
    """
    for _ in range(count):
        (length,) = _SIZE.unpack_from(batch, position)
        begin = position + _SIZE.size + length
        metadata = api.SingleMessageMetadata.FromString(batch[position + _SIZE.size : begin])
        position = begin + metadata.payload_size
        if position > len(batch) or metadata.payload_size < 0:
            raise UndecodableError("a batch ends inside a record")
        yield metadata, batch[begin:position]


def _singles(entry: bytes, position: int, count: int) -> Iterator[Record]:
    for metadata, payload in batched(entry, position, count):
        if metadata.partition_key and not metadata.compacted_out:
            yield exact_text(metadata.partition_key), payload or None


def _single(key: str, value: bytes) -> bytes:
    name = key.encode()
    before, after = _around_key(len(name), len(value))
    return before + name + after + value


@lru_cache(_REMEMBERED_SIZES)
def _around_key(key_bytes: int, value_bytes: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after a record's key, which depend on the sizes only."""
    after = api.SingleMessageMetadata(payload_size=value_bytes).SerializeToString()
    whole = api.SingleMessageMetadata(partition_key="k" * key_bytes, payload_size=value_bytes).SerializeToString()
    return _SIZE.pack(len(whole)) + whole[: len(whole) - key_bytes - len(after)], after
