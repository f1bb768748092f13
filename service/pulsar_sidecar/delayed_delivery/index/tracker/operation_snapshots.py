"""Snapshots of PIP-423, whose segments hold cancellations besides delayed messages.

No released broker knows field 4 of a ``DelayedIndex``, and one that met it would take a cancellation for a message. So
these snapshots have a port, a type of segment and bytes of their own: a storage that brokers read takes
`DelayedIndexes` and never `DelayedOperations`, and the bytes begin with what protobuf refuses.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

import numpy as np

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_segment,
    encode_segment,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId

_MAGIC: Final = b"\x00PIP-423\x00"
"""A tag of field 0, which protobuf refuses."""
_INDEX_TAG: Final = 0x0A
_CANCEL_FIELD: Final = b"\x20\x01"
"""Field 4, the number 1."""


class DelayedOperationType(IntEnum):
    """``DelayedOperationType`` of the PIP."""

    DELAY = 0
    CANCEL = 1


@dataclass(frozen=True, slots=True)
class DelayedOperations:
    """One segment.

    Attributes:
        delays: messages to be delivered.
        cancels: messages not to be delivered; their times say when the cancellation is to be known at the latest.
    """

    delays: DelayedIndexes
    cancels: DelayedIndexes


class OperationSnapshots(Protocol):
    """Where they are kept. Raises what `ports.BucketSnapshotStorage` raises."""

    def create(self, key: BucketKey, metadata: SnapshotMetadata, segments: Sequence[DelayedOperations]) -> LedgerId:
        """Write it whole; returns when it is durable."""

    def metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        """Entry 0."""

    def segments(self, bucket_id: LedgerId, first: int, last: int) -> Sequence[DelayedOperations]:
        """Entries ``first`` to ``last``, both included; the first segment is 1."""

    def length(self, bucket_id: LedgerId) -> int:
        """Bytes of all entries."""

    def delete(self, bucket_id: LedgerId) -> None:
        """Delete it; one that is gone already is not an error."""

    def pointers(self) -> Mapping[BucketKey, LedgerId]:
        """Which snapshot each bucket has."""

    def point(self, key: BucketKey, bucket_id: LedgerId) -> None:
        """Say that it has this one."""

    def unpoint(self, key: BucketKey) -> None:
        """Say that it has none; no error if it had none."""


def encode_operations(segment: DelayedOperations) -> bytes:
    """The PIP's ``SnapshotSegment``, delays first, behind a mark that keeps brokers from reading it."""
    cancels = (
        bytes([_INDEX_TAG, len(index) + len(_CANCEL_FIELD)]) + index + _CANCEL_FIELD
        for index, is_cancel in _indexes(encode_segment(segment.cancels))
        if not is_cancel
    )
    return _MAGIC + encode_segment(segment.delays) + b"".join(cancels)


def decode_operations(payload: bytes) -> DelayedOperations:
    """What `encode_operations` wrote.

    Raises:
        UndecodableError: anything else, a broker's segment too.
    """
    if not payload.startswith(_MAGIC):
        raise UndecodableError(f"{len(payload)} bytes are not a segment with operations; perhaps a broker wrote them")
    parts: dict[bool, list[bytes]] = {False: [], True: []}
    for index, is_cancel in _indexes(payload[len(_MAGIC) :]):
        parts[is_cancel].append(bytes([_INDEX_TAG, len(index)]) + index)
    return DelayedOperations(decode_segment(b"".join(parts[False])), decode_segment(b"".join(parts[True])))


def _indexes(payload: bytes) -> list[tuple[bytes, bool]]:
    """Each index without field 4, and whether that says cancel."""
    found, at = [], 0
    while at < len(payload):
        length = payload[at + 1] if at + 1 < len(payload) else 0
        index, at, tag = payload[at + 2 : at + 2 + length], at + 2 + length, payload[at]
        if tag != _INDEX_TAG or not length or at > len(payload):
            raise UndecodableError("a segment with operations is cut off or damaged; read it again")
        is_cancel = index.endswith(_CANCEL_FIELD) and _has_cancel_field(index)
        found.append((index.removesuffix(_CANCEL_FIELD) if is_cancel else index, is_cancel))
    return found


def _has_cancel_field(index: bytes) -> bool:
    # An entry's number can end with the same two bytes: then the fields before it are one number too few.
    numbers = np.count_nonzero(np.frombuffer(index, np.uint8) < 0x80)
    return bool(numbers == 2 * (len(DelayedIndexes.__slots__) + 1))
