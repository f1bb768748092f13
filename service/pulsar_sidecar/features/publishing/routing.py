"""Routing of messages to partitions.

With a key it is the partition that Java's client chooses (``RoundRobinPartitionMessageRouterImpl`` and
``SinglePartitionMessageRouterImpl``: the key's hash modulo the number of partitions). Without one, Java takes turns by
the clock; here the partition follows from the sequence id, because a message that is published again must reach the
partition that may already hold it.
"""

import struct
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Final

from pulsar_sidecar.features.publishing.messages import OutgoingMessage
from pulsar_sidecar.model.java_strings import java_string_hash

_REMEMBERED_KEYS: Final = 65536
_POSITIVE: Final = 0x7FFFFFFF
_ALL_32: Final = 0xFFFFFFFF
_ALL_64: Final = 0xFFFFFFFFFFFFFFFF
_GOLDEN: Final = 0x9E3779B97F4A7C15
"""Multiplier of ids, 2^64 divided by the golden ratio: neighbours and multiples of a length spread evenly."""


class HashingScheme(Enum):
    """Hashing of keys, ``HashingScheme`` in Java, whose default is the first."""

    JAVA_STRING_HASH = "JavaStringHash"
    MURMUR3_32_HASH = "Murmur3_32Hash"


def router(partitions: int, hashing: HashingScheme) -> Callable[[OutgoingMessage, int], int]:
    """Return a function from a message, and the number that represents it without a key, to its partition."""
    key_hash = java_string_hash if hashing is HashingScheme.JAVA_STRING_HASH else murmur3_32_hash

    @lru_cache(_REMEMBERED_KEYS)
    def of_key(key: str) -> int:
        return key_hash(key) % partitions

    def partition_of(message: OutgoingMessage, number: int) -> int:
        if message.key is not None:
            return of_key(message.key)
        return ((number * _GOLDEN & _ALL_64) >> 32) % partitions

    return partition_of


def murmur3_32_hash(key: str) -> int:
    """Return ``Murmur3_32Hash`` of the UTF-8 bytes, with seed 0, ``& Integer.MAX_VALUE``."""
    data = key.encode()
    whole = len(data) & ~3
    found = 0
    for (block,) in struct.iter_unpack("<I", data[:whole]):
        found = _rotated(found ^ _mixed(block), 13)
        found = (found * 5 + 0xE6546B64) & _ALL_32
    found ^= _mixed(int.from_bytes(data[whole:], "little"))
    found ^= len(data)
    found = ((found ^ found >> 16) * 0x85EBCA6B) & _ALL_32
    found = ((found ^ found >> 13) * 0xC2B2AE35) & _ALL_32
    return (found ^ found >> 16) & _POSITIVE


def _mixed(block: int) -> int:
    return _rotated(block * 0xCC9E2D51 & _ALL_32, 15) * 0x1B873593 & _ALL_32


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> (32 - bits)) & _ALL_32
