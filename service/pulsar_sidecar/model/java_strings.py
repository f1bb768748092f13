"""How Java hashes strings, which decides to which partition a message with a key belongs."""

import struct
from typing import Final

_ALL_32: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """``String.hashCode() & Integer.MAX_VALUE``, over UTF-16 code units (``JavaStringHash`` of pulsar-client)."""
    found = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        found = (31 * found + unit) & _ALL_32
    return found & _POSITIVE
