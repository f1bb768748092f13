"""The bytes in each ledger of a column of ledgers' nodes.

`audit.engine.candidates.ledger_length` reads one node exactly; here BookKeeper's format 3 in the order in which Java
writes its fields is read for thousands of nodes at once. Invariant: a length is told from here only if every byte of
the node was understood as that exact reader understands it; all other nodes are left to it.
"""

import numpy as np
import pyarrow as pa

from pulsar_sidecar.audit.arrays import Mask, Numbers
from pulsar_sidecar.audit.columnar.varints import ValueBytes
from pulsar_sidecar.audit.columnar.walks import Walk, lengths_at

_NODES_AT_ONCE = 4_096
_HEADER = b"BookieMetadataFormatVersion\t3\n"
_QUORUM, _ENSEMBLE, _LENGTH, _LAST_ENTRY, _STATE = 0x08, 0x10, 0x18, 0x20, 0x28
_SEGMENT, _DIGEST, _PASSWORD, _ACK_QUORUM, _CTIME, _CUSTOM, _TOKEN = 0x32, 0x38, 0x42, 0x48, 0x50, 0x5A, 0x60
_MEMBER, _FIRST_ENTRY = 0x0A, 0x10
_KEY, _VALUE = 0x0A, 0x12
_CLOSED = 3
_DIGESTS = 4
_INT32 = 2**31
_SHORTEST_KEY = 8
UNKNOWN = -1
_LEFT = -2


def ledger_lengths(nodes: pa.Array) -> tuple[Numbers, Mask]:
    """The length of each ledger, `UNKNOWN` while it is not closed, and which nodes are left to the exact reader."""
    parts = [
        _plain_lengths(ValueBytes(nodes.slice(start, _NODES_AT_ONCE))) for start in range(0, len(nodes), _NODES_AT_ONCE)
    ]
    lengths = np.concatenate([np.zeros(0, np.int64), *parts])
    return lengths, lengths == _LEFT


def _plain_lengths(data: ValueBytes) -> Numbers:
    """`UNKNOWN` for ledgers that are not closed, `_LEFT` for nodes that were not understood here."""
    rows, walk = _below_header(data)
    quorum, ensemble, length = (walk.required(tag) for tag in (_QUORUM, _ENSEMBLE, _LENGTH))
    _, has_last_entry = walk.number(_LAST_ENTRY, or_minus_one=True)
    state = walk.required(_STATE)
    _read_segments(walk, ensemble)
    digest, _ = walk.number(_DIGEST)
    walk.piece(_PASSWORD)
    ack_quorum, has_ack_quorum = walk.number(_ACK_QUORUM)
    walk.number(_CTIME)
    _read_custom_metadata(walk)
    walk.number(_TOKEN)
    ack_quorum = np.where(has_ack_quorum, ack_quorum, quorum)
    fitting = (ack_quorum >= 1) & (ack_quorum <= quorum) & (quorum <= ensemble) & (ensemble < _INT32)
    known = (state >= 1) & (state <= _CLOSED) & (digest <= _DIGESTS)
    understood = walk.ended() & fitting & known & (has_last_entry | (state != _CLOSED))
    lengths: Numbers = np.full(len(data.start), _LEFT)
    lengths[rows] = np.where(understood, np.where(state == _CLOSED, length, UNKNOWN), _LEFT)
    return lengths


def _below_header(data: ValueBytes) -> tuple[Numbers, Walk]:
    """The nodes that begin with the header and end where they say, and a walk through the message of each."""
    rows = np.flatnonzero(data.end - data.start > len(_HEADER) + 1)
    start, end = data.start[rows], data.end[rows]
    good = np.ones(len(rows), np.bool_)
    for offset in (0, 8, 16, len(_HEADER) - 8):
        good &= data.words(start + offset) == int.from_bytes(_HEADER[offset : offset + 8], "little")
    length, size, ok = lengths_at(data, start + len(_HEADER))
    at = start + len(_HEADER) + size
    good &= ok & (at + length == end)
    return rows[good], Walk(data, at[good], end[good])


def _read_segments(walk: Walk, ensemble: Numbers) -> None:
    """Each names so many bookies, the first begins with entry 0, and they follow each other."""
    previous: Numbers = np.full(len(ensemble), -1)
    for rows, segment in walk.messages(_SEGMENT):
        members = np.zeros(len(rows), np.int64)
        for some, member in segment.messages(_MEMBER):
            members[some] += 1
            segment.demand(some, member.is_ascii())
        first = segment.required(_FIRST_ENTRY)
        before = previous[rows]
        follows = np.where(before < 0, first == 0, first > before)
        walk.demand(rows, segment.ended() & (members == ensemble[rows]) & follows)
        previous[rows] = first
    walk.demand(np.arange(len(previous)), previous >= 0)


def _read_custom_metadata(walk: Walk) -> None:
    """Each has a key, unlike the others, and a value."""
    earlier: list[Numbers] = []
    for rows, entry in walk.messages(_CUSTOM):
        start, length, has_key = entry.piece(_KEY)
        _, _, has_value = entry.piece(_VALUE)
        mark = np.zeros(len(walk.at), np.int64)
        mark[rows] = walk.data.mark(start, length)
        unlike = np.ones(len(rows), np.bool_)
        for other in earlier:
            unlike &= mark[rows] != other[rows]
        earlier.append(mark)
        usual = has_key & has_value & (length >= _SHORTEST_KEY) & walk.data.are_ascii(start, start + length)
        walk.demand(rows, entry.ended() & usual & unlike)
