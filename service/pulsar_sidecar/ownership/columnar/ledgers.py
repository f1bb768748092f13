"""Vectorised reading of ledgers' metadata: BookKeeper's format 3, in the order in which Java writes its fields.

Invariant: it reads a node only if it understands every byte as `ownership.ledger_metadata` does; it leaves all others
to that.
"""

from dataclasses import dataclass

import numpy as np

from pulsar_sidecar.ownership.columnar.protobuf import Mask, Numbers, ValueBytes, Walk, lengths_at

_HEADER = b"BookieMetadataFormatVersion\t3\n"
_QUORUM, _ENSEMBLE, _LENGTH, _LAST_ENTRY, _STATE = 0x08, 0x10, 0x18, 0x20, 0x28
_SEGMENT, _DIGEST, _PASSWORD, _ACK_QUORUM, _CTIME, _CUSTOM, _TOKEN = 0x32, 0x38, 0x42, 0x48, 0x50, 0x5A, 0x60
_MEMBER, _FIRST_ENTRY = 0x0A, 0x10
_KEY, _VALUE = 0x0A, 0x12
_CLOSED = 3
_DIGESTS = 4
_INT32 = 2**31
_SHORTEST_KEY = 8


@dataclass(frozen=True, slots=True)
class PlainLedgers:
    """Ledgers of the plain shape.

    Attributes:
        node: position of each ledger's node among the values, ascending.
        length: valid where the ledger is closed, like ``last_entry``.
        segments: beginnings and ends of the ensembles' fields, from the first value on.
        custom_metadata: the same of custom metadata's fields.
    """

    node: Numbers
    closed: Mask
    length: Numbers
    last_entry: Numbers
    write_quorum: Numbers
    ensemble_size: Numbers
    segments: tuple[Numbers, Numbers]
    custom_metadata: tuple[Numbers, Numbers]


def read_plain_ledgers(data: ValueBytes) -> PlainLedgers:
    """Read every ledger's node of the plain shape."""
    rows, walk = _below_header(data)
    quorum, ensemble, length = (walk.required(tag) for tag in (_QUORUM, _ENSEMBLE, _LENGTH))
    last_entry, has_last_entry = walk.number(_LAST_ENTRY, or_minus_one=True)
    state = walk.required(_STATE)
    before_segments = walk.at
    _read_segments(walk, ensemble)
    after_segments = walk.at
    digest, _ = walk.number(_DIGEST)
    walk.piece(_PASSWORD)
    ack_quorum, has_ack_quorum = walk.number(_ACK_QUORUM)
    walk.number(_CTIME)
    before_custom = walk.at
    _read_custom_metadata(walk)
    after_custom = walk.at
    walk.number(_TOKEN)
    ack_quorum = np.where(has_ack_quorum, ack_quorum, quorum)
    fitting = (ack_quorum >= 1) & (ack_quorum <= quorum) & (quorum <= ensemble) & (ensemble < _INT32)
    known = (state >= 1) & (state <= _CLOSED) & (digest <= _DIGESTS)
    read = walk.ended() & fitting & known & (has_last_entry | (state != _CLOSED))
    return PlainLedgers(
        node=rows[read],
        closed=(state == _CLOSED)[read],
        length=length[read],
        last_entry=last_entry[read],
        write_quorum=quorum[read],
        ensemble_size=ensemble[read],
        segments=(before_segments[read], after_segments[read]),
        custom_metadata=(before_custom[read], after_custom[read]),
    )


def _below_header(data: ValueBytes) -> tuple[Numbers, Walk]:
    """Return the nodes with the header and the length that it announces, and a walk through the message of each."""
    message = data.start + len(_HEADER)
    length, size, good = lengths_at(data, message)
    at = message + size
    good &= data.valid & (at + length == data.end)
    for offset in (0, 8, 16, len(_HEADER) - 8):
        good &= data.words(data.start + offset) == int.from_bytes(_HEADER[offset : offset + 8], "little")
    rows = np.flatnonzero(good)
    return rows, Walk(data, at[rows], data.end[rows])


def _read_segments(walk: Walk, ensemble: Numbers) -> None:
    """Require that each segment names a full ensemble, the first begins with entry 0, and the others ascend."""
    previous: Numbers = np.full(len(ensemble), -1)
    for rows, segment in walk.messages(_SEGMENT):
        members = np.zeros_like(rows)
        for some, member in segment.messages(_MEMBER):
            members[some] += 1
            segment.demand(member.is_ascii(), some)
        first = segment.required(_FIRST_ENTRY)
        before = previous[rows]
        follows = np.where(before < 0, first == 0, first > before)
        walk.demand(segment.ended() & (members == ensemble[rows]) & follows, rows)
        previous[rows] = first
    walk.demand(previous >= 0)


def _read_custom_metadata(walk: Walk) -> None:
    """Require that each entry has a value and a key that no other entry has."""
    earlier: list[Numbers] = []
    for rows, entry in walk.messages(_CUSTOM):
        start, length, has_key = entry.piece(_KEY)
        _, _, has_value = entry.piece(_VALUE)
        mark = np.zeros_like(walk.at)
        mark[rows] = walk.data.mark(start, length)
        unlike = np.ones(len(rows), np.bool_)
        for other in earlier:
            unlike &= mark[rows] != other[rows]
        earlier.append(mark)
        usual = has_key & has_value & (length >= _SHORTEST_KEY) & walk.data.are_ascii(start, start + length)
        walk.demand(entry.ended() & usual & unlike, rows)
