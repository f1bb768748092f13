"""Ledger ids from paths, for a whole column at once: `service.ledger_ownership.paths.ledger_id_of_path`, vectorised."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.ledger_ownership.paths import LAST_SHORT_LEDGER_ID

_SHORT = r"^/[0-9]{2}/[0-9]{4}/L[0-9]{4}$"
_LONG = r"^/[0-9]{3}/[0-9]{4}/[0-9]{4}/[0-9]{4}/L[0-9]{4}$"
_LARGEST = "9223372036854775807"
_SHORT_FORM = b"/00/0000/L0000"


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
    if paths.null_count or fitting.true_count < len(paths) * 0.9:
        return None
    kept = fitting.to_numpy(zero_copy_only=False)
    _, offsets, content = paths.buffers()
    starts = np.frombuffer(offsets, np.int32, len(paths) + 1, paths.offset * 4)
    if kept.all():
        text = np.frombuffer(content, np.uint8, width * len(paths), int(starts[0])).reshape(-1, width)
    else:
        everything = np.frombuffer(content, np.uint8)
        text = everything[starts[:-1][kept].astype(np.int64)[:, None] + np.arange(width)]
    numbers, ok = _short_numbers(text, root)
    found = np.zeros(len(paths), np.int64)
    valid = np.zeros(len(paths), np.bool_)
    found[kept], valid[kept] = numbers, ok
    rest = np.flatnonzero(~kept)
    if len(rest):
        exact = _ledger_ids(paths.take(pa.array(rest)), ledgers_root)
        found[rest] = exact.fill_null(0).to_numpy()
        valid[rest] = exact.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(found, mask=~valid)


def _short_numbers(text: np.ndarray, root: bytes) -> tuple[np.ndarray, np.ndarray]:
    ok = np.ones(len(text), np.bool_)
    for position, byte in enumerate(root):
        ok &= text[:, position] == byte
    numbers = np.zeros(len(text), np.int64)
    for position, byte in enumerate(_SHORT_FORM, len(root)):
        column = text[:, position]
        if byte == ord("0"):
            digit = column - np.uint8(ord("0"))
            ok &= digit <= 9
            numbers = numbers * 10 + digit
        else:
            ok &= column == byte
    return numbers, ok & (numbers <= LAST_SHORT_LEDGER_ID)
