"""Forecast of a load's cost, from stored data."""

from collections.abc import Mapping

import pytest
from pulsar_sidecar.features.delayed_index.inspection.broker_queues import queue_bytes
from pulsar_sidecar.features.delayed_index.inspection.forecast import (
    ENTRIES_PER_SECOND,
    FIRST_READ,
    READS_PER_BUCKET,
    Forecaster,
)
from pulsar_sidecar.features.delayed_index.results.inspection import Forecast
from pulsar_sidecar.features.delayed_index.settings import (
    BUCKET_TRACKER_FACTORY,
    IN_MEMORY_TRACKER_FACTORY,
    BrokerTracker,
    TrackerSettings,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import TOPIC, FakeLedgerLengths, IndexedTopic, IndexesInMemory

NOW = FakeClock().now_ms()
BUCKETS = BrokerTracker(BUCKET_TRACKER_FACTORY, TrackerSettings())
IN_MEMORY = BrokerTracker(IN_MEMORY_TRACKER_FACTORY, TrackerSettings())


class Stored(IndexesInMemory):
    """A topic with ledgers 5, 6 and 7 of ten entries each, and its requests."""

    def __init__(self) -> None:
        super().__init__(5, 6, 7)
        self.lengths = FakeLedgerLengths()

    def forecaster(self, configuration: BrokerTracker = BUCKETS) -> Forecaster:
        return Forecaster(self.stored, self.lengths, lambda: configuration, FakeClock())

    def of_topic(self, configuration: BrokerTracker = BUCKETS) -> Forecast:
        return self.forecaster(configuration).of_topic(TOPIC)


@pytest.fixture
def stored() -> Stored:
    return Stored()


def rows(ledger_id: int, dues: Mapping[int, int]) -> list[tuple[int, int, int]]:
    return [(NOW + due, ledger_id, entry) for entry, due in dues.items()]


def test_without_buckets_everything_unacknowledged_is_read_again(stored: Stored) -> None:
    stored.topic.cursor("s", (5, 3))
    (topic,) = stored.of_topic().worst
    (found,) = topic.subscriptions
    assert (found.waiting, found.indexed, found.buckets) == (26, 0, 0)
    assert (found.without_buckets.entries, found.without_buckets.memory_bytes) == (26, queue_bytes(26))
    assert found.with_buckets == found.as_configured == found.without_buckets
    assert found.as_configured.seconds == 26 / ENTRIES_PER_SECOND


def test_forecast_loads_only_first_segments_of_buckets(stored: Stored) -> None:
    past = rows(5, {0: -5_000, 1: -4_000})
    stored.topic.seal(
        "s", 90, 5, 6, past, rows(5, {4: 10_000, 5: 20_000}), rows(6, {0: 400_000, 1: 500_000, 2: 600_000})
    )
    stored.topic.cursor("s", (5, 3))
    (topic,) = stored.of_topic().worst
    (found,) = topic.subscriptions
    assert (found.waiting, found.indexed, found.buckets, found.unusable) == (26, 5, 1, None)
    assert found.with_buckets.entries == 21 + min(5, FIRST_READ) + READS_PER_BUCKET
    bitmaps = found.with_buckets.memory_bytes - queue_bytes(21) - queue_bytes(2)
    assert 0 < bitmaps < 200
    assert found.as_configured == found.with_buckets
    (topic,) = stored.of_topic(IN_MEMORY).worst
    assert topic.as_configured == topic.without_buckets


def test_one_unusable_bucket_makes_all_buckets_unusable(stored: Stored) -> None:
    stored.topic.seal("s", 90, 5, 5, rows(5, {4: 10_000}))
    stored.topic.seal("s", 91, 6, 6, rows(6, {4: 10_000}))
    stored.topic.cursor("s", (5, 3))
    stored.store.delete(ledger_path(LedgerId(91)), None)
    (topic,) = stored.of_topic().worst
    (found,) = topic.subscriptions
    assert found.unusable is not None
    assert "ledger 91 does not exist" in found.unusable
    assert found.as_configured == found.without_buckets


def test_the_worst_of_a_namespace_come_first_and_all_are_in_the_total(stored: Stored) -> None:
    stored.topic.cursor("s", (5, 3))
    for number in range(12):
        other = IndexedTopic(stored.store, stored.entries, parse_topic_name(f"persistent://public/default/t{number}"))
        other.ledgers(100 + number, 200 + number)
        other.cursor("s", (100 + number, number - 1))
    found = stored.forecaster().of_namespace("public/default")
    assert (found.topics, len(found.worst)) == (13, 10)
    costs = [topic.as_configured.entries for topic in found.worst]
    assert costs == sorted(costs, reverse=True)
    assert found.total.entries == 26 + sum(20 - min(number, 10) for number in range(12))
    assert found.worst[0].topic == str(TOPIC)


def test_topic_without_subscriptions_is_not_among_the_worst(stored: Stored) -> None:
    found = stored.of_topic()
    assert (found.topics, found.worst) == (1, ())
