"""Entries as clients send and brokers store them: plain and compressed batches, and chunks."""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence

import cramjam
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {
    "NONE": lambda plain: plain,
    "LZ4": lambda plain: bytes(cramjam.lz4.compress_block(plain, store_size=False)),
    "ZLIB": zlib.compress,
    "ZSTD": lambda plain: bytes(cramjam.zstd.compress(plain)),
    "SNAPPY": lambda plain: bytes(cramjam.snappy.compress_raw(plain)),
}


def stored_message(payload: bytes, compression: str = "NONE", **fields: object) -> bytes:
    """Return a message with ``fields`` in its metadata."""
    metadata = api.MessageMetadata(**{"producer_name": "p", "sequence_id": 3, "publish_time": 5, **fields})  # type: ignore[arg-type]
    metadata.compression = api.CompressionType.Value(compression)
    if not metadata.uncompressed_size:
        metadata.uncompressed_size = len(payload)
    head = metadata.SerializeToString()
    return b"\x0e\x01" + bytes(4) + struct.pack(">I", len(head)) + head + COMPRESSORS[compression](payload)


def stored_batch(messages: Sequence[tuple[int | None, bytes]], compression: str = "NONE", **fields: object) -> bytes:
    """Return a batch of sequence ids and payloads; None for a message without its own id."""
    parts = []
    for sequence_id, payload in messages:
        head = api.SingleMessageMetadata(payload_size=len(payload), sequence_id=sequence_id).SerializeToString()
        parts.append(struct.pack(">I", len(head)) + head + payload)
    ids = [sequence_id for sequence_id, _ in messages if sequence_id is not None]
    described = {"num_messages_in_batch": len(messages), "sequence_id": min(ids, default=0), **fields}
    return stored_message(b"".join(parts), compression, **described)
