"""The two objects of a ledger in a bucket, as Pulsar's offloader writes them."""

import struct
from collections.abc import Sequence

from tests.fakes.map_files import ledger_metadata

PADDING_BYTES = 7
"""Bytes of padding at the end of each block but the last one."""
BLOCKS = ((b"zero", b"one"), (b"two", b""), (b"four",))
"""Payloads of the entries of each block."""


def objects(blocks: Sequence[Sequence[bytes]] = BLOCKS, metadata: bytes | None = None) -> dict[str, bytes]:
    """Return the data and the index of a ledger that was uploaded in these blocks."""
    data, entries, first = b"", b"", 0
    for part, payloads in enumerate(blocks, start=1):
        body = b"".join(
            struct.pack(">iq", len(payload), entry_id) + payload for entry_id, payload in enumerate(payloads, first)
        )
        body += b"" if part == len(blocks) else bytes.fromhex("FEDCDEADFEDCDEAD")[:PADDING_BYTES]
        entries += struct.pack(">qiq", first, part, len(data))
        data += struct.pack(">Iqqq100x", 0xFBDBABCB, 128, 128 + len(body), first) + body
        first += len(payloads)
    described = ledger_metadata(first - 1) if metadata is None else metadata
    head = struct.pack(
        ">IiqqiI", 0xDE47DE47, 32 + len(described) + len(entries), len(data), 128, len(blocks), len(described)
    )
    return {"data": data, "index": head + described + entries}
