"""Protobuf's numbers, read at many places of one buffer at once.

Invariant: a number is answered as good only if it stands in its shortest form, which is the only one that
`ledger_ownership.exact_decoding` accepts.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.arrays import Mask, Numbers

_PADDING = 64
"""So much may be read behind the last byte; a few fields of 11 bytes at most are."""
_WORD_BYTES = 8
_TAG = np.uint64(0xFF)
_BYTE = np.uint64(8)
_MORE = np.uint64(0x8080808080808080)
_GROUPS = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONE = np.uint64(1)
# Pairs of groups of 7, then of 14, then of 28 bits are moved together.
_JOINS = (
    (np.uint64(0x7F007F007F007F00), np.uint64(1)),
    (np.uint64(0x3FFF00003FFF0000), np.uint64(2)),
    (np.uint64(0x0FFFFFFF00000000), np.uint64(4)),
)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MINUS_ONE = np.uint64(0xFFFFFFFFFFFFFF00)
_MINUS_ONE_REST, _MINUS_ONE_END = np.uint64(0xFFFFFF), np.uint64(0x01FFFF)
_MINUS_ONE_BYTES = 11


def joined(groups: Any) -> Numbers:
    """Numbers whose groups of 7 bits stand in bytes of their own, the first one lowest; changes what it is given."""
    for pairs, distance in _JOINS:
        groups -= (groups & pairs) - ((groups & pairs) >> distance)
    answer: Numbers = groups.view(np.int64)
    return answer


class ValueBytes:
    """The bytes of a column's values.

    Attributes:
        start: where each value starts.
        end: and ends.
    """

    def __init__(self, values: pa.Array) -> None:
        _, offsets, content = values.buffers()
        ends = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
        size = int(ends[-1] - ends[0])
        data = np.zeros(size + _PADDING, np.uint8)
        if size:
            data[:size] = np.frombuffer(content, np.uint8, size, int(ends[0]))
        ends -= ends[0]
        self.start: Numbers = ends[:-1]
        self.end: Numbers = ends[1:]
        self._data = data
        self._words_beyond_ascii: Numbers | None = None
        self._pairs: Any = np.ndarray(len(data) - 1, np.dtype("<u2"), data, strides=(1,))
        self._words: Any = np.ndarray(len(data) - 7, np.dtype("<u8"), data, strides=(1,))

    def pairs(self, at: Numbers) -> Any:
        """The byte at each place, and 256 times the one behind it."""
        return self._pairs[at]

    def words(self, at: Numbers) -> Any:
        """The 8 bytes from each place on, the first one lowest."""
        return self._words[at]

    def are_ascii(self, start: Numbers, end: Numbers) -> Mask:
        """Whether no byte from each start to its end is beyond ASCII."""
        if self._words_beyond_ascii is None:
            # A running count of bytes would take longer than everything else that is read in a node.
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
        """A number that is the same for the same bytes, of which there must be 8 at least."""
        last = np.maximum(start + length - _WORD_BYTES, 0)
        mark = (self._words[start] * _MIX) ^ self._words[last] ^ length.view(np.uint64)
        answer: Numbers = mark.view(np.int64)
        return answer

    def field(self, at: Numbers, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """A field with a number of up to 49 bits: its value, how many bytes it takes, whether it is good.

        Where another field or the end stands, the value is 0, it takes no bytes and is good.
        """
        groups, size, good = self.unjoined_field(at, tag)
        return joined(groups), size, good

    def unjoined_field(self, at: Numbers, tag: int) -> tuple[Any, Numbers, Mask]:
        """The same, the value as `joined` takes it, which is 0 only for 0: half of the work is joining."""
        word = self._words[at]
        there = (word & _TAG) == tag
        word >>= _BYTE
        # Everything up to the first byte without the mark that more follow.
        mask = ~word & _MORE
        mask ^= mask - _ONE
        size = (np.bitwise_count(mask) >> 3) + 1
        word &= mask
        word &= _GROUPS
        shortest = word >= (mask >> _BYTE)
        word *= there
        return word, size * there, shortest | ~there

    def signed_field(self, at: Numbers, tag: int) -> tuple[Numbers, Numbers, Mask]:
        """The same for one that may be -1, which takes 10 bytes."""
        value, size, good = self.field(at, tag)
        minus_one = self._words[at] == (_MINUS_ONE | np.uint64(tag))
        minus_one &= (self._words[at + 8] & _MINUS_ONE_REST) == _MINUS_ONE_END
        return np.where(minus_one, -1, value), np.where(minus_one, _MINUS_ONE_BYTES, size), good | minus_one
