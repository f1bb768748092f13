"""What the delayed index needs from outside.

Every method raises `TemporaryError` when the other side could not be asked, and `UndecodableError` for what was read
and not understood.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata
from pulsar_sidecar.model.ids import LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription


class BucketOwner(NamedTuple):
    """Whose a bucket is: a cursor of a topic has it under this key."""

    bucket_key: BucketKey
    topic_name: str
    cursor_name: str


class BucketSnapshotStorage(Protocol):
    """Where snapshots are kept: PIP-195's interface of the same name, its seven methods, waiting for each answer.

    A bucket's id is its ledger's.
    """

    def start(self) -> None:
        """Get ready for the other calls."""

    def create_bucket_snapshot(
        self, metadata: SnapshotMetadata, segments: Sequence[DelayedIndexes], owner: BucketOwner
    ) -> LedgerId:
        """Write it whole; its owner goes into the ledger's custom metadata. Returns when it is durable.

        Raises:
            TemporaryError: nothing was kept.
            OutcomeUnknownError: a ledger may have been left; the error names it.
        """

    def get_bucket_snapshot_metadata(self, bucket_id: LedgerId) -> SnapshotMetadata:
        """Entry 0. Raises `NotFoundError` when there is no such bucket."""

    def get_bucket_snapshot_segment(
        self, bucket_id: LedgerId, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> Sequence[DelayedIndexes]:
        """The segments of these entries, 1 for the first one, both included. Raises `NotFoundError` likewise.

        Raises:
            InvalidInputError: the bucket does not have all of these entries, or there are none.
        """

    def get_bucket_snapshot_length(self, bucket_id: LedgerId) -> int:
        """Bytes of all entries' payloads. Raises `NotFoundError` likewise."""

    def delete_bucket_snapshot(self, bucket_id: LedgerId) -> None:
        """Delete it; one that is gone already is not an error."""

    def close(self) -> None:
        """Let go of what is kept open; idempotent."""


EntryPayload = bytes | Absent | Unreadable
"""An entry's bytes; `Absent` only when every bookie that should have it answered that it does not."""


class BucketEntries(Protocol):
    """Entries of buckets' ledgers as bookies hold them, read without fencing and without a broker."""

    def read(
        self, ledgers: Mapping[LedgerId, LedgerMetadata], positions: Collection[Position]
    ) -> Mapping[Position, EntryPayload]:
        """One answer per position, several ledgers at a time; failures are values, so the call raises nothing.

        Args:
            ledgers: the metadata of at least the ledgers that are asked for.
            positions: ledger and entry; segments begin with entry 1.
        """


class BucketProperties(Protocol):
    """The properties of the cursor, of which those named by a `BucketKey` point to buckets' ledgers."""

    def get(self) -> Mapping[str, str]:
        """All of them, in the cursor's own order."""

    def put(self, name: str, value: str) -> None:
        """Set one; returns when it is durable."""

    def remove(self, name: str) -> None:
        """Remove one; one that is gone already is not an error."""


@dataclass(frozen=True, slots=True)
class UnusableBucket:
    """A bucket's ledger that is to be deleted.

    Attributes:
        created_ms: of its node: another time under the same id is another ledger.
        length_bytes: None if unknown.
        version: of the cursor's node that is about to change; None if none is: no cursor names the ledger then.
    """

    topic: TopicName
    subscription: str
    ledger_id: LedgerId
    created_ms: int | None
    length_bytes: int | None
    version: NodeVersion | None


class PendingBucketDeletions(Protocol):
    """The deletion service, which deletes a ledger only once it has proved that nothing references it."""

    def demand_ready(self) -> None:
        """Nothing, if it takes records. Raises `DisabledError` or `TemporaryError` if it does not."""

    def hand_over(self, buckets: Sequence[UnusableBucket]) -> Sequence[str | None]:
        """Record them, durably: None for each that is recorded, otherwise the reason, in order."""


class DelayTimes(Protocol):
    """When entries are due, by their own metadata, without a broker."""

    def delayed(self, ledger_id: LedgerId, metadata: LedgerMetadata, entries: BitMap) -> DelayedIndexes:
        """Those of a closed ledger's entries that a broker would delay, in order of the entries.

        Entries without a due time are left out, and those of transactions: what is not committed may not be handed out.

        Raises:
            TemporaryError: one of the entries could not be read.
        """


class BrokerTrackers(Protocol):
    """How the live brokers keep delayed indexes, by their configuration."""

    def trackers(self) -> Mapping[str, BrokerTracker]:
        """By broker id; one at least, and every live one. Raises `TemporaryError` otherwise."""


class RunningTrackers(Protocol):
    """What one broker reports of the trackers that it runs."""

    def configured(self, broker: str | None) -> BrokerTracker:
        """That broker's configuration (its web service URL; None: any broker's)."""

    def subscriptions(self, topic: TopicName) -> Mapping[str, Subscription]:
        """With the size of each tracker; loads the topic. Raises `NotFoundError` when there is no such topic."""
