"""Snapshots and cursor properties in memory, for simulations and for a tracker without a cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_sidecar.features.delayed_index.ports import BucketOwner
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
    encode_metadata,
    encode_segment,
)
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """Ledger of one bucket.

    Attributes:
        payloads: entry 0 and the segments, as a broker would read them.
        owner: owner of the bucket.
    """

    payloads: tuple[bytes, ...]
    owner: BucketOwner

    @property
    def length(self) -> int:
        """Bytes of all entries' payloads."""
        return sum(map(len, self.payloads))


class MemorySnapshotStorage:
    """`ports.BucketSnapshotStorage`; ids ascend and are never reused.

    Attributes:
        snapshots: stored snapshots by id.
    """

    def __init__(self) -> None:
        self.snapshots: dict[LedgerId, StoredSnapshot] = {}
        self._next_id = 1

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

    def _snapshot(self, bucket_id: LedgerId) -> StoredSnapshot:
        snapshot = self.snapshots.get(bucket_id)
        if snapshot is None:
            raise NotFoundError(f"there is no bucket {bucket_id}")
        return snapshot


class MemoryBucketProperties:
    """`ports.BucketProperties`, in the order in which they were put.

    Attributes:
        properties: values by name.
    """

    def __init__(self, properties: Mapping[str, str] | None = None) -> None:
        self.properties = dict(properties or {})

    def get(self) -> Mapping[str, str]:
        return self.properties

    def put(self, name: str, value: str) -> None:
        self.properties[name] = value

    def remove(self, name: str) -> None:
        self.properties.pop(name, None)
