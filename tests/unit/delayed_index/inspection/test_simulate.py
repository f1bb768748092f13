"""A topic's messages under other settings."""

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.features.delayed_index.inspection.forecast import FIRST_READ, READS_PER_BUCKET
from pulsar_sidecar.features.delayed_index.inspection.simulate import (
    Simulator,
    cancellations_after_restart,
    in_memory_tracker,
    simulate,
    simulate_shared,
)
from pulsar_sidecar.features.delayed_index.results.inspection import SimulatedCancellations, SimulatedSettings
from pulsar_sidecar.features.delayed_index.settings import (
    BUCKET_TRACKER_FACTORY,
    IN_MEMORY_TRACKER_FACTORY,
    BrokerTracker,
    TrackerSettings,
)
from pulsar_sidecar.features.delayed_index.snapshot import DelayedIndexes
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC, FakeLedgerLengths, IndexesInMemory

NOW = FakeClock().now_ms()
SMALL = TrackerSettings(min_index_count=10, max_indexes_per_segment=4)


def messages(ledgers: int, each: int = 10) -> DelayedIndexes:
    return DelayedIndexes.of(
        (NOW + 60_000 + 1_000 * entry, ledger, entry) for ledger in range(5, 5 + ledgers) for entry in range(each)
    )


def test_buckets_hold_all_but_the_last_ledger() -> None:
    found = simulate(messages(6), SMALL, NOW)
    assert (found.buckets, found.sealed, found.merges, found.segments, found.failure) == (5, 5, 0, 15, None)
    # The first segment of each is in memory, and so is the ledger that nothing has sealed yet.
    assert found.indexes_in_memory == 5 * 4 + 10
    bitmaps = found.memory_bytes - queue_bytes(10) - queue_bytes(5 * 4)
    assert 0 < bitmaps < found.snapshot_bytes
    assert found.snapshot_bytes >= found.largest_snapshot_bytes * 5 > 0
    assert found.load.entries == 10 + min(FIRST_READ, 50) + 5 * READS_PER_BUCKET


def test_fewer_buckets_are_merged() -> None:
    found = simulate(messages(12), replace(SMALL, max_num_buckets=5), NOW)
    assert found.merges > 0
    assert found.buckets <= 5
    assert found.sealed == 11 + found.merges


def test_settings_that_break_a_broker_name_their_place() -> None:
    found = simulate(messages(12), replace(SMALL, max_num_buckets=2), NOW)
    assert found.failure is not None
    assert "of 120 messages" in found.failure


def test_too_few_messages_are_in_no_bucket_as_with_the_in_memory_tracker() -> None:
    found, in_memory = simulate(messages(3), TrackerSettings(), NOW), in_memory_tracker(messages(3))
    assert (found.buckets, found.load, found.memory_bytes) == (0, in_memory.load, in_memory.memory_bytes)


class Stored(IndexesInMemory):
    """Ledgers 5 to 8 of ten entries each, `DelayedEntries` included."""

    def __init__(self) -> None:
        super().__init__(5, 6, 7, 8)
        self.topic.cursor("s", (5, 3))
        self.topic.cursor("t", (7, 9))
        self.lengths = FakeLedgerLengths()
        self.answers: dict[tuple[int, int], EntryAnswer] = {}

    def read(
        self, topic: TopicName, positions: Collection[Position], *, max_age_seconds: float = 0.0
    ) -> Mapping[Position, EntryAnswer]:
        delayed = EntryFacts(NOW + 60_000, NOW)
        return {position: self.answers.get(position, delayed) for position in positions}

    def simulator(self, factory: str = BUCKET_TRACKER_FACTORY) -> Simulator:
        configuration = BrokerTracker(factory, TrackerSettings())
        return Simulator(self.stored, self.lengths, self, lambda: configuration, FakeClock())


def test_each_subscriptions_messages_beside_todays_settings() -> None:
    stored = Stored()
    stored.answers = {(6, 0): EntryFacts(None, NOW), (6, 1): EntryFacts(NOW - 1, NOW), (6, 2): Unreadable("x")}
    first, second = stored.simulator().simulate(TOPIC, None, SMALL, 1_000)
    assert (first.subscription, first.delayed, first.others, first.unreadable) == ("s", 33, 3, 1)
    assert (second.subscription, second.delayed, second.others, second.complete) == ("t", 10, 0, True)
    assert first.today.settings is not None
    assert first.today.settings.min_index_count == TrackerSettings().min_index_count
    assert first.simulated.settings == SimulatedSettings(10, 300, 4, -1, shared_index=False, breaks_dispatch=False)
    assert first.today.load.entries == 36
    assert first.simulated.buckets == 2
    (cut,) = stored.simulator(IN_MEMORY_TRACKER_FACTORY).simulate(TOPIC, "s", SMALL, 5)
    assert (cut.delayed, cut.complete, cut.today.settings) == (5, False, None)


def test_shared_index_is_simulated_beside_one_per_subscription() -> None:
    stored = Stored()
    stored.answers = {(6, 0): EntryFacts(None, NOW), (8, 1): EntryFacts(NOW - 1, NOW)}
    shared_index = replace(SMALL, shared_index=True)
    [found] = stored.simulator().simulate(TOPIC, None, shared_index, 1_000)
    assert (found.subscription, found.delayed, found.others, found.complete) == ("pulsar.delayed.index", 34, 2, True)
    each = stored.simulator().simulate(TOPIC, None, SMALL, 1_000)
    assert [one.delayed for one in each] == [34, 9], "subscription t waits for one ledger of them"
    assert found.today.indexes_in_memory == 34 + 9
    assert found.today.load.entries == sum(one.today.load.entries for one in each)
    assert found.simulated.settings == SimulatedSettings(10, 300, 4, -1, shared_index=True, breaks_dispatch=False)
    assert (found.simulated.buckets, [one.simulated.buckets for one in each]) == (2, [2, 0])
    assert found.given_although_acknowledged == 0, "none is acknowledged out of order"


def test_a_shared_index_gives_again_what_a_subscription_acknowledged_out_of_order() -> None:
    marks = {"s": Position(LedgerId(5), EntryId(-1)), "t": Position(LedgerId(5), EntryId(4))}
    found, given = simulate_shared(messages(2), replace(SMALL, shared_index=True), NOW, marks)
    assert (found.buckets, given) == (1, 20 + 15)


def test_a_restart_forgets_the_cancellations_that_no_bucket_holds() -> None:
    """Ledgers 5 to 7 are sealed by the one after them; nothing has sealed ledger 8."""
    cancelled = [Position(LedgerId(ledger), EntryId(4)) for ledger in (5, 7, 8, 9)]
    found = cancellations_after_restart(messages(4), cancelled, SMALL, NOW)
    assert found == SimulatedCancellations(outlived=("5:4", "7:4"), forgotten=("8:4",), unknown=("9:4",))
    [of_s] = Stored().simulator().simulate(TOPIC, "s", SMALL, 1_000, cancelled[:3])
    assert of_s.cancellations == SimulatedCancellations(("5:4", "7:4"), ("8:4",), ())
    nothing = cancellations_after_restart(messages(0), cancelled, SMALL, NOW)
    assert nothing.unknown == ("5:4", "7:4", "8:4", "9:4")


def test_unreadable_index_is_an_error() -> None:
    stored = Stored()
    stored.lengths.unreadable = "no bookie"
    with pytest.raises(TemporaryError, match="no bookie"):
        stored.simulator().simulate(TOPIC, None, SMALL, 5)
