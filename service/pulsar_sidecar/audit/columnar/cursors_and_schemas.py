"""Cursors' and schemas' nodes, read for a whole column at once.

`ledger_ownership.references.cursor_references` and `schema_references` read one node exactly; here the plain shape of a
cursor without properties, and that of a schema, is read with a few array operations. Invariant: a node is read here
only if every byte of it was understood as that exact reader understands it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.arrays import Mask, Numbers
from pulsar_sidecar.audit.columnar.walks import Walk, walk_of_nodes

NO_LEDGER = -1
_LEDGER, _MARK_DELETE_LEDGER, _MARK_DELETE_ENTRY, _DELETED, _LAST_ACTIVE = 0x08, 0x10, 0x18, 0x22, 0x30
_LOWER, _UPPER = 0x0A, 0x12
_INFO, _INDEX = 0x0A, 0x12
_VERSION, _POSITION, _HASH = 0x08, 0x12, 0x1A
_EVERY = slice(None)


@dataclass(frozen=True, slots=True)
class PlainCursors:
    """What some nodes name.

    Attributes:
        ledger_id: the cursor's ledger, `NO_LEDGER` if its position is in the node.
        read: which nodes were read here; nothing is known of the others.
    """

    ledger_id: Numbers
    read: Mask


def read_plain_cursors(values: pa.Array) -> PlainCursors:
    """Read every node of a ``binary`` column that has the plain shape."""
    there, walk = walk_of_nodes(values)
    ledger_id = walk.required(_LEDGER, or_minus_one=True)
    walk.number(_MARK_DELETE_LEDGER, or_minus_one=True)
    walk.number(_MARK_DELETE_ENTRY, or_minus_one=True)
    for rows, deleted in walk.messages(_DELETED):
        deleted.position(_LOWER)
        deleted.position(_UPPER)
        walk.demand(rows, deleted.ended())
    walk.number(_LAST_ACTIVE)
    read = np.zeros(len(values), np.bool_)
    found: Numbers = np.full(len(values), NO_LEDGER)
    read[there], found[there] = walk.ended(), ledger_id
    return PlainCursors(found, read)


@dataclass(frozen=True, slots=True)
class PlainSchemas:
    """What some nodes name, each ledger of a node once.

    Attributes:
        node: the node's position in the column, ascending.
        read: which nodes were read here; nothing is known of the others.
    """

    node: Numbers
    ledger_id: Numbers
    read: Mask


def read_plain_schemas(values: pa.Array) -> PlainSchemas:
    """Read every node of a ``binary`` column that has the plain shape."""
    there, walk = walk_of_nodes(values)
    newest = walk.message(_INFO)
    named = [(np.arange(len(there)), _read_entry(newest))]
    walk.demand(_EVERY, newest.ended())
    for rows, version in walk.messages(_INDEX):
        named.append((rows, _read_entry(version)))
        walk.demand(rows, version.ended())
    read = np.zeros(len(values), np.bool_)
    read[there] = walk.ended()
    node, ledger_id = (np.concatenate(column) for column in zip(*named, strict=True))
    return _distinct(there[node], ledger_id, read)


def _read_entry(entry: Walk) -> Numbers:
    """The ledgers of entries of the index."""
    entry.required(_VERSION)
    ledger_id = entry.position(_POSITION)
    _, _, has_hash = entry.piece(_HASH)
    entry.demand(_EVERY, has_hash)
    return ledger_id


def _distinct(node: Numbers, ledger_id: Numbers, read: Mask) -> PlainSchemas:
    kept = read[node] & (ledger_id != NO_LEDGER)
    node, ledger_id = node[kept], ledger_id[kept]
    order = np.lexsort((ledger_id, node))
    node, ledger_id = node[order], ledger_id[order]
    first = (np.diff(node, prepend=-1) != 0) | (np.diff(ledger_id, prepend=-1) != 0)
    return PlainSchemas(node[first], ledger_id[first], read)
