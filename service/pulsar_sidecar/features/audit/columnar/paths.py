"""Vectorised reading of paths: ledger ids, owners, and kinds of nodes.

The counterpart of `ownership.paths.ledger_id_of_path` and `ownership.places`. Invariant: these functions decide a path
only if it has the plain form that nearly all have; all others are null or left to those exact functions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import Mask, Numbers
from pulsar_sidecar.ownership.paths import LAST_SHORT_LEDGER_ID, MANAGED_LEDGERS, SCHEMAS

_SHORT_FORM = b"/00/0000/L0000"
_WORD = 8
_WORDS = np.dtype("<u8")
# Added to a byte, these set its highest bit if the byte is at least 10, or at least 1.
_TEN_BELOW_SIGN, _ONE_BELOW_SIGN = 0x80 - 10, 0x80 - 1
_WITHOUT_SIGNS = np.uint64(0x7F7F7F7F7F7F7F7F)
_TWOS = np.uint64(0x00FF00FF00FF00FF)
_FOUR = np.uint64(0xFFFF)

_PERSISTENT = "persistent"

Owners = tuple[pa.Array, pa.Array, pa.Array]
"""Tenants, namespaces, topics."""

_DOMAIN = "(?P<domain>persistent|non-persistent)"
_PLAIN = f"(?P<tenant>[^/]*)/(?P<namespace>[^/]*)/{_DOMAIN}/(?P<local>[A-Za-z0-9_.*-]+)"
_PLAIN_NAME = f"^{_PLAIN}$"
_PLAIN_PATH = f"^{MANAGED_LEDGERS}/{_PLAIN}(?:/[^/]*)?$"
# The domain's group stays empty: every topic with a schema is persistent.
_PLAIN_SCHEMA = f"^{SCHEMAS}/(?P<tenant>[^/]+)/(?P<namespace>[^/]+)/(?P<domain>)(?P<local>[A-Za-z0-9_.*-]+)$"
_PARTITION = "-partition-"
_MANAGED_LEDGER = f"^{MANAGED_LEDGERS}/[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*$"
_CURSOR = f"^{MANAGED_LEDGERS}/(?P<owner>[^/]*/[^/]*/(?:persistent|non-persistent)/[^/]*)/[^/]*$"
# A topic with such a name makes the path one of V1 as well.
_EITHER = "/(?:persistent|non-persistent)/[^/]*$"


def ledger_ids(paths: pa.Array, ledgers_root: str) -> tuple[Numbers, Mask, Mask]:
    """Return the id of each path in short form, a mask of these paths, and a mask of those for the exact reader."""
    root = ledgers_root.encode()
    kept = np.asarray(pc.equal(pc.binary_length(paths), len(root) + len(_SHORT_FORM)))
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
    """Return the ids of paths, and a mask of those with the root and the short form; a word has 8 bytes."""
    path = root + _SHORT_FORM
    ok = np.True_
    for at in range(0, len(root), _WORD):
        of_root = np.uint64((1 << 8 * min(_WORD, len(root) - at)) - 1)
        ok &= ((words_at(at) ^ _word(path[at:])) & of_root) == 0
    first, second, good = _numbers_of_four(words_at(len(root)), _SHORT_FORM[:_WORD])
    _, third, good_too = _numbers_of_four(words_at(len(path) - _WORD), _SHORT_FORM[-_WORD:])
    # The first number is that of "/00/", whose trailing separator multiplies it by ten.
    numbers = (first * 1_000 + second) * 10_000 + third
    return numbers, ok & good & good_too & (numbers <= LAST_SHORT_LEDGER_ID)


def _numbers_of_four(words: Any, form: bytes) -> tuple[Numbers, Numbers, Mask]:
    """Return the numbers of the first and last four of eight characters, and a mask of those that match a form.

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


def plain_owners_at(paths: pa.Array) -> Owners:
    """Return `ownership.places.owner_at` for a column, null where a path is not plain."""
    fields = _fields(paths, _PLAIN_PATH)
    if fields[0].null_count:
        fields = list(map(pc.coalesce, fields, _schema_fields(paths)))
    return _owners(fields)


def plain_owners_of(managed_ledgers: pa.Array) -> Owners:
    """Return `ownership.places.owner_of_managed_ledger` for a column, null where a name is not plain."""
    return _owners(_fields(managed_ledgers, _PLAIN_NAME))


def _schema_fields(paths: pa.Array) -> list[pa.Array]:
    # A partition uses the schema of its base topic.
    is_plain = pc.invert(pc.match_substring_regex(paths, _PARTITION))
    tenants, namespaces, domains, local_names = (
        pc.if_else(is_plain, field, None) for field in _fields(paths, _PLAIN_SCHEMA)
    )
    domains = pc.if_else(pc.is_valid(domains), _PERSISTENT, None)
    return [tenants, namespaces, domains, local_names]


def are_plain_managed_ledgers(paths: pa.Array) -> pa.Array:
    """Return True where the node is certainly at `Place.MANAGED_LEDGER`."""
    return pc.match_substring_regex(paths, _MANAGED_LEDGER)


def are_schemas(paths: pa.Array) -> pa.Array:
    return pc.starts_with(paths, f"{SCHEMAS}/")


def owners_of_plain_cursors(paths: pa.Array) -> pa.Array:
    """Return the managed ledgers' names where the node is certainly at `Place.CURSOR`, null elsewhere."""
    owners = pc.struct_field(pc.extract_regex(paths, _CURSOR), "owner")
    return pc.if_else(pc.match_substring_regex(paths, _EITHER), None, owners)


def _fields(values: pa.Array, pattern: str) -> list[pa.Array]:
    """Return tenant, namespace, domain and local name, null where the pattern does not match."""
    found = pc.extract_regex(values, pattern)
    return [pc.struct_field(found, name) for name in ("tenant", "namespace", "domain", "local")]


def _owners(fields: Sequence[pa.Array]) -> Owners:
    tenants, namespaces, domains, local_names = fields
    namespaces = pc.binary_join_element_wise(tenants, namespaces, "/")
    topics = pc.binary_join_element_wise(pc.binary_join_element_wise(domains, namespaces, "://"), local_names, "/")
    return tenants, namespaces, topics
