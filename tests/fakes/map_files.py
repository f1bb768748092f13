"""Offloaded copies of the filesystem driver of 4.0.8: Hadoop's MapFile of a ledger with three entries."""

import struct
import zlib
from pathlib import Path

from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

LAST_ENTRY_ID = 2
SYNC = bytes(range(16))
_LONG, _BYTES = b"org.apache.hadoop.io.LongWritable", b"org.apache.hadoop.io.BytesWritable"
_CODEC = b"org.apache.hadoop.io.compress.DefaultCodec"
_BYTES_PER_CHECKSUM = 512


def ledger_metadata(
    last_entry_id: int = LAST_ENTRY_ID, *, state: LedgerMetadataFormat.State.ValueType = LedgerMetadataFormat.CLOSED
) -> bytes:
    """Return the driver's value of key -1 (``OffloadUtils.buildLedgerMetadataFormat``)."""
    message = LedgerMetadataFormat(quorumSize=1, ensembleSize=1, length=42, lastEntryId=last_entry_id, state=state)
    message.segment.add(ensembleMember=["127.0.0.1:3181"], firstEntryId=0)
    return message.SerializeToString()


def data_file(entries: int = LAST_ENTRY_ID + 1, metadata: bytes | None = None, *, compressed: bool = True) -> bytes:
    """Return metadata and entries from 0 on, with sync markers between them as in long files."""
    records = [(-1, ledger_metadata() if metadata is None else metadata)]
    records += [(entry_id, b"entry %d" % entry_id * 100) for entry_id in range(entries)]
    marker = struct.pack(">i", -1) + SYNC
    return _header(_BYTES, compressed=compressed) + marker.join(
        _record(key, value, compressed=compressed) for key, value in records
    )


def write_map_file(directory: Path, part: str, content: bytes | None = None) -> None:
    """Write ``data`` or ``index`` with its file of checksums (``ChecksumFileSystem``)."""
    if content is None:
        content = data_file() if part == "data" else _header(_LONG, in_blocks=True) + bytes(72)
    chunks = [content[at : at + _BYTES_PER_CHECKSUM] for at in range(0, len(content), _BYTES_PER_CHECKSUM)]
    sums = b"".join(struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    (directory / part).write_bytes(content)
    (directory / f".{part}.crc").write_bytes(b"crc\0" + struct.pack(">i", _BYTES_PER_CHECKSUM) + sums)


def _header(value_class: bytes, *, compressed: bool = True, in_blocks: bool = False) -> bytes:
    names = b"".join(bytes([len(name)]) + name for name in (_LONG, value_class))
    codec = bytes([len(_CODEC)]) + _CODEC if compressed else b""
    return b"SEQ\x06" + names + bytes([compressed, in_blocks]) + codec + bytes(4) + SYNC


def _record(key: int, value: bytes, *, compressed: bool) -> bytes:
    written = struct.pack(">i", len(value)) + value
    body = struct.pack(">q", key) + (zlib.compress(written) if compressed else written)
    return struct.pack(">ii", len(body), 8) + body
