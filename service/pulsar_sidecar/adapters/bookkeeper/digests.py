"""How an entry proves that it is the one that was written (BookKeeper ``DigestManager``).

Entry as stored: ledger id, entry id, last confirmed id, cumulative length (four big-endian int64), digest, payload;
the digest covers the 32 bytes before it and the payload.
"""

import hashlib
import hmac
import struct
import zlib
from typing import NamedTuple, assert_never

import google_crc32c

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType

_ENTRY_HEADER = struct.Struct(">qqqq")
_CRC32C = struct.Struct(">I")


class StoredEntry(NamedTuple):
    """An entry whose digest was right, and what its header says.

    ``last_confirmed`` is the last entry that the writer knew to be acknowledged when it wrote this one.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    last_confirmed: EntryId
    payload: bytes


def checked_entry(data: bytes, digest_type: DigestType | None, password: bytes) -> StoredEntry:
    """The entry in a bookie's answer.

    Raises:
        UndecodableError: too short, damaged, or of a digest that the ledger's metadata does not name.
    """
    if digest_type is None:
        raise UndecodableError("the ledger's metadata names no digest, so its entries cannot be checked")
    digest_end = _ENTRY_HEADER.size + _DIGEST_BYTES[digest_type]
    if len(data) < digest_end:
        raise UndecodableError(f"a bookie answered with {len(data)} bytes, which is no entry; read it again")
    header, payload = data[: _ENTRY_HEADER.size], data[digest_end:]
    ledger_id, entry_id, last_confirmed, _ = _ENTRY_HEADER.unpack(header)
    stored_digest = data[_ENTRY_HEADER.size : digest_end]
    if not hmac.compare_digest(stored_digest, digest(digest_type, header + payload, password)):
        raise UndecodableError(f"entry {ledger_id}:{entry_id} is damaged on this bookie; read another copy")
    return StoredEntry(LedgerId(ledger_id), EntryId(entry_id), EntryId(last_confirmed), payload)


def digest(digest_type: DigestType, data: bytes, password: bytes) -> bytes:
    """The digest as BookKeeper stores it."""
    match digest_type:
        case DigestType.CRC32C:
            return _CRC32C.pack(crc32c(data))
        case DigestType.CRC32:
            return struct.pack(">Q", zlib.crc32(data))
        case DigestType.HMAC:
            key = hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()
            return hmac.digest(key, data, "sha1")
        case DigestType.DUMMY:
            return b""
        case _ as unreachable:
            assert_never(unreachable)


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli)."""
    crc: int = google_crc32c.value(data)
    return crc


_DIGEST_BYTES = {digest_type: len(digest(digest_type, b"", b"")) for digest_type in DigestType}
