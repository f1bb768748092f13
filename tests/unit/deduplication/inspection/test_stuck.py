"""Stuck cursors, with the ledgers that they hold and the remedies, and slow loads."""

from dataclasses import replace

import pytest
from pulsar_sidecar.features.deduplication.inspection.health import DeduplicationHealth
from pulsar_sidecar.features.deduplication.inspection.lag_limits import LagLimits
from pulsar_sidecar.features.deduplication.inspection.stuck import BrokerDeduplicationSettings, StuckCursors
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.replay_cost import replay_seconds
from pulsar_sidecar.features.deduplication.results import PolicyValues, StuckCursor, StuckReason, StuckReport
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import POLICIES, cursor_path, managed_ledger_path

from tests.fakes.deduplication import DeduplicatedTopics
from tests.fakes.deduplication_policies import FakeDeduplication

ENABLED = DeduplicationPolicy.ENABLED
ORDERS = parse_topic_name("persistent://public/default/orders")
OTHER = parse_topic_name("persistent://public/default/other")
ELSEWHERE = parse_topic_name("persistent://public/elsewhere/orders")
LATE = "no recent snapshot"
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

    def hide_topic_policies(self) -> None:
        """Let brokers fail to return a topic's own policy."""

        def away(policy: DeduplicationPolicy, topic: TopicName) -> PolicyValues:
            raise TemporaryError("no broker answers")

        self.brokers.of_topic = away  # type: ignore[method-assign]

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


def test_a_topic_policy_that_is_off_is_found_by_retained_ledgers(setup: Setup) -> None:
    roomy = LagLimits(1_000, 1_000_000)
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    assert setup.stuck(limits=roomy).found == 0
    setup.switched(on=False, topic=ORDERS)
    (found,) = setup.stuck(limits=roomy).stuck
    assert (found.reason, found.because, found.held_ledgers) == (StuckReason.LEFT_OVER, "off by the topic", 1)


@pytest.mark.parametrize(("entries", "found"), [(1_000, []), (10, [(StuckReason.LAGS, False)])])
def test_an_unknown_policy_is_reported_where_a_cursor_holds_ledgers(
    setup: Setup, entries: int, found: list[tuple[StuckReason, bool]]
) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    setup.hide_topic_policies()
    report = setup.stuck(limits=LagLimits(entries, 1_000_000))
    assert [(each.reason, each.certain) for each in report.stuck] == found
    assert report.unreadable == (f"{ORDERS}: its own policy is not known: no broker answers",)


def test_brokers_are_not_asked_about_a_topic_that_is_on_and_holds_nothing(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    setup.switched(on=True)
    setup.hide_topic_policies()
    assert setup.stuck().unreadable == ()


@pytest.mark.parametrize(("size_bytes", "found"), [(1_099, 1), (1_100, 0)])
def test_a_cursor_may_lag_as_far_as_the_limit(setup: Setup, size_bytes: int, found: int) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 8))
    setup.switched(on=True)
    assert setup.stuck(limits=LagLimits(11, size_bytes)).found == found


def test_a_dump_has_older_positions_and_no_loaded_topics(setup: Setup) -> None:
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


def test_cursors_are_ranked_by_retained_bytes_with_the_freed_ones(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (2, 5))
    setup.topics.put(OTHER, (1, 2, 3, 4), (0, -1))
    setup.topics.cursor("billing", (2, 9), topic=OTHER)
    first, second = setup.stuck().stuck
    assert (first.topic, first.held_ledgers, first.held_bytes, first.freed_bytes) == (str(OTHER), 3, 3_000, 2_000)
    assert (second.topic, second.held_ledgers, second.held_bytes, second.freed_bytes) == (str(ORDERS), 1, 1_000, 1_000)
    limited = setup.stuck(most=1)
    assert (limited.stuck, limited.found, limited.held_bytes) == ((first,), 2, 4_000)
    setup.topics.cursors.unreadable = "the cursor's ledger 7 is gone"
    assert [each.freed_bytes for each in setup.stuck().stuck] == [None, 1_000]


STATS, UNLOAD = f"pulsar-admin topics stats {ORDERS}", f"pulsar-admin topics unload {ORDERS}"
REPLAYED = f"load the topic: its broker replays the entries, and takes a snapshot: {STATS}"
AGAIN = "unload the topic and load it, so that its broker tries again"
BY_TIME = "have brokers take snapshots by time (topics set-deduplication-snapshot-interval), or more often "
FAILS = (
    'search its broker\'s log for "deduplication snapshot": snapshots fail, or one never ends and blocks the next; '
    f"unload and load the topic to replay the entries and take one: {UNLOAD}; {STATS}"
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
def test_the_remedy_depends_on_the_brokers_status(
    setup: Setup, on: bool, mark_delete: tuple[int, int], loaded: bool, status: str | None, remedy: str
) -> None:
    setup.topics.put(ORDERS, (0, 1, 2, 3) if mark_delete[0] == 0 else (1, 2, 3), mark_delete)
    setup.brokers.broker = BrokerDeduplication(entries_interval=15)
    setup.switched(on=on)
    setup.brokers.loaded, setup.brokers.stuck = ([ORDERS] if loaded else []), status
    found = setup.only()
    assert (found.status, found.remedy) == (status, remedy)


def test_a_brokers_status_outweighs_policies(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    setup.topics.put(OTHER, (1, 2, 3), (1, 0))
    setup.brokers.loaded, setup.brokers.stuck = [ORDERS, OTHER], "Enabled"
    found = setup.only()
    assert (found.topic, found.reason, found.because, found.status) == (str(OTHER), StuckReason.LAGS, LATE, "Enabled")


def test_an_unknown_policy_below_one_that_is_off_is_not_certain(setup: Setup) -> None:
    setup.hide_topic_policies()
    setup.topics.put(ORDERS, (1, 2, 3), (3, 9))
    found = setup.only()
    assert (found.reason, found.certain) == (StuckReason.LEFT_OVER, False)
    assert found.because == "off by the broker; no broker answers"


def test_unlisted_loaded_topics_are_reported(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_unreadable_topics_are_reported_beside_the_findings(setup: Setup) -> None:
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.put(OTHER, (1, 2, 3), (1, 0))
    setup.topics.store.put(managed_ledger_path(OTHER.managed_ledger_name), b"\xff")
    third = parse_topic_name("persistent://public/default/third")
    setup.topics.put(third, (1, 2, 3), (1, 0))
    setup.topics.store.put(cursor_path(third.managed_ledger_name, DEDUPLICATION_CURSOR), b"\xff")
    found = setup.stuck()
    assert [each.topic for each in found.stuck] == [str(ORDERS)]
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
    assert [each.topic for each in report.stuck] == [str(ORDERS)]
    assert report.unreadable == (f"{ELSEWHERE}: {damaged}",)
    setup.topics.put(ELSEWHERE, (1, 2, 3), (1, 0))
    lagging = setup.stuck(None)
    assert [(each.reason, each.certain) for each in lagging.stuck if each.topic == str(ELSEWHERE)] == [
        (StuckReason.LAGS, False)
    ]
    assert lagging.unreadable == report.unreadable
    (load,) = setup.health.slowest_loads("public/elsewhere").slowest
    assert (load.topic, load.deduplicated) == (str(ELSEWHERE), None)


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
    assert [each.topic for each in found.slowest] == [*map(str, topics[13:3:-1])]
    assert (found.topics, found.cursors, found.unreadable) == (16, 15, ())
    slowest = found.slowest[0]
    assert (slowest.replay.entries, slowest.replay.size_bytes) == (5 + 15 * 10, 500 + 15 * 1_000)
    assert slowest.seconds == replay_seconds(slowest.replay)
    assert (slowest.deduplicated, slowest.times_out) == (True, False)


def test_a_load_whose_policy_is_unknown_counts_and_is_marked(setup: Setup) -> None:
    setup.hide_topic_policies()
    setup.topics.put(ORDERS, (1, 2, 3), (1, 0))
    setup.topics.put(parse_topic_name("persistent://public/default/__change_events"), (1, 2, 3), (1, 0))
    found = setup.health.slowest_loads("public/default")
    assert [(each.topic, each.deduplicated) for each in found.slowest] == [(str(ORDERS), None)]


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
    assert listed == [(str(topics[50]), True), *([(str(topic), None) for topic in topics[100:109]] if on else [])]
    left_out = (
        "50 topics left out, with a deduplication cursor and an inherited policy that is off: "
        "brokers were asked only for "
    )
    assert found.unreadable == (() if on else (f"{left_out}the policies of the 100 slowest",))
