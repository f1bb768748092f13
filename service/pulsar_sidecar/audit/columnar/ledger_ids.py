"""Ledger ids from paths, for a whole column at once: `ledger_ownership.paths.ledger_id_of_path`, vectorised."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.columnar.varints import Mask, Numbers
from pulsar_sidecar.ledger_ownership.paths import LAST_SHORT_LEDGER_ID

_SHORT = r"^/[0-9]{2}/[0-9]{4}/L[0-9]{4}$"
_LONG = r"^/[0-9]{3}/[0-9]{4}/[0-9]{4}/[0-9]{4}/L[0-9]{4}$"
_LARGEST = "9223372036854775807"
_SHORT_FORM = b"/00/0000/L0000"
_WORD = 8
_WORDS = np.dtype("<u8")
# Added to a byte, these reach its highest bit from 10 and from 1 on.
_TEN_BELOW_SIGN, _ONE_BELOW_SIGN = 0x80 - 10, 0x80 - 1
_WITHOUT_SIGNS = np.uint64(0x7F7F7F7F7F7F7F7F)
_TWOS = np.uint64(0x00FF00FF00FF00FF)
_FOUR = np.uint64(0xFFFF)


def ledger_ids(paths: pa.Array, ledgers_root: str) -> pa.Array:
    """The id whose metadata node is at each path, null for every other node."""
    short = _all_short(paths, ledgers_root)
    return _ledger_ids(paths, ledgers_root) if short is None else short


def _ledger_ids(paths: pa.Array, ledgers_root: str) -> pa.Array:
    below = pc.utf8_slice_codeunits(paths, len(ledgers_root))
    digits = pc.replace_substring_regex(below, r"[/L]", "")
    is_below = pc.starts_with(paths, f"{ledgers_root}/")
    short = pc.and_(is_below, pc.match_substring_regex(below, _SHORT))
    fits = pc.less_equal(digits, _LARGEST)
    long = pc.and_(pc.and_(is_below, pc.match_substring_regex(below, _LONG)), fits)
    numbers = pc.if_else(pc.or_(short, long), digits, None).cast(pa.int64())
    is_short = pc.less_equal(numbers, LAST_SHORT_LEDGER_ID)
    return pc.if_else(pc.equal(short, is_short), numbers, None)


def _all_short(paths: pa.Array, ledgers_root: str) -> pa.Array | None:
    """The same for a column in which most are short ids, by their characters; None for any other column."""
    root = ledgers_root.encode()
    width = len(root) + len(_SHORT_FORM)
    lengths = pc.binary_length(paths)
    fitting = pc.equal(lengths, width)
    if paths.null_count or not fitting.true_count or fitting.true_count < len(paths) * 0.9:
        return None
    kept = fitting.to_numpy(zero_copy_only=False)
    _, offsets, content = paths.buffers()
    starts = np.frombuffer(offsets, np.int32, len(paths) + 1, paths.offset * 4)[:-1]
    data = np.frombuffer(content, np.uint8)
    if kept.all():
        first = int(starts[0])
        numbers, ok = _short_numbers(
            lambda at: np.ndarray(len(paths), _WORDS, data, offset=first + at, strides=(width,)), root
        )
        return pa.array(numbers, mask=None if ok.all() else ~ok)
    words, places = np.ndarray(len(data) - (_WORD - 1), _WORDS, data, strides=(1,)), starts[kept].astype(np.int64)
    found = np.zeros(len(paths), np.int64)
    valid = np.zeros(len(paths), np.bool_)
    found[kept], valid[kept] = _short_numbers(lambda at: words[places + at], root)
    rest = np.flatnonzero(~kept)
    exact = _ledger_ids(paths.take(pa.array(rest)), ledgers_root)
    found[rest] = exact.fill_null(0).to_numpy()
    valid[rest] = exact.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(found, mask=~valid)


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
