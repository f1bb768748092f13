"""Checks that a Hadoop MapFile holds a whole ledger, as ``FileSystemManagedLedgerOffloader`` writes it.

A complete attempt does not prove it: the driver ignores errors on closing its files (``IOUtils.closeStream``), so a
full disk may truncate a copy that counts as finished. Invariant: a file that is not understood to its last byte is not
whole.
"""

import os
import struct
import zlib
from typing import BinaryIO

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.ownership.exact_decoding import MAX_UNCOMPRESSED_BYTES, decode_exactly
from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

_CHECKSUM_MAGIC = b"crc\0"
_INT = struct.Struct(">i")
_RECORD = struct.Struct(">iq")
"""Length of the key, and the key: a ``LongWritable``. The record's length precedes them."""
_KEY_BYTES = 8
_LONG_KEYS = b"SEQ\x06\x21org.apache.hadoop.io.LongWritable"
_INDEX = _LONG_KEYS + b"\x21org.apache.hadoop.io.LongWritable"
_CLASSES = _LONG_KEYS + b"\x22org.apache.hadoop.io.BytesWritable"
_NO_METADATA = bytes(4)
_PLAIN = _CLASSES + b"\0\0" + _NO_METADATA
_DEFLATED = _CLASSES + b"\x01\0\x2aorg.apache.hadoop.io.compress.DefaultCodec" + _NO_METADATA
"""Hadoop's default: each value compressed separately, with zlib."""
_SYNC_BYTES = 16
_SYNC_ESCAPE = -1
_LEDGER_METADATA_KEY = -1


def matches_checksums(file: BinaryIO, checksums: BinaryIO) -> bool:
    """Return True if the whole file matches the checksums of Hadoop's ``ChecksumFileSystem`` (CRC-32 of each chunk)."""
    if checksums.read(len(_CHECKSUM_MAGIC)) != _CHECKSUM_MAGIC:
        return False
    chunk_bytes = int.from_bytes(checksums.read(_INT.size), "big")
    if not 0 < chunk_bytes <= MAX_UNCOMPRESSED_BYTES:
        return False
    while chunk := file.read(chunk_bytes):
        if checksums.read(_INT.size) != zlib.crc32(chunk).to_bytes(_INT.size, "big"):
            return False
    return not checksums.read(1)


def is_index(index: BinaryIO) -> bool:
    """Return True for the beginning of a MapFile's index; its length only decides how far Hadoop searches the data."""
    return _starts_with(index, _INDEX)


def holds_whole_ledger(data: BinaryIO) -> bool:
    """Return True if the data hold a closed ledger's metadata and its entries from 0 to the last one, and end there.

    Returns False for compression other than Hadoop's default or none, which is not read.
    """
    try:
        return _holds_whole_ledger(data, data.seek(0, os.SEEK_END))
    except (struct.error, zlib.error, UndecodableError):
        return False


def _holds_whole_ledger(data: BinaryIO, size: int) -> bool:
    header = next((header for header in (_PLAIN, _DEFLATED) if _starts_with(data, header)), None)
    sync = data.read(_SYNC_BYTES)
    last_entry_id, expected = None, _LEDGER_METADATA_KEY
    while header is not None and data.tell() < size:
        (length,) = _INT.unpack(data.read(_INT.size))
        if length == _SYNC_ESCAPE:
            if data.read(_SYNC_BYTES) != sync:
                return False
            continue
        key_bytes, key = _RECORD.unpack(data.read(_RECORD.size))
        value_bytes = length - key_bytes
        if (key_bytes, key) != (_KEY_BYTES, expected) or not 0 <= value_bytes <= size - data.tell():
            return False
        if key == _LEDGER_METADATA_KEY:
            last_entry_id = _last_entry_id(data.read(value_bytes), deflated=header == _DEFLATED)
        else:
            data.seek(value_bytes, os.SEEK_CUR)
        expected += 1
    return last_entry_id is not None and expected == last_entry_id + 1


def _starts_with(data: BinaryIO, header: bytes) -> bool:
    data.seek(0)
    return data.read(len(header)) == header


def _last_entry_id(value: bytes, *, deflated: bool) -> int | None:
    """Return a closed ledger's last entry from a ``BytesWritable`` (``OffloadUtils.buildLedgerMetadataFormat``)."""
    written = zlib.decompressobj().decompress(value, MAX_UNCOMPRESSED_BYTES) if deflated else value
    (length,) = _INT.unpack_from(written)
    message = decode_exactly(LedgerMetadataFormat, written[_INT.size :])
    understood = length == len(written) - _INT.size and message.HasField("lastEntryId")
    return message.lastEntryId if understood and message.state == LedgerMetadataFormat.CLOSED else None
