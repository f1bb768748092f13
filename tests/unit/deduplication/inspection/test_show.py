"""What ``deduplication show`` shows of topics: policies, snapshot, replay and held ledgers, and what is odd."""

from collections.abc import Mapping
from dataclasses import replace
from threading import Barrier

import pytest
from pulsar_sidecar.deduplication.inspection.show import DeduplicationView, ProducerSequence
from pulsar_sidecar.deduplication.policies import BrokerDeduplication, DeduplicationPolicy, PolicyLevel, PolicyValues
from pulsar_sidecar.deduplication.replay_cost import SECONDS_PER_BYTE, SECONDS_PER_ENTRY
from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.deduplication.stored import Amount
from pulsar_sidecar.ledger_ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ledger_ownership.references import LedgerReference
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, parse_topic_name

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


def test_a_topic_and_its_snapshot(topics: DeduplicatedTopics) -> None:
    view = _shown(topics)
    assert view.decision.enabled
    assert (view.decision.level, view.decision.reason) == (PolicyLevel.NAMESPACE, "enabled by the namespace's policy")
    assert view.snapshot is not None
    assert (view.snapshot.position, view.snapshot.names, view.snapshot.age_ms) == ((1, 4), 1, 90_000)
    assert view.snapshot.producers == (ProducerSequence("p", 7),)
    assert view.since == Amount(25, 2500)
    assert view.replay_seconds == pytest.approx(25 * SECONDS_PER_ENTRY + 2500 * SECONDS_PER_BYTE)
    assert view.held is not None
    assert view.held_alone == view.held
    assert (view.held.ledgers, view.held.size_bytes) == ([1, 2], 2000)
    assert (view.limits.max_producers, view.limits.max_entry_bytes) == (10_000, 5_242_880)
    assert (view.status, view.replay, view.remarks, view.problem) == (None, None, (), None)


def test_both_maps_side_by_side(topics: DeduplicatedTopics) -> None:
    replayed = _shown(topics, replay_at_most=100).replay
    assert replayed is not None
    assert [(row.name, row.stored, row.replayed) for row in replayed.rows] == [("p", 7, 9)]


def test_a_topic_that_is_deleted_while_it_is_replayed(topics: DeduplicatedTopics) -> None:
    topics.messages.delete()
    view = _shown(topics, replay_at_most=100)
    assert view.replay is None
    assert view.problem is not None
    assert "was deleted while it was read" in view.problem


@pytest.mark.parametrize(
    ("values", "enabled", "level", "reason"),
    [
        (PolicyValues(False, None), False, PolicyLevel.BROKER, "disabled by the broker's configuration"),
        (PolicyValues(True, None), True, PolicyLevel.BROKER, "enabled by the broker's configuration"),
        (PolicyValues(True, False), False, PolicyLevel.NAMESPACE, "disabled by the namespace's policy"),
        (PolicyValues(True, False, None, True), True, PolicyLevel.TOPIC_GLOBAL, "enabled by the topic's global policy"),
        (PolicyValues(True, True, False, True), False, PolicyLevel.TOPIC, "disabled by the topic's own policy"),
    ],
)
def test_which_level_decides(
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
    assert "a system topic is never deduplicated" in decision.reason


def test_brokers_that_do_not_answer_leave_what_is_stored(topics: DeduplicatedTopics) -> None:
    def away(topic: TopicName | None) -> BrokerDeduplication:
        raise TemporaryError("no broker answers")

    topics.brokers.configured = away  # type: ignore[method-assign]
    view = _shown(topics)
    assert view.decision.enabled is None
    assert "no broker answers" in view.decision.reason
    assert (view.limits.max_producers, view.since) == (None, Amount(25, 2500))
    topics.put(SYSTEM)
    assert _shown(topics, SYSTEM).decision.enabled is False


def test_each_partition_has_an_answer(topics: DeduplicatedTopics) -> None:
    orders = parse_topic_name("persistent://public/default/partitioned")
    topics.store.put(partitioned_topic_path(orders), b'{"partitions":3}')
    for index in (0, 2):
        topics.put(orders.partition(index), mark_delete=(1, -1))
        topics.messages.put((1, 0), "p", 0, topic=orders.partition(index))
    topics.brokers.loaded = [orders.partition(2)]
    views = topics.service.show(orders, ask_broker=True)
    assert [(view.topic.partition_index, view.status) for view in views] == [(0, None), (2, "Enabled")]
    assert all(view.snapshot is not None and view.snapshot.covered_until_ms == 0 for view in views)


def test_partitions_are_read_at_the_same_time(topics: DeduplicatedTopics, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = parse_topic_name("persistent://public/default/partitioned")
    topics.store.put(partitioned_topic_path(orders), b'{"partitions":3}')
    for index in range(3):
        topics.put(orders.partition(index), mark_delete=(1, -1), sequences={"p": index})
        topics.messages.put((1, 0), "p", index, topic=orders.partition(index))
    all_reading, lengths = Barrier(3, timeout=10), topics.lengths.measured

    def measured(ledgers: Mapping[LedgerId, LedgerReference]) -> Mapping[LedgerId, LedgerReference] | Unreadable:
        all_reading.wait()
        return lengths(ledgers)

    monkeypatch.setattr(topics.lengths, "measured", measured)
    views = topics.service.show(orders)
    assert [view.topic.partition_index for view in views] == [0, 1, 2]
    assert [view.snapshot and view.snapshot.producers[0].last_sequence_id for view in views] == [0, 1, 2]


def test_a_topic_that_does_not_exist(topics: DeduplicatedTopics) -> None:
    with pytest.raises(NotFoundError):
        topics.service.show(TOPIC.partition(7))
    topics.store.before(
        "read_many", lambda: topics.store.remove(managed_ledger_path(TOPIC.managed_ledger_name)), times=2
    )
    with pytest.raises(NotFoundError):
        topics.service.show(TOPIC)


def test_what_could_not_be_read_is_a_problem(topics: DeduplicatedTopics) -> None:
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
    (_snapshot(size_bytes=1_100_000), "check that jute.maxbuffer, which a stock ZooKeeper has at 1,048,575"),
    (_snapshot(sequences={"p": -(2**63)}), "negative sequence ids, of p: ids from 2^63 on"),
]


@pytest.mark.parametrize(("snapshot", "remark"), ODD)
def test_what_one_would_not_expect_of_a_snapshot(topics: DeduplicatedTopics, snapshot: Snapshot, remark: str) -> None:
    _put(topics, snapshot)
    view = _shown(topics)
    assert remark in view.remarks[0]
    assert view.problem is None


def test_a_cursor_that_stands_and_one_that_is_missing(topics: DeduplicatedTopics) -> None:
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
    assert "a load may take longer than brokers allow, 0 s" in _shown(topics).remarks[0]


def test_replicators_are_distinguished(topics: DeduplicatedTopics) -> None:
    name = "pulsar.repl.east-->west"
    _put(topics, _snapshot(sequences={f"{name}_LID": 9, f"{name}_EID": 3, "mine_LID": 1}))
    snapshot = _shown(topics).snapshot
    assert snapshot is not None
    assert snapshot.producers == (ProducerSequence("mine_LID", 1),)
    assert [(each.producer, each.position) for each in snapshot.replicators] == [(name, (9, 3))]
    assert snapshot.names == 3
