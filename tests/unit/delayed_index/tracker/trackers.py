"""A tracker in memory, its visible state, and a naive model of the messages to hand out."""

from dataclasses import dataclass, field
from typing import Any

from pulsar_sidecar.features.delayed_index.settings import Behaviour, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker

from tests.fakes.clock import FakeClock

TOPIC, CURSOR = "persistent://public/default/orders", "billing"
START_MS = 1_700_000_000_000


@dataclass
class Site:
    """Surroundings of a tracker, which outlive it."""

    settings: TrackerSettings
    behaviour: Behaviour = Behaviour.AS_BROKER
    storage: MemorySnapshotStorage = field(default_factory=MemorySnapshotStorage)
    properties: MemoryBucketProperties = field(default_factory=MemoryBucketProperties)
    clock: FakeClock = field(default_factory=lambda: FakeClock(START_MS))

    def tracker(self) -> BucketDelayedDeliveryTracker:
        return BucketDelayedDeliveryTracker(
            self.settings,
            self.storage,
            self.properties,
            self.clock.now_ms,
            topic_name=TOPIC,
            cursor_name=CURSOR,
            behaviour=self.behaviour,
        )

    def recovered(self) -> BucketDelayedDeliveryTracker:
        tracker = self.tracker()
        tracker.recover()
        return tracker


def rows_of(indexes: DelayedIndexes) -> list[tuple[int, int, int]]:
    columns = (indexes.deliver_at_ms, indexes.ledgers, indexes.entries)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def plain_bits(bits: PositionBits) -> dict[int, list[int]]:
    return {ledger_id: list(entries) for ledger_id, entries in sorted(bits.ledgers.items())}


def state_of(tracker: BucketDelayedDeliveryTracker, site: Site) -> dict[str, Any]:
    """Everything, in a form that can be compared."""
    return {
        "mutable": (tracker.mutable.key, rows_of(tracker.mutable.queue.rows()), plain_bits(tracker.mutable.bits)),
        "shared": rows_of(tracker.shared.rows()),
        "buckets": [
            (
                held,
                bucket.key,
                bucket.bucket_id,
                plain_bits(bucket.bits),
                bucket.count,
                (bucket.current_segment, bucket.last_segment, bucket.first_times_ms, bucket.snapshot_bytes),
            )
            for held, bucket in tracker.buckets.items()
        ],
        "count": tracker.number_of_delayed_messages,
        "next": tracker.next_delivery_time(),
        "operations": dict(tracker.access.operations),
        "stored": dict(site.storage.snapshots),
        "properties": dict(site.properties.properties),
    }
