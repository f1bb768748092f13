"""A rehearsal by its command, over a broker in memory: known and unknown values, and timeouts."""

import json
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import pytest
from pulsar_sidecar.features.rehearsal.http import router
from pulsar_sidecar.features.rehearsal.ports import BrokerContents, Clients, Indexing, Replay
from pulsar_sidecar.features.rehearsal.requests import Bounds
from pulsar_sidecar.features.rehearsal.results import (
    Consequence,
    RehearsedDeletion,
    RehearsedSubscription,
    RehearsedTopic,
)
from pulsar_sidecar.features.rehearsal.workflow import Rehearsals
from pulsar_sidecar.model.errors import NotFoundError, SidecarError, TemporaryError, UnreachableError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.clock import FakeClock
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

BROKER = "broker-1:8080"
IDLE, ORDERS, PAYMENTS = (parse_topic_name(f"public/default/{name}") for name in ("idle", "orders", "payments"))
LOSSY = parse_topic_name("non-persistent://public/default/lossy")


@dataclass
class FakeCluster:
    """Implements all ports; ``hanging`` topics respond once ``end`` is set."""

    topics: dict[TopicName, Clients | None]
    failure: SidecarError | None = None
    subscribed: dict[TopicName, list[RehearsedSubscription]] = field(default_factory=dict)
    failing: dict[TopicName, SidecarError] = field(default_factory=dict)
    load_seconds: float = 60.0
    lost: str | None = None
    unusable: tuple[str, ...] = ()
    deletions: list[RehearsedDeletion] | SidecarError | None = field(default_factory=list)
    hanging: frozenset[TopicName] = frozenset()
    end: Event = field(default_factory=Event)

    def contents(self, broker: str) -> BrokerContents:
        if self.failure is not None:
            raise self.failure
        assert broker == BROKER
        return BrokerContents(BROKER, 4, self.topics, {LOSSY: Clients(1, 2)}, 60, 30.0, self.load_seconds)

    def subscriptions(self, topic: TopicName, broker: str) -> Sequence[RehearsedSubscription]:
        assert broker == BROKER
        if topic in self.hanging:
            self.end.wait()
        if topic in self.failing:
            raise self.failing[topic]
        return self.subscribed.get(topic, [])

    def replay(self, topic: TopicName) -> Replay:
        return Replay(13_605, 27_400_000, 1.1, self.lost) if topic == PAYMENTS else Replay()

    def indexing(self, topic: TopicName, subscriptions: Collection[str]) -> Indexing:
        assert (topic, list(subscriptions)) == (ORDERS, ["billing"])
        return Indexing(3_000, 0.2, self.unusable)

    def assumptions(self) -> Sequence[str]:
        return ["a stopwatch"]

    def under_way(self, topics: Collection[TopicName]) -> Sequence[RehearsedDeletion] | None:
        if isinstance(self.deletions, SidecarError):
            raise self.deletions
        return self.deletions


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(
        {IDLE: Clients(0, 0), PAYMENTS: Clients(1, 1, 10), ORDERS: Clients(2, 3, 500)},
        subscribed={
            ORDERS: [
                RehearsedSubscription("billing", "Shared", 1_999, ("3:7", "3:9-11"), 700, 40, True),
                RehearsedSubscription("quiet", None, 0, (), 0, 0, True),
            ],
            PAYMENTS: [RehearsedSubscription("ledger", "Exclusive", 0, (), 0, 6, True)],
        },
    )


@pytest.fixture
def rehearsals(cluster: FakeCluster) -> Iterator[Rehearsals]:
    with ThreadPoolExecutor(2) as threads:
        yield Rehearsals(cluster.contents, cluster, cluster.under_way, FakeClock(), threads)
        cluster.end.set()


@pytest.fixture
def server(rehearsals: Rehearsals) -> Iterator[Served]:
    with served(routers=[router(rehearsals)]) as server:
        yield server


def test_totals_come_first_each_with_its_source(shell: Terminal, cluster: FakeCluster) -> None:
    cluster.deletions = [RehearsedDeletion("public/old", "op-1", "running")]
    ran = shell.run("rehearse", "broker", f"http://{BROKER}/")
    assert ran.code == 0, ran.err
    first, *lines = ran.out.splitlines()
    assert first == f"if {BROKER} died now (as of 2023-11-14T22:13:20Z): 4 bundles, 3 loaded topics, 3 looked at"
    totals = [line.strip() for line in lines if line.startswith("  ") and not line.strip().startswith("from ")]
    assert totals == [
        "0 topics that the next owner cannot load, or not as they are",
        "2 topics with clients, loaded again at once",
        "4 producers that reconnect on 3 topics",
        "6 consumers and readers that reconnect on 3 topics",
        "1,999 acknowledged entries delivered again on 1 topic",
        "46 delivered, unacknowledged messages delivered again on 2 topics",
        "13,605 entries replayed for deduplication on 1 topic",
        "27,400,000 bytes of these entries on 1 topic",
        "700 delayed messages indexed again on 1 topic",
        "3,000 entries read to index delayed messages again on 1 topic",
        "1 non-persistent topics that lose messages",
        "1 deletions that continue at the next owner",
        "30 s at most without an owner, if it is killed; none if it is shut down cleanly",
        "1.1 s of replays before topics serve",
        "0.2 s of reading to index delayed messages",
    ]
    assert "deletion op-1 of public/old: running" in lines
    assert sum(line.strip().startswith("from ") for line in lines) == len(totals) - 1
    assert [line.split() for line in lines if line.startswith("persistent://")] == [
        [str(PAYMENTS), "0", "6", "13,605", "0", "0", "2"],
        [str(ORDERS), "1,999", "40", "0", "700", "3,000", "5"],
    ]


def test_what_the_next_owner_cannot_do_is_a_warning(shell: Terminal, cluster: FakeCluster) -> None:
    cluster.lost, cluster.load_seconds, cluster.unusable = "its ledger is gone", 1.0, ("billing: no entry 0",)
    cluster.subscribed[IDLE] = [RehearsedSubscription("huge", "Shared", 0, (), 0, 0, False)]
    ran = shell.run("rehearse", "broker", BROKER)
    assert "3 topics that the next owner cannot load, or not as they are\n" in ran.out
    assert [line.removeprefix("WARNING: ") for line in ran.out.splitlines() if line.startswith("WARNING")] == [
        f"{PAYMENTS}: the replay takes 1 s, and a topic load fails after 1 s (topicLoadTimeoutSeconds)",
        f"{PAYMENTS}: the producers' sequence ids are forgotten: its ledger is gone",
        f"{ORDERS}: buckets are not used: billing: no entry 0",
        f"{IDLE}: huge: stored acknowledgements are larger than brokers read: raise maxMessageSize",
    ]


def test_what_failed_is_not_known(shell: Terminal, cluster: FakeCluster) -> None:
    cluster.failing = {ORDERS: TemporaryError("a bookie does not respond")}
    cluster.topics[IDLE] = None
    cluster.deletions = TemporaryError("no metadata store")
    ran = shell.run("rehearse", "broker", BROKER)
    assert ran.code == 4
    assert "6 delivered, unacknowledged messages delivered again on 1 topic; unknown for 1 topic" in ran.out
    assert f"not known: {ORDERS}: subscriptions: a bookie does not respond" in ran.out
    assert "not known: deletions: no metadata store" in ran.out
    assert "not known entries read to index delayed messages" not in ran.out
    assert "2 topics with clients, loaded again at once; unknown for 1 topic" in ran.out
    cluster.failing = dict.fromkeys(cluster.topics, TemporaryError("no"))
    assert (
        "not known acknowledged entries delivered again; unknown for 3 topics"
        in shell.run("rehearse", "broker", BROKER).out
    )


def test_the_busiest_topics_are_looked_at_and_the_others_are_not_known(shell: Terminal) -> None:
    found = json.loads(
        shell.run("rehearse", "broker", BROKER, "--topics", "1", "--limit", "0", "--output-format", "json").out
    )
    assert (found["topics"], found["examined"], found["worst"]) == (3, 1, [])
    unknown = {total["consequence"]: (total["count"], total["unknownTopics"]) for total in found["totals"]}
    assert unknown[Consequence.ACKNOWLEDGED_AGAIN] == (1_999, 2)
    assert unknown[Consequence.PRODUCERS] == (4, 0)


def test_a_look_up_that_hangs_ends_with_the_time(rehearsals: Rehearsals, cluster: FakeCluster) -> None:
    cluster.hanging = frozenset({PAYMENTS})
    found = rehearsals.rehearse(BROKER, Bounds(seconds=0.2))
    (reason,) = found.not_known
    assert reason.startswith(f"{PAYMENTS}: it did not end within 0.2 s")
    (orders,) = found.worst
    assert isinstance(orders, RehearsedTopic)
    assert (orders.delayed, orders.read_for_index, orders.replayed_entries) == (700, 3_000, 0)
    assert [each.subscription for each in orders.subscriptions] == ["billing"]


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (NotFoundError("no broker broker-9:8080 is registered"), 1, "no broker broker-9:8080"),
        (UnreachableError("it hangs"), 1, "what is stored can: pulsar-sidecar subscriptions fullest"),
    ],
)
def test_a_broker_that_cannot_be_asked(
    shell: Terminal, cluster: FakeCluster, failure: SidecarError, code: int, words: str
) -> None:
    cluster.failure = failure
    ran = shell.run("rehearse", "broker", BROKER)
    assert (ran.code, words in ran.err) == (code, True), ran.err


def test_bounds_have_bounds(shell: Terminal) -> None:
    for wrong in (["--topics", "0"], ["--limit", "-1"], ["--seconds", "0"]):
        assert shell.run("rehearse", "broker", BROKER, *wrong).code == 1
