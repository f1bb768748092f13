"""Managed ledgers' lists, read for a whole column of nodes at once.

`ledger_ownership.references.managed_ledger_references` reads one node exactly; here the plain shape that almost
all nodes have is read with a few array operations for thousands of ledgers. Invariant: a node is read here only if
every byte of it was understood as that exact reader understands it; all others are left to it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.arrays import LedgerLists, Mask, Numbers
from pulsar_sidecar.audit.columnar.varints import ValueBytes, joined

_NODES_AT_ONCE = 4_096
_LEDGERS_AT_ONCE = 8_192
"""So that the arrays of one step stay in the processor's cache."""
_LEDGER_INFO = 0x0A
_LEDGER_ID, _ENTRIES, _SIZE, _TIMESTAMP = 0x08, 0x10, 0x18, 0x20
_LENGTH_AT = 8
_LONGEST = 0x80


def read_ledger_lists(values: pa.Array, *, with_entries: bool = True) -> tuple[LedgerLists, Numbers]:
    """Read every node of a ``binary`` column that has the plain shape, and the positions of all others.

    An empty value is a list without ledgers.
    """
    starts = range(0, max(len(values), 1), _NODES_AT_ONCE)
    parts, left = zip(
        *(_read(values.slice(start, _NODES_AT_ONCE), start, with_entries) for start in starts), strict=True
    )
    columns = (np.concatenate([getattr(part, name) for part in parts]) for name in LedgerLists.__slots__)
    return LedgerLists(*columns), np.concatenate(left)


def find_ledgers(values: pa.Array, wanted: Numbers) -> tuple[Mask, Mask]:
    """Which nodes of a ``binary`` column name some of these ledgers, and which do not have the shape to be told here.

    Only ids are read, so a node that names one may still be no list.
    """
    parts = [_find(values.slice(start, _NODES_AT_ONCE), wanted) for start in range(0, len(values), _NODES_AT_ONCE)]
    none = np.zeros(0, np.bool_)
    return np.concatenate([none, *(found for found, _ in parts)]), np.concatenate([none, *(left for _, left in parts)])


def _find(values: pa.Array, wanted: Numbers) -> tuple[Mask, Mask]:
    data = ValueBytes(values)
    found, left = np.zeros(len(values), np.bool_), ~values.is_valid().to_numpy(zero_copy_only=False)
    starts = _starts(data, left)
    node = _nodes_of(starts, data)
    for part in _slices(len(starts)):
        ledger_id, size, good = data.field(starts[part] + 2, _LEDGER_ID)
        found[node[part][np.isin(ledger_id, wanted)]] = True
        good &= (size != 0) & _begin_ledgers(data.pairs(starts[part]))
        left[node[part][~good]] = True
    return found, left


def _read(values: pa.Array, first: int, with_entries: bool) -> tuple[LedgerLists, Numbers]:
    data = ValueBytes(values)
    failed = ~values.is_valid().to_numpy(zero_copy_only=False)
    starts = _starts(data, failed)
    node = _nodes_of(starts, data)
    columns = [_columns(data, starts[part], with_entries) for part in _slices(len(starts))]
    ledger_id, entries, size, closed, good = (np.concatenate(column) for column in zip(*columns, strict=True))
    # In ascending order no ledger is named twice, which the exact reader would refuse.
    good[1:] &= (ledger_id[1:] > ledger_id[:-1]) | (node[1:] != node[:-1])
    failed[node[~good]] = True
    kept = ~failed[node]
    found = LedgerLists(node[kept] + first, ledger_id[kept], entries[kept], size[kept], closed[kept])
    return found, np.flatnonzero(failed) + first


def _starts(data: ValueBytes, failed: Mask) -> Numbers:
    """Where each ledger of each list starts, ascending; all lists are followed in step.

    That a ledger does start there is for `_begin_ledgers` to say.
    """
    node = np.flatnonzero(~failed & (data.end > data.start))
    at, end = data.start[node], data.end[node]
    found = [at]
    while len(at):
        at = at + (data.pairs(at) >> _LENGTH_AT) + 2
        more = at < end
        if not more.all():
            failed[node[at > end]] = True
            node, at, end = node[more], at[more], end[more]
        found.append(at)
    return np.sort(np.concatenate(found))


def _begin_ledgers(pairs: Any) -> Mask:
    """Whether these two bytes are the tag of a ledger and a length of one byte."""
    answer: Mask = ((pairs & 0xFF) == _LEDGER_INFO) & (pairs < _LONGEST << _LENGTH_AT)
    return answer


def _nodes_of(starts: Numbers, data: ValueBytes) -> Numbers:
    """The position of the node in which each ledger starts."""
    return np.repeat(np.arange(len(data.start)), np.diff(np.searchsorted(starts, [*data.start, _after(data)])))


def _after(data: ValueBytes) -> int:
    return int(data.end[-1]) + 1 if len(data.end) else 1


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, start + _LEDGERS_AT_ONCE) for start in range(0, max(count, 1), _LEDGERS_AT_ONCE))


def _columns(data: ValueBytes, start: Numbers, with_entries: bool) -> tuple[Numbers, Numbers, Numbers, Mask, Mask]:
    """Ids, entries, sizes, whether closed, and whether all that was understood."""
    pairs = data.pairs(start)
    stop = start + (pairs >> _LENGTH_AT) + 2
    at = start + 2
    ledger_id, size, good = data.field(at, _LEDGER_ID)
    good &= (size != 0) & _begin_ledgers(pairs)
    at += size
    entries, size, ok = data.unjoined_field(at, _ENTRIES)
    good &= ok
    at += size
    size_bytes, size, ok = data.field(at, _SIZE)
    good &= ok
    at += size
    timestamp, size, ok = data.unjoined_field(at, _TIMESTAMP)
    at += size
    good &= ok & (at == stop)
    return ledger_id, joined(entries) if with_entries else np.zeros_like(ledger_id), size_bytes, timestamp != 0, good
