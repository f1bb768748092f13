"""Memory of a broker's queues of delayed messages (``TripleLongPriorityQueue`` of 4.0.8).

A queue starts with space for 16 messages and grows in steps: doubled while small, then by half, at last by 16 MiB. So
two queues rarely take as many bytes as one, and the size shows which tracker a broker runs.
"""

from collections.abc import Iterator
from itertools import takewhile
from typing import Final, Literal

INDEX_BYTES: Final = 24
"""Bytes of one index: due time, ledger and entry."""
EMPTY_QUEUE_BYTES: Final = 16 * INDEX_BYTES
_DOUBLED_UNTIL_BYTES: Final = 256 * 8
_LARGEST_PIECE_BYTES: Final = 1 << 24


def queue_bytes(indexes: int) -> int:
    """Return the bytes of a queue that only grew; 0 for none, as the first message creates the tracker."""
    return next(size for size in _sizes() if size >= INDEX_BYTES * indexes) if indexes else 0


def queues_of(size_bytes: int) -> Literal[1, 2] | None:
    """Return the number of queues that, having only grown, take exactly this many bytes.

    The in-memory tracker has one queue, the bucket tracker two. None: either fits, or a queue has shrunk.
    """
    sizes = set(takewhile(lambda size: size <= size_bytes, _sizes()))
    is_one, is_two = size_bytes in sizes, any(size_bytes - size in sizes for size in sizes)
    if is_one == is_two:
        return None
    return 1 if is_one else 2


def _sizes() -> Iterator[int]:
    size = EMPTY_QUEUE_BYTES
    while True:
        yield size
        if size >= _LARGEST_PIECE_BYTES:
            size += _LARGEST_PIECE_BYTES
        else:
            longs = size // 8
            size = min(8 * (longs + (longs if size <= _DOUBLED_UNTIL_BYTES else longs // 2)), _LARGEST_PIECE_BYTES)
