"""Verification of what real clients and brokers store: duplicates by construction are found, and nothing else is."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.parquet as pq
import pytest
import requests
from pulsar_sidecar.bootstrap.stored_messages import verify_stored
from pulsar_sidecar.features.duplicates.extracts.tables import MESSAGES
from pulsar_sidecar.features.duplicates.findings import Producer
from pulsar_sidecar.features.duplicates.requests import StoredMessagesRequest, VerifyRequest
from pulsar_sidecar.features.duplicates.rows import FindingKind
from pulsar_sidecar.features.duplicates.verify import TopicResult, VerifiedTopic

from tests.cluster.certificates import write_key_pair
from tests.cluster.clients import PatientClient
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import run_command
from tests.cluster.topics import unique

DUPLICATE, REUSED, REPEATED, GOING_BACK, EPOCH = FindingKind
COMPRESSIONS = [
    pulsar.CompressionType.NONE,
    pulsar.CompressionType.LZ4,
    pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD,
    pulsar.CompressionType.SNAPPY,
]


@pytest.fixture
def client(cluster: ClusterUnderTest) -> Iterator[PatientClient]:
    made = PatientClient(cluster.addresses)
    yield made
    made.close()


def new_topic() -> str:
    return f"persistent://public/default/verified-{unique()}"


def request(cluster: ClusterUnderTest, topic: str) -> VerifyRequest:
    return VerifyRequest(topic, StoredMessagesRequest(cluster.addresses.metadata_store_url))


def verified(cluster: ClusterUnderTest, topic: str) -> VerifiedTopic:
    (only,) = verify_stored(request(cluster, topic), lambda text: None)
    return only


def findings_of(verified: VerifiedTopic) -> list[tuple[int, FindingKind]]:
    return [(finding.sequence_id, finding.kind) for finding in verified.findings]


@contextmanager
def producer(client: PatientClient, topic: str, name: str = "p", **options: Any) -> Iterator[pulsar.Producer]:
    made = client.create_producer(topic, producer_name=name, **options)
    yield made
    made.close()


def publish(
    client: PatientClient, topic: str, ids: range, *, payload: bytes = b"payload %d", name: str = "p", **options: Any
) -> None:
    """Publish under these ids; the payload repeats the id, so that equal ids are equal messages."""
    with producer(client, topic, name, **options) as made:
        for sequence_id in ids:
            made.send_async(payload % sequence_id, lambda result, message_id: None, sequence_id=sequence_id)
        made.flush()


def deduplicate(cluster: ClusterUnderTest, topic: str) -> None:
    url = f"{cluster.addresses.web_service_urls[0]}/admin/v2/{topic.replace('://', '/')}"
    requests.post(f"{url}/deduplicationEnabled", json=True, timeout=30).raise_for_status()
    until(
        lambda: requests.get(f"{url}/stats", timeout=30).json().get("deduplicationStatus") == "Enabled",
        "deduplication is on",
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_message_of_a_batch_is_compared(
    cluster: ClusterUnderTest, client: PatientClient, compression: pulsar.CompressionType
) -> None:
    topic = new_topic()
    batched = {"batching_enabled": True, "batching_max_publish_delay_ms": 500, "compression_type": compression}
    publish(client, topic, range(100, 150), **batched)
    publish(client, topic, range(140, 160), **batched)
    found = verified(cluster, topic)
    assert findings_of(found) == [(sequence_id, DUPLICATE) for sequence_id in range(140, 150)]
    counts = found.producers[Producer("p", None)]
    assert (counts.messages, counts.first_sequence_id, counts.last_sequence_id) == (70, 100, 159)
    assert found.entries < 70, "batches were made"
    assert (counts.unopened, counts.gaps, found.result) == (0, 0, TopicResult.FINDINGS)


def test_a_name_that_is_used_again(cluster: ClusterUnderTest, client: PatientClient) -> None:
    topic = new_topic()
    publish(client, topic, range(0, 20, 2), batching_enabled=False)
    publish(client, topic, range(6), batching_enabled=False, payload=b"another %d")
    publish(client, topic, range(20, 22), name="q")
    found = verified(cluster, topic)
    assert Counter(kind for _, kind in findings_of(found)) == {REUSED: 3, GOING_BACK: 3, EPOCH: 1}
    assert {finding.producer.name for finding in found.findings} == {"p"}
    assert found.producers[Producer("p", None)].gaps == 9


def test_chunked_messages_count_once(cluster: ClusterUnderTest, client: PatientClient) -> None:
    topic = new_topic()
    large = bytes(12 * 1024 * 1024)
    for ids in ((1, 2), (2,)):
        with producer(client, topic, batching_enabled=False, chunking_enabled=True) as made:
            for sequence_id in ids:
                made.send(large + b"%d" % sequence_id, sequence_id=sequence_id)
    found = verified(cluster, topic)
    assert findings_of(found) == [(2, DUPLICATE)]
    assert (found.producers[Producer("p", None)].messages, found.entries) == (3, 9)


def test_encrypted_messages_are_compared_by_their_ids_and_their_batches_prove_nothing(
    cluster: ClusterUnderTest, client: PatientClient, tmp_path: Path
) -> None:
    public, private = write_key_pair(tmp_path)
    encrypted = {"encryption_key": "key", "crypto_key_reader": pulsar.CryptoKeyReader(str(public), str(private))}
    topic = new_topic()
    publish(client, topic, range(1, 4), batching_enabled=False, **encrypted)
    single = verified(cluster, topic)
    assert (single.producers[Producer("p", None)].unopened, single.unseen, single.result) == (3, (), TopicResult.CLEAN)
    publish(client, topic, range(3, 4), batching_enabled=False, **encrypted)
    assert findings_of(verified(cluster, topic)) == [(3, REPEATED)], "the same message encrypted again has other bytes"

    topic = new_topic()
    publish(client, topic, range(1, 11), batching_enabled=True, batching_max_publish_delay_ms=500, **encrypted)
    batched = verified(cluster, topic)
    counts = batched.producers[Producer("p", None)]
    assert 1 <= counts.unopened_batches <= batched.entries < 10
    assert (batched.findings, batched.result) == ((), TopicResult.NOT_PROVEN)


def test_a_broker_that_deduplicates_leaves_a_clean_topic(cluster: ClusterUnderTest, client: PatientClient) -> None:
    topic = new_topic()
    publish(client, topic, range(1), name="first")
    deduplicate(cluster, topic)
    publish(client, topic, range(50), name="batches", batching_enabled=True)
    for _ in range(2):
        with producer(client, topic, batching_enabled=False) as made:
            # The client takes 0 for no id at all, and numbers such a message itself.
            for sequence_id in range(1, 11):
                made.send(b"payload", sequence_id=sequence_id)
    found = verified(cluster, topic)
    assert (found.findings, found.unseen, found.result) == ((), (), TopicResult.CLEAN)
    messages = {producer.name: counts.messages for producer, counts in found.producers.items()}
    assert messages == {"first": 1, "batches": 50, "p": 10}


def test_the_command(cluster: ClusterUnderTest, client: PatientClient) -> None:
    topic = new_topic()
    url = f"{cluster.addresses.web_service_urls[0]}/admin/v2/{topic.replace('://', '/')}/partitions"
    requests.put(url, json=2, timeout=30).raise_for_status()
    arguments = ["deduplication", "verify", topic, "--metadata-store-url", cluster.addresses.metadata_store_url]
    publish(client, f"{topic}-partition-0", range(5))
    publish(client, f"{topic}-partition-1", range(5))
    clean = run_command(*arguments)
    assert (clean.exit_code, clean.stdout.count("clean")) == (0, 2), clean.stderr
    publish(client, f"{topic}-partition-1", range(3, 4))
    found = run_command(*arguments, "--output", "json")
    assert found.exit_code == 2, found.stderr
    document = json.loads(found.stdout)
    assert [partition["verdict"] for partition in document["partitions"]] == ["clean", "findings"]
    assert [finding["sequenceId"] for finding in document["partitions"][1]["findings"]] == [3]
    gone = run_command("deduplication", "verify", f"{topic}-gone", "--metadata-store-url", arguments[-1])
    assert (gone.exit_code, "there is no topic" in gone.stderr) == (1, True)


def test_an_extract_of_a_namespace_holds_what_was_published(
    cluster: ClusterUnderTest, client: PatientClient, tmp_path: Path
) -> None:
    namespace = f"public/extracted-{unique()}"
    url = f"{cluster.addresses.web_service_urls[0]}/admin/v2/namespaces/{namespace}"
    requests.put(url, timeout=30).raise_for_status()
    first, second = (f"persistent://{namespace}/{name}" for name in ("first", "second"))
    publish(client, first, range(1, 101), batching_enabled=True)
    publish(client, second, range(1, 11), batching_enabled=False, compression_type=pulsar.CompressionType.ZSTD)
    arguments = ["--output", str(tmp_path / "extract"), "--metadata-store-url", cluster.addresses.metadata_store_url]
    ran = run_command("deduplication", "extract", namespace, *arguments, "--format", "json")
    assert ran.exit_code == 0, ran.stderr
    summary = json.loads(ran.stdout)
    assert summary["topics"] >= 2, "and brokers' own topics of the namespace"
    assert (summary["messages"], summary["unseen"]) == (110, {})
    rows = pq.read_table(tmp_path / "extract" / "messages", schema=MESSAGES).to_pylist()
    assert [(row["topic"], row["sequence_id"]) for row in rows] == [
        *((first, sequence_id) for sequence_id in range(1, 101)),
        *((second, sequence_id) for sequence_id in range(1, 11)),
    ]
    assert {row["payload_state"] for row in rows} == {0}
    assert run_command("deduplication", "extract", "public/nobody", *arguments).exit_code == 1
