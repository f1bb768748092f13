"""Hashes of payloads."""

import hashlib
from typing import Final

_HASH_BYTES: Final = 8


def payload_hash(payload: bytes) -> int:
    """Return a signed 64-bit hash that distinguishes payloads."""
    return int.from_bytes(hashlib.blake2b(payload, digest_size=_HASH_BYTES).digest(), "big", signed=True)
