"""Vectorised reading of the nodes of managed ledgers, cursors, schemas and ledgers.

`ownership.references` and `ownership.ledger_metadata` read one node exactly. This module reads the plain shapes that
almost all nodes have with a few array operations for thousands of ledgers: managed ledgers' lists, cursors without
properties, and schemas; `ownership.columnar.ledgers` reads ledgers' metadata. Invariant: it reads a node only if it
understands every byte as those exact readers do; it leaves all others to them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_sidecar.features.audit.arrays import NO_LEDGER, LedgerLists, Mask, Numbers
from pulsar_sidecar.ownership.columnar.ledgers import read_plain_ledgers
from pulsar_sidecar.ownership.columnar.protobuf import ValueBytes, Walk, joined

_NODES_AT_ONCE = 4_096
_LEDGERS_AT_ONCE = 8_192
"""Ledgers in one step, few enough for its arrays to stay in the processor's cache."""
_LEDGER_INFO = 0x0A
_LEDGER_ID, _ENTRIES, _SIZE, _TIMESTAMP = 0x08, 0x10, 0x18, 0x20
_LENGTH_AT = 8
_LONGEST = 0x80

_LEDGER, _MARK_DELETE_LEDGER, _MARK_DELETE_ENTRY, _DELETED, _LAST_ACTIVE = 0x08, 0x10, 0x18, 0x22, 0x30
_LOWER, _UPPER = 0x0A, 0x12
_INFO, _INDEX = 0x0A, 0x12
_VERSION, _POSITION, _HASH = 0x08, 0x12, 0x1A

UNKNOWN = -1
_LEFT = -2


def value_bytes(values: pa.Array) -> ValueBytes:
    """Return the bytes of a ``binary`` column."""
    _, offsets, content = values.buffers()
    bounds = np.frombuffer(offsets, np.int32, len(values) + 1, values.offset * 4).astype(np.int64)
    return ValueBytes(content, bounds, np.asarray(values.is_valid()))


def _walk_of_nodes(values: pa.Array) -> tuple[Numbers, Walk]:
    """Return the positions of the nodes of a ``binary`` column that are not null, and a walk through their messages."""
    data = value_bytes(values)
    there = np.flatnonzero(data.valid)
    return there, Walk(data, data.start[there], data.end[there])


def read_ledger_lists(values: pa.Array, *, with_entries: bool) -> tuple[LedgerLists, Numbers]:
    """Read every node of a ``binary`` column that has the plain shape, and return the positions of all others.

    An empty value is a list without ledgers.
    """
    parts = [_read(values[part], part.start, with_entries) for part in _slices(len(values), _NODES_AT_ONCE)]
    columns = (np.concatenate([getattr(lists, name) for lists, _ in parts]) for name in LedgerLists.__slots__)
    return LedgerLists(*columns), np.concatenate([left for _, left in parts])


def find_ledgers(values: pa.Array, wanted: Numbers) -> tuple[Mask, Mask]:
    """Return masks of the nodes that name one of these ledgers, and of the nodes without the plain shape.

    ``values`` is a ``binary`` column. Only ids are read, so a node that names a ledger may still not be a list.
    """
    parts = [_find(values[part], wanted) for part in _slices(len(values), _NODES_AT_ONCE)]
    return np.concatenate([found for found, _ in parts]), np.concatenate([left for _, left in parts])


def _find(values: pa.Array, wanted: Numbers) -> tuple[Mask, Mask]:
    data = value_bytes(values)
    found, left = np.zeros(len(values), np.bool_), ~data.valid
    starts = _starts(data, left)
    node = _nodes_of(starts, data)
    for part in _slices(len(starts), _LEDGERS_AT_ONCE):
        ledger_id, size, good = data.field(starts[part] + 2, _LEDGER_ID)
        found[node[part][np.isin(ledger_id, wanted)]] = True
        good &= (size != 0) & _begin_ledgers(data.pairs(starts[part]))
        left[node[part][~good]] = True
    return found, left


def _read(values: pa.Array, first: int, with_entries: bool) -> tuple[LedgerLists, Numbers]:
    data = value_bytes(values)
    failed = ~data.valid
    starts = _starts(data, failed)
    node = _nodes_of(starts, data)
    columns = [_columns(data, starts[part], with_entries) for part in _slices(len(starts), _LEDGERS_AT_ONCE)]
    ledger_id, entries, size, closed, good = (np.concatenate(column) for column in zip(*columns, strict=True))
    # In ascending order no ledger is named twice, which the exact reader would refuse.
    good[1:] &= (ledger_id[1:] > ledger_id[:-1]) | (node[1:] != node[:-1])
    failed[node[~good]] = True
    kept = ~failed[node]
    found = LedgerLists(node[kept] + first, ledger_id[kept], entries[kept], size[kept], closed[kept])
    return found, np.flatnonzero(failed) + first


def _starts(data: ValueBytes, failed: Mask) -> Numbers:
    """Return where ledgers of lists start, ascending, if `_begin_ledgers` agrees; lists are followed in step."""
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
    answer: Mask = ((pairs & 0xFF) == _LEDGER_INFO) & (pairs < _LONGEST << _LENGTH_AT)
    return answer


def _nodes_of(starts: Numbers, data: ValueBytes) -> Numbers:
    counts = np.diff(np.searchsorted(starts, data.start), append=len(starts))
    return np.repeat(np.arange(len(data.start)), counts)


def _slices(count: int, size: int) -> Iterator[slice]:
    """Yield at least one slice, which may be empty."""
    return (slice(start, start + size) for start in range(0, max(count, 1), size))


def _columns(data: ValueBytes, start: Numbers, with_entries: bool) -> tuple[Numbers, Numbers, Numbers, Mask, Mask]:
    """Return ids, entries, sizes, closed flags, and a mask of the ledgers that were understood whole."""
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


@dataclass(frozen=True, slots=True)
class PlainCursors:
    """Ledgers that cursors' nodes name, `NO_LEDGER` where the node holds the position; unread ones are unknown."""

    ledger_id: Numbers
    read: Mask


def read_plain_cursors(values: pa.Array) -> PlainCursors:
    there, walk = _walk_of_nodes(values)
    ledger_id = walk.required(_LEDGER, or_minus_one=True)
    walk.number(_MARK_DELETE_LEDGER, or_minus_one=True)
    walk.number(_MARK_DELETE_ENTRY, or_minus_one=True)
    for rows, deleted in walk.messages(_DELETED):
        deleted.position(_LOWER)
        deleted.position(_UPPER)
        walk.demand(deleted.ended(), rows)
    walk.number(_LAST_ACTIVE)
    read = np.zeros(len(values), np.bool_)
    found: Numbers = np.full(len(values), NO_LEDGER)
    read[there], found[there] = walk.ended(), ledger_id
    return PlainCursors(found, read)


@dataclass(frozen=True, slots=True)
class PlainSchemas:
    """Ledgers that schemas' nodes name, each ledger of a node once; nothing is known of unread nodes.

    ``node`` is the node's position in the column, ascending.
    """

    node: Numbers
    ledger_id: Numbers
    read: Mask


def read_plain_schemas(values: pa.Array) -> PlainSchemas:
    there, walk = _walk_of_nodes(values)
    newest = walk.message(_INFO)
    nodes, ledger_ids = [there], [_read_entry(newest)]
    walk.demand(newest.ended())
    for rows, version in walk.messages(_INDEX):
        nodes.append(there[rows])
        ledger_ids.append(_read_entry(version))
        walk.demand(version.ended(), rows)
    read = np.zeros(len(values), np.bool_)
    read[there] = walk.ended()
    return _distinct(np.concatenate(nodes), np.concatenate(ledger_ids), read)


def _read_entry(entry: Walk) -> Numbers:
    entry.required(_VERSION)
    ledger_id = entry.position(_POSITION)
    _, _, has_hash = entry.piece(_HASH)
    entry.demand(has_hash)
    return ledger_id


def _distinct(node: Numbers, ledger_id: Numbers, read: Mask) -> PlainSchemas:
    kept = read[node] & (ledger_id != NO_LEDGER)
    node, ledger_id = node[kept], ledger_id[kept]
    order = np.lexsort((ledger_id, node))
    node, ledger_id = node[order], ledger_id[order]
    first = np.ones(len(node), np.bool_)
    first[1:] = (node[1:] != node[:-1]) | (ledger_id[1:] != ledger_id[:-1])
    return PlainSchemas(node[first], ledger_id[first], read)


def ledger_lengths(nodes: pa.Array) -> tuple[Numbers, Mask]:
    """Return the length of each ledger (`UNKNOWN` unless closed), and a mask of the nodes for the exact reader."""
    lengths: Numbers = np.full(len(nodes), _LEFT)
    for part in _slices(len(nodes), _NODES_AT_ONCE):
        plain = read_plain_ledgers(value_bytes(nodes[part]))
        lengths[part.start + plain.node] = np.where(plain.closed, plain.length, UNKNOWN)
    return lengths, lengths == _LEFT
