"""Access of a tracker to its snapshots: retries, counts, and the order of writes.

A snapshot is written before the property that points to it, and deleted before that property is removed; so a crash in
between leaves an orphan ledger or a dangling reference, as in a broker.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeVar

from pulsar_sidecar.features.delayed_index.ports import BucketOwner, BucketProperties, BucketSnapshotStorage
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SnapshotMetadata
from pulsar_sidecar.features.delayed_index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.features.delayed_index.tracker.sealing import SealedIndexes
from pulsar_sidecar.model.errors import SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id

T = TypeVar("T")

_RETRIES: Final = 3


class BucketOperation(Enum):
    """Label ``type`` of the PIP's metrics."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


@dataclass(slots=True)
class SnapshotAccess:
    """Snapshots of one subscription.

    Attributes:
        operations: number of operations, by type and success.
    """

    storage: BucketSnapshotStorage
    properties: BucketProperties
    topic_name: str
    cursor_name: str
    operations: Counter[tuple[BucketOperation, bool]] = field(default_factory=Counter)

    def names(self) -> Sequence[str]:
        """Return the names of the cursor's properties, in its order."""
        return tuple(self.properties.get())

    def save(self, bucket: ImmutableBucket, sealed: SealedIndexes) -> bool:
        """Write the snapshot and its property; return True if the snapshot was written.

        If the property cannot be written, only this tracker knows the snapshot.
        """

        def create() -> LedgerId:
            owner = BucketOwner(bucket.key, self.topic_name, self.cursor_name)
            return self.storage.create_bucket_snapshot(sealed.metadata, sealed.segments, owner)

        bucket_id = self.attempt(BucketOperation.CREATE, lambda: _retried(create))
        if bucket_id is None:
            return False
        bucket.bucket_id = bucket_id
        with suppress(SidecarError):
            _retried(lambda: self.properties.put(str(bucket.key), str(bucket_id)))
        self.measure(bucket)
        return True

    def measure(self, bucket: ImmutableBucket) -> None:
        """Read the length of the snapshot; after a failure it stays unknown."""
        with suppress(SidecarError):
            bucket.snapshot_bytes = self.storage.get_bucket_snapshot_length(self.id_of(bucket))

    def metadata(self, bucket: ImmutableBucket) -> SnapshotMetadata:
        """Return entry 0; raises as the storage does."""
        bucket_id = self.id_of(bucket)
        return _retried(lambda: self.storage.get_bucket_snapshot_metadata(bucket_id))

    def segments(self, bucket: ImmutableBucket, first: int, last: int) -> Sequence[DelayedIndexes]:
        """Return entries ``first`` to ``last``; raises as the storage does."""
        bucket_id = self.id_of(bucket)
        return _retried(lambda: self.storage.get_bucket_snapshot_segment(bucket_id, first, last))

    def delete(self, bucket: ImmutableBucket) -> None:
        """Delete the snapshot, then its property; a failure is counted, and the property stays."""

        def delete() -> bool:
            bucket_id = self.id_of(bucket)
            _retried(lambda: self.storage.delete_bucket_snapshot(bucket_id))
            _retried(lambda: self.properties.remove(str(bucket.key)))
            return True

        self.attempt(BucketOperation.DELETE, delete)

    def attempt(self, operation: BucketOperation, act: Callable[[], T]) -> T | None:
        """Run and count an operation; return None if it failed."""
        try:
            result = act()
        except SidecarError:
            self.operations[operation, False] += 1
            return None
        self.operations[operation, True] += 1
        return result

    def id_of(self, bucket: ImmutableBucket) -> LedgerId:
        """Return the snapshot's ledger, read from the property if it is not known yet.

        Raises:
            UndecodableError: the property is missing or holds no ledger id.
        """
        if bucket.bucket_id is None:
            value = self.properties.get().get(str(bucket.key), "")
            bucket.bucket_id = parse_ledger_id(value)
            if bucket.bucket_id is None:
                raise UndecodableError(f"the property {bucket.key} has {value!r:.40} instead of a ledger id")
        return bucket.bucket_id


def _retried(act: Callable[[], T]) -> T:
    for _ in range(_RETRIES):
        try:
            return act()
        except UndecodableError:
            raise
        except TemporaryError:
            continue
    return act()
