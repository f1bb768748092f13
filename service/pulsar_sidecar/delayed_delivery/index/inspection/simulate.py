"""A topic's real messages in a bucket tracker under other settings, beside today's: nothing of the cluster is changed.

The messages are added in order of their entries at one moment, as after an unload, and none is delivered meanwhile.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Final, TypeVar

from pyroaring import BitMap

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.delayed_delivery.backlog import EntriesByLedger, answered, common, positions_of, waiting_entries
from pulsar_sidecar.delayed_delivery.index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.delayed_delivery.index.inspection.cancellations import (
    SimulatedCancellations,
    cancellations_after_restart,
)
from pulsar_sidecar.delayed_delivery.index.inspection.forecast import (
    LOAD_ASSUMPTIONS,
    LoadCost,
    cost_with_buckets,
)
from pulsar_sidecar.delayed_delivery.index.settings import Behaviour, BrokerTracker, TrackerSettings
from pulsar_sidecar.delayed_delivery.index.snapshot import DelayedIndexes, SnapshotMetadata, bitmaps_of, decode_metadata
from pulsar_sidecar.delayed_delivery.index.stored import StoredIndexes
from pulsar_sidecar.delayed_delivery.index.tracker.failures import TrackerFailedError
from pulsar_sidecar.delayed_delivery.index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.delayed_delivery.index.tracker.shared import INDEX_CURSOR, SharedDelayedIndex
from pulsar_sidecar.delayed_delivery.index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.delayed_delivery.index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.delayed_delivery.ports import DelayedEntries, EntryFacts
from pulsar_sidecar.ledger_ownership.ports import LedgerLengths
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

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
    """One subscription of a partition, or of a topic without; with a shared index all of them (`INDEX_CURSOR`).

    Attributes:
        delayed: messages that are not due.
        others: unacknowledged entries that are not delayed, or due already; a load reads them as well.
        unreadable: entries that could not be read, and count as others.
        complete: whether the whole backlog was read.
        today: as the brokers are configured; beside a shared index, the trackers of all subscriptions together.
        simulated: with the settings that were asked for.
        cancellations: what a restart would forget of the cancellations that were given.
        given_although_acknowledged: positions that a shared index gives to subscriptions which have acknowledged them
            already; None without one.
    """

    topic: TopicName
    subscription: str
    delayed: int
    others: int
    unreadable: int
    complete: bool
    today: SimulatedTracker
    simulated: SimulatedTracker
    cancellations: SimulatedCancellations | None = None
    given_although_acknowledged: int | None = None
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
    return _filled(tracker, storage, indexes, now_ms)


def simulate_shared(
    indexes: DelayedIndexes, settings: TrackerSettings, now_ms: int, mark_deletes: Mapping[str, Position]
) -> tuple[SimulatedTracker, int]:
    """The same in one index for all subscriptions (PIP-195), and how many positions it gives them until all are due.

    Args:
        indexes: of messages that any of the subscriptions waits for.
        settings: with a shared index.
        now_ms: when all come.
        mark_deletes: the subscriptions' positions.
    """
    storage, times = MemorySnapshotStorage(), [now_ms]
    tracker = BucketDelayedDeliveryTracker(
        settings,
        storage,
        MemoryBucketProperties(),
        lambda: times[-1],
        topic_name="simulated",
        cursor_name=INDEX_CURSOR,
        behaviour=Behaviour.AS_PIP,
    )
    shared = SharedDelayedIndex(tracker)
    for subscription, mark_delete in mark_deletes.items():
        shared.subscribe(subscription, mark_delete)
    found = _filled(tracker, storage, indexes, now_ms)
    times.append(int(indexes.deliver_at_ms.max(initial=now_ms)))
    return found, sum(len(shared.get_scheduled_messages(each, len(indexes))) for each in mark_deletes)


def _filled(
    tracker: BucketDelayedDeliveryTracker, storage: MemorySnapshotStorage, indexes: DelayedIndexes, now_ms: int
) -> SimulatedTracker:
    failure = None
    try:
        tracker.add_messages(indexes)
    except TrackerFailedError as error:
        failure = f"{error}: after {error.row:,} of {format_count(len(indexes), 'message')}"
    snapshots = [decode_metadata(stored.payloads[0]) for stored in storage.snapshots.values()]
    lengths = [stored.length for stored in storage.snapshots.values()]
    queues = [len(tracker.mutable.queue), len(tracker.shared)]
    return SimulatedTracker(
        tracker.settings,
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
        self,
        topic: TopicName,
        subscription: str | None,
        settings: TrackerSettings,
        limit: int,
        cancelled: Collection[Position] = (),
    ) -> list[Simulation]:
        """Each subscription's messages under these settings, beside today's; with a shared index all of them together.

        Args:
            topic: with or without partitions.
            subscription: only this one.
            settings: of the bucket tracker.
            limit: so many entries are read at most of each subscription.
            cancelled: messages whose cancellations PIP-423's tracker is given.

        Raises:
            InvalidInputError: a shared index is asked for and a subscription, or cancellations, as well.
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: something could not be read.
        """
        if settings.shared_index and (subscription is not None or cancelled):
            raise InvalidInputError(
                "a shared index is one for all subscriptions and knows no cancellations: leave both out"
            )
        configuration, now_ms = self.tracker(), self.clock.now_ms()
        found = []
        for place, stored in self.stored.read(self.stored.topics.places_of(topic), subscription):
            read = _readable(stored)
            lengths = _readable(self.lengths.lengths(read.ledgers))
            cursors = {name: _readable(_readable(index).acknowledged) for name, index in read.subscriptions.items()}
            if settings.shared_index and cursors:
                found.append(self._shared(place, lengths, cursors, configuration, settings, now_ms, limit))
                continue
            for name, acknowledged in cursors.items():
                backlog = self._backlog(place, waiting_entries(lengths, [acknowledged]), now_ms, limit)
                indexes = backlog.indexes
                today = _with_others(_as_configured(indexes, configuration, now_ms), backlog.other_entries)
                forgotten = cancellations_after_restart(indexes, cancelled, settings, now_ms) if cancelled else None
                simulated = simulate(indexes, settings, now_ms)
                found.append(backlog.simulation(place, name, today, simulated, cancellations=forgotten))
        if not found:
            what = "no subscription" if subscription is None else f"no subscription {subscription}"
            raise NotFoundError(f"{topic} has {what}")
        return found

    def _shared(
        self,
        place: TopicName,
        lengths: Mapping[LedgerId, int],
        cursors: Mapping[str, PositionRanges],
        configuration: BrokerTracker,
        settings: TrackerSettings,
        now_ms: int,
        limit: int,
    ) -> Simulation:
        """Each message once, in place of once for each subscription that waits for it."""
        whole = self._backlog(place, waiting_entries(lengths, list(cursors.values())), now_ms, limit)
        separate, awaited = [], 0
        for acknowledged in cursors.values():
            waiting = waiting_entries(lengths, [acknowledged])
            indexes = whole.indexes[whole.indexes.within(waiting)]
            awaited += len(indexes)
            today = _as_configured(indexes, configuration, now_ms)
            separate.append(_with_others(today, sum(map(len, common(whole.others, waiting).values()))))
        marks = {name: acknowledged.mark_delete for name, acknowledged in cursors.items()}
        shared, given = simulate_shared(whole.indexes, settings, now_ms, marks)
        return whole.simulation(
            place, INDEX_CURSOR, _together(separate), shared, given_although_acknowledged=given - awaited
        )

    def _backlog(self, place: TopicName, waiting: EntriesByLedger, now_ms: int, limit: int) -> "_Backlog":
        positions = positions_of(waiting)
        rows: list[tuple[int, int, int]] = []
        others: dict[LedgerId, BitMap] = {}
        unreadable = 0
        for position, facts in answered(self.entries, place, islice(positions, limit)):
            unreadable += isinstance(facts, Unreadable)
            if isinstance(facts, EntryFacts) and (facts.deliver_at_ms or 0) > now_ms:
                assert facts.deliver_at_ms is not None
                rows.append((facts.deliver_at_ms, *position))
            else:
                others.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return _Backlog(DelayedIndexes.of(rows), others, unreadable, next(positions, None) is None)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Delayed messages, and other entries; ``complete`` where the limit left out nothing."""

    indexes: DelayedIndexes
    others: EntriesByLedger
    unreadable: int
    complete: bool

    @property
    def other_entries(self) -> int:
        return sum(map(len, self.others.values()))

    def simulation(
        self,
        place: TopicName,
        subscription: str,
        today: SimulatedTracker,
        simulated: SimulatedTracker,
        *,
        cancellations: SimulatedCancellations | None = None,
        given_although_acknowledged: int | None = None,
    ) -> Simulation:
        return Simulation(
            place,
            subscription,
            len(self.indexes),
            self.other_entries,
            self.unreadable,
            self.complete,
            today,
            _with_others(simulated, self.other_entries),
            cancellations,
            given_although_acknowledged,
        )


def _as_configured(indexes: DelayedIndexes, configuration: BrokerTracker, now_ms: int) -> SimulatedTracker:
    if configuration.keeps_buckets:
        return simulate(indexes, configuration.settings, now_ms)
    return in_memory_tracker(indexes)


_ADDED_UP = frozenset(field.name for field in fields(SimulatedTracker)) - {
    "settings", "load", "failure", "largest_snapshot_bytes",
}  # fmt: skip


def _together(trackers: Sequence[SimulatedTracker]) -> SimulatedTracker:
    """Several subscriptions' trackers as one."""
    loads = [each.load for each in trackers]
    return replace(
        trackers[0],
        load=LoadCost(sum(load.entries for load in loads), sum(load.memory_bytes for load in loads)),
        failure=next((each.failure for each in trackers if each.failure is not None), None),
        largest_snapshot_bytes=max(each.largest_snapshot_bytes for each in trackers),
        **{name: sum(getattr(each, name) for each in trackers) for name in _ADDED_UP},
    )


def _with_others(found: SimulatedTracker, others: int) -> SimulatedTracker:
    return replace(found, load=replace(found.load, entries=found.load.entries + others))


def _readable(found: T | Unreadable) -> T:
    if isinstance(found, Unreadable):
        raise TemporaryError(f"{found.reason}; try again")
    return found
