"""Two clusters that replicate to each other: what holds on which side (docs/geo-replication.md)."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
import requests
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.features.duplicates.findings import Producer
from pulsar_sidecar.features.duplicates.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.features.duplicates.rows import MessageKind
from pulsar_sidecar.features.duplicates.verify import TopicResult, VerifiedTopic
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.admin_clients.java_admin import java_admin
from tests.cluster.cancelling import CANCELLING
from tests.cluster.choosing import FAST_SESSIONS, version_under_test
from tests.cluster.deduplication import BROKER_CONF, Setup
from tests.cluster.delays import SHARED, DelayedTopic, Sent, now_ms
from tests.cluster.patience import until
from tests.cluster.pinning import Pins
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import QUICK, CommandAnswer, Sidecars, run_command
from tests.cluster.topics import KEEP_ALL, KEEP_NOTHING, Workload, unique

CONF = (
    BROKER_CONF
    | FAST_SESSIONS
    | {
        "forceDeleteNamespaceAllowed": "true",
        "brokerDeduplicationEntriesInterval": "10",
        "replicatedSubscriptionsSnapshotFrequencyMillis": "500",
        # A topic that is unloaded meanwhile keeps the ledgers that replicators' positions name.
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
)
MESSAGES = 45


@dataclass(frozen=True, slots=True)
class TwoClusters:
    """Two clusters that replicate one deduplicated topic to each other."""

    topic: TopicName
    east: Setup
    west: Setup

    @contextmanager
    def delayed(self, name: str) -> Iterator[tuple[DelayedTopic, DelayedTopic]]:
        """Yield a topic in the east and in the west, with a Shared subscription in both."""
        topic = parse_topic_name(f"persistent://geo/orders/{name}")
        with ExitStack() as stack:
            east, west = (
                stack.enter_context(closing(DelayedTopic(side.cluster.addresses, topic)))
                for side in (self.east, self.west)
            )
            east.subscribe("s", SHARED)
            west.subscribe("s", SHARED)
            yield east, west

    def command(self, *words: str) -> CommandAnswer:
        """Run a command of ``topics`` in the east that knows the west's sidecar."""
        known = f"west={self.west.sidecar.url}"
        return run_command("--admin-url", self.east.sidecar.url, "topics", *words, PULSAR_SIDECAR_CLUSTER_URLS=known)

    def namespace(self, **policies: object) -> str:
        name = f"geo/{unique()}"
        for side in (self.east, self.west):
            side.workload.admin("PUT", f"namespaces/{name}", {"replication_clusters": ["east", "west"], **policies})
        return name


@pytest.fixture(scope="module")
def clusters(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("sidecars")
        west = stack.enter_context(_side(special_cluster, "west", directory))
        known = f"west={west.sidecar.url}"
        east = stack.enter_context(_side(special_cluster, "east", directory, cluster_urls=known))
        for own, name, other in ((east.workload, "west", west.cluster), (west.workload, "east", east.cluster)):
            own.admin("PUT", f"clusters/{name}", _urls(other))
            own.admin("PUT", "tenants/geo", {"allowedClusters": ["east", "west"], "adminRoles": []})
            own.admin("PUT", "namespaces/geo/orders", {"replication_clusters": ["east", "west"]})
            own.admin("POST", "namespaces/geo/orders/deduplication", True)
        yield TwoClusters(parse_topic_name("persistent://geo/orders/t"), east, west)


@contextmanager
def _side(special_cluster: ClusterFactory, name: str, directory: Path, **settings: object) -> Iterator[Setup]:
    with (
        special_cluster(cluster_name=name, broker_conf=CONF) as cluster,
        closing(Workload(cluster)) as workload,
        closing(Sidecars(cluster.addresses, directory)) as sidecars,
    ):
        yield Setup(cluster, workload, sidecars, sidecars.start(**{**QUICK, **CANCELLING, **settings}))


def _urls(cluster: ClusterUnderTest) -> dict[str, str]:
    addresses = cluster.addresses
    return {"serviceUrl": addresses.web_service_urls[0], "brokerServiceUrl": addresses.broker_service_url}


def verified(clusters: TwoClusters) -> VerifiedTopic:
    url = clusters.west.cluster.addresses.metadata_store_url
    (only,) = verify_stored(VerifyRequest(str(clusters.topic), StoredMessagesRequest(url)), lambda text: None)
    return only


def publish(workload: Workload, topic: TopicName, ids: range) -> None:
    producer: Any = workload.client.create_producer(str(topic), producer_name="p", batching_enabled=False)
    for sequence_id in ids:
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()


def publish_on_both_sides(clusters: TwoClusters) -> None:
    """Once, however often it is called. The same name and ids in the west are another producer's."""
    publish(clusters.east.workload, clusters.topic, range(1, MESSAGES + 1))
    publish(clusters.west.workload, clusters.topic, range(1, 6))


def test_replicated_messages_and_markers_are_distinguished(clusters: TwoClusters) -> None:
    consumer: Any = clusters.east.workload.client.subscribe(
        str(clusters.topic),
        "everywhere",
        replicate_subscription_state_enabled=True,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    publish_on_both_sides(clusters)
    for _ in range(MESSAGES):
        consumer.acknowledge(consumer.receive(60_000))
    replicated, local = Producer("p", "east"), Producer("p", None)

    def is_there() -> bool:
        found = verified(clusters)
        counts = found.producers.get(replicated)
        return counts is not None and counts.messages == MESSAGES and found.rows[MessageKind.MARKER] > 0

    until(is_there, "the messages and a snapshot of the subscription were replicated")
    consumer.close()
    found = verified(clusters)
    assert (found.findings, found.unseen, found.result) == ((), (), TopicResult.CLEAN)
    assert found.rows[MessageKind.REPLICATED] == MESSAGES
    assert {name: found.producers[name].messages for name in (replicated, local)} == {replicated: MESSAGES, local: 5}
    assert set(found.producers) == {replicated, local}


def test_replicators_are_shown_with_their_positions(clusters: TwoClusters) -> None:
    west = clusters.west

    def shown() -> dict[str, Any]:
        (place,) = west.call("GET", west.workload.of_topic(clusters.topic, "deduplication"), replay="true")
        return place

    publish_on_both_sides(clusters)
    until(lambda: bool(shown()["snapshot"]["replicators"]), "a snapshot has the replicator's position")
    place = shown()
    assert place["replay"]["isWhole"], place["replay"]["problems"]
    (replicator,) = place["snapshot"]["replicators"]
    assert "east" in replicator["producer"]
    ledgers = {ledger["ledgerId"] for ledger in _ledgers(clusters)}
    assert int(replicator["position"].split(":")[0]) in ledgers, "a position of the topic in the east"
    west.workload.unload(clusters.topic)
    unloaded = shown()
    rebuilt = {row["name"]: row["replayed"] for row in unloaded["replay"]["rows"]}
    producer: Any = west.workload.client.create_producer(str(clusters.topic), producer_name="p")
    assert producer.last_sequence_id() == rebuilt["p"], rebuilt
    producer.close()
    assert west.replayed(clusters.topic)[-1] == unloaded["since"]["entries"]


def test_replayed_entries_of_the_other_cluster_count_for_producers_here(clusters: TwoClusters) -> None:
    """The broker keeps the replicator's position until a load, which takes replicated entries for its own."""
    east, west, topic = clusters.east, clusters.west, parse_topic_name("persistent://geo/orders/named-alike")
    publish(east.workload, topic, range(1, 16))

    def last() -> int:
        producer: Any = west.workload.client.create_producer(str(topic), producer_name="p")
        producer.close()
        return int(producer.last_sequence_id())

    until(lambda: _entries(west, topic) == 15, "all is replicated")
    assert last() == -1
    west.workload.unload(topic)
    (place,) = west.call("GET", west.workload.of_topic(topic, "deduplication"), replay="true")
    (row,) = (row for row in place["replay"]["rows"] if row["name"] == "p")
    assert (row["stored"], row["replayed"], row["replicatedFrom"]) == (None, 15, "east")
    assert any("of 1 producer elsewhere: p (east)" in remark for remark in place["remarks"])
    assert last() == 15
    (before,) = place["snapshot"]["replicators"]
    west.workload.unload(topic)
    (loaded,) = west.call("GET", west.workload.of_topic(topic, "deduplication"))
    assert loaded["snapshot"]["replicators"] == [before]


def test_a_selection_is_cancelled_on_every_cluster_of_a_topic(clusters: TwoClusters) -> None:
    with clusters.delayed("selected") as (east, west):
        east.send(6, now_ms() + 3_600_000, keys=2)
        until(lambda: west.backlogs() == {"s": 6}, "the messages are replicated")
        selected = ("--all-clusters", "--key", "key-1", "--yes")
        done = clusters.command("cancel-delayed-messages", str(east.topic), *selected)
        assert done.exit_code == 0, done.stderr
        assert Counter(json.loads(line)["cluster"] for line in done.stdout.splitlines()) == {"east": 3, "west": 3}
        assert (east.backlogs(), west.backlogs()) == ({"s": 3}, {"s": 3})


def test_one_message_is_cancelled_where_it_is_named_or_everywhere(clusters: TwoClusters) -> None:
    """The first id is the message's own, the second that of a copy, which the west published."""
    with clusters.delayed("single") as (east, west):
        due = now_ms() + 3_600_000
        here, everywhere = east.send(2, due)
        west.send(1, due)
        until(lambda: (east.backlogs(), west.backlogs()) == ({"s": 3}, {"s": 3}), "all are replicated")

        def cancel(message: Sent, *more: str) -> CommandAnswer:
            named = ("-l", str(message.ledger_id), "-e", str(message.entry_id), "-t", str(due))
            return clusters.command("cancel-delayed-message", str(east.topic), *named, *more)

        alone = cancel(here)
        assert (alone.exit_code, "applies to this cluster only: in west" in alone.stderr) == (0, True), alone.stderr
        assert (east.backlogs(), west.backlogs()) == ({"s": 2}, {"s": 3})
        copy = Sent(0, everywhere.ledger_id, everywhere.entry_id + 1, -1, due)
        for message, left in ((everywhere, (1, 2)), (copy, (0, 1))):
            both = cancel(message, "--all-clusters")
            assert both.exit_code == 0, both.stderr
            assert (east.backlogs()["s"], west.backlogs()["s"]) == left
        rest = cancel(here, "--all-clusters")
        assert (rest.exit_code, "east: it does not wait there" in rest.stderr) == (4, True), rest.stderr
        assert (east.backlogs(), west.backlogs()) == ({"s": 0}, {"s": 0})


# --- replicated subscriptions --------------------------------------------------------------------------------------


def test_a_replicated_subscription_passes_on_how_far_everything_is_acknowledged(clusters: TwoClusters) -> None:
    east, west, topic = clusters.east, clusters.west, parse_topic_name("persistent://geo/orders/subscribed")

    def subscribed(side: Setup) -> Any:
        return side.workload.client.subscribe(
            str(topic), "s", consumer_type=SHARED, replicate_subscription_state_enabled=True
        )

    def state(side: Setup) -> dict[str, Any]:
        path = side.workload.of_topic(topic, "subscription/s/ackState")
        (found,) = side.call("GET", path)
        assert found["replicated"]
        return dict(found)

    with closing(subscribed(east)) as consumer:
        subscribed(west).close()
        first = state(west)["markDeletePosition"]
        sent = itertools.count(1)

        def passed_on() -> bool:
            publish(east.workload, topic, range(next(sent), next(sent)))
            consumer.acknowledge(consumer.receive(60_000))
            return bool(state(west)["markDeletePosition"] != first)

        until(passed_on, "a snapshot has passed the position on")
        publish(east.workload, topic, range(100_001, 100_004))
        *_, last = (consumer.receive(60_000) for _ in range(3))
        consumer.acknowledge(last)
        until(lambda: state(east)["individuallyAcknowledgedEntries"] > 0, "the broker has the acknowledgement")
        entries = _entries(west, topic)
        # Brokers make a snapshot only after another message.
        publish(east.workload, topic, range(100_004, 100_005))
        until(lambda: _entries(west, topic) > entries + 1, "the message and a marker are replicated since")
        assert state(west)["individuallyAcknowledgedEntries"] == 0


# --- deletions -----------------------------------------------------------------------------------------------------


def test_a_topic_deleted_on_one_side_comes_back_until_its_replication_ends(clusters: TwoClusters) -> None:
    """The west's replicator creates it again at once, a partition even without its partitioned topic."""
    east, west, namespace = clusters.east, clusters.west, clusters.namespace(retention_policies=KEEP_ALL)
    topic, parts = (parse_topic_name(f"persistent://{namespace}/{name}") for name in ("t", "parts"))
    east.workload.admin("PUT", east.workload.of_topic(parts, "partitions"), 1)
    stored = [topic, parts.partition(0)]

    def exists(side: Setup, one: TopicName) -> bool:
        return side.workload.store.read(managed_ledger_path(one.managed_ledger_name)) is not None

    for each in (topic, parts):
        east.workload.produce(each, [b"x"] * 45)
    until(lambda: all(exists(west, one) and _entries(west, one) == 45 for one in stored), "all is replicated")
    for each, one, options in ((topic, stored[0], ()), (parts, stored[1], ("--partitioned",))):
        before = east.workload.ledgers(one).all
        refused = clusters.command("delete", str(each), *options)
        assert (refused.exit_code, "replicated on clusters [west] (HTTP 422)" in refused.stderr) == (1, True)
        forced = clusters.command("delete", str(each), *options, "--force")
        assert (forced.exit_code, "was replicated with west" in forced.stderr) == (0, True), forced.stderr
        until(lambda one=one: exists(east, one), "the west's replicator has created it again")
        again = east.workload.ledgers(one).all
        until(lambda: east.sidecar.inflight() == 0, "the records are worked off")
        existing = {ledger for ledger in before | again if east.workload.store.read(ledger_path(ledger))}
        assert existing >= again, "nothing that the new topic references is deleted"
        assert existing.isdisjoint(before - again), "nothing of the deleted topic is left"
        assert _entries(west, one) == 45
    for side, cluster in ((east, "east"), (west, "west")):
        for each in (topic, parts):
            side.workload.admin("POST", side.workload.of_topic(each, "replication"), [cluster])
    for side in (east, west):
        path = f"/admin/v2/{side.workload.of_topic(topic)}"
        until(lambda side=side, path=path: side.sidecar.request("DELETE", path).status_code == 204, "it is deleted")
        side.sidecar.call("DELETE", f"/admin/v2/{side.workload.of_topic(parts, 'partitions')}")
    assert not [one for side in (east, west) for one in stored if exists(side, one)]


def test_refusals_of_replicated_topics_and_namespaces_are_the_brokers(clusters: TwoClusters) -> None:
    east, namespace = clusters.east, clusters.namespace()
    topic, parts = (parse_topic_name(f"persistent://{namespace}/{name}") for name in ("t", "parts"))
    east.workload.admin("PUT", east.workload.of_topic(parts, "partitions"), 2)
    east.workload.subscribe(topic, "s")
    at, of = f"namespaces/{namespace}", east.workload.of_topic
    url = east.cluster.addresses.web_service_urls[0]

    def both(path: str, status: int, **params: str) -> None:
        answers = [
            (answer.status_code, answer.json()["reason"])
            for answer in (
                requests.delete(f"{url}/admin/v2/{path}", params=params, timeout=60, allow_redirects=False),
                east.sidecar.request("DELETE", f"/admin/v2/{path}", **params),
            )
        ]
        assert (answers[0], answers[0][0]) == (answers[1], status)

    for each in (topic, *(parts.partition(index) for index in range(2))):
        until(lambda each=each: east.workload.admin("GET", of(each, "stats"))["replication"], f"{each} is replicated")
    both(of(topic), 422)
    both(of(parts, "partitions"), 422)
    both(at, 412)
    both(at, 412, force="true")
    east.workload.unload(topic)
    east.workload.admin("POST", f"{at}/replication", ["west"])
    path = of(topic, "subscription/s")
    until(lambda: east.workload.request("DELETE", path).status_code == 412, "the policy is in force")
    both(path, 412)
    # Brokers return the same after 30 s, quoted in a 500.
    refused = east.sidecar.request("DELETE", f"/admin/v2/{of(topic)}", force="true")
    reason = f"Namespace missing local cluster name in clusters list: local_cluster=east ns={namespace}"
    assert (refused.status_code, reason in refused.json()["reason"]) == (412, True), refused.text
    assert east.workload.ledgers(topic).data, "nothing was deleted"
    clusters.west.workload.admin("POST", f"{at}/replication", ["west"])
    forwarded = {url: clusters.west.cluster.addresses.web_service_urls[0], east.sidecar.url: clusters.west.sidecar.url}
    for base, there in forwarded.items():
        answer = requests.delete(f"{base}/admin/v2/{at}", params={"force": "true"}, timeout=60, allow_redirects=False)
        location = answer.headers["Location"]
        assert (answer.status_code, urlsplit(location).netloc) == (307, urlsplit(there).netloc)
    assert requests.delete(location, timeout=60).status_code == 204
    assert clusters.west.workload.request("GET", at).status_code == 404


def _entries(side: Setup, topic: TopicName) -> int:
    return side.workload.admin("GET", side.workload.of_topic(topic, "internalStats"))["numberOfEntries"]


# --- replicators' pins ---------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("full_run")
def test_each_remedy_of_a_replicator_that_is_behind_frees_its_ledgers(clusters: TwoClusters, tmp_path: Path) -> None:
    east, west, namespace = clusters.east, clusters.west, clusters.namespace(retention_policies=KEEP_NOTHING)
    topics = [parse_topic_name(f"persistent://{namespace}/{name}") for name in ("reach", "skip", "stop", "moved")]
    reached, skipped, stopped, moved = topics
    with java_admin(version_under_test(), tmp_path) as java:
        pins = Pins(east.cluster, east.workload, east.sidecar, java, tmp_path)

        def replicator(topic: TopicName) -> dict[str, Any] | None:
            found = [pin for pin in pins.pins(topic)["pins"] if pin["cause"] == "replication"]
            return found[0] if found else None

        def held(topic: TopicName, detail: str) -> dict[str, Any]:
            pin = replicator(topic)
            assert pin is not None
            assert (pin["holder"], pin["detail"].rpartition("; ")[2]) == ("pulsar.repl.west", detail)
            assert pin["freesBytes"] > 0
            return pin

        def carried_out(topic: TopicName, remedy: dict[str, Any]) -> None:
            before = east.workload.ledgers(topic).data
            pins.run(remedy["command"])
            until(lambda: len(east.workload.ledgers(topic).data) < len(before), f"freed by {remedy['command']}")
            assert replicator(topic) is None

        for topic in topics:
            east.workload.produce(topic, [b"first"])
        until(lambda: all(replicator(topic) is None for topic in topics), "the first messages are replicated")
        west.cluster.kill("broker-1")
        for topic in topics:
            east.workload.produce(topic, [bytes(1000)] * 45)
        until(lambda: "; not connected to west" in str(replicator(reached)), "the broker notices")
        _, skip, _ = held(skipped, "not connected to west")["remedies"]
        carried_out(skipped, skip)
        *_, stop = held(stopped, "not connected to west")["remedies"]
        carried_out(stopped, stop)
        east.workload.unload(moved)
        load, *_ = held(moved, "replicates to west only once a broker has loaded the topic")["remedies"]
        west.cluster.restart("broker-1")
        until(lambda: replicator(reached) is None, "what the other cluster lacked is replicated once it is reachable")
        carried_out(moved, load)
        west.cluster.stop("broker-1")
        try:
            east.workload.produce(moved, [bytes(1000)] * 45)
            east.workload.unload(moved)
            east.workload.admin("POST", f"namespaces/{namespace}/replication", ["east"])
            until(lambda: "no longer replicated to west" in str(replicator(moved)), "the policy is in force")
            (drop,) = (replicator(moved) or {})["remedies"]
            carried_out(moved, drop)
        finally:
            west.cluster.cont("broker-1")


def _ledgers(clusters: TwoClusters) -> list[dict[str, Any]]:
    east = clusters.east.workload
    return east.admin("GET", east.of_topic(clusters.topic, "internalStats"))["ledgers"]
