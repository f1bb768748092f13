"""Protobuf read at many places of one buffer at once: its numbers, and messages of many nodes walked in step.

Invariant: a number counts as good only in its shortest form, the only one that `ownership.exact_decoding` accepts. A
message counts as understood only if the caller requested each of its bytes, in ascending order of fields.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_PADDING = 64
"""Bytes that may be read behind the last one; a few fields of at most 11 bytes are."""
_WORD_BYTES = 8
_TAG = np.uint64(0xFF)
_BYTE = np.uint64(8)
_MORE = np.uint64(0x8080808080808080)
_GROUPS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
# Each step joins pairs of groups: of 7, then of 14, then of 28 bits.
_JOINS = (
    (np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MINUS_ONE = np.uint64(0xFFFFFFFFFFFFFF00)
_MINUS_ONE_REST, _MINUS_ONE_END = np.uint64(0xFFFFFF), np.uint64(0x01FFFF)
_MINUS_ONE_BYTES = 11

_POSITION_LEDGER, _POSITION_ENTRY = 0x08, 0x10
_EVERY = slice(None)
_MOST_REPEATED = 100
"""Repetitions of a field beyond which reading node by node is faster."""


def joined(groups: Any) -> Numbers:
    """Return numbers whose groups of 7 bits are in one byte each, the lowest first; changes its argument in place."""
    for pairs, distance in _JOINS:
        groups -= (groups & pairs) - ((groups & pairs) >> distance)
    answer: Numbers = groups.view(np.int64)
    return answer


class ValueBytes:
    """Bytes of many values, from ``start`` to ``end`` where they are ``valid``."""

    def __init__(self, content: bytes, bounds: Numbers, valid: Mask) -> None:
        """Copy values that follow one another; ``bounds`` has the beginning of each, and the end of the last one."""
        size = int(bounds[-1] - bounds[0])
        data = np.zeros(size + _PADDING, np.uint8)
        if size:
            data[:size] = np.frombuffer(content, np.uint8, size, int(bounds[0]))
        ends = bounds - bounds[0]
        self.start: Numbers = ends[:-1]
        self.end: Numbers = ends[1:]
        self.valid = valid
        self._data = data
        self._words_beyond_ascii: Numbers | None = None
        self._pairs: Any = np.ndarray(len(data) - 1, np.dtype("<u2"), data, strides=(1,))
        self._words: Any = np.ndarray(len(data) - 7, np.dtype("<u8"), data, strides=(1,))

    def pairs(self, at: Numbers) -> Any:
        """Return the byte at each place, plus 256 times the next one."""
        return self._pairs[at]

    def words(self, at: Numbers) -> Any:
        """Return the 8 bytes from each place on, the lowest first."""
        return self._words[at]

    def are_ascii(self, start: Numbers, end: Numbers) -> Mask:
        """Return True where all bytes between start and end are ASCII."""
        if self._words_beyond_ascii is None:
            # Counting single bytes would take longer than all other reading of a node.
            words = self._data[: len(self._data) // _WORD_BYTES * _WORD_BYTES].view("<u8")
            self._words_beyond_ascii = np.concatenate([[0], np.cumsum((words & _MORE) != 0)])
        length = end - start
        beyond_start = np.maximum(_WORD_BYTES - length, 0).view(np.uint64) * _BYTE
        answer: Mask = ((self._words[start] & _MORE) << beyond_start) == 0
        last = self._words[np.maximum(end - _WORD_BYTES, 0)] & _MORE
        answer &= (last == 0) | (length < _WORD_BYTES)
        first_whole = (start + (_WORD_BYTES - 1)) // _WORD_BYTES
        after_whole = np.maximum(end // _WORD_BYTES, first_whole)
        answer &= self._words_beyond_ascii[first_whole] == self._words_beyond_ascii[after_whole]
        return answer

    def mark(self, start: Numbers, length: Numbers) -> Numbers:
        """Return a number that is the same for the same bytes; there must be at least 8."""
        last = np.maximum(start + length - _WORD_BYTES, 0)
        mark = (self._words[start] * _MIX) ^ self._words[last] ^ length.view(np.uint64)
        answer: Numbers = mark.view(np.int64)
        return answer

    def field(self, at: Numbers, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """Return a field's number of up to 49 bits, the bytes it takes, and whether it is good.

        At another field or the end, the value is 0, takes no bytes and is good.
        """
        groups, size, good = self.unjoined_field(at, tag)
        return joined(groups), size, good

    def unjoined_field(self, at: Numbers, tag: int) -> tuple[Any, Numbers, Mask]:
        """Read a field, leaving its value for `joined`, which is half of the work; such a value is 0 only for 0."""
        word = self._words[at]
        there = (word & _TAG) == tag
        word >>= _BYTE
        # Keep everything up to the first byte without the continuation bit.
        mask = ~word & _MORE
        mask ^= mask - _ONE
        size = (np.bitwise_count(mask) >> 3) + 1
        word &= mask
        word &= _GROUPS
        shortest = word >= (mask >> _BYTE)
        word *= there
        return word, size * there, shortest | ~there

    def signed_field(self, at: Numbers, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """Read a `field` that may be -1, which takes 10 bytes."""
        value, size, good = self.field(at, tag)
        minus_one = self._words[at] == (_MINUS_ONE | np.uint64(tag))
        minus_one &= (self._words[at + 8] & _MINUS_ONE_REST) == _MINUS_ONE_END
        return np.where(minus_one, -1, value), np.where(minus_one, _MINUS_ONE_BYTES, size), good | minus_one


class Walk:
    """Walk through one protobuf message of each of many nodes, in step; ``at`` is never behind a message's end."""

    def __init__(self, data: ValueBytes, at: Numbers, stop: Numbers) -> None:
        self.data = data
        self.at = at
        self._start = at
        self._stop = stop
        self._good = np.ones(len(at), np.bool_)

    def number(self, tag: int, *, or_minus_one: bool = False) -> tuple[Numbers, Mask]:
        """Return a field's values, and a mask of the messages that have it."""
        field = self.data.signed_field if or_minus_one else self.data.field
        value, size, good = field(self.at, tag)
        there = (size != 0) & (self.at < self._stop)
        after = np.where(there, self.at + size, self.at)
        self._good &= (good | ~there) & (after <= self._stop)
        self.at = np.minimum(after, self._stop)
        return np.where(there, value, 0), there

    def required(self, tag: int, *, or_minus_one: bool = False) -> Numbers:
        """Return the values of a field that each message must have."""
        value, there = self.number(tag, or_minus_one=or_minus_one)
        self._good &= there
        return value

    def piece(self, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """Return start and length of a field of bytes, and a mask of the messages that have it."""
        there = ((self.data.pairs(self.at) & 0xFF) == tag) & (self.at < self._stop) & self._good
        length, size, ok = lengths_at(self.data, np.minimum(self.at + 1, self._stop))
        start = self.at + 1 + size
        whole = ok & (start + length <= self._stop)
        self._good &= whole | ~there
        there &= whole
        self.at = np.where(there, start + length, self.at)
        return np.where(there, start, self.at), np.where(there, length, 0), there

    def message(self, tag: int) -> "Walk":
        """Return a walk through a message that each must have."""
        start, length, there = self.piece(tag)
        self._good &= there
        return Walk(self.data, start, start + length)

    def position(self, tag: int) -> Numbers:
        """Return the ledgers of positions that each must have (``NestedPositionInfo``, a schema's ``PositionInfo``)."""
        position = self.message(tag)
        ledger_id = position.required(_POSITION_LEDGER, or_minus_one=True)
        position.required(_POSITION_ENTRY, or_minus_one=True)
        self._good &= position.ended()
        return ledger_id

    def messages(self, tag: int) -> Iterator[tuple[Numbers, "Walk"]]:
        """Yield the first repetition of a message wherever there is one, then the second, until none is left.

        A node with more than `_MOST_REPEATED` repetitions is not read to its end.
        """
        for _ in range(_MOST_REPEATED):
            start, length, there = self.piece(tag)
            rows = np.flatnonzero(there)
            if not len(rows):
                return
            yield rows, Walk(self.data, start[rows], start[rows] + length[rows])

    def demand(self, good: Mask, rows: Numbers | slice = _EVERY) -> None:
        """Reject the messages for which the mask is False."""
        self._good[rows] &= good

    def is_ascii(self) -> Mask:
        """Return True where every byte of the message is ASCII."""
        return self.data.are_ascii(self._start, self._stop)

    def ended(self) -> Mask:
        """Return True where the message was understood to its end."""
        answer: Mask = self._good & (self.at == self._stop)
        return answer


def lengths_at(data: ValueBytes, at: Numbers) -> tuple[Numbers, Numbers, Mask]:
    """Return a length of one or two bytes, how many it takes, and whether it is in its shortest form."""
    pair = data.pairs(at).astype(np.int64)
    low, high = pair & 0xFF, pair >> 8
    short = low < 0x80
    length = np.where(short, low, (low & 0x7F) | (high << 7))
    return length, np.where(short, 1, 2), short | ((high < 0x80) & (high > 0))
