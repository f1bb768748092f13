"""Map of ledgers to buckets: Guava's ``TreeRangeMap``, as far as Java's tracker uses it.

A new range cuts the ranges that it overlaps: those within it vanish, others lose a part or are split in two. The rest
of a range is open where it was cut, so it no longer equals its bucket's own range, and removing that range leaves it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket


class CutRange(NamedTuple):
    """Range between two cuts: ``2 * n`` is just below ledger n, ``2 * n + 1`` just above it."""

    lower: int
    upper: int

    @classmethod
    def closed(cls, key: BucketKey) -> "CutRange":
        """Create the range from the first to the last ledger, both inclusive."""
        return cls(2 * key.start, 2 * key.end + 1)

    @property
    def java_hash(self) -> int:
        """``Range.hashCode``, with its bits spread as ``HashMap`` does."""
        code = (31 * _hash_of_cut(self.lower) + _hash_of_cut(self.upper)) & _INT
        return code ^ code >> 16


def in_order_of_hash_map(ranges: Sequence[CutRange], capacity: int) -> list[CutRange]:
    """Order ranges, inserted one by one, as a ``HashMap`` of this initial capacity iterates over them."""
    bins = 1 << (capacity - 1).bit_length()
    while 4 * len(ranges) > 3 * bins:
        bins *= 2
    return sorted(ranges, key=lambda each: each.java_hash & (bins - 1))


def _hash_of_cut(cut: int) -> int:
    ledger_id = cut >> 1
    code = (ledger_id ^ ledger_id >> 32) & _INT
    return ~code if cut & 1 else code


class BucketRanges:
    """Buckets by range, ascending; a split range holds its bucket several times."""

    def __init__(self) -> None:
        self._ranges: list[CutRange] = []
        self._buckets: list[ImmutableBucket] = []

    def __len__(self) -> int:
        return len(self._ranges)

    def __iter__(self) -> Iterator[ImmutableBucket]:
        return iter(tuple(self._buckets))

    def items(self) -> list[tuple[CutRange, ImmutableBucket]]:
        return list(zip(self._ranges, self._buckets, strict=True))

    def find(self, ledger_id: int) -> ImmutableBucket | None:
        """Return the bucket that covers a ledger, or None."""
        at = bisect_right(self._ranges, (2 * ledger_id, _BEYOND)) - 1
        return self._buckets[at] if at >= 0 and self._ranges[at].upper > 2 * ledger_id else None

    def last_ledger_id(self) -> int:
        """Return the last covered ledger, or -1."""
        return max(((each.upper - 1) // 2 for each in self._ranges[-1:]), default=-1)

    def overlapping(self, key: BucketKey) -> list[tuple[CutRange, ImmutableBucket]]:
        """Return the intersections of a range with the present ones, piece by piece."""
        wanted = CutRange.closed(key)
        return [
            (CutRange(max(held.lower, wanted.lower), min(held.upper, wanted.upper)), bucket)
            for held, bucket in self.items()
            if held.lower < wanted.upper and wanted.lower < held.upper
        ]

    def put(self, key: BucketKey, bucket: ImmutableBucket) -> None:
        """Cut the range out of the present ones, and insert it."""
        new = CutRange.closed(key)
        kept: list[tuple[CutRange, ImmutableBucket]] = [(new, bucket)]
        for held, other in self.items():
            pieces = (
                CutRange(held.lower, min(held.upper, new.lower)),
                CutRange(max(held.lower, new.upper), held.upper),
            )
            kept += [(piece, other) for piece in pieces if piece.lower < piece.upper]
        self._replace(kept)

    def remove(self, exactly: CutRange) -> None:
        """Remove the range that equals this one, if any."""
        at = bisect_left(self._ranges, exactly)
        if at < len(self._ranges) and self._ranges[at] == exactly:
            del self._ranges[at]
            self._buckets.pop(at).ranges -= 1

    def clear(self) -> None:
        self._replace([])

    def _replace(self, kept: list[tuple[CutRange, ImmutableBucket]]) -> None:
        for bucket in self._buckets:
            bucket.ranges = 0
        kept.sort(key=lambda item: item[0])
        self._ranges = [held for held, _ in kept]
        self._buckets = [bucket for _, bucket in kept]
        for bucket in self._buckets:
            bucket.ranges += 1


_BEYOND = 2**65
_INT = 2**32 - 1
