"""Which partition a key belongs to, as Java producers decide it, so that both put one topic's records together.

Source: ``JavaStringHash`` and ``MathUtils.signSafeMod`` of pulsar-client, the defaults of a Java producer.
"""

_MASK = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF


def java_string_hash(text: str) -> int:
    """``String.hashCode() & Integer.MAX_VALUE``, over UTF-16 code units."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & _MASK
    return value & _POSITIVE


def partition_of(key: str | None, partitions: int) -> int:
    """The partition for a key; messages without one all go to the first."""
    return java_string_hash(key) % partitions if key else 0
