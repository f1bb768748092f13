"""Ledger ids from paths, for a whole column at once: `ledger_ownership.paths.ledger_id_of_path`, vectorised."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.arrays import Mask, Numbers
from pulsar_sidecar.ledger_ownership.paths import LAST_SHORT_LEDGER_ID

_SHORT_FORM = b"/00/0000/L0000"
_WORD = 8
_WORDS = np.dtype("<u8")
# Added to a byte, these reach its highest bit from 10 and from 1 on.
_TEN_BELOW_SIGN, _ONE_BELOW_SIGN = 0x80 - 10, 0x80 - 1
_WITHOUT_SIGNS = np.uint64(0x7F7F7F7F7F7F7F7F)
_TWOS = np.uint64(0x00FF00FF00FF00FF)
_FOUR = np.uint64(0xFFFF)


def ledger_ids(paths: pa.Array, ledgers_root: str) -> tuple[Numbers, Mask, Mask]:
    """The id of each path that has the short form, which paths those are, and which are left to the exact reader."""
    root = ledgers_root.encode()
    kept = pc.equal(pc.binary_length(paths), len(root) + len(_SHORT_FORM))
    kept = kept.fill_null(False).to_numpy(zero_copy_only=False)
    found = np.zeros(len(paths), np.int64)
    valid = np.zeros(len(paths), np.bool_)
    if kept.any():
        _, offsets, content = paths.buffers()
        data = np.frombuffer(content, np.uint8)
        places = np.frombuffer(offsets, np.int32, len(paths) + 1, paths.offset * 4)[:-1][kept].astype(np.int64)
        words: Any = np.ndarray(len(data) - (_WORD - 1), _WORDS, data, strides=(1,))
        found[kept], valid[kept] = _short_numbers(lambda at: words[places + at], root)
    return found, valid, ~kept


def _short_numbers(words_at: Callable[[int], Any], root: bytes) -> tuple[Numbers, Mask]:
    """The ids of paths as long as this root and the short form, and which have both; words are 8 bytes each."""
    path = root + _SHORT_FORM
    ok = np.True_
    for at in range(0, len(root), _WORD):
        of_root = np.uint64((1 << 8 * min(_WORD, len(root) - at)) - 1)
        ok &= ((words_at(at) ^ _word(path[at:])) & of_root) == 0
    first, second, good = _numbers_of_four(words_at(len(root)), _SHORT_FORM[:_WORD])
    _, third, good_too = _numbers_of_four(words_at(len(path) - _WORD), _SHORT_FORM[-_WORD:])
    # The first of them is "/00/", which a separator makes ten times as large.
    numbers = (first * 1_000 + second) * 10_000 + third
    return numbers, ok & good & good_too & (numbers <= LAST_SHORT_LEDGER_ID)


def _numbers_of_four(words: Any, form: bytes) -> tuple[Numbers, Numbers, Mask]:
    """The numbers of the first four and of the last four of eight characters, and whether they are as in a form.

    A 0 of the form stands for any digit; every other character counts as the digit 0.
    """
    digits = words ^ _word(form)
    limits = _word(bytes(_TEN_BELOW_SIGN if character == ord("0") else _ONE_BELOW_SIGN for character in form))
    good = ((digits | ((digits & _WITHOUT_SIGNS) + limits)) & ~_WITHOUT_SIGNS) == 0
    twos = (digits * np.uint64(10) + (digits >> np.uint64(8))) & _TWOS
    fours = twos * np.uint64(100) + (twos >> np.uint64(16))
    return (fours & _FOUR).view(np.int64), (fours >> np.uint64(32) & _FOUR).view(np.int64), good


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text[:_WORD], "little"))
