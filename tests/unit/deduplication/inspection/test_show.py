"""Deduplication state of topics: policies, snapshots, retained ledgers and remarks."""

from collections.abc import Mapping
from dataclasses import replace
from threading import Barrier

import pytest
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.replay_cost import replay_seconds
from pulsar_sidecar.features.deduplication.results import (
    Amount,
    DeduplicationView,
    PolicyLevel,
    PolicyValues,
)
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.references import LedgerReference

from tests.fakes.bookkeeper import cursor_bytes
from tests.fakes.deduplication import TOPIC, DeduplicatedTopics

SYSTEM = parse_topic_name("persistent://pulsar/system/ledger-deletion")
ENABLED = DeduplicationPolicy.ENABLED


@pytest.fixture
def topics() -> DeduplicatedTopics:
    made = DeduplicatedTopics()
    made.brokers.namespaces[ENABLED, "public/default"] = True
    made.put(mark_delete=(1, 4), sequences={"p": 7})
    made.messages.put((1, 4), "p", 7, at_ms=made.clock.now_ms() - 90_000)
    made.messages.put((1, 5), "p", 9)
    return made


def _shown(topics: DeduplicatedTopics, topic: TopicName = TOPIC, *, replay_at_most: int = 0) -> DeduplicationView:
    (view,) = topics.service.show(topic, replay_at_most=replay_at_most)
    return view


def _snapshot(**changes: object) -> Snapshot:
    usual = Snapshot(Position(LedgerId(1), EntryId(4)), {"p": 7}, 40)
    return replace(usual, **changes)  # type: ignore[arg-type]


def _put(topics: DeduplicatedTopics, snapshot: Snapshot | Unreadable) -> None:
    topics.put(mark_delete=(1, 4), sequences={"of": 1})
    topics.snapshots.answers[cursor_bytes(mark_delete=(1, 4), sequences={"of": 1})] = snapshot


def test_a_topic_that_is_deleted_while_it_is_replayed(topics: DeduplicatedTopics) -> None:
    topics.messages.delete()
    view = _shown(topics, replay_at_most=100)
    assert view.replay is None
    assert view.problem is not None
    assert "was deleted while it was read" in view.problem


@pytest.mark.parametrize(
    ("values", "enabled", "level", "reason"),
    [
        (PolicyValues.of(False, None), False, PolicyLevel.BROKER, "disabled by the broker's configuration"),
        (PolicyValues.of(True, None), True, PolicyLevel.BROKER, "enabled by the broker's configuration"),
        (PolicyValues.of(True, False), False, PolicyLevel.NAMESPACE, "disabled by the namespace's policy"),
        (
            PolicyValues.of(True, False, None, True),
            True,
            PolicyLevel.TOPIC_GLOBAL,
            "enabled by the topic's global policy",
        ),
        (PolicyValues.of(True, True, False, True), False, PolicyLevel.TOPIC, "disabled by the topic's own policy"),
    ],
)
def test_deciding_policy_level_is_shown(
    topics: DeduplicatedTopics, values: PolicyValues, enabled: bool, level: PolicyLevel, reason: str
) -> None:
    topics.brokers.of_topic = lambda policy, topic: values  # type: ignore[method-assign]
    decision = _shown(topics).decision
    assert (decision.enabled, decision.level) == (enabled, level)
    assert decision.reason.startswith(reason)


def test_system_topics_are_never_deduplicated(topics: DeduplicatedTopics) -> None:
    topics.put(SYSTEM)
    topics.brokers.topics[ENABLED, SYSTEM] = True
    decision = _shown(topics, SYSTEM).decision
    assert (decision.enabled, decision.level) == (False, None)
    assert "brokers never deduplicate a system topic" in decision.reason


def test_stored_state_is_shown_without_brokers(topics: DeduplicatedTopics) -> None:
    def away(topic: TopicName | None) -> BrokerDeduplication:
        raise TemporaryError("no broker answers")

    topics.brokers.configured = away  # type: ignore[method-assign]
    view = _shown(topics)
    assert view.decision.enabled is None
    assert "no broker answers" in view.decision.reason
    assert (view.limits.max_producers, view.since) == (None, Amount(25, 2500))
    topics.put(SYSTEM)
    assert _shown(topics, SYSTEM).decision.enabled is False


def test_used_partitions_are_read_at_the_same_time(topics: DeduplicatedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = parse_topic_name("persistent://public/default/partitioned")
    topics.store.put(partitioned_topic_path(orders), b'{"partitions":3}')
    partitions = [orders.partition(index) for index in (0, 2)]
    for index, place in enumerate(partitions):
        topics.put(place, mark_delete=(1, -1), sequences={"p": index})
        topics.messages.put((1, 0), "p", index, topic=place)
    topics.brokers.loaded = partitions[1:]
    all_reading, lengths = Barrier(2, timeout=10), topics.lengths.measured

    def measured(ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        all_reading.wait()
        return lengths(ledgers)

    monkeypatch.setattr(topics.lengths, "measured", measured)
    views = topics.service.show(orders, ask_broker=True)
    assert [(view.topic, view.status) for view in views] == [
        (str(partitions[0]), None),
        (str(partitions[1]), "Enabled"),
    ]
    found = [view.snapshot for view in views if view.snapshot is not None]
    assert [(each.producers[0].last_sequence_id, each.covered_until_ms) for each in found] == [(0, 0), (1, 0)]


def test_a_topic_that_is_deleted_while_it_is_read(topics: DeduplicatedTopics) -> None:
    topics.store.before(
        "read_many", lambda: topics.store.remove(managed_ledger_path(TOPIC.managed_ledger_name)), times=2
    )
    with pytest.raises(NotFoundError):
        topics.service.show(TOPIC)


def test_unreadable_state_is_a_problem(topics: DeduplicatedTopics) -> None:
    _put(topics, Unreadable("PositionInfo is cut"))
    view = _shown(topics, replay_at_most=10)
    assert (view.snapshot, view.since, view.held, view.replay) == (None, None, None, None)
    assert view.problem is not None
    assert view.problem.startswith("PositionInfo is cut")
    topics.store.put(managed_ledger_path(TOPIC.managed_ledger_name), b"\xff")
    assert "cannot be read" in (_shown(topics).problem or "")


ODD = [
    (_snapshot(lost="the cursor's ledger 7 is gone", sequences={}), "begins at 1:4 with an empty map"),
    (_snapshot(sequences={str(id_): id_ for id_ in range(10_000)}), "the snapshot is full: it has 10,000 names"),
    (_snapshot(sequences={str(id_): id_ for id_ in range(10_001)}), "the snapshot is full: it has 10,001 names"),
    (_snapshot(sequences={str(id_): id_ for id_ in range(9_500)}), "the snapshot is nearly full"),
    (_snapshot(size_bytes=5_242_000), "nearly fills an entry of the cursor's ledger"),
    (_snapshot(size_bytes=1_100_000), "check that jute.maxbuffer, 1,048,575 in a stock ZooKeeper"),
    (_snapshot(sequences={"p": -(2**63)}), "negative sequence ids, of p: ids from 2^63 on"),
]


@pytest.mark.parametrize(("snapshot", "remark"), ODD)
def test_remarks_on_snapshots(topics: DeduplicatedTopics, snapshot: Snapshot, remark: str) -> None:
    _put(topics, snapshot)
    view = _shown(topics)
    assert remark in view.remarks[0]
    assert view.problem is None


def test_remarks_on_leftover_and_missing_cursors(topics: DeduplicatedTopics) -> None:
    topics.brokers.namespaces[ENABLED, "public/default"] = False
    left_over = _shown(topics)
    assert "deduplication is off and its cursor still exists" in left_over.remarks[0]
    assert (left_over.since, left_over.replay_seconds) == (Amount(25, 2500), 0), "a load deletes the cursor"
    other = parse_topic_name("persistent://public/default/other")
    topics.put(other)
    view = _shown(topics, other)
    assert (view.snapshot, view.since, view.remarks) == (None, None, ())
    assert view.held is not None
    assert view.held.ledgers == ()
    topics.brokers.namespaces[ENABLED, "public/default"] = True
    assert "there is no deduplication cursor" in _shown(topics, other).remarks[0]


def test_a_load_that_takes_longer_than_brokers_allow(topics: DeduplicatedTopics) -> None:
    topics.brokers.broker = BrokerDeduplication(load_timeout_seconds=0)
    view = _shown(topics)
    assert view.replay_seconds == replay_seconds(Amount(25, 2500))
    assert "a topic load may take longer than brokers allow, 0 s" in view.remarks[0]
