"""Cursors' nodes, read for a whole column at once.

`ledger_ownership.references.cursor_references` reads one node exactly; here the plain shape of a cursor without
properties is read with a few array operations. Invariant: a node is read here only if every byte of it was understood
as that exact reader understands it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.columnar.varints import Mask, Numbers
from pulsar_sidecar.audit.columnar.walks import walk_of_nodes

NO_LEDGER = -1
_LEDGER, _MARK_DELETE_LEDGER, _MARK_DELETE_ENTRY, _DELETED, _LAST_ACTIVE = 0x08, 0x10, 0x18, 0x22, 0x30
_LOWER, _UPPER = 0x0A, 0x12


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
