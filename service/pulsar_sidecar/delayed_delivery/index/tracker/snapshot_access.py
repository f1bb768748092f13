"""A tracker's way to its snapshots: what is tried again, what is counted, and in which order things are written.

A snapshot is written before the property that points to it, and deleted before that property is removed; so a crash in
between leaves a ledger that nothing points to, or a property that points to nothing, as it does in a broker.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, TypeVar

from pulsar_sidecar.delayed_delivery.index.ports import BucketOwner, BucketProperties, BucketSnapshotStorage
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata
from pulsar_sidecar.delayed_delivery.index.tracker.immutable_bucket import ImmutableBucket
from pulsar_sidecar.delayed_delivery.index.tracker.sealing import SealedIndexes
from pulsar_sidecar.model.errors import SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId, parse_ledger_id

T = TypeVar("T")

_RETRIES: Final = 3


class BucketOperation(Enum):
    """The label ``type`` of the PIP's metrics."""

    CREATE = "create"
    LOAD = "load"
    DELETE = "delete"
    MERGE = "merge"


class SnapshotAccess:
    """Snapshots of one subscription.

    Attributes:
        operations: how often each was done, by operation and whether it succeeded.
    """

    def __init__(
        self, storage: BucketSnapshotStorage, properties: BucketProperties, topic_name: str, cursor_name: str
    ) -> None:
        self._storage = storage
        self._properties = properties
        self._topic_name = topic_name
        self._cursor_name = cursor_name
        self.operations: Counter[tuple[BucketOperation, bool]] = Counter()

    def names(self) -> Sequence[str]:
        """Names of the cursor's properties, in its order."""
        return tuple(self._properties.get())

    def save(self, bucket: ImmutableBucket, sealed: SealedIndexes) -> bool:
        """Write the snapshot and point to it; whether it was written.

        A pointer that cannot be written is given up: only this tracker knows the snapshot then.
        """

        def create() -> LedgerId:
            owner = BucketOwner(bucket.key, self._topic_name, self._cursor_name)
            return self._storage.create_bucket_snapshot(sealed.metadata, sealed.segments, owner)

        bucket_id = self.attempt(BucketOperation.CREATE, lambda: _retried(create))
        if bucket_id is None:
            return False
        bucket.bucket_id = bucket_id
        with suppress(SidecarError):
            _retried(lambda: self._properties.put(str(bucket.key), str(bucket_id)))
        self.measure(bucket)
        return True

    def measure(self, bucket: ImmutableBucket) -> None:
        """Ask how long the snapshot is; when that fails it stays unknown."""
        with suppress(SidecarError):
            bucket.snapshot_bytes = self._storage.get_bucket_snapshot_length(self.id_of(bucket))

    def metadata(self, bucket: ImmutableBucket) -> SnapshotMetadata:
        """Entry 0; raises what the storage raises."""
        bucket_id = self.id_of(bucket)
        return _retried(lambda: self._storage.get_bucket_snapshot_metadata(bucket_id))

    def segments(self, bucket: ImmutableBucket, first: int, last: int) -> Sequence[DelayedIndexes]:
        """Entries ``first`` to ``last``; raises what the storage raises."""
        bucket_id = self.id_of(bucket)
        return _retried(lambda: self._storage.get_bucket_snapshot_segment(bucket_id, first, last))

    def delete(self, bucket: ImmutableBucket) -> None:
        """Delete the snapshot and then its property; what fails is counted, and the property stays."""

        def delete() -> bool:
            bucket_id = self.id_of(bucket)
            _retried(lambda: self._storage.delete_bucket_snapshot(bucket_id))
            _retried(lambda: self._properties.remove(str(bucket.key)))
            return True

        self.attempt(BucketOperation.DELETE, delete)

    def attempt(self, operation: BucketOperation, act: Callable[[], T]) -> T | None:
        """Do and count it; None when it failed."""
        try:
            result = act()
        except SidecarError:
            self.operations[operation, False] += 1
            return None
        self.operations[operation, True] += 1
        return result

    def id_of(self, bucket: ImmutableBucket) -> LedgerId:
        """The snapshot's ledger, from the property where it is not known yet.

        Raises:
            UndecodableError: the property is missing or holds no ledger id.
        """
        if bucket.bucket_id is None:
            value = self._properties.get().get(str(bucket.key), "")
            bucket.bucket_id = parse_ledger_id(value)
            if bucket.bucket_id is None:
                raise UndecodableError(f"the property {bucket.key} names no ledger as {value!r:.40}")
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
