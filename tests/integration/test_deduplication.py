"""What real brokers store of deduplication as the sidecar shows it, beside what they say themselves after a load."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.adapters.local_files.publishing_files import checkpoint_path
from pulsar_sidecar.adapters.pulsar.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.adapters.pulsar.wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar.wire.producers import BrokerDuplicates
from pulsar_sidecar.ledger_ownership.paths import cursor_path, ledger_path
from pulsar_sidecar.ledger_ownership.references import cursor_references
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR

from tests.cluster.deduplication import BROKER_CONF, Stage, staged
from tests.cluster.java_programs import java_program
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import run_command
from tests.cluster.topics import unique

BROKER = "broker-1"
_TRANSACTIONS = {"transactionCoordinatorEnabled": "true"}
_MAX_PRODUCERS = "brokerDeduplicationMaxNumberOfProducers"
_TRANSACTIONS_PROGRAM = Path(__file__).parent.parent / "faults" / "Transactions.java"


@pytest.fixture(scope="module")
def stage(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with (
        special_cluster(broker_conf=BROKER_CONF | _TRANSACTIONS | {_MAX_PRODUCERS: "3"}) as cluster,
        staged(cluster, tmp_path_factory.mktemp("sidecars")) as it,
    ):
        yield it


def shown(stage: Stage, topic: TopicName, **parameters: str) -> dict[str, Any]:
    (place,) = stage.call("GET", stage.workload.of_topic(topic, "deduplication"), **parameters)
    found: dict[str, Any] = place
    return found


def replayed(place: Mapping[str, Any]) -> dict[str, int]:
    assert place["replay"]["isWhole"], place["replay"]["problems"]
    return {row["name"]: row["replayed"] for row in place["replay"]["rows"]}


def publish(stage: Stage, topic: TopicName, name: str, *sequence_ids: int) -> None:
    producer: Any = stage.workload.client.create_producer(str(topic), producer_name=name, batching_enabled=False)
    for sequence_id in sequence_ids:
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()


def publish_batch(stage: Stage, topic: TopicName, name: str, messages: int) -> None:
    producer: Any = stage.workload.client.create_producer(
        str(topic), producer_name=name, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for number in range(messages):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def last_ids(stage: Stage, topic: TopicName, *names: str) -> dict[str, int]:
    """What the topic's broker answers to producers that connect; loads the topic."""
    found = {}
    for name in names:
        producer = stage.workload.client.create_producer(str(topic), producer_name=name)
        found[name] = producer.last_sequence_id()
        producer.close()
    return found


def is_loaded(stage: Stage, topic: TopicName) -> bool:
    loaded = stage.workload.admin("GET", "broker-stats/bookieops")
    return any(str(topic) in names for names in loaded.values())


def test_show_and_replay_agree_with_the_broker_after_an_unload_and_a_kill(stage: Stage) -> None:
    with stage.namespace(deduplication=True) as namespace:
        topic = stage.topic(namespace)
        publish(stage, topic, "rising", *range(0, 260, 2))
        publish(stage, topic, "rare", 5)
        publish_batch(stage, topic, "batched", 30)
        loaded = shown(stage, topic, replay="true", askBroker="true")
        assert (loaded["status"], loaded["decision"]["level"]) == ("Enabled", "namespace")
        # The hundredth entry made the broker take a snapshot; the others are after it.
        assert loaded["snapshot"]["producers"] == [{"name": "rising", "lastSequenceId": 198}]
        assert loaded["snapshot"]["ageMs"] >= 0
        assert loaded["since"]["entries"] == loaded["replay"]["entries"] >= 32
        assert loaded["since"]["sizeBytes"] > 0
        names = ("rising", "rare", "batched", "nobody")
        # The C++ client names no highest id in a batch, so brokers keep the lowest: the rest could be stored twice.
        expected = {"rising": 258, "rare": 5, "batched": 0}
        assert replayed(loaded) == expected

        stage.workload.unload(topic)
        unloaded = shown(stage, topic, replay="true", askBroker="true")
        assert (unloaded["status"], unloaded["snapshot"]["ledgerId"]) == (None, None)
        assert replayed(unloaded) == expected
        assert unloaded["snapshot"]["position"] == loaded["snapshot"]["position"]
        assert not is_loaded(stage, topic)
        assert last_ids(stage, topic, *names) == {**expected, "nobody": -1}
        assert stage.replayed(topic)[-1] == unloaded["since"]["entries"]

        publish(stage, topic, "rising", *range(300, 310))
        stage.cluster.kill(BROKER)
        crashed = shown(stage, topic, replay="true")
        assert crashed["decision"]["enabled"] is None
        stage.cluster.restart(BROKER)
        after_crash = shown(stage, topic, replay="true")
        assert replayed(crashed) == replayed(after_crash) == expected | {"rising": 309}
        assert not is_loaded(stage, topic)
        assert last_ids(stage, topic, *names) == {**expected, "rising": 309, "nobody": -1}
        assert stage.replayed(topic)[-1] == after_crash["since"]["entries"]


def test_a_snapshot_leaves_out_producers_beyond_the_limit_and_a_load_forgets_them(stage: Stage) -> None:
    with stage.namespace(deduplication=True) as namespace:
        topic, names = stage.topic(namespace), ["first", "second", "third", "fourth"]
        for name in names:
            publish(stage, topic, name, *range(1, 26))
        publish(stage, topic, "later", 1)
        loaded = shown(stage, topic, replay="true")
        kept = {row["name"]: row["lastSequenceId"] for row in loaded["snapshot"]["producers"]}
        assert (loaded["snapshot"]["names"], loaded["limits"]["maxProducers"], len(kept)) == (3, 3, 3)
        assert any("the snapshot is full: it has 3 names" in remark for remark in loaded["remarks"])
        assert replayed(loaded) == kept | {"later": 1}
        (forgotten,) = set(names) - set(kept)
        stage.workload.unload(topic)
        assert last_ids(stage, topic, *names, "later") == kept | {forgotten: -1, "later": 1}


def test_a_replay_counts_the_markers_of_transactions_as_brokers_do(stage: Stage, tmp_path: Path) -> None:
    addresses, log = stage.cluster.addresses, tmp_path / "java.log"
    with stage.namespace(deduplication=True) as namespace:
        topic = stage.topic(namespace)
        arguments = [addresses.broker_service_url]
        with java_program(_TRANSACTIONS_PROGRAM, addresses.version, ["-Xmx128m"], arguments, log) as java:
            java.tell(f"{topic} in-transactions")
            assert java.read() == "done"
        stage.workload.unload(topic)
        unloaded = shown(stage, topic, replay="true")
        found = replayed(unloaded)
        # Eight messages of one producer, two commits and an abort.
        assert (unloaded["replay"]["entries"], unloaded["replay"]["markers"]) == (11, 3)
        assert sorted(found.values()) == [0, 7], "a broker numbers its markers 0"
        assert last_ids(stage, topic, *found) == found
        assert stage.replayed(topic)[-1] == 11


def test_what_an_open_transaction_hides_is_not_taken_for_absent(stage: Stage, tmp_path: Path) -> None:
    """Readers get nothing behind it, so a published file that is read back looks as if its end was not stored."""
    addresses, log, file = stage.cluster.addresses, tmp_path / "java.log", tmp_path / "lines"
    file.write_bytes(b"a line\n" * 50)
    with stage.namespace(deduplication=True) as namespace:
        topic = stage.topic(namespace)
        command = (
            *("--output", "json", "publish", str(file), str(topic), "--producer-name", "loader"),
            *("--broker-service-url", addresses.broker_service_url, "--web-service-url", addresses.web_service_urls[0]),
        )
        assert run_command(*command).json["stored"] == 50
        arguments = [addresses.broker_service_url]
        with java_program(_TRANSACTIONS_PROGRAM, addresses.version, ["-Xmx128m"], arguments, log) as java:
            java.tell(f"{topic} in-transactions")
            assert java.read() == "done"
            file.write_bytes(b"a line\n" * 70)
            assert run_command(*command).json["stored"] == 20
            entries = stored_entries(stage, topic)
            forget(stage, topic)
            checkpoint_path(file, "loader").unlink()
            refused = run_command(*command)
            assert (refused.exit_code, refused.stdout) == (3, "")
            assert "1 transactions are open, and hide what came after them" in refused.stderr
            java.tell("commit")
            assert java.read() == "done"
        published = run_command(*command).json
        assert (published["storedEarlier"], published["stored"]) == (70, 0)
        assert stored_entries(stage, topic) == entries + 1, "the marker of the commit, which no reader gets"


def stored_entries(stage: Stage, topic: TopicName) -> int:
    return int(stage.workload.admin("GET", stage.workload.of_topic(topic, "internalStats"))["numberOfEntries"])


def forget(stage: Stage, topic: TopicName) -> None:
    """Switched off and on, a broker has forgotten every name."""
    for is_on, status in ((False, "Disabled"), (True, "Enabled")):
        stage.workload.admin("POST", stage.workload.of_topic(topic, "deduplicationEnabled"), is_on)
        until(lambda status=status: stage.status(topic) == status, status)  # type: ignore[misc]


def test_a_cursor_whose_ledger_is_gone_is_a_broker_that_forgets(stage: Stage) -> None:
    with stage.namespace(deduplication=True) as namespace:
        topic = stage.topic(namespace)
        publish(stage, topic, "early", *range(30))
        publish(stage, topic, "late", *range(90))
        path = cursor_path(topic.managed_ledger_name, DEDUPLICATION_CURSOR)
        node = stage.workload.store.read(path)
        assert node is not None
        cursor_ledger = cursor_references(node.data).cursor_ledger
        assert cursor_ledger is not None
        assert shown(stage, topic)["snapshot"]["ledgerId"] == cursor_ledger
        stage.cluster.kill(BROKER)
        stage.workload.store.delete(ledger_path(cursor_ledger))
        stage.cluster.restart(BROKER)
        lost = shown(stage, topic, replay="true")
        assert lost["snapshot"]["lost"] == f"the cursor's ledger {cursor_ledger} is gone"
        assert (lost["snapshot"]["names"], lost["problem"]) == (0, None)
        found = replayed(lost)
        assert last_ids(stage, topic, "early", "late") == {name: found.get(name, -1) for name in ("early", "late")}
        assert stage.replayed(topic)[-1] == lost["since"]["entries"]


def test_ids_beyond_javas_and_producers_that_go_back(stage: Stage) -> None:
    with stage.namespace(deduplication=True) as namespace:
        topic = stage.topic(namespace)
        connections = BinaryConnections(ClientCredentials(), TlsOptions(), SystemClock())
        with closing(connections):
            owners = TopicOwners(stage.cluster.addresses.broker_service_url, connections)
            sender = BrokerDuplicates(owners, SystemClock())
            assert len(sender.send_all(topic, "huge", [2**63])) == 1
            sender.send_all(topic, "largest", [2**63 - 1])
        # While deduplication is off nothing keeps a producer from going back.
        enabled = stage.workload.of_topic(topic, "deduplicationEnabled")
        publish(stage, topic, "back", 50)
        stage.workload.unload(topic)
        found = replayed(shown(stage, topic, replay="true"))
        assert last_ids(stage, topic, "huge", "largest", "back") == found
        assert found["largest"] == 2**63 - 1
        stage.workload.admin("POST", enabled, False)
        until(lambda: stage.status(topic) == "Disabled", "the policy is in effect")
        off = shown(stage, topic)
        assert (off["decision"]["level"], off["decision"]["enabled"], off["snapshot"]) == ("topic", False, None)
        assert off["held"] == {"ledgers": [], "sizeBytes": 0}


def test_system_topics_partitions_and_what_is_not_there(stage: Stage) -> None:
    with stage.namespace(deduplication=True) as namespace:
        orders = parse_topic_name(f"persistent://{namespace}/orders-{unique()}")
        stage.workload.admin("PUT", stage.workload.of_topic(orders, "partitions"), 2)
        publish(stage, orders.partition(0), "p", *range(130))
        publish(stage, orders.partition(1), "p", 7)
        stage.workload.admin("POST", stage.workload.of_topic(orders, "deduplicationEnabled"), True)
        until(lambda: shown(stage, orders.partition(0))["decision"]["level"] == "topic", "the topic's policy is known")
        path = stage.workload.of_topic(orders, "deduplication")
        first, second = stage.call("GET", path, replay="true")
        assert [first["topic"], second["topic"]] == [str(orders.partition(0)), str(orders.partition(1))]
        assert (replayed(first), replayed(second)) == ({"p": 129}, {"p": 7})
        # Six full ledgers are before the snapshot, at the end of the fifth.
        position = [int(number) for number in first["snapshot"]["position"].split(":")]
        assert first["held"]["ledgers"] == first["heldAlone"]["ledgers"]
        assert all(ledger >= position[0] for ledger in first["held"]["ledgers"])
        events = parse_topic_name(f"persistent://{namespace}/__change_events")
        system = shown(stage, events)
        assert (system["decision"]["enabled"], system["snapshot"]) == (False, None)
        assert "a system topic is never deduplicated" in system["decision"]["reason"]
        missing = stage.sidecar.request("GET", f"/admin/v2/persistent/{namespace}/none/deduplication")
        assert missing.status_code == 404
        ran = stage.sidecar.command("deduplication", "show", str(orders), "--replay")
        assert ran.exit_code == 0, ran
        assert "enabled by the topic's own policy" in ran.stdout
