"""Snapshots and cursor properties in memory: for simulations, and for a tracker without a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.ports import BucketOwner
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
)
from pulsar_sidecar.delayed_delivery.index.tracker.operations import (
    DelayedOperations,
    decode_operations,
    encode_operations,
)
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """One bucket's ledger.

    Attributes:
        payloads: entry 0 and the segments, as a broker would read them.
        owner: what it was made for.
    """

    payloads: tuple[bytes, ...]
    owner: BucketOwner

    @property
    def length(self) -> int:
        """Bytes of all entries' payloads."""
        return sum(map(len, self.payloads))


class MemorySnapshotStorage:
    """`ports.BucketSnapshotStorage`; ids count upwards and are never used again.

    Attributes:
        snapshots: what is stored, by id.
    """

    def __init__(self) -> None:
        self.snapshots: dict[LedgerId, StoredSnapshot] = {}
        self._next_id = 1

    def start(self) -> None:
        """Nothing to get ready."""

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        payloads = (encode_metadata(metadata), *map(encode_segment, segments))
        bucket_id = LedgerId(self._next_id)
        self._next_id += 1
        self.snapshots[bucket_id] = StoredSnapshot(payloads, owner)
        return bucket_id

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        return decode_metadata(self._snapshot(bucket_id).payloads[0])

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        payloads = self._snapshot(bucket_id).payloads
        if not 0 <= first_segment_entry_id <= last_segment_entry_id < len(payloads):
            raise InvalidInputError(
                f"bucket {bucket_id} has entries 0 to {len(payloads) - 1}, "
                f"not {first_segment_entry_id} to {last_segment_entry_id}"
            )
        return [decode_segment(payload) for payload in payloads[first_segment_entry_id : last_segment_entry_id + 1]]

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        return self._snapshot(bucket_id).length

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        self.snapshots.pop(bucket_id, None)

    def close(self) -> None:
        """Nothing is kept open; what is stored stays."""

    def _snapshot(self, bucket_id: LedgerId) -> StoredSnapshot:
        snapshot = self.snapshots.get(bucket_id)
        if snapshot is None:
            raise NotFoundError(f"there is no bucket {bucket_id}")
        return snapshot


class MemoryBucketProperties:
    """`ports.BucketProperties`, in the order in which they were put.

    Attributes:
        properties: by name.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.properties = dict(properties or {})

    def get(self) -> Mapping[str, str]:
        return self.properties

    def put(self, name: str, value: str) -> None:
        self.properties[name] = value

    def remove(self, name: str) -> None:
        self.properties.pop(name, None)


class MemoryOperationSnapshots:
    """`operations.OperationSnapshots`, as bytes.

    Attributes:
        snapshots: entries by id.
    """

    def __init__(self) -> None:
        self.snapshots: dict[LedgerId, tuple[bytes, ...]] = {}
        self._pointers: dict[BucketKey, LedgerId] = {}
        self._next_id = 1

    def create(self, key: BucketKey, metadata: SnapshotMetadata, segments: Sequence[DelayedOperations]) -> LedgerId:
        bucket_id = LedgerId(self._next_id)
        self._next_id += 1
        self.snapshots[bucket_id] = (encode_metadata(metadata), *map(encode_operations, segments))
        return bucket_id

    def metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        return decode_metadata(self._entries(bucket_id)[0])

    def segments(self, bucket_id: LedgerId, first: int, last: int) -> Sequence[DelayedOperations]:
        return [decode_operations(entry) for entry in self._entries(bucket_id)[first : last + 1]]

    def length(self, bucket_id: LedgerId) -> int:
        return sum(map(len, self._entries(bucket_id)))

    def delete(self, bucket_id: LedgerId) -> None:
        self.snapshots.pop(bucket_id, None)

    def pointers(self) -> Mapping[BucketKey, LedgerId]:
        return dict(self._pointers)

    def point(self, key: BucketKey, bucket_id: LedgerId) -> None:
        self._pointers[key] = bucket_id

    def unpoint(self, key: BucketKey) -> None:
        self._pointers.pop(key, None)

    def _entries(self, bucket_id: LedgerId) -> tuple[bytes, ...]:
        if bucket_id not in self.snapshots:
            raise NotFoundError(f"there is no bucket {bucket_id}")
        return self.snapshots[bucket_id]
