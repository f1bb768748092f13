"""How much memory a broker's queues of delayed messages take (``TripleLongPriorityQueue`` of 4.0.8).

A queue begins with room for 16 messages and grows by leaps: doubled while small, by half later, by 16 MiB at last. So
two queues hardly ever take what one does, and the bytes show which of its trackers a broker runs.
"""

from collections.abc import Iterator
from enum import Enum, auto
from itertools import takewhile
from typing import Final

INDEX_BYTES: Final = 24
"""Due time, ledger and entry."""
EMPTY_QUEUE_BYTES: Final = 16 * INDEX_BYTES
_DOUBLED_UNTIL_BYTES: Final = 256 * 8
_LARGEST_PIECE_BYTES: Final = 1 << 24


class Queues(Enum):
    """How many queues take some memory: one the in-memory tracker's, two the bucket tracker's."""

    ONE = auto()
    TWO = auto()
    UNKNOWN = auto()
    """Either, or one of them has given room back."""


def queue_bytes(indexes: int) -> int:
    """What a queue that only grew takes for so many; nothing for none, since a tracker comes with its first message."""
    return next(size for size in _sizes() if size >= INDEX_BYTES * indexes) if indexes else 0


def queues_of(size_bytes: int) -> Queues:
    """How many queues that only grew take exactly so many bytes."""
    sizes = set(takewhile(lambda size: size <= size_bytes, _sizes()))
    is_one, is_two = size_bytes in sizes, any(size_bytes - size in sizes for size in sizes)
    if is_one == is_two:
        return Queues.UNKNOWN
    return Queues.ONE if is_one else Queues.TWO


def _sizes() -> Iterator[int]:
    size = EMPTY_QUEUE_BYTES
    while True:
        yield size
        if size >= _LARGEST_PIECE_BYTES:
            size += _LARGEST_PIECE_BYTES
        else:
            longs = size // 8
            size = min(8 * (longs + (longs if size <= _DOUBLED_UNTIL_BYTES else longs // 2)), _LARGEST_PIECE_BYTES)
