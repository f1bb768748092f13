"""Cursors that are stuck: where that is seen, what they hold, and what helps."""

from dataclasses import replace

import pytest
from pulsar_sidecar.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.deduplication.inspection.stuck import (
    BrokerDeduplicationSettings,
    StuckCursor,
    StuckCursors,
    StuckReason,
    StuckReport,
)
from pulsar_sidecar.deduplication.policies import BrokerDeduplication, DeduplicationPolicy, PolicyValues
from pulsar_sidecar.deduplication.replay_cost import replay_seconds
from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.ledger_ownership.paths import POLICIES, cursor_path, managed_ledger_path
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR

from tests.fakes.deduplication import DeduplicatedTopics
from tests.fakes.deduplication_policies import FakeDeduplication

ENABLED = DeduplicationPolicy.ENABLED
ORDERS = parse_topic_name("persistent://public/default/orders")
OTHER = parse_topic_name("persistent://public/default/other")
ELSEWHERE = parse_topic_name("persistent://public/elsewhere/orders")
LATE = "no snapshot was taken for long"
TEN = LagLimits(entries=10, size_bytes=10**9)


class Setup:
    """Topics as stored, and brokers."""

    def __init__(self) -> None:
        self.topics = DeduplicatedTopics()
        self.brokers = FakeDeduplication()
        self.brokers.broker = BrokerDeduplication(entries_interval=5)
        for namespace in ("public/default", "public/elsewhere"):
            self.topics.store.put(f"{POLICIES}/{namespace}", b"{}")
        self.health = DeduplicationHealth(self.topics.stored, self.brokers, self.brokers)

    def switched(self, *, on: bool | None, topic: TopicName | None = None, namespace: str = "public/default") -> None:
        if topic is None:
            self.brokers.namespaces[ENABLED, namespace] = on
        else:
            self.brokers.topics[ENABLED, topic] = on

    def stuck(self, namespace: str | None = "public/default", limits: LagLimits = TEN, most: int = 10) -> StuckReport:
        return self.health.stuck(namespace, limits, most)

    def only(self) -> StuckCursor:
        (found,) = self.stuck().stuck
        return found


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.mark.parametrize(
    ("namespace", "topic", "mark_delete", "reason"),
    [
        (None, None, (3, 9), StuckReason.LEFT_OVER),
        (False, None, (1, -1), StuckReason.LEFT_OVER),
        (False, True, (3, 9), None),
        (False, True, (1, 5), StuckReason.LAGS),
        (True, None, (3, 9), None),
        (True, None, (2, 9), None),
        (True, None, (2, 8), StuckReason.LAGS),
        (True, False, (2, 8), StuckReason.LEFT_OVER),
    ],
)
def test_a_cursor_is_left_over_or_lags_or_is_all_right(
    setup: Setup, namespace: bool | None, topic: bool | None, mark_delete: tuple[int, int], reason: StuckReason | None
) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), mark_delete)
    setup.switched(on=namespace)
    setup.switched(on=topic, topic=ORDERS)
    found = setup.stuck()
    assert [each.reason for each in found.stuck] == ([] if reason is None else [reason])
    assert (found.topics, found.cursors, found.found, found.unreadable) == (1, 1, len(found.stuck), ())
    assert all(each.certain for each in found.stuck)


def test_a_topic_switched_off_under_a_namespace_that_is_on_is_found_by_the_ledgers_that_it_holds(setup: Setup) -> None:
    roomy = LagLimits(1_000, 1_000_000)
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    assert setup.stuck(limits=roomy).found == 0
    setup.switched(on=False, topic=ORDERS)
    (found,) = setup.stuck(limits=roomy).stuck
    assert (found.reason, found.because, found.held_ledgers) == (StuckReason.LEFT_OVER, "off by the topic", 1)


@pytest.fixture
def policies_away(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Deduplication is on for the topic's namespace, and its own policy cannot be asked for."""

    def away(policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        raise TemporaryError("no broker answers")

    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    monkeypatch.setattr(setup.brokers, "of_topic", away)
    return setup


def test_a_policy_that_could_not_be_asked_for_is_reported_where_a_cursor_holds_ledgers(policies_away: Setup) -> None:
    report = policies_away.stuck(limits=LagLimits(1_000, 1_000_000))
    assert (report.found, report.unreadable) == (0, (f"{ORDERS}: its own policy is not known: no broker answers",))


def test_a_lag_under_a_policy_that_could_not_be_asked_for_is_not_certain(policies_away: Setup) -> None:
    report = policies_away.stuck()
    assert [(each.reason, each.certain) for each in report.stuck] == [(StuckReason.LAGS, False)]
    assert report.unreadable == (f"{ORDERS}: its own policy is not known: no broker answers",)


def test_a_topic_that_is_on_and_holds_nothing_is_not_asked_about(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        raise TemporaryError("no broker answers")

    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    setup.switched(on=True)
    monkeypatch.setattr(setup.brokers, "of_topic", refuse)
    assert setup.stuck().unreadable == ()


def test_a_lag_names_its_cause_and_its_beginning(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    found = setup.only()
    assert (found.reason, found.because, found.position) == (StuckReason.LAGS, LATE, (2, 8))


@pytest.mark.parametrize(("size_bytes", "found"), [(1_099, 1), (1_100, 0)])
def test_a_cursor_may_lag_as_far_as_the_limit(setup: Setup, size_bytes: int, found: int) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    assert setup.stuck(limits=LagLimits(11, size_bytes)).found == found


def test_in_a_dump_positions_are_older_than_the_true_ones_and_what_is_loaded_is_unknown(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.switched(on=True)
    (node,) = [
        node
        for path in setup.topics.store.paths()
        if path.endswith(DEDUPLICATION_CURSOR) and (node := setup.topics.store.peek(path))
    ]
    in_node = Snapshot(Position(LedgerId(1), EntryId(0)), {}, 10)
    for ledger_id, entry_id, certain in ((None, None, True), (7, 3, True), (7, None, False)):
        setup.topics.snapshots.answers[node.data] = replace(in_node, ledger_id=ledger_id, entry_id=entry_id)
        report = StuckCursors(setup.topics.stored, BrokerDeduplicationSettings(setup.brokers), None).find(
            [ORDERS], TEN, 10
        )
        assert [(each.certain, each.status) for each in report.stuck] == [(certain, None)]
        assert report.stuck[0].remedy.startswith("if no broker has it loaded, load the topic: ")


def test_topics_without_a_cursor_are_counted(setup: Setup) -> None:
    setup.topics.put(ORDERS)
    setup.topics.put(ELSEWHERE, (1, 2), (1, 0))
    everything = setup.stuck(None)
    assert (everything.topics, everything.cursors, everything.found) == (2, 1, 1)
    assert (setup.stuck().topics, setup.stuck().cursors, setup.stuck().stuck) == (1, 0, ())
    with pytest.raises(NotFoundError):
        setup.stuck("public/missing")


def test_what_holds_most_comes_first_and_what_is_freed_is_known(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 5))
    setup.topics.put(OTHER, (1, 2, 3, 4), (0, -1))
    setup.topics.cursor("billing", (2, 9), topic=OTHER)
    first, second = setup.stuck().stuck
    assert (first.topic, first.held_ledgers, first.held_bytes, first.freed_bytes) == (OTHER, 3, 3_000, 2_000)
    assert (second.topic, second.held_ledgers, second.held_bytes, second.freed_bytes) == (ORDERS, 1, 1_000, 1_000)
    limited = setup.stuck(most=1)
    assert (limited.stuck, limited.found, limited.held_bytes) == ((first,), 2, 4_000)
    setup.topics.cursors.unreadable = "the cursor's ledger 7 is gone"
    assert [each.freed_bytes for each in setup.stuck().stuck] == [None, 1_000]


STATS, UNLOAD = f"pulsar-admin topics stats {ORDERS}", f"pulsar-admin topics unload {ORDERS}"
REPLAYED = f"load the topic: its broker replays the entries, and takes a snapshot: {STATS}"
AGAIN = "unload the topic and load it, so that its broker tries again"
BY_TIME = "have brokers take snapshots by time (topics set-deduplication-snapshot-interval), or more often "
FAILS = (
    'search its broker\'s log for "deduplication snapshot": snapshots fail, or wait for one that never ends; '
    f"an unload and a load replay the entries and take one: {UNLOAD}; {STATS}"
)


@pytest.mark.parametrize(
    ("on", "mark_delete", "loaded", "status", "remedy"),
    [
        (False, (3, 9), False, None, f"load the topic once: its broker then deletes the cursor: {STATS}"),
        (False, (3, 9), True, "Failed", f"{AGAIN}: {UNLOAD}; {STATS}"),
        (
            False,
            (3, 9),
            True,
            "Disabled",
            f"{AGAIN} (its broker reports Disabled: it may have deleted the cursor by now): {UNLOAD}; {STATS}",
        ),
        (True, (1, -1), False, None, REPLAYED),
        (True, (2, 4), False, None, REPLAYED),
        (True, (2, 5), False, None, f"{BY_TIME}(brokerDeduplicationEntriesInterval is 15)"),
        (True, (1, -1), True, "Enabled", f"{BY_TIME}(brokerDeduplicationEntriesInterval is 15)"),
        (True, (0, -1), True, "Enabled", FAILS),
        (True, (1, -1), True, "Recovering", "wait: its broker is replaying it"),
        (True, (1, -1), True, "Removing", f"{AGAIN}: {UNLOAD}; {STATS}"),
    ],
)
def test_the_remedy_fits_what_the_broker_does(
    setup: Setup, on: bool, mark_delete: tuple[int, int], loaded: bool, status: str | None, remedy: str
) -> None:
    setup.topics.put(ORDERS, (0, 1, 2, 3) if mark_delete[0] == 0 else (1, 2, 3), mark_delete)
    setup.brokers.broker = BrokerDeduplication(entries_interval=15)
    setup.switched(on=on)
    setup.brokers.loaded, setup.brokers.stuck = ([ORDERS] if loaded else []), status
    found = setup.only()
    assert (found.status, found.remedy) == (status, remedy)


def test_a_lag_within_the_brokers_interval_is_its_settings(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 5))
    setup.switched(on=True)
    setup.brokers.broker = BrokerDeduplication(entries_interval=1_000)
    assert "brokerDeduplicationEntriesInterval is 1,000" in setup.only().remedy
    setup.brokers.loaded = [ORDERS]
    assert "set-deduplication-snapshot-interval" in setup.only().remedy


def test_what_a_broker_does_counts_more_than_policies(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    setup.topics.put(OTHER, (1, 2, 3), (1, 0))
    setup.brokers.loaded, setup.brokers.stuck = [ORDERS, OTHER], "Enabled"
    found = setup.only()
    assert (found.topic, found.reason, found.because, found.status) == (OTHER, StuckReason.LAGS, LATE, "Enabled")


def test_a_policy_that_is_not_known_is_not_made_up(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(policy: DeduplicationPolicy, topic: TopicName) -> None:
        raise TemporaryError("no broker answers")

    monkeypatch.setattr(setup.brokers, "of_topic", refuse)
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    found = setup.only()
    assert (found.reason, found.certain) == (StuckReason.LEFT_OVER, False)
    assert found.because == "off by the broker; no broker answers"


def test_brokers_that_do_not_list_what_they_loaded_leave_the_rest_known(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(topics: object, most: int) -> None:
        raise TemporaryError("a broker went")

    monkeypatch.setattr(setup.brokers, "statuses", refuse)
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    report = setup.stuck()
    assert report.stuck[0].remedy.startswith("if no broker has it loaded, load the topic once")
    assert report.unreadable == ("brokers did not report which of these topics they have loaded: a broker went",)


def test_a_system_topics_cursor_is_left_over(setup: Setup) -> None:
    topic = parse_topic_name("persistent://public/default/__change_events")
    setup.topics.put(topic, (1, 2), (1, 0))
    setup.switched(on=True)
    found = setup.only()
    assert (found.reason, found.because) == (StuckReason.LEFT_OVER, "brokers never deduplicate a system topic")
    assert found.certain


def test_what_cannot_be_read_is_reported_and_the_rest_is_found(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.put(OTHER, (1, 2, 3), (1, 0))
    setup.topics.store.put(managed_ledger_path(OTHER.managed_ledger_name), b"\xff")
    third = parse_topic_name("persistent://public/default/third")
    setup.topics.put(third, (1, 2, 3), (1, 0))
    setup.topics.store.put(cursor_path(third.managed_ledger_name, DEDUPLICATION_CURSOR), b"\xff")
    found = setup.stuck()
    assert [each.topic for each in found.stuck] == [ORDERS]
    assert (found.topics, found.cursors) == (3, 3)
    other, cursor = found.unreadable
    assert other.startswith(f"{OTHER}: the managed ledger")
    assert cursor.startswith(f"{third}: ")
    setup.topics.lengths.unreadable = "ledger 3 cannot be measured: no bookie"
    found = setup.stuck()
    assert found.stuck[0].since is None
    assert f"{ORDERS}: ledger 3 cannot be measured: no bookie" in found.unreadable


def test_a_namespace_whose_policies_are_damaged_does_not_end_the_search(setup: Setup) -> None:
    damaged = "the policies of a namespace cannot be decoded; print them with `pulsar-admin namespaces policies`"
    of_namespace = setup.brokers.of_namespace

    def refuse(policy: DeduplicationPolicy, namespace: str) -> PolicyValues:
        if namespace == "public/elsewhere":
            raise UndecodableError(damaged)
        return of_namespace(policy, namespace)

    setup.brokers.of_namespace = refuse  # type: ignore[method-assign]
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.put(ELSEWHERE, (1, 2, 3), (3, 9))
    report = setup.stuck(None)
    assert [each.topic for each in report.stuck] == [ORDERS]
    assert report.unreadable == (f"{ELSEWHERE}: {damaged}",)
    setup.topics.put(ELSEWHERE, (1, 2, 3), (1, 0))
    lagging = setup.stuck(None)
    assert [(each.reason, each.certain) for each in lagging.stuck if each.topic == ELSEWHERE] == [
        (StuckReason.LAGS, False)
    ]
    assert lagging.unreadable == report.unreadable
    (load,) = setup.health.slowest_loads("public/elsewhere").slowest
    assert (load.topic, load.deduplicated) == (ELSEWHERE, None)


def test_topics_that_outlive_their_namespace_are_judged_by_the_broker(setup: Setup) -> None:
    gone = parse_topic_name("persistent://public/missing/orders")
    setup.topics.put(gone, (1, 2), (1, 0))
    (found,) = setup.stuck(None).stuck
    assert (found.because, found.certain) == ("off by the broker; there is no namespace public/missing", False)
    setup.brokers.broker = BrokerDeduplication(enabled=True)
    assert BrokerDeduplicationSettings(setup.brokers).inherited("public/missing").applied


# --- forecast ------------------------------------------------------------------------------------------------------


def test_the_slowest_loads_come_first(setup: Setup) -> None:
    topics = [parse_topic_name(f"persistent://public/default/t{number:02}") for number in range(15)]
    for number, topic in enumerate(topics):
        setup.topics.put(topic, range(1, 4 + number), (1, 4))
    setup.topics.put(ORDERS)
    setup.switched(on=True)
    setup.switched(on=False, topic=topics[14])
    found = setup.health.slowest_loads("public/default")
    assert [each.topic for each in found.slowest] == topics[13:3:-1]
    assert (found.topics, found.cursors, found.unreadable) == (16, 15, ())
    slowest = found.slowest[0]
    assert (slowest.replay.entries, slowest.replay.size_bytes) == (5 + 15 * 10, 500 + 15 * 1_000)
    assert slowest.seconds == replay_seconds(slowest.replay)
    assert (slowest.deduplicated, slowest.times_out) == (True, False)


def test_a_load_that_takes_longer_than_brokers_allow_is_marked(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.switched(on=True)
    setup.brokers.broker = BrokerDeduplication(load_timeout_seconds=0)
    (slowest,) = setup.health.slowest_loads("public/default").slowest
    assert slowest.times_out


def test_a_load_whose_policy_is_unknown_counts_and_is_marked(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(policy: DeduplicationPolicy, topic: TopicName) -> None:
        raise TemporaryError("no broker answers")

    monkeypatch.setattr(setup.brokers, "of_topic", refuse)
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.put(parse_topic_name("persistent://public/default/__change_events"), (1, 2, 3), (1, 0))
    found = setup.health.slowest_loads("public/default")
    assert [(each.topic, each.deduplicated) for each in found.slowest] == [(ORDERS, None)]


@pytest.mark.parametrize("on", [True, False])
def test_brokers_are_asked_about_a_hundred_topics_at_most(
    setup: Setup, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[TopicName]()
    of_topic = setup.brokers.of_topic

    def counted(policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
        asked.append(topic)
        return of_topic(policy, topic)

    monkeypatch.setattr(setup.brokers, "of_topic", counted)
    topics = [parse_topic_name(f"persistent://public/default/t{number:03}") for number in range(150)]
    for number, topic in enumerate(topics):
        setup.topics.put(topic, (1, 2, 3), (1, 0))
        setup.switched(on=None if number == 149 else number == 50, topic=topic)
    setup.switched(on=on)
    found = setup.health.slowest_loads("public/default")
    assert asked == topics[:100]
    listed = [(each.topic, each.deduplicated) for each in found.slowest]
    assert listed == [(topics[50], True), *([(topic, None) for topic in topics[100:109]] if on else [])]
    left_out = (
        "not asked, with a deduplication cursor and deduplication off by inheritance: 50 topics; "
        "brokers were asked for "
    )
    assert found.unreadable == (() if on else (f"{left_out}the own policies of the 100 slowest only",))


def test_loads_that_cannot_be_forecast_are_named(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.lengths.unreadable = "ledger 3 cannot be measured"
    found = setup.health.slowest_loads("public/default")
    assert (found.slowest, found.unreadable) == ((), (f"{ORDERS}: ledger 3 cannot be measured",))
    with pytest.raises(NotFoundError):
        setup.health.slowest_loads("public/missing")
