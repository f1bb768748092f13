"""Java's hash of strings, which decides the partition of a message with a key."""

import struct
from typing import Final

_ALL_32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """Return ``String.hashCode() & Integer.MAX_VALUE``, over UTF-16 code units (pulsar-client's ``JavaStringHash``)."""
    found = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        found = (31 * found + unit) & _ALL_32
    return found & _POSITIVE
