"""Simulation of a topic's real messages in a bucket tracker with other settings, beside today's tracker.

Nothing in the cluster is changed. The messages are added in order of their entries at one moment, as after an unload,
and none is delivered meanwhile.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.backlog.ports import DelayedEntries, EntryFacts
from pulsar_sidecar.backlog.waiting import (
    EntriesByLedger,
    common,
    positions_of,
    waiting_entries,
    with_metadata,
)
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.features.delayed_index.inspection.forecast import (
    LOAD_ASSUMPTIONS,
    cost_with_buckets,
    load_cost,
    sum_of_costs,
)
from pulsar_sidecar.features.delayed_index.results.inspection import (
    SimulatedCancellations,
    SimulatedSettings,
    SimulatedTracker,
    Simulation,
)
from pulsar_sidecar.features.delayed_index.settings import Behaviour, BrokerTracker, TrackerSettings
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes, SnapshotMetadata, bitmaps_of, decode_metadata
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.delayed_index.tracker.memory_storage import MemoryBucketProperties, MemorySnapshotStorage
from pulsar_sidecar.features.delayed_index.tracker.operations import CancellableTracker, OperationSnapshots
from pulsar_sidecar.features.delayed_index.tracker.sealed_buckets import TrackerFailedError
from pulsar_sidecar.features.delayed_index.tracker.shared import INDEX_CURSOR, SharedDelayedIndex
from pulsar_sidecar.features.delayed_index.tracker.snapshot_access import BucketOperation
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable, demanded
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.ports import LedgerLengths
from pulsar_sidecar.reports.formatting import format_count

SIMULATION_ASSUMPTIONS: Final = (
    "messages come in order of their entries, and none is delivered meanwhile",
    *LOAD_ASSUMPTIONS,
)


def _settings(settings: TrackerSettings) -> SimulatedSettings:
    return SimulatedSettings(
        settings.min_index_count,
        settings.time_step_ms // 1000,
        settings.max_indexes_per_segment,
        settings.max_num_buckets,
        settings.shared_index,
        settings.breaks_dispatch,
    )


def simulate(indexes: DelayedIndexes, settings: TrackerSettings, now_ms: int) -> SimulatedTracker:
    """Simulate messages in a bucket tracker as in a 4.0.8 broker; they are in order, and not due at ``now_ms``."""
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
    """Simulate one index for all subscriptions (PIP-195), and count the positions that it gives until all are due."""
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
        _settings(tracker.settings),
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
    """Return the state of a broker's in-memory tracker with the same messages."""
    count = len(indexes)
    memory = queue_bytes(count)
    return SimulatedTracker(
        settings=None,
        buckets=0,
        sealed=0,
        merges=0,
        segments=0,
        indexes_in_memory=count,
        memory_bytes=memory,
        snapshot_bytes=0,
        largest_snapshot_bytes=0,
        load=load_cost(count, memory),
        failure=None,
    )


def _bitmap_bytes(snapshots: Sequence[SnapshotMetadata]) -> int:
    return sum(
        len(entries.serialize())
        for snapshot in snapshots
        for segment in snapshot
        for entries in segment.bitmaps.values()
    )


# --- cancellations ---------------------------------------------------------------------------------------------------


def cancellations_after_restart(
    indexes: DelayedIndexes, cancelled: Collection[Position], settings: TrackerSettings, now_ms: int
) -> SimulatedCancellations:
    """Cancel messages in PIP-423's tracker, restart, add all again as a dispatcher does, and deliver everything.

    Each cancellation follows its message immediately, as early as possible: a later one is in no bucket until the next
    bucket is sealed. The sidecar's own cancellations acknowledge, so a restart forgets none of them.
    """
    rows = {position: row for row, position in enumerate(indexes.positions()) if position in cancelled}
    snapshots, times = OperationSnapshots(), [now_ms]
    tracker = CancellableTracker(settings, snapshots, lambda: times[-1])
    begun = 0
    for position, row in rows.items():
        tracker.add_messages(indexes[begun : row + 1])
        tracker.cancel_message(*position, int(indexes.deliver_at_ms[row]))
        begun = row + 1
    tracker.add_messages(indexes[begun:])
    tracker.close()
    restarted = CancellableTracker(settings, snapshots, lambda: times[-1])
    restarted.recover()
    restarted.add_messages(indexes)
    times.append(int(indexes.deliver_at_ms.max(initial=now_ms)))
    delivered = set(restarted.pop_scheduled(len(indexes)).positions())
    return SimulatedCancellations(
        outlived=tuple(str(position) for position in rows if position not in delivered),
        forgotten=tuple(str(position) for position in rows if position in delivered),
        unknown=tuple(map(str, sorted(set(cancelled) - rows.keys()))),
    )


# --- a topic's messages --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulator:
    """Simulator of trackers with stored messages; changes nothing and loads no topic."""

    stored: StoredIndexes
    lengths: LedgerLengths
    entries: DelayedEntries
    tracker: Callable[[], BrokerTracker]
    clock: Clock

    def configured(self) -> TrackerSettings:
        """Return the brokers' bucket-tracker settings; raises TemporaryError if no broker is reachable."""
        return self.tracker().settings

    def simulate(
        self,
        topic: TopicName,
        subscription: str | None,
        settings: TrackerSettings,
        limit: int,
        cancelled: Collection[Position] = (),
    ) -> list[Simulation]:
        """Simulate each subscription with these settings and today's; a shared index covers all together.

        Raises:
            InvalidInputError: a shared index is combined with a subscription or with cancellations.
            NotFoundError: there is no such topic, or no such subscription.
            TemporaryError: something could not be read.
        """
        if settings.shared_index and (subscription is not None or cancelled):
            raise InvalidInputError(
                "a shared index is one for all subscriptions and supports no cancellations: omit both"
            )
        configuration, now_ms = self.tracker(), self.clock.now_ms()
        found = []
        for place, stored in self.stored.read(self.stored.topics.places_of(topic), subscription):
            read = demanded(stored, str(place))
            lengths = demanded(self.lengths.lengths(read.ledgers), str(place))
            cursors = {
                name: demanded(demanded(index, f"{name} of {place}").acknowledged, f"the cursor of {name} on {place}")
                for name, index in read.subscriptions.items()
            }
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
        """Simulate each message once, instead of once for each subscription that waits for it."""
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
        for position, facts in with_metadata(self.entries, place, islice(positions, limit)):
            unreadable += isinstance(facts, Unreadable)
            if isinstance(facts, EntryFacts) and (facts.deliver_at_ms or 0) > now_ms:
                assert facts.deliver_at_ms is not None
                rows.append((facts.deliver_at_ms, *position))
            else:
                others.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
        return _Backlog(DelayedIndexes.of(rows), others, unreadable, next(positions, None) is None)


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Delayed messages and other entries of a backlog; ``complete`` if the limit excluded nothing."""

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
            str(place),
            subscription,
            len(self.indexes),
            self.other_entries,
            self.unreadable,
            self.complete,
            today,
            _with_others(simulated, self.other_entries),
            cancellations,
            given_although_acknowledged,
            SIMULATION_ASSUMPTIONS,
        )


def _as_configured(indexes: DelayedIndexes, configuration: BrokerTracker, now_ms: int) -> SimulatedTracker:
    if configuration.keeps_buckets:
        return simulate(indexes, configuration.settings, now_ms)
    return in_memory_tracker(indexes)


_ADDED_UP = frozenset(field.name for field in fields(SimulatedTracker)) - {
    "settings", "load", "failure", "largest_snapshot_bytes",
}  # fmt: skip


def _together(trackers: Sequence[SimulatedTracker]) -> SimulatedTracker:
    return replace(
        trackers[0],
        load=sum_of_costs(each.load for each in trackers),
        failure=next((each.failure for each in trackers if each.failure is not None), None),
        largest_snapshot_bytes=max(each.largest_snapshot_bytes for each in trackers),
        **{name: sum(getattr(each, name) for each in trackers) for name in _ADDED_UP},
    )


def _with_others(found: SimulatedTracker, others: int) -> SimulatedTracker:
    return replace(found, load=load_cost(found.load.entries + others, found.load.memory_bytes))
