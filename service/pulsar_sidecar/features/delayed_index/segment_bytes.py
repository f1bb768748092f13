"""Protobuf of a segment, encoded and decoded as columns instead of messages.

A ``SnapshotSegment`` consists of varints only: for each index its tag and length, and three times a field's tag and
value. So the code finds the ends of all numbers at once, and every eighth ends an index. It treats a number as one word
of 64 bits, and leaves larger ones to protobuf itself.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]
Widths = npt.NDArray[np.integer[Any]]

_WORD_BYTES: Final = 8
_WORD_VALUE_BITS: Final = 7 * _WORD_BYTES
_INDEX_TAG: Final = 0x0A
_FIELD_TAGS: Final = (0x08, 0x10, 0x18)
_NUMBERS_AN_INDEX: Final = 2 + 2 * len(_FIELD_TAGS)
_MORE: Final = 0x80
_STEPS: Final = (
    (0x00000000_0FFFFFFF, 0x00FFFFFF_F0000000, 4),
    (0x00003FFF_00003FFF, 0x0FFFC000_0FFFC000, 2),
    (0x007F007F_007F007F, 0x3F803F80_3F803F80, 1),
)
"""Steps that spread 56 bits into eight groups of 7: bits that stay, bits that move, and the shift; each step doubles
the number of groups."""

_MORE_BITS: Final = np.array([sum(_MORE << 8 * byte for byte in range(width - 1)) for width in range(9)], np.uint64)
_VALUE_BITS: Final = np.array([((1 << 8 * width) - 1) & 0x7F7F7F7F_7F7F7F7F for width in range(9)], np.uint64)


def encode_indexes(*columns: Longs) -> bytes | None:
    """Encode as protobuf does, one message per index, one field per column; None if a number is too large."""
    if not len(columns[0]):
        return b""
    if any(int(column.max()) >> _WORD_VALUE_BITS or int(column.min()) < 0 for column in columns):
        return None
    widths = [_widths(column) for column in columns]
    # Every index gets space for the longest numbers of all; unused bytes are dropped at the end.
    rooms = [int(width.max()) for width in widths]
    table = np.empty((len(columns[0]), 2 + sum(1 + room for room in rooms)), np.uint8)
    used = np.ones(table.shape, np.bool_)
    table[:, 0] = _INDEX_TAG
    table[:, 1] = sum(widths) + np.uint8(len(columns))
    at = 2
    for tag, column, width, room in zip(_FIELD_TAGS, columns, widths, rooms, strict=True):
        table[:, at] = tag
        table[:, at + 1 : at + 1 + room] = _spread(column, width)[:, :room]
        for byte in range(int(width.min()), room):
            used[:, at + 1 + byte] = width > byte
        at += 1 + room
    return table[used].tobytes()


def decode_indexes(payload: bytes) -> tuple[Longs, Longs, Longs] | None:
    """Return due times, ledgers and entries; None if the encoding is any other than `encode_indexes`'s."""
    size = len(payload)
    padded = np.frombuffer(payload + bytes(_WORD_BYTES), np.uint8)
    data = padded[:size]
    ends = np.flatnonzero(data < _MORE)
    if len(ends) % _NUMBERS_AN_INDEX or (size and (not len(ends) or ends[-1] != size - 1)):
        return None
    # One byte each: the sum reveals lengths that do not fit, and larger arrays cost more than the computation.
    lengths = np.empty(len(ends), np.uint8)
    lengths[:1] = ends[:1] + 1
    np.subtract(ends[1:], ends[:-1], out=lengths[1:], casting="unsafe")
    if int(lengths.max(initial=1)) > _WORD_BYTES or int(lengths.sum(dtype=np.int64)) != size:
        return None
    widths = np.ascontiguousarray(lengths.reshape(-1, _NUMBERS_AN_INDEX).T)
    last = ends.reshape(-1, _NUMBERS_AN_INDEX).T
    if not _are_headers(data, last, widths):
        return None
    words: Words = np.ndarray((size,), "<u8", padded.data, strides=(1,))
    columns = [_gathered(words, data, last[at], widths[at]) for at in range(3, _NUMBERS_AN_INDEX, 2)]
    times, ledgers, entries = columns
    return None if times is None or ledgers is None or entries is None else (times, ledgers, entries)


def _widths(column: Longs) -> npt.NDArray[np.uint8]:
    widths = np.ones(len(column), np.uint8)
    most = int(column.max())
    for bits in range(7, _WORD_VALUE_BITS, 7):
        if most < 1 << bits:
            break
        widths += column >= 1 << bits
    return widths


def _spread(column: Longs, widths: Widths) -> Bytes:
    """Return eight bytes per number, of which ``widths`` are to be written."""
    words = column.astype("<u8")
    for stays, moves, by in _STEPS:
        words = words & np.uint64(stays) | (words & np.uint64(moves)) << np.uint64(by)
    words |= _MORE_BITS[widths]
    return words.view(np.uint8).reshape(-1, _WORD_BYTES)


def _gathered(words: Words, data: Bytes, ends: Longs, widths: Widths) -> Longs | None:
    """Return the numbers that end at ``ends``; None if one is longer than necessary."""
    if bool(((data[ends] == 0) & (widths > 1)).any()):
        return None
    values = words[ends + 1 - widths] & _VALUE_BITS[widths]
    for stays, moves, by in reversed(_STEPS):
        values = values & np.uint64(stays) | values >> np.uint64(by) & np.uint64(moves)
    numbers: Longs = values.astype(np.int64)
    return numbers


def _are_headers(data: Bytes, ends: Longs, widths: Widths) -> bool:
    lengths = widths[2:].sum(axis=0)
    places = (0, 1, *range(2, _NUMBERS_AN_INDEX, 2))
    return all(
        bool((widths[place] == 1).all()) and bool((data[ends[place]] == value).all())
        for place, value in zip(places, (_INDEX_TAG, lengths, *_FIELD_TAGS), strict=True)
    )
