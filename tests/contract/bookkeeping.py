"""Ledgers with entries to read, in memory and as a cluster's brokers write them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pulsar
import requests
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import CursorName, TopicName, parse_topic_name
from pulsar_sidecar.ownership import paths
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
)

from tests.cluster.clients import PatientClient
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.topics import unique
from tests.fakes.bookkeeper import FakeLedgerEntries, ledger_metadata_bytes


class FakeBookkeeping:
    """Ledgers with entries, still written to or closed, and the port under test."""

    def __init__(self) -> None:
        self.entries = FakeLedgerEntries()
        self._next_id = 0

    def open_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        return self._ledger(count, ledger_metadata_bytes(LedgerState.OPEN))

    def closed_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        return self._ledger(count, ledger_metadata_bytes(LedgerState.CLOSED, last_entry_id=count - 1))

    def _ledger(self, count: int, metadata: bytes) -> tuple[LedgerId, LedgerMetadata]:
        self._next_id += 1
        self.entries.put(self._next_id, *(f"entry {index}".encode() for index in range(count)))
        return LedgerId(self._next_id), decode_ledger_metadata(metadata)


class ClusterBookkeeping:
    """Ledgers that brokers write because topics are written to."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._admin_url = cluster.addresses.web_service_urls[0] + "/admin/v2/"
        self._client = PatientClient(cluster.addresses)
        self.store = ZooKeeperMetadataStore(cluster.addresses.metadata_store_url, SystemClock())
        self.entries = BookieEntries(BookieConnections(self.store))

    def close(self) -> None:
        self.entries.close()
        self.store.close()
        self._client.close()

    def open_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        topic = self.topic()
        self.produce(topic, *(f"entry {index}".encode() for index in range(count)))
        return self._only_ledger(topic)

    def closed_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        topic = self.topic()
        self.produce(topic, *(f"entry {index}".encode() for index in range(count)))
        self.admin("PUT", topic, "unload")
        until(lambda: self._only_ledger(topic)[1].state is LedgerState.CLOSED, f"the ledger of {topic} is closed")
        return self._only_ledger(topic)

    def topic(self) -> TopicName:
        return parse_topic_name(f"entries-{unique()}")

    def produce(self, topic: TopicName, *payloads: bytes, key: str | None = None) -> None:
        producer = self._client.create_producer(str(topic), batching_enabled=False)
        for payload in payloads:
            producer.send(payload, partition_key=key)
        producer.close()

    def consume(self, topic: TopicName, subscription: str, count: int) -> None:
        """Acknowledge ``count`` messages and leave the subscription there."""
        consumer = self._client.subscribe(str(topic), subscription, initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(count):
            consumer.acknowledge(consumer.receive(timeout_millis=OPERATION_SECONDS * 1000))
        consumer.close()

    @contextmanager
    def delayed(self, topic: TopicName, subscription: str, delay: timedelta) -> Iterator[Callable[[], None]]:
        """While a Shared consumer listens: sends one message for later at each call."""
        consumer = self._client.subscribe(str(topic), subscription, consumer_type=pulsar.ConsumerType.Shared)
        producer = self._client.create_producer(str(topic), batching_enabled=False)

        def send() -> None:
            producer.send(b"later", deliver_after=delay)

        yield send
        producer.close()
        consumer.close()

    def admin(self, method: str, topic: TopicName, verb: str, body: object = None) -> Any:
        place = f"{topic.namespace}/{topic.local_name}/{verb}"
        path = f"schemas/{place}" if verb == "schema" else f"{topic.domain.value}/{place}"
        response = requests.request(method, self._admin_url + path, json=body, timeout=OPERATION_SECONDS)
        response.raise_for_status()
        return response.json() if response.content else None

    def compact(self, topic: TopicName) -> None:
        self.admin("PUT", topic, "compaction")
        until(lambda: self.admin("GET", topic, "compaction")["status"] == "SUCCESS", f"{topic} is compacted")

    def node(self, path: str) -> Node:
        node = self.store.read(path)
        assert node is not None, path
        return node

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return decode_ledger_metadata(self.node(paths.ledger_path(ledger_id)).data)

    def cursor(self, topic: TopicName, cursor: str) -> CursorReferences:
        return cursor_references(self.node(paths.cursor_path(topic.managed_ledger_name, CursorName(cursor))).data)

    def compacted_ledgers_in_tail(self, topic: TopicName, count: int) -> list[LedgerId | None]:
        """Return the last entries' contents in the ``__compaction`` cursor's ledger; empty without such a ledger."""
        ledger_id = self.cursor(topic, "__compaction").cursor_ledger
        if ledger_id is None:
            return []
        tail = self.entries.read_tail(ledger_id, self.metadata(ledger_id), count)
        return [position_entry_compacted_ledger(entry.payload) for entry in tail]

    def _only_ledger(self, topic: TopicName) -> tuple[LedgerId, LedgerMetadata]:
        path = paths.managed_ledger_path(topic.managed_ledger_name)
        ledger_id = next(iter(managed_ledger_references(self.node(path).data).ledgers))
        return ledger_id, self.metadata(ledger_id)


Bookkeeping = FakeBookkeeping | ClusterBookkeeping
