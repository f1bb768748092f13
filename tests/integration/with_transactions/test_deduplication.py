"""Deduplication state that real brokers store, as the sidecar shows it and as they report it after a load."""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pulsar_sidecar.adapters.local_files.publishing_files import checkpoint_path
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnections, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.producers import BrokerDuplicates
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.features.duplicates.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.features.duplicates.rows import MessageKind
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.identity.credentials import ClientCredentials, TlsOptions
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path
from pulsar_sidecar.ownership.references import cursor_references

from tests.cluster.deduplication import Setup
from tests.cluster.patience import until
from tests.cluster.sidecars import run_command
from tests.cluster.topics import unique

BROKER = "broker-1"


def shown(setup: Setup, topic: TopicName, **parameters: str) -> dict[str, Any]:
    (place,) = setup.call("GET", setup.workload.of_topic(topic, "deduplication"), **parameters)
    return place


def replayed(place: Mapping[str, Any]) -> dict[str, int]:
    assert place["replay"]["isWhole"], place["replay"]["problems"]
    return {row["name"]: row["replayed"] for row in place["replay"]["rows"]}


def publish(setup: Setup, topic: TopicName, name: str, *sequence_ids: int) -> None:
    producer: Any = setup.workload.client.create_producer(str(topic), producer_name=name, batching_enabled=False)
    for sequence_id in sequence_ids:
        producer.send(b"%d" % sequence_id, sequence_id=sequence_id)
    producer.close()


def publish_batch(setup: Setup, topic: TopicName, name: str, messages: int) -> None:
    producer: Any = setup.workload.client.create_producer(
        str(topic), producer_name=name, batching_enabled=True, batching_max_publish_delay_ms=200
    )
    for number in range(messages):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    producer.close()


def last_ids(setup: Setup, topic: TopicName, *names: str) -> dict[str, int]:
    """Return the sequence ids that the topic's broker returns to connecting producers; this loads the topic."""
    found = {}
    for name in names:
        producer = setup.workload.client.create_producer(str(topic), producer_name=name)
        found[name] = producer.last_sequence_id()
        producer.close()
    return found


def is_loaded(setup: Setup, topic: TopicName) -> bool:
    loaded = setup.workload.admin("GET", "broker-stats/bookieops")
    return any(str(topic) in names for names in loaded.values())


def test_show_and_replay_agree_with_the_broker_after_an_unload_and_a_kill(setup: Setup) -> None:
    with setup.namespace(deduplication=True) as namespace:
        topic = setup.topic(namespace)
        publish(setup, topic, "rising", *range(0, 260, 2))
        publish(setup, topic, "rare", 5)
        publish_batch(setup, topic, "batched", 30)
        loaded = shown(setup, topic, replay="true", askBroker="true")
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

        setup.workload.unload(topic)
        unloaded = shown(setup, topic, replay="true", askBroker="true")
        assert (unloaded["status"], unloaded["snapshot"]["ledgerId"]) == (None, None)
        assert replayed(unloaded) == expected
        assert unloaded["snapshot"]["position"] == loaded["snapshot"]["position"]
        assert not is_loaded(setup, topic)
        assert last_ids(setup, topic, *names) == {**expected, "nobody": -1}
        assert setup.replayed(topic)[-1] == unloaded["since"]["entries"]

        publish(setup, topic, "rising", *range(300, 310))
        setup.cluster.kill(BROKER)
        crashed = shown(setup, topic, replay="true")
        assert crashed["decision"]["enabled"] is None
        setup.cluster.restart(BROKER)
        after_crash = shown(setup, topic, replay="true")
        assert replayed(crashed) == replayed(after_crash) == expected | {"rising": 309}
        assert not is_loaded(setup, topic)
        assert last_ids(setup, topic, *names) == {**expected, "rising": 309, "nobody": -1}
        assert setup.replayed(topic)[-1] == after_crash["since"]["entries"]


def test_a_snapshot_leaves_out_producers_beyond_the_limit_and_a_load_forgets_them(setup: Setup) -> None:
    with setup.namespace(deduplication=True) as namespace:
        topic, names = setup.topic(namespace), ["first", "second", "third", "fourth"]
        for name in names:
            publish(setup, topic, name, *range(1, 26))
        publish(setup, topic, "later", 1)
        loaded = shown(setup, topic, replay="true")
        kept = {row["name"]: row["lastSequenceId"] for row in loaded["snapshot"]["producers"]}
        assert (loaded["snapshot"]["names"], loaded["limits"]["maxProducers"], len(kept)) == (3, 3, 3)
        assert any("the snapshot is full: it has 3 names" in remark for remark in loaded["remarks"])
        assert replayed(loaded) == kept | {"later": 1}
        (forgotten,) = set(names) - set(kept)
        setup.workload.unload(topic)
        assert last_ids(setup, topic, *names, "later") == kept | {forgotten: -1, "later": 1}


def test_a_replay_counts_the_markers_of_transactions_as_brokers_do(
    setup: Setup, transact: Callable[[str], None], tmp_path: Path
) -> None:
    with setup.namespace(deduplication=True) as namespace:
        topic = setup.topic(namespace)
        transact(f"{topic} in-transactions")
        setup.workload.unload(topic)
        unloaded = shown(setup, topic, replay="true")
        found = replayed(unloaded)
        # Eight messages of one producer, two commits and an abort. A coordinator that had no response in time ends a
        # transaction again, and the broker writes one more marker.
        entries, markers = unloaded["replay"]["entries"], unloaded["replay"]["markers"]
        assert (entries - markers, markers >= 3) == (8, True)
        assert sorted(found.values()) == [0, 7], "a broker numbers its markers 0"
        assert last_ids(setup, topic, *found) == found
        assert setup.replayed(topic)[-1] == entries

        # Four messages in transactions, of which two are committed, one is aborted and one is open.
        store = setup.cluster.addresses.metadata_store_url
        (stored,) = verify_stored(VerifyRequest(str(topic), StoredMessagesRequest(store)), lambda text: None)
        kinds = {MessageKind.MESSAGE: 4, MessageKind.TRANSACTIONAL: 4, MessageKind.MARKER: markers}
        assert (stored.rows, stored.result) == (kinds, TopicResult.CLEAN)
        (counts,) = stored.producers.values()
        assert (counts.messages, counts.transactional, counts.last_sequence_id) == (8, 4, 7)
        extract = [namespace, "--output", str(tmp_path / "extract"), "--metadata-store-url", store]
        ran = run_command("deduplication", "extract", *extract, "--format", "json")
        assert ran.json["unseen"] == {}, "what a subscription notes of transactions is no message"


def test_messages_behind_an_open_transaction_are_not_taken_for_absent(
    setup: Setup, transact: Callable[[str], None], tmp_path: Path
) -> None:
    """Readers get nothing behind it, so a published file that is read back looks as if its end was not stored."""
    addresses, file = setup.cluster.addresses, tmp_path / "lines"
    file.write_bytes(b"a line\n" * 50)
    with setup.namespace(deduplication=True) as namespace:
        topic = setup.topic(namespace)
        command = (
            *("--output", "json", "publish", str(file), str(topic), "--producer-name", "loader"),
            *("--broker-service-url", addresses.broker_service_url, "--web-service-url", addresses.web_service_urls[0]),
        )
        assert run_command(*command).json["stored"] == 50
        transact(f"{topic} in-transactions")
        file.write_bytes(b"a line\n" * 70)
        assert run_command(*command).json["stored"] == 20
        entries = stored_entries(setup, topic)
        forget(setup, topic)
        checkpoint_path(file, "loader").unlink()
        refused = run_command(*command)
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert "1 transactions are open and hide the messages after them" in refused.stderr
        transact("commit")
        published = run_command(*command).json
        assert (published["storedEarlier"], published["stored"]) == (70, 0)
        assert stored_entries(setup, topic) == entries + 1, "the marker of the commit, which no reader gets"


def stored_entries(setup: Setup, topic: TopicName) -> int:
    return int(setup.workload.admin("GET", setup.workload.of_topic(topic, "internalStats"))["numberOfEntries"])


def forget(setup: Setup, topic: TopicName) -> None:
    """Switched off and on, a broker has forgotten every name."""
    for is_on, status in ((False, "Disabled"), (True, "Enabled")):
        setup.workload.admin("POST", setup.workload.of_topic(topic, "deduplicationEnabled"), is_on)
        until(lambda status=status: setup.status(topic) == status, status)


def test_a_cursor_whose_ledger_is_gone_is_a_broker_that_forgets(setup: Setup) -> None:
    with setup.namespace(deduplication=True) as namespace:
        topic = setup.topic(namespace)
        publish(setup, topic, "early", *range(30))
        publish(setup, topic, "late", *range(90))
        path = cursor_path(topic.managed_ledger_name, DEDUPLICATION_CURSOR)
        node = setup.workload.store.read(path)
        assert node is not None
        cursor_ledger = cursor_references(node.data).cursor_ledger
        assert cursor_ledger is not None
        assert shown(setup, topic)["snapshot"]["ledgerId"] == cursor_ledger
        setup.cluster.kill(BROKER)
        setup.workload.store.delete(ledger_path(cursor_ledger))
        setup.cluster.restart(BROKER)
        lost = shown(setup, topic, replay="true")
        assert lost["snapshot"]["lost"] == f"the cursor's ledger {cursor_ledger} is gone"
        assert (lost["snapshot"]["names"], lost["problem"]) == (0, None)
        found = replayed(lost)
        assert last_ids(setup, topic, "early", "late") == {name: found.get(name, -1) for name in ("early", "late")}
        assert setup.replayed(topic)[-1] == lost["since"]["entries"]


def test_sequence_ids_beyond_javas_long_and_decreasing_ones(setup: Setup) -> None:
    with setup.namespace(deduplication=True) as namespace:
        topic = setup.topic(namespace)
        connections = BinaryConnections(ClientCredentials(), TlsOptions(), SystemClock())
        with closing(connections):
            owners = TopicOwners(setup.cluster.addresses.broker_service_url, connections)
            sender = BrokerDuplicates(owners, SystemClock())
            assert len(sender.send_all(topic, "huge", [2**63])) == 1
            sender.send_all(topic, "largest", [2**63 - 1])
        # While deduplication is off nothing keeps a producer from going back.
        enabled = setup.workload.of_topic(topic, "deduplicationEnabled")
        publish(setup, topic, "back", 50)
        setup.workload.unload(topic)
        found = replayed(shown(setup, topic, replay="true"))
        assert last_ids(setup, topic, "huge", "largest", "back") == found
        assert found["largest"] == 2**63 - 1
        setup.workload.admin("POST", enabled, False)
        until(lambda: setup.status(topic) == "Disabled", "the policy is in effect")
        off = shown(setup, topic)
        assert (off["decision"]["level"], off["decision"]["enabled"], off["snapshot"]) == ("topic", False, None)
        assert off["held"] == {"ledgers": [], "sizeBytes": 0}


def test_system_topics_partitions_and_unknown_topics(setup: Setup) -> None:
    with setup.namespace(deduplication=True) as namespace:
        orders = parse_topic_name(f"persistent://{namespace}/orders-{unique()}")
        setup.workload.admin("PUT", setup.workload.of_topic(orders, "partitions"), 2)
        publish(setup, orders.partition(0), "p", *range(130))
        publish(setup, orders.partition(1), "p", 7)
        setup.workload.admin("POST", setup.workload.of_topic(orders, "deduplicationEnabled"), True)
        until(lambda: shown(setup, orders.partition(0))["decision"]["level"] == "topic", "the topic's policy is known")
        path = setup.workload.of_topic(orders, "deduplication")
        first, second = setup.call("GET", path, replay="true")
        assert [first["topic"], second["topic"]] == [str(orders.partition(0)), str(orders.partition(1))]
        assert (replayed(first), replayed(second)) == ({"p": 129}, {"p": 7})
        # Six full ledgers are before the snapshot, at the end of the fifth.
        position = [int(number) for number in first["snapshot"]["position"].split(":")]
        assert first["held"]["ledgers"] == first["heldAlone"]["ledgers"]
        assert all(ledger >= position[0] for ledger in first["held"]["ledgers"])
        events = parse_topic_name(f"persistent://{namespace}/__change_events")
        system = shown(setup, events)
        assert (system["decision"]["enabled"], system["snapshot"]) == (False, None)
        assert "brokers never deduplicate a system topic" in system["decision"]["reason"]
        missing = setup.sidecar.request("GET", f"/admin/v2/persistent/{namespace}/none/deduplication")
        assert missing.status_code == 404
        ran = setup.sidecar.command("deduplication", "show", str(orders), "--replay")
        assert ran.exit_code == 0, ran
        assert "enabled by the topic's own policy" in ran.stdout
