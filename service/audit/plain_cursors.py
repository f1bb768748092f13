"""Cursors' nodes, read for a whole column at once.

`service.ledger_ownership.references.cursor_references` reads one node exactly; here the plain shape of a cursor without
properties or single acknowledged messages is read with a few array operations. Invariant: a node is read here only if
every byte of it was understood as that exact reader understands it.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from service.audit.varints import Mask, Numbers, ValueBytes

NO_LEDGER = -1
_LEDGER, _MARK_DELETE_LEDGER, _MARK_DELETE_ENTRY, _LAST_ACTIVE = 0x08, 0x10, 0x18, 0x30


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
    data = ValueBytes(values)
    there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False) & (data.end > data.start))
    at = data.start[there]
    ledger_id, size, good = data.signed_field(at, _LEDGER)
    good &= size != 0
    at += size
    for tag in (_MARK_DELETE_LEDGER, _MARK_DELETE_ENTRY, _LAST_ACTIVE):
        _, size, ok = data.signed_field(at, tag)
        good &= ok
        at += size
    good &= at == data.end[there]
    read = np.zeros(len(values), np.bool_)
    found: Numbers = np.full(len(values), NO_LEDGER)
    read[there], found[there] = good, ledger_id
    return PlainCursors(found, read)
