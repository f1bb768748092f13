"""`OperationSnapshots` in memory."""

from collections.abc import Mapping, Sequence

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.snapshot import SnapshotMetadata, decode_metadata, encode_metadata
from pulsar_sidecar.delayed_delivery.index.tracker.operations import (
    DelayedOperations,
    decode_operations,
    encode_operations,
)
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import LedgerId


class MemoryOperationSnapshots:
    """`OperationSnapshots` in memory, as bytes.

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
