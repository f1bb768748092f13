"""Protobuf messages of many nodes gone through in step.

Invariant: a message counts as understood only if each of its bytes was asked for, in ascending order of fields and in
its shortest form.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.arrays import Mask, Numbers
from pulsar_sidecar.audit.columnar.varints import ValueBytes

_POSITION_LEDGER, _POSITION_ENTRY = 0x08, 0x10
_MOST_REPEATED = 100
"""What a few nodes have so often is read faster one by one."""


class Walk:
    """Goes through one protobuf message of each of many nodes in step.

    Attributes:
        at: how far each is; never behind its end.
    """

    def __init__(self, data: ValueBytes, at: Numbers, stop: Numbers) -> None:
        self.data = data
        self.at = at
        self._start = at
        self._stop = stop
        self._good = np.ones(len(at), np.bool_)

    def number(self, tag: int, *, or_minus_one: bool = False) -> tuple[Numbers, Mask]:
        """A field's values, and which messages have it."""
        field = self.data.signed_field if or_minus_one else self.data.field
        value, size, good = field(self.at, tag)
        there = (size != 0) & (self.at < self._stop)
        after = np.where(there, self.at + size, self.at)
        self._good &= (good | ~there) & (after <= self._stop)
        self.at = np.minimum(after, self._stop)
        return np.where(there, value, 0), there

    def required(self, tag: int, *, or_minus_one: bool = False) -> Numbers:
        """A field that each message must have."""
        value, there = self.number(tag, or_minus_one=or_minus_one)
        self._good &= there
        return value

    def piece(self, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """Where a field of bytes begins, how long it is, and which messages have it."""
        there = ((self.data.pairs(self.at) & 0xFF) == tag) & (self.at < self._stop) & self._good
        length, size, ok = lengths_at(self.data, np.minimum(self.at + 1, self._stop))
        start = self.at + 1 + size
        whole = ok & (start + length <= self._stop)
        self._good &= whole | ~there
        there &= whole
        self.at = np.where(there, start + length, self.at)
        return np.where(there, start, self.at), np.where(there, length, 0), there

    def message(self, tag: int) -> "Walk":
        """A message that each must have."""
        start, length, there = self.piece(tag)
        self._good &= there
        return Walk(self.data, start, start + length)

    def position(self, tag: int) -> Numbers:
        """The ledgers of positions that each must have (``NestedPositionInfo``, a schema's ``PositionInfo``)."""
        position = self.message(tag)
        ledger_id = position.required(_POSITION_LEDGER, or_minus_one=True)
        position.required(_POSITION_ENTRY, or_minus_one=True)
        self._good &= position.ended()
        return ledger_id

    def messages(self, tag: int) -> Iterator[tuple[Numbers, "Walk"]]:
        """The first of a repeated message of every one that has any, then the second, until none has one left.

        Those that have more than `_MOST_REPEATED` are not gone through to their ends.
        """
        for _ in range(_MOST_REPEATED):
            start, length, there = self.piece(tag)
            rows = np.flatnonzero(there)
            if not len(rows):
                return
            yield rows, Walk(self.data, start[rows], start[rows] + length[rows])

    def demand(self, rows: Numbers | slice, good: Mask) -> None:
        """Give up these messages where it is not so."""
        self._good[rows] &= good

    def is_ascii(self) -> Mask:
        """Whether the whole of each has nothing but ASCII's bytes."""
        return self.data.are_ascii(self._start, self._stop)

    def ended(self) -> Mask:
        """Which were understood to their ends."""
        answer: Mask = self._good & (self.at == self._stop)
        return answer


def walk_of_nodes(values: pa.Array) -> tuple[Numbers, Walk]:
    """Which nodes of a ``binary`` column hold anything, and a walk through the message of each of them."""
    data = ValueBytes(values)
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & (data.end > data.start))
    return there, Walk(data, data.start[there], data.end[there])


def lengths_at(data: ValueBytes, at: Numbers) -> tuple[Numbers, Numbers, Mask]:
    """A length of one or two bytes, how many it takes, and whether it is one in its shortest form."""
    pair = data.pairs(at).astype(np.int64)
    low, high = pair & 0xFF, pair >> 8
    short = low < 0x80
    length = np.where(short, low, (low & 0x7F) | (high << 7))
    return length, np.where(short, 1, 2), short | ((high < 0x80) & (high > 0))
