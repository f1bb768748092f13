"""Ledger ids from paths, for a whole column at once: `service.ledger_ownership.paths.ledger_id_of_path`, vectorised."""

import pyarrow as pa
import pyarrow.compute as pc

from service.ledger_ownership.paths import LAST_SHORT_LEDGER_ID

_SHORT = r"^/[0-9]{2}/[0-9]{4}/L[0-9]{4}$"
_LONG = r"^/[0-9]{3}/[0-9]{4}/[0-9]{4}/[0-9]{4}/L[0-9]{4}$"
_LARGEST = "9223372036854775807"


def ledger_ids(paths: pa.Array, ledgers_root: str) -> pa.Array:
    """The id whose metadata node is at each path, null for every other node."""
    below = pc.utf8_slice_codeunits(paths, len(ledgers_root))
    digits = pc.replace_substring_regex(below, r"[/L]", "")
    is_below = pc.starts_with(paths, f"{ledgers_root}/")
    short = pc.and_(is_below, pc.match_substring_regex(below, _SHORT))
    fits = pc.less_equal(digits, _LARGEST)
    long = pc.and_(pc.and_(is_below, pc.match_substring_regex(below, _LONG)), fits)
    numbers = pc.if_else(pc.or_(short, long), digits, None).cast(pa.int64())
    is_short = pc.less_equal(numbers, LAST_SHORT_LEDGER_ID)
    return pc.if_else(pc.equal(short, is_short), numbers, None)
