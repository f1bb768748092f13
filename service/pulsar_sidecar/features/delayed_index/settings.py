"""Settings of a delayed index in a broker (PIP-195, ``ServiceConfiguration`` of 4.0.8)."""

from dataclasses import dataclass
from enum import Enum

from pulsar_sidecar.model.errors import InvalidInputError

BUCKET_TRACKER_FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
"""``delayedDeliveryTrackerFactoryClassName`` of brokers that keep the index in buckets."""

IN_MEMORY_TRACKER_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"

MAX_MERGE_NUM = 4
"""Maximum number of adjacent buckets merged (``BucketDelayedDeliveryTracker.MAX_MERGE_NUM``)."""


class Behaviour(Enum):
    """Model that the tracker follows where Pulsar 4.0.8 departs from PIP-195."""

    AS_BROKER = "as-broker"
    AS_PIP = "as-pip"


@dataclass(frozen=True, slots=True)
class TrackerSettings:
    """Settings of a bucket tracker.

    Attributes:
        tick_time_ms: ``delayedDeliveryTickTimeMillis``: unless strict, messages are due up to a tick early.
        strict: ``isDelayedDeliveryDeliverAtTimeStrict``.
        min_index_count: ``delayedDeliveryMinIndexCountPerBucket``: minimum number of indexes to seal a bucket.
        time_step_ms: ``delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds``, in milliseconds.
        max_indexes_per_segment: ``delayedDeliveryMaxIndexesPerBucketSnapshotSegment``; -1 for any number.
        max_num_buckets: ``delayedDeliveryMaxNumBuckets``; -1 for never merging.
        shared_index: ``delayedDeliverySharedIndexEnabled``: one index for all subscriptions of a topic; no released
            broker knows it.

    Raises:
        InvalidInputError: no broker works with one of the numbers.
    """

    tick_time_ms: int = 1000
    strict: bool = False
    min_index_count: int = 50_000
    time_step_ms: int = 300_000
    max_indexes_per_segment: int = 5_000
    max_num_buckets: int = -1
    shared_index: bool = False

    def __post_init__(self) -> None:
        for name, value, unlimited in (
            ("tick time", self.tick_time_ms, ""),
            ("minimum index count of a bucket", self.min_index_count, ""),
            ("time step of a segment", self.time_step_ms, ""),
            ("maximum number of indexes in a segment", self.max_indexes_per_segment, ", or -1 for any number"),
            ("maximum number of buckets", self.max_num_buckets, ", or -1 for any number"),
        ):
            if value < 1 and not (unlimited and value == -1):
                raise InvalidInputError(f"the {name} must be at least 1{unlimited}, not {value}")

    @property
    def breaks_dispatch(self) -> bool:
        """True if a 4.0.8 broker stops dispatching at the fourth bucket: it can only merge more than four."""
        return 0 < self.max_num_buckets < MAX_MERGE_NUM

    def merges_at_next_seal(self, buckets: int) -> bool:
        """Return True if a broker with this number of buckets merges some when it seals one more."""
        return self.max_num_buckets != -1 and buckets >= self.max_num_buckets


@dataclass(frozen=True, slots=True)
class BrokerTracker:
    """Configuration of a broker (``GET /admin/v2/brokers/configuration/runtime``).

    Attributes:
        factory: ``delayedDeliveryTrackerFactoryClassName``.
        memory_in_queue: True if the in-memory tracker of this version keeps its indexes in a queue, as up to 4.0; later
            ones keep bitmaps, which take any number of bytes.
    """

    factory: str
    settings: TrackerSettings
    memory_in_queue: bool = True

    @property
    def keeps_buckets(self) -> bool:
        return self.factory == BUCKET_TRACKER_FACTORY
