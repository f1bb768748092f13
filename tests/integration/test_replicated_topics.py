"""Topics of two clusters: what replicators leave in a deduplicated one, and delayed messages cancelled on both."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.deduplication.verifying.findings import Producer
from pulsar_sidecar.deduplication.verifying.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.deduplication.verifying.rows import MessageKind
from pulsar_sidecar.deduplication.verifying.verify import TopicResult, VerifiedTopic
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.cancelling import CANCELLING
from tests.cluster.deduplication import BROKER_CONF, Setup, set_up
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import Sidecars, run_command
from tests.cluster.topics import Workload

CONF = BROKER_CONF | {
    "brokerDeduplicationEntriesInterval": "10",
    "replicatedSubscriptionsSnapshotFrequencyMillis": "500",
    # A topic that is unloaded meanwhile keeps the ledgers that replicators' positions name.
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
MESSAGES = 45


@dataclass(frozen=True, slots=True)
class TwoClusters:
    """Two clusters that replicate one deduplicated topic to each other, and a sidecar in the west."""

    topic: TopicName
    east: Workload
    west: Setup


@pytest.fixture(scope="module")
def clusters(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    with (
        special_cluster(cluster_name="east", broker_conf=CONF) as east,
        special_cluster(cluster_name="west", broker_conf=CONF) as west,
        set_up(west, tmp_path_factory.mktemp("sidecars")) as setup,
        closing(Workload(east)) as workload,
    ):
        for own, name, other in ((workload, "west", west), (setup.workload, "east", east)):
            own.admin("PUT", f"clusters/{name}", _urls(other))
            own.admin("PUT", "tenants/geo", {"allowedClusters": ["east", "west"], "adminRoles": []})
            own.admin("PUT", "namespaces/geo/orders", {"replication_clusters": ["east", "west"]})
            own.admin("POST", "namespaces/geo/orders/deduplication", True)
        yield TwoClusters(parse_topic_name("persistent://geo/orders/t"), workload, setup)


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
    publish(clusters.east, clusters.topic, range(1, MESSAGES + 1))
    publish(clusters.west.workload, clusters.topic, range(1, 6))


def test_replicated_messages_and_markers_are_distinguished(clusters: TwoClusters) -> None:
    consumer: Any = clusters.east.client.subscribe(
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
        found: dict[str, Any] = place
        return found

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


def test_a_selection_is_cancelled_on_every_cluster_of_a_topic(clusters: TwoClusters, tmp_path: Path) -> None:
    name = parse_topic_name("persistent://geo/orders/delayed")
    with ExitStack() as stack:
        urls, topics = {}, {}
        for cluster, workload in (("east", clusters.east), ("west", clusters.west.workload)):
            addresses = workload.cluster.addresses
            sidecars = stack.enter_context(closing(Sidecars(addresses, tmp_path)))
            urls[cluster] = sidecars.start(**CANCELLING).url
            topics[cluster] = stack.enter_context(closing(DelayedTopic(addresses, name)))
            topics[cluster].subscribe("s", SHARED)
        topics["east"].send(6, now_ms() + 3_600_000, keys=2)
        until(lambda: topics["west"].backlogs() == {"s": 6}, "the messages are replicated")
        select = ("topics", "cancel-delayed-messages", str(name), "--all-clusters", "--key", "key-1", "--yes")
        known = f"west={urls['west']}"
        done = run_command("--admin-url", urls["east"], *select, PULSAR_SIDECAR_CLUSTER_URLS=known)
        assert done.exit_code == 0, done.stderr
        assert Counter(json.loads(line)["cluster"] for line in done.stdout.splitlines()) == {"east": 3, "west": 3}
        assert {cluster: topic.backlogs()["s"] for cluster, topic in topics.items()} == {"east": 3, "west": 3}


def _ledgers(clusters: TwoClusters) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = clusters.east.admin("GET", clusters.east.of_topic(clusters.topic, "internalStats"))[
        "ledgers"
    ]
    return found
