"""Topics of clients on a real cluster, with ledgers of every kind, and the references to these ledgers.

Invariant: this module reads the metadata store and the bookies directly, never by the code under test.
"""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import _pulsar
import pulsar
import pulsar.schema
import requests
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.metadata_stores import open_store, open_whole_store
from pulsar_sidecar.adapters.zookeeper.whole_store import LiveTree
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerMetadata, LedgerType
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import CursorName, TopicName, java_url_decode, java_url_encode, parse_topic_name
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.compaction import CompactedLedgers
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import (
    DEFAULT_LEDGERS_ROOT,
    cursor_path,
    ledger_path,
    managed_ledger_path,
    schema_path,
)
from pulsar_sidecar.ownership.references import cursor_references, managed_ledger_references, schema_references

from tests.cluster.clients import PatientClient
from tests.cluster.patience import OPERATION_SECONDS, holds_soon, until
from tests.cluster.running import ClusterUnderTest

KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
KEEP_NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
ENTRIES_PER_LEDGER = 2
"""``managedLedgerMaxEntriesPerLedger`` of the brokers in these tests."""

_RECEIVE_MS = 60_000
_STORED_SECONDS = 20
_REQUEST_SECONDS = OPERATION_SECONDS


@dataclass(frozen=True, slots=True)
class TopicLedgers:
    """All ledgers that a topic references, by use; cursors and buckets by subscription."""

    topic: TopicName
    data: frozenset[LedgerId] = frozenset()
    cursors: Mapping[str, LedgerId] = field(default_factory=dict)
    schema: frozenset[LedgerId] = frozenset()
    compacted: frozenset[LedgerId] = frozenset()
    buckets: Mapping[str, frozenset[LedgerId]] = field(default_factory=dict)

    @property
    def all(self) -> frozenset[LedgerId]:
        return frozenset(document["ledgerId"] for document in self.records())

    def of(self, component: LedgerComponent) -> frozenset[LedgerId]:
        """Return the ledgers of a component."""
        return frozenset(
            document["ledgerId"] for document in self.records() if document["ledgerComponent"] == component.value
        )

    def records(self) -> list[dict[str, Any]]:
        """Return a PIP-186 record of each ledger."""
        topic, schema_id = self.topic, self.topic.schema_id
        buckets = [(name, ledger_id) for name, found in self.buckets.items() for ledger_id in sorted(found)]
        return [
            *(record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id) for ledger_id in sorted(self.data)),
            *(
                record(topic, LedgerComponent.MANAGED_CURSOR, id_, cursorName=name)
                for name, id_ in self.cursors.items()
            ),
            *(record(topic, LedgerComponent.SCHEMA_STORAGE, id_, schemaId=schema_id) for id_ in sorted(self.schema)),
            *(record(topic, LedgerComponent.COMPACTED_LEDGER, ledger_id) for ledger_id in sorted(self.compacted)),
            *(record(topic, LedgerComponent.DELAYED_INDEX_BUCKET, id_, cursorName=name) for name, id_ in buckets),
        ]


def record(topic: TopicName, component: LedgerComponent, ledger_id: int, **more: object) -> dict[str, Any]:
    """Return a PIP-186 record of a ledger in BookKeeper, in JSON's form."""
    return {
        "topicName": str(topic),
        "ledgerComponent": component.value,
        "ledgerType": LedgerType.LEDGER.value,
        "ledgerId": ledger_id,
        **more,
    }


class Workload:
    """A client of the cluster that fills topics, with access to the metadata store."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self.cluster = cluster
        addresses = cluster.addresses
        self._urls = addresses.web_service_urls
        self.client = PatientClient(addresses)
        url, clock = addresses.metadata_store_url, SystemClock()
        self.store = open_store(url, clock)
        self.tree = LiveTree(open_whole_store(url, clock, DEFAULT_LEDGERS_ROOT))
        self.entries = BookieEntries(BookieConnections(self.store))
        self.compacted = CompactedLedgers(self.store, self.entries, DEFAULT_LEDGERS_ROOT)

    def close(self) -> None:
        self.entries.close()
        self.store.close()
        self.client.close()

    # --- requests to brokers ---------------------------------------------------------------------------------------

    def request(self, method: str, path: str, body: object = None, **params: str) -> requests.Response:
        """Make a call of the admin REST API, following redirects, and return any response."""
        return requests.request(
            method, f"{self._urls[0]}/admin/v2/{path}", json=body, params=params, timeout=_REQUEST_SECONDS
        )

    def admin(self, method: str, path: str, body: object = None, **params: str) -> Any:
        """Make a call that must succeed, and return its JSON."""
        answer = self.request(method, path, body, **params)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text[:300]}"
        return answer.json() if answer.content else None

    def of_topic(self, topic: TopicName, verb: str = "") -> str:
        """Return the path of a topic's call."""
        place = f"{topic.domain.value}/{topic.namespace}/{java_url_encode(topic.local_name)}"
        return f"{place}/{verb}" if verb else place

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace without trimming, so that only tests change the references of topics."""
        everything = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.admin("PUT", f"namespaces/{namespace}", {"retention_policies": everything})

    def unload(self, topic: TopicName) -> None:
        """Unload the topic from its broker, with its cursors' state."""
        self._unload(self.of_topic(topic, "unload"))

    def unload_namespace(self, namespace: str) -> None:
        """Unload all topics of the namespace."""
        self._unload(f"namespaces/{namespace}/unload")

    def _unload(self, path: str) -> None:
        until(lambda: self._is_done("PUT", path), f"brokers do {path}")

    def _is_done(self, method: str, path: str) -> bool:
        """Return True if a call succeeds; it may fail while a bundle moves or its broker dies."""
        try:
            return self.request(method, path).ok
        except requests.RequestException:
            return False

    def delete_plainly(self, topic: TopicName) -> None:
        """Delete by Pulsar itself, without records."""
        self.admin("DELETE", self.of_topic(topic), force="true")

    # --- filling ---------------------------------------------------------------------------------------------------

    def produce(self, topic: TopicName, payloads: Iterable[bytes], key: str | None = None) -> None:
        """Produce an entry for each payload."""
        producer = self.client.create_producer(str(topic), batching_enabled=False)
        for payload in payloads:
            producer.send(payload, partition_key=key)
        producer.close()

    def fill(self, topic: TopicName, ledgers: int = 3) -> list[bytes]:
        """Write ``ledgers`` ledgers, the last one half full and open, and return the payloads."""
        payloads = [f"{topic.local_name} {n}".encode() for n in range(ENTRIES_PER_LEDGER * ledgers - 1)]
        self.produce(topic, payloads)
        return payloads

    def first(self, topic: TopicName, subscription: str) -> bytes:
        """Return a subscription's first message, without acknowledging it."""
        consumer = self.client.subscribe(str(topic), subscription)
        payload = bytes(consumer.receive(timeout_millis=_RECEIVE_MS).data())
        consumer.close()
        return payload

    def subscribe(self, topic: TopicName, subscription: str, acknowledge: int = 0) -> None:
        """Create a durable subscription from the beginning, with acknowledged messages and no connected consumer."""
        tries = itertools.count()

        def is_stored() -> bool:
            consumer = self.client.subscribe(
                str(topic), subscription, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
            )
            if next(tries):
                consumer.seek(pulsar.MessageId.earliest)
            for _ in range(acknowledge):
                consumer.acknowledge(consumer.receive(timeout_millis=_RECEIVE_MS))
            consumer.close()
            return not acknowledge or holds_soon(lambda: subscription in self.ledgers(topic).cursors, _STORED_SECONDS)

        # A broken connection loses acknowledgements without an error of the client. A broker that could not store one,
        # because no bookies answered, ignores a repetition as known.
        until(is_stored, f"the cursor {subscription} has a ledger")

    def store_schemas(self, topic: TopicName, versions: int) -> None:
        """Store versions of a schema, each with another optional field; by one partition of a partitioned topic."""
        for count in range(1, versions + 1):
            fields = [{"name": f"f{n}", "type": ["null", "string"], "default": None} for n in range(count)]
            definition = {"type": "record", "name": "R", "fields": fields}
            schema = pulsar.schema.Schema(None, _pulsar.SchemaType.AVRO, definition, "AVRO")
            self.client.create_producer(str(topic), schema=schema).close()

    def delete_schemas(self, topic: TopicName) -> requests.Response:
        """Delete all versions of a topic's schema, with their ledgers."""
        return self.request("DELETE", f"schemas/{topic.namespace}/{topic.local_name}/schema", force="true")

    def compact(self, topic: TopicName) -> None:
        """Run compaction and wait for its end; brokers also compact their own topics each minute."""

        def begin() -> bool:
            answer = self.request("PUT", self.of_topic(topic, "compaction"))
            assert answer.ok or answer.status_code == requests.codes.conflict, answer.text
            return answer.ok

        until(begin, f"no other compaction of {topic} is under way")
        until(
            lambda: self.admin("GET", self.of_topic(topic, "compaction"))["status"] == "SUCCESS",
            f"{topic} is compacted",
        )

    def delay(self, topic: TopicName, subscription: str, messages: int = 12) -> None:
        """Publish messages delayed by an hour, and wait until brokers have written their index to buckets."""
        consumer = self.client.subscribe(str(topic), subscription, consumer_type=pulsar.ConsumerType.Shared)
        producer = self.client.create_producer(str(topic), batching_enabled=False)
        for n in range(messages):
            producer.send(f"later {n}".encode(), deliver_after=timedelta(hours=1, seconds=n))
        until(lambda: self.ledgers(topic).buckets.get(subscription), f"the delayed index of {topic} has buckets")
        producer.close()
        consumer.close()

    def fill_with_everything(self, topic: TopicName) -> TopicLedgers:
        """Create a loaded topic with ledgers of every kind, and return its `ledgers`."""
        self.store_schemas(topic, 3)
        self.subscribe(topic, "plain")
        self.produce(topic, [f"value {n}".encode() for n in range(5)], key="key")
        self.subscribe(topic, "plain", acknowledge=2)
        self.delay(topic, "delayed")
        self.compact(topic)
        found = until(lambda: self._complete(topic), f"{topic} has ledgers of every kind")
        assert len(found.schema) == 3
        return found

    def _complete(self, topic: TopicName) -> TopicLedgers | None:
        found = self.ledgers(topic)
        return found if all(found.of(component) for component in LedgerComponent) else None

    # --- reading back ----------------------------------------------------------------------------------------------

    def read_all(self, topic: TopicName, *, compacted: bool = False) -> list[bytes]:
        """Return all messages from the beginning, as a reader gets them; each producer writes a payload once.

        After a broken connection a client resends stored messages, which brokers without deduplication store twice.
        """
        reader = self.client.create_reader(str(topic), pulsar.MessageId.earliest, is_read_compacted=compacted)
        found: dict[tuple[str, bytes], None] = {}
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=_RECEIVE_MS)
            found[message.producer_name(), bytes(message.data())] = None
        reader.close()
        return [payload for _, payload in found]

    # --- the metadata store ----------------------------------------------------------------------------------------

    def ledgers(self, topic: TopicName) -> TopicLedgers:
        """Return the topic's current references; empty sets for a topic that does not exist."""

        def look() -> TopicLedgers | None:
            try:
                return self._ledgers(topic)
            except TemporaryError:
                # The compaction cursor's ledger vanished during the read of its last entry: the topic is being deleted.
                return None

        return until(look, f"what {topic} references can be read")

    def _ledgers(self, topic: TopicName) -> TopicLedgers:
        name = topic.managed_ledger_name
        path = managed_ledger_path(name)
        node = self.store.read(path)
        names = [CursorName(child) for child in self.store.children(path) or []]
        nodes = self.store.read_many([cursor_path(name, cursor) for cursor in names])
        cursors = {
            cursor: cursor_references(found.data)
            for cursor, found in zip(names, nodes, strict=True)
            if found is not None
        }
        compaction = cursors.get(COMPACTION_CURSOR)
        schema = self.store.read(schema_path(topic.schema_id))
        return TopicLedgers(
            topic=topic,
            data=frozenset(managed_ledger_references(node.data).ledgers) if node else frozenset(),
            cursors={java_url_decode(c): r.cursor_ledger for c, r in cursors.items() if r.cursor_ledger is not None},
            schema=schema_references(schema.data) if schema else frozenset(),
            compacted=self.compacted.referenced(compaction) if compaction else frozenset(),
            buckets={java_url_decode(c): frozenset(r.buckets.values()) for c, r in cursors.items() if r.buckets},
        )

    def ledger_nodes(self, ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, Node]:
        """Return the existing metadata nodes."""
        ordered = sorted(ledger_ids)
        nodes = self.store.read_many([ledger_path(ledger_id) for ledger_id in ordered])
        return {ledger_id: node for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None}

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return the decoded metadata of an existing ledger."""
        node = self.store.read(ledger_path(ledger_id))
        assert node is not None, f"ledger {ledger_id} has no metadata"
        return decode_ledger_metadata(node.data)

    def existing(self, ledger_ids: Iterable[LedgerId]) -> frozenset[LedgerId]:
        """Return the ledgers that have metadata."""
        return frozenset(self.ledger_nodes(ledger_ids))

    def switch_repair(self, *, on: bool) -> None:
        """Switch auto-recovery, which removes marked nodes (``bookkeeper shell autorecovery``)."""
        path = f"{DEFAULT_LEDGERS_ROOT}/underreplication/disable"
        if on:
            self.store.delete(path)
        elif self.store.read(path) is None:
            self.store.create(path, b"")

    # --- damage ----------------------------------------------------------------------------------------------------

    def leave_ledgers_behind(self, topic: TopicName, ledgers: TopicLedgers) -> dict[LedgerId, Node]:
        """Delete the topic by Pulsar and restore its ledgers' metadata, as if the broker's deletions had failed.

        The entries are still on the bookies, so these are orphans with data. Returns their nodes.
        """
        before = self.ledger_nodes(ledgers.all)
        self.delete_plainly(topic)
        until(lambda: not self.existing(ledgers.all), f"the broker has deleted the ledgers of {topic}")
        for node in before.values():
            self.store.create(node.path, node.data)
        return self.ledger_nodes(before)


def unique() -> str:
    """Return a unique part of a name, not from the seeded rng, so that a test can repeat on the same cluster."""
    return uuid.uuid4().hex[:8]


def numbered_topics(namespace: str, count: int) -> Sequence[TopicName]:
    """Return names of numbered topics."""
    return [parse_topic_name(f"persistent://{namespace}/topic-{number}") for number in range(count)]


@contextmanager
def connected_consumer(workload: Workload, topic: TopicName, subscription: str) -> Iterator[pulsar.Consumer]:
    """Yield a connected consumer."""
    consumer = workload.client.subscribe(str(topic), subscription)
    try:
        yield consumer
    finally:
        consumer.close()
