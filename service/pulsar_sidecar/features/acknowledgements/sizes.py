"""Bytes of a cursor's next write, and its destination (PIP-299).

Everything here follows ``ManagedCursorImpl`` of Pulsar 4.0.8 and was seen on a cluster. The broker writes a cursor as
one entry of its ledger. If that fails, it writes the cursor to its node, with as many ranges. If the metadata store
refuses that as well, the broker resends it forever, each time over a new connection, and hangs.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits, written_bytes
from pulsar_sidecar.features.acknowledgements.results import StoredPlace
from pulsar_sidecar.features.acknowledgements.stored import StoredCursor
from pulsar_sidecar.model.topic_stats import Cursor
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

_EMPTY = ml.PositionInfo(ledgerId=0, entryId=0).ByteSize()
_A_TIME_MS = 2**40


@dataclass(frozen=True, slots=True)
class CursorSizes:
    """Bytes of the whole cursor in its next write.

    Brokers do not report which batches are acknowledged in part: these count as they were stored last.

    Attributes:
        entry: bytes of an entry of its ledger.
        node: bytes of its node, if everything is written there.
        ranges: bytes of the ranges in an entry.
    """

    entry: int
    node: int
    ranges: int


def cursor_sizes(cursor: Cursor, stored: StoredCursor | None, limits: AckStateLimits) -> CursorSizes:
    """Return the sizes; properties of the subscription, and batches, count as they are stored."""
    marked = cursor.acknowledged.mark_delete
    entry = ml.PositionInfo(ledgerId=marked.ledger_id, entryId=marked.entry_id)
    node = ml.ManagedCursorInfo(
        cursorsLedgerId=-1,
        markDeleteLedgerId=marked.ledger_id,
        markDeleteEntryId=marked.entry_id,
        lastActive=_A_TIME_MS,
    )
    both = _properties_bytes(cursor.properties) + (stored.batch_bytes if stored else 0)
    in_node = written_bytes(cursor.acknowledged, limits.in_node)
    in_entry = written_bytes(cursor.acknowledged, limits) if limits.as_long_array else in_node
    return CursorSizes(
        entry=entry.ByteSize() + both + in_entry,
        node=node.ByteSize() + both + in_node + (stored.subscription_properties_bytes if stored else 0),
        ranges=in_entry,
    )


def next_write(sizes: CursorSizes, limits: AckStateLimits) -> StoredPlace | None:
    """Return the destination of the broker's next write, or None if there is none and the broker hangs."""
    if sizes.entry <= limits.max_entry_bytes:
        return StoredPlace.CURSOR_LEDGER
    return StoredPlace.METADATA_STORE if sizes.node <= limits.max_node_bytes else None


def unload_write(cursor: Cursor, sizes: CursorSizes, limits: AckStateLimits) -> StoredPlace | None:
    """Return the destination of an orderly unload: few ranges go to the node at once; None as for `next_write`."""
    if cursor.is_open and cursor.ranges > limits.max_node_ranges and limits.max_unacked_ranges > 0:
        return next_write(sizes, limits)
    return StoredPlace.METADATA_STORE if sizes.node <= limits.max_node_bytes else None


def _properties_bytes(properties: Mapping[str, int]) -> int:
    info = ml.PositionInfo(ledgerId=0, entryId=0)
    for name, value in properties.items():
        info.properties.add(name=name, value=value)
    return info.ByteSize() - _EMPTY
