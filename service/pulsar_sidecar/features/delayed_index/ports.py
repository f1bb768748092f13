"""Ports of the delayed index.

Every method raises `TemporaryError` if the other side is unreachable, and `UndecodableError` if it cannot decode what
it read.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.settings import BrokerTracker
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SnapshotMetadata
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import Birth
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription


class BucketOwner(NamedTuple):
    """Owner of a bucket: the cursor of a topic that names it under this key."""

    bucket_key: BucketKey
    topic_name: str
    cursor_name: str


class BucketSnapshotStorage(Protocol):
    """Storage of snapshots: PIP-195's interface of the same name, synchronous, without ``start`` and ``close``.

    The id of a bucket is the id of its ledger.
    """

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        """Write a whole bucket durably, with its owner in the ledger's custom metadata.

        Raises:
            TemporaryError: nothing was stored.
            OutcomeUnknownError: a ledger may have been left; the error names it.
        """

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        """Return entry 0. Raises `NotFoundError` if there is no such bucket."""

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        """Return the segments of these entries, from 1, both inclusive. Raises `NotFoundError` likewise.

        Raises:
            InvalidInputError: the bucket does not have all of these entries, or the range is empty.
        """

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        """Return the bytes of all entries' payloads. Raises `NotFoundError` likewise."""

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Delete the bucket; a missing one is not an error."""


EntryPayload = bytes | Absent | Unreadable
"""Bytes of an entry; `Absent` only if every bookie that should have the entry reported that it does not."""


class BucketEntries(Protocol):
    """Entries of buckets' ledgers on bookies, read without fencing and without a broker."""

    def read(
        self, ledgers: Mapping[LedgerId, LedgerMetadata], positions: Collection[Position]
    ) -> Mapping[Position, EntryPayload]:
        """Return one result per position, reading several ledgers at a time; failures are values, not exceptions."""


class BucketProperties(Protocol):
    """Properties of the cursor; those named by a `BucketKey` point to buckets' ledgers."""

    def get(self) -> Mapping[str, str]:
        """Return all properties, in the cursor's own order."""

    def put(self, name: str, value: str) -> None:
        """Set a property; return once it is durable."""

    def remove(self, name: str) -> None:
        """Remove a property; a missing one is not an error."""


@dataclass(frozen=True, slots=True)
class UnusableBucket:
    """Bucket ledger to delete.

    Attributes:
        birth: identity of its node: a different one under the same id means another ledger.
        length_bytes: bytes of the ledger; None if unknown.
        version: version of the cursor's node that is about to change; None if no cursor names the ledger.
    """

    topic: TopicName
    subscription: str
    ledger_id: LedgerId
    birth: Birth
    length_bytes: int | None
    version: NodeVersion | None


class PendingBucketDeletions(Protocol):
    """Deletion service, which deletes a ledger only after proving that nothing references it."""

    def demand_ready(self) -> None:
        """Raise `DisabledError` or `TemporaryError` if the service does not take records."""

    def enqueue_for_deletion(self, buckets: Sequence[UnusableBucket]) -> Sequence[str | None]:
        """Record buckets durably; return, in order, None for each recorded one, or the reason."""


class DelayTimes(Protocol):
    """Due times of entries, by their own metadata, without a broker."""

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        """Return the entries of a closed ledger that a broker would delay, in order of the entries.

        Entries without a due time are left out, and so are entries of transactions: a broker may not dispatch
        uncommitted ones.

        Raises:
            TemporaryError: one of the entries could not be read.
        """


class BrokerTrackers(Protocol):
    """Configuration of delayed indexes on the live brokers."""

    def trackers(self) -> Mapping[str, BrokerTracker]:
        """Return the trackers of all live brokers, at least one, by id. Raises `TemporaryError` otherwise."""


class RunningTrackers(Protocol):
    """Reports of one broker on the trackers that it runs."""

    def configured(self, broker: str | None) -> BrokerTracker:
        """Return the configuration of that broker (its web service URL), or of any broker if None."""

    def subscriptions(self, topic: TopicName) -> Mapping[str, Subscription]:
        """Return subscriptions with tracker sizes; loads the topic, or raises `NotFoundError`."""
