"""A topic's real messages in a bucket tracker under other settings, beside today's: nothing of the cluster is changed.

The messages are added in order of their entries at one moment, as after an unload, and none is delivered meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, TypeVar

from pulsar_sidecar.delayed_delivery.backlog import EntriesByLedger, answered, positions_of, waiting_entries
from pulsar_sidecar.delayed_delivery.index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.delayed_delivery.index.inspection.forecast import (
    LOAD_ASSUMPTIONS,
    LoadCost,
    cost_with_buckets,
)
from pulsar_sidecar.delayed_delivery.index.settings import BrokerTracker, TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata, bitmaps_of, decode_metadata
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.failures import TrackerFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.delayed_delivery.index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, EntryFacts
from pulsar_sidecar.ledger_ownership.ports import LedgerLengths
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

T = TypeVar("T")

SIMULATION_ASSUMPTIONS: Final = (
    "messages come in order of their entries, and none is delivered meanwhile",
    *LOAD_ASSUMPTIONS,
)


@dataclass(frozen=True, slots=True)
class SimulatedTracker:
    """What a tracker comes to.

    Attributes:
        settings: None for the in-memory tracker, which has no buckets.
        load: what the next load takes.
        indexes_in_memory: in the mutable bucket and the shared queue.
        memory_bytes: of a broker, for these and for the buckets' bitmaps.
        buckets: how many there are at the end.
        sealed: how often a bucket was written, merged ones included.
        merges: how often several became one.
        segments: of all buckets together.
        snapshot_bytes: of all buckets together.
        largest_snapshot_bytes: of one bucket.
        failure: where a broker would have thrown; the messages from there on are in no tracker.
    """

    settings: TrackerSettings | None
    load: LoadCost
    indexes_in_memory: int
    memory_bytes: int
    buckets: int = 0
    sealed: int = 0
    merges: int = 0
    segments: int = 0
    snapshot_bytes: int = 0
    largest_snapshot_bytes: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Simulation:
    """One subscription of a partition, or of a topic without.

    Attributes:
        delayed: messages that are not due.
        others: unacknowledged entries that are not delayed, or due already; a load reads them as well.
        unreadable: entries that could not be read, and count as others.
        complete: whether the whole backlog was read.
        today: as the brokers are configured.
        simulated: with the settings that were asked for.
    """

    topic: TopicName
    subscription: str
    delayed: int
    others: int
    unreadable: int
    complete: bool
    today: SimulatedTracker
    simulated: SimulatedTracker
    assumptions: tuple[str, ...] = SIMULATION_ASSUMPTIONS


def simulate(indexes: DelayedIndexes, settings: TrackerSettings, now_ms: int) -> SimulatedTracker:
    """The messages in a bucket tracker, as a broker of 4.0.8 keeps it.

    Args:
        indexes: not due at ``now_ms``, in order of their entries.
        settings: the tracker's.
        now_ms: when everything happens.
    """
    storage = MemorySnapshotStorage()
    tracker = BucketDelayedDeliveryTracker(
        settings,
        storage,
        MemoryBucketProperties(),
        lambda: now_ms,
        topic_name="simulated",
        cursor_name="simulated",
    )
    failure = None
    try:
        tracker.add_messages(indexes)
    except TrackerFailedError as error:
        failure = f"{error}: after {error.row:,} of {len(indexes):,} messages"
    snapshots = [decode_metadata(stored.payloads[0]) for stored in storage.snapshots.values()]
    lengths = [stored.length for stored in storage.snapshots.values()]
    queues = [len(tracker.mutable.queue), len(tracker.shared)]
    return SimulatedTracker(
        settings,
        buckets=len(snapshots),
        sealed=tracker.access.operations[BucketOperation.CREATE, True],
        merges=tracker.access.operations[BucketOperation.MERGE, True],
        segments=sum(map(len, snapshots)),
        indexes_in_memory=sum(queues),
        memory_bytes=sum(map(queue_bytes, queues)) + _bitmap_bytes(snapshots),
        snapshot_bytes=sum(lengths),
        largest_snapshot_bytes=max(lengths, default=0),
        load=cost_with_buckets(snapshots, bitmaps_of(indexes.ledgers, indexes.entries), now_ms)[1],
        failure=failure,
    )


def in_memory_tracker(indexes: DelayedIndexes) -> SimulatedTracker:
    """The same messages in a broker's in-memory tracker."""
    count = len(indexes)
    memory = queue_bytes(count)
    return SimulatedTracker(None, LoadCost(count, memory), count, memory)


def _bitmap_bytes(snapshots: Sequence[SnapshotMetadata]) -> int:
    return sum(
        len(entries.serialize())
        for snapshot in snapshots
        for segment in snapshot
        for entries in segment.bitmaps.values()
    )


# --- a topic's messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulator:
    """Reads the messages and simulates; changes nothing, and loads no topic."""

    stored: StoredIndexes
    lengths: LedgerLengths
    entries: DelayedEntries
    tracker: Callable[[], BrokerTracker]
    clock: Clock

    def configured(self) -> TrackerSettings:
        """The brokers' settings of the bucket tracker; raises TemporaryError when no broker could be asked."""
        return self.tracker().settings

    def simulate(
        self, topic: TopicName, subscription: str | None, settings: TrackerSettings, limit: int
    ) -> list[Simulation]:
        """Each subscription's messages under these settings, beside today's.

        Args:
            topic: with or without partitions.
            subscription: only this one.
            settings: of the bucket tracker.
            limit: so many entries are read at most of each subscription.

        Raises:
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: something could not be read.
        """
        configuration, now_ms = self.tracker(), self.clock.now_ms()
        found = []
        for place, stored in self.stored.read(self.stored.topics.places_of(topic), subscription):
            read = _readable(stored)
            lengths = _readable(self.lengths.lengths(read.ledgers))
            for name, index in read.subscriptions.items():
                acknowledged = _readable(_readable(index).acknowledged)
                waiting = waiting_entries(lengths, [acknowledged])
                indexes, others, unreadable, complete = self._backlog(place, waiting, now_ms, limit)
                today = (
                    simulate(indexes, configuration.settings, now_ms)
                    if configuration.keeps_buckets
                    else in_memory_tracker(indexes)
                )
                today = _with_others(today, others)
                simulated = _with_others(simulate(indexes, settings, now_ms), others)
                found.append(Simulation(place, name, len(indexes), others, unreadable, complete, today, simulated))
        if not found:
            what = "no subscription" if subscription is None else f"no subscription {subscription}"
            raise NotFoundError(f"{topic} has {what}")
        return found

    def _backlog(
        self, place: TopicName, waiting: EntriesByLedger, now_ms: int, limit: int
    ) -> tuple[DelayedIndexes, int, int, bool]:
        """The delayed messages, how many others there are, how many of these are unreadable; whether that is all."""
        positions = positions_of(waiting)
        rows: list[tuple[int, int, int]] = []
        read = unreadable = 0
        for position, facts in answered(self.entries, place, islice(positions, limit)):
            read += 1
            unreadable += isinstance(facts, Unreadable)
            if isinstance(facts, EntryFacts) and (facts.deliver_at_ms or 0) > now_ms:
                assert facts.deliver_at_ms is not None
                rows.append((facts.deliver_at_ms, *position))
        return DelayedIndexes.of(rows), read - len(rows), unreadable, next(positions, None) is None


def _with_others(found: SimulatedTracker, others: int) -> SimulatedTracker:
    return replace(found, load=replace(found.load, entries=found.load.entries + others))


def _readable(found: T | Unreadable) -> T:
    if isinstance(found, Unreadable):
        raise TemporaryError(f"{found.reason}; try again")
    return found
