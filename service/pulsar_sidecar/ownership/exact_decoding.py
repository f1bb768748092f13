"""Exact decoding of protobuf and its optional compression: bytes are understood completely or not at all.

Protobuf itself forgives: unknown fields are kept aside, a repeated scalar's last value wins, messages glued together
merge, text that is not UTF-8 arrives as bytes. Here a forgiven byte could be a ledger that is still referenced, so one
rule covers every case: what was understood, written again, must be exactly as long as what was read. Pulsar and
BookKeeper write the shortest form.

Brokers rewrite nodes lazily when ``managedLedgerInfoCompressionType`` or ``managedCursorInfoCompressionType`` change
(Pulsar ``MetaStoreImpl``), so plain and wrapped nodes live side by side. A wrapped node starts with 0x4778, which no
plain one can.
"""

import struct
import zlib
from typing import TypeVar

import cramjam
from google.protobuf.message import DecodeError, Message

from pulsar_sidecar.model.errors import UndecodableError, UnknownFieldError
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.reports.formatting import format_count

M = TypeVar("M", bound=Message)

WRAPPER_MAGIC = b"\x47\x78"
MAX_UNCOMPRESSED_BYTES = 64 * 1024 * 1024
"""ZooKeeper's nodes have 1 MB at most unless ``jute.maxbuffer`` was raised, and lists shrink to a tenth: no real
one comes near, and a forged one of a few kilobytes wastes only little memory."""
_ZLIB_FLUSHED = b"\x00\x00\xff\xff"
_METADATA_LENGTH = struct.Struct(">i")
_METADATA_START = len(WRAPPER_MAGIC) + _METADATA_LENGTH.size


def decode_exactly(message_type: type[M], data: bytes) -> M:
    """Return the message in ``data``.

    Raises:
        UndecodableError: truncated, or not of this type.
        UnknownFieldError: holding anything that this version does not know.
    """
    message = message_type()
    name = message.DESCRIPTOR.name
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UndecodableError(f"{len(data)} bytes are not a {name}; read the node again") from error
    if not message.IsInitialized():
        raise UndecodableError(f"{name} lacks a required field; read it again")
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        raise UnknownFieldError(f"{name} has a field that this version does not know; upgrade first")
    return message


def exact_text(value: object) -> str:
    """Return a protobuf string as ``str``; the runtime hands out bytes where it is not UTF-8 (`UndecodableError`)."""
    if isinstance(value, str):
        return value
    raise UndecodableError(f"{value!r:.80} is not a UTF-8 string; read it again")


def unwrap(data: bytes) -> bytes:
    """Return the plain node: ``data`` itself, or its wrapper's content at exactly the size that the wrapper promises.

    Raises:
        UndecodableError: the wrapper is damaged, larger than `MAX_UNCOMPRESSED_BYTES`, or of an unknown compression.
    """
    if not data.startswith(WRAPPER_MAGIC):
        return data
    if len(data) < _METADATA_START:
        raise UndecodableError("a compressed node ends inside its header; read it again")
    (metadata_bytes,) = _METADATA_LENGTH.unpack_from(data, len(WRAPPER_MAGIC))
    payload_start = _METADATA_START + metadata_bytes
    if metadata_bytes < 0 or payload_start > len(data):
        raise UndecodableError("a compressed node ends inside its metadata; read it again")
    # ManagedCursorInfoMetadata has the same two fields under the same numbers.
    metadata = decode_exactly(ml.ManagedLedgerInfoMetadata, data[_METADATA_START:payload_start])
    return expand(metadata.compressionType, data[payload_start:], metadata.uncompressedSize, "a compressed node")


def expand(algorithm: int, payload: bytes, size_bytes: int, what: str) -> bytes:
    """Decompress a payload of Pulsar's codec of that number (``CompressionType``) to exactly the promised size.

    ``what`` begins the text of an error.

    Raises:
        UndecodableError: damaged, larger than `MAX_UNCOMPRESSED_BYTES`, or of an unknown compression.
    """
    if not 0 <= size_bytes <= MAX_UNCOMPRESSED_BYTES:
        raise UndecodableError(
            f"{what} claims {format_count(size_bytes, 'byte')}, and at most {MAX_UNCOMPRESSED_BYTES} are ever "
            "expanded; inspect it with zkCli.sh"
        )
    try:
        plain = _expand(algorithm, payload, size_bytes, what)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise UndecodableError(f"{what} does not expand ({error}); read it again") from error
    if len(plain) != size_bytes:
        raise UndecodableError(f"{what} expands to {format_count(len(plain), 'byte')}, not {size_bytes}; read it again")
    return plain


def _expand(algorithm: int, payload: bytes, size_bytes: int, what: str) -> bytes:
    output = bytearray(size_bytes)
    match algorithm:
        case ml.NONE:
            return payload
        case ml.ZLIB:
            return _inflate(payload, size_bytes, what)
        case ml.LZ4:
            written = cramjam.lz4.decompress_block_into(payload, output)
        case ml.ZSTD:
            written = cramjam.zstd.decompress_into(payload, output)
        case ml.SNAPPY:
            written = cramjam.snappy.decompress_raw_into(payload, output)
        case _:
            raise UndecodableError(f"compression type {algorithm} is not known to this version; upgrade first")
    return bytes(memoryview(output)[:written])


def _inflate(payload: bytes, size_bytes: int, what: str) -> bytes:
    # Java's codec flushes its stream and never ends it, so a whole stream ends with a flush marker.
    stream = zlib.decompressobj()
    plain = stream.decompress(payload, size_bytes + 1)
    if stream.unused_data or not (stream.eof or payload.endswith(_ZLIB_FLUSHED)):
        raise UndecodableError(f"{what} is not one whole zlib stream; read it again")
    return plain
