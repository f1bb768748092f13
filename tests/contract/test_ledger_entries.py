"""How entries of ledgers are read, the same on the fake and on a cluster's bookies; and what only brokers write."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import pulsar
import pytest
import requests

from service.adapters.bookkeeper.bookie_addresses import RegisteredBookies
from service.adapters.bookkeeper.bookie_connections import BookieConnections
from service.adapters.bookkeeper.bookie_http import BookieHttp
from service.adapters.bookkeeper.bookie_wire import BookieEntries
from service.adapters.metadata.zookeeper import open_metadata_store
from service.ledger_ownership import paths
from service.ledger_ownership.claims import CompactedClaim, CursorClaim, DataClaim, SchemaClaim, read_claim
from service.ledger_ownership.ledger_metadata import decode_ledger_metadata
from service.ledger_ownership.ports import LedgerEntries
from service.ledger_ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
    schema_references,
)
from service.model.clocks import SystemClock
from service.model.errors import TemporaryError
from service.model.ids import BookieId, EntryId, LedgerId
from service.model.ledgers import LedgerMetadata, LedgerState
from service.model.metadata import Node
from service.model.names import CursorName, TopicName, parse_topic_name
from tests.cluster.running import ClusterUnderTest
from tests.fakes.bookkeeper import FakeLedgerEntries, ledger_metadata_bytes

NEVER_WRITTEN = LedgerId(2**40)
PATIENCE_SECONDS = 120


class Bookkeeping(Protocol):
    """Ledgers with entries, and the port under test."""

    @property
    def entries(self) -> LedgerEntries: ...

    def open_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        """A ledger that is still written to, with ``count`` entries."""
        ...

    def closed_ledger(self, count: int) -> tuple[LedgerId, LedgerMetadata]:
        """A closed ledger with ``count`` entries."""
        ...


class FakeBookkeeping:
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
        self._client = pulsar.Client(
            cluster.addresses.broker_service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        self.store = open_metadata_store(cluster.addresses.metadata_store_url, SystemClock())
        self.http = BookieHttp(cluster.addresses.bookie_http_urls)
        self.entries = BookieEntries(BookieConnections(RegisteredBookies(self.store).address))

    def close(self) -> None:
        self.entries.close()
        self.http.close()
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
        _until(lambda: self._only_ledger(topic)[1].state is LedgerState.CLOSED)
        return self._only_ledger(topic)

    def topic(self) -> TopicName:
        return parse_topic_name(f"entries-{uuid.uuid4().hex}")

    def produce(self, topic: TopicName, *payloads: bytes, key: str | None = None) -> None:
        producer = self._client.create_producer(str(topic), batching_enabled=False)
        for payload in payloads:
            producer.send(payload, partition_key=key)
        producer.close()

    def consume(self, topic: TopicName, subscription: str, count: int) -> None:
        """Acknowledge ``count`` messages and leave the subscription there."""
        consumer = self._client.subscribe(str(topic), subscription, initial_position=pulsar.InitialPosition.Earliest)
        for _ in range(count):
            consumer.acknowledge(consumer.receive(timeout_millis=PATIENCE_SECONDS * 1000))
        consumer.close()

    def admin(self, method: str, topic: TopicName, verb: str, body: object = None) -> Any:
        place = f"{topic.namespace}/{topic.local_name}/{verb}"
        path = f"schemas/{place}" if verb == "schema" else f"{topic.domain.value}/{place}"
        response = requests.request(method, self._admin_url + path, json=body, timeout=PATIENCE_SECONDS)
        response.raise_for_status()
        return response.json() if response.content else None

    def compact(self, topic: TopicName) -> None:
        self.admin("PUT", topic, "compaction")
        _until(lambda: self.admin("GET", topic, "compaction")["status"] == "SUCCESS")

    def node(self, path: str) -> Node:
        node = self.store.read(path)
        assert node is not None, path
        return node

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        return decode_ledger_metadata(self.node(paths.ledger_path(ledger_id)).data)

    def cursor(self, topic: TopicName, cursor: str) -> CursorReferences:
        return cursor_references(self.node(paths.cursor_path(topic.managed_ledger_name, CursorName(cursor))).data)

    def compacted_ledgers_in_tail(self, topic: TopicName, count: int) -> list[LedgerId | None]:
        """What the last entries of the ``__compaction`` cursor's ledger say; empty while there is no such ledger."""
        ledger_id = self.cursor(topic, "__compaction").cursor_ledger
        if ledger_id is None:
            return []
        tail = self.entries.read_tail(ledger_id, self.metadata(ledger_id), count)
        return [position_entry_compacted_ledger(entry.payload) for entry in tail]

    def _only_ledger(self, topic: TopicName) -> tuple[LedgerId, LedgerMetadata]:
        path = paths.managed_ledger_path(topic.managed_ledger_name)
        ledger_id = next(iter(managed_ledger_references(self.node(path).data).ledgers))
        return ledger_id, self.metadata(ledger_id)


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def real(cluster: ClusterUnderTest) -> Iterator[ClusterBookkeeping]:
    bookkeeping = ClusterBookkeeping(cluster)
    yield bookkeeping
    bookkeeping.close()


@pytest.fixture(params=["fake", "cluster"])
def bookkeeping(request: pytest.FixtureRequest) -> Bookkeeping:
    return FakeBookkeeping() if request.param == "fake" else request.getfixturevalue("real")


def test_the_tail_of_an_open_ledger(bookkeeping: Bookkeeping) -> None:
    ledger_id, metadata = bookkeeping.open_ledger(5)
    assert metadata.state is LedgerState.OPEN
    tail = bookkeeping.entries.read_tail(ledger_id, metadata, 2)
    assert [(entry.ledger_id, entry.entry_id) for entry in tail] == [(ledger_id, 3), (ledger_id, 4)]
    assert all(entry.payload.endswith(f"entry {entry.entry_id}".encode()) for entry in tail)
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 100)] == [0, 1, 2, 3, 4]
    assert bookkeeping.entries.readable(ledger_id, metadata)


def test_the_tail_of_a_closed_ledger(bookkeeping: Bookkeeping) -> None:
    ledger_id, metadata = bookkeeping.closed_ledger(3)
    assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 2)
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 2)] == [1, 2]
    assert [entry.entry_id for entry in bookkeeping.entries.read_tail(ledger_id, metadata, 9)] == [0, 1, 2]
    assert bookkeeping.entries.readable(ledger_id, metadata)


def test_a_closed_ledger_without_entries_is_readable(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.closed_ledger(1)
    empty = replace(metadata, last_entry_id=EntryId(-1))
    assert bookkeeping.entries.read_tail(NEVER_WRITTEN, empty, 3) == ()
    assert bookkeeping.entries.readable(NEVER_WRITTEN, empty)


def test_entries_that_bookies_do_not_hold(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.closed_ledger(1)
    with pytest.raises(TemporaryError):
        bookkeeping.entries.read_tail(NEVER_WRITTEN, metadata, 1)
    assert not bookkeeping.entries.readable(NEVER_WRITTEN, metadata)


def test_an_open_ledger_that_nobody_wrote_to(bookkeeping: Bookkeeping) -> None:
    _, metadata = bookkeeping.open_ledger(1)
    assert bookkeeping.entries.read_tail(NEVER_WRITTEN, metadata, 3) == ()
    assert not bookkeeping.entries.readable(NEVER_WRITTEN, metadata)


def test_asking_unfenced_keeps_the_writer_writing(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, b"before")
    [ledger_id] = managed_ledger_references(
        real.node(paths.managed_ledger_path(topic.managed_ledger_name)).data
    ).ledgers
    real.entries.read_tail(ledger_id, real.metadata(ledger_id), 1)
    real.produce(topic, b"after")
    tail = real.entries.read_tail(ledger_id, real.metadata(ledger_id), 9)
    assert [entry.payload.endswith(text) for entry, text in zip(tail, (b"before", b"after"), strict=True)] == [True] * 2
    assert real.metadata(ledger_id).state is LedgerState.OPEN


def test_too_few_bookies_is_no_absence(real: ClusterBookkeeping) -> None:
    ledger_id, metadata = real.open_ledger(2)
    nobody = tuple(BookieId("127.0.0.1:1") for _ in metadata.segments[-1].ensemble)
    unreachable = replace(metadata, segments=(replace(metadata.segments[-1], ensemble=nobody),))
    with pytest.raises(TemporaryError):
        real.entries.read_tail(ledger_id, unreachable, 1)
    with pytest.raises(TemporaryError):
        real.entries.readable(ledger_id, replace(unreachable, state=LedgerState.CLOSED, last_entry_id=EntryId(1)))


def test_a_cursors_position_is_in_the_tail_of_its_ledger(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, *[b"message"] * 4)
    real.consume(topic, "a b/c", 3)
    _until(lambda: real.cursor(topic, "a+b%2Fc").cursor_ledger is not None)
    ledger_id = real.cursor(topic, "a+b%2Fc").cursor_ledger
    assert ledger_id is not None
    claim = read_claim(real.metadata(ledger_id).custom_metadata)
    assert claim == CursorClaim(topic.managed_ledger_name, CursorName("a+b%2Fc"))
    _until(lambda: bool(real.entries.read_tail(ledger_id, real.metadata(ledger_id), 1)))
    tail = real.entries.read_tail(ledger_id, real.metadata(ledger_id), 3)
    assert [position_entry_compacted_ledger(entry.payload) for entry in tail] == [None] * len(tail) != []


def test_the_compacted_ledger_is_found_where_only_the_cursors_ledger_names_it(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.consume(topic, "reader", 0)
    real.produce(topic, *[b"value"] * 3, key="key")
    real.compact(topic)
    brokers_own = real.admin("GET", topic, "internalStats")["compactedLedger"]["ledgerId"]
    # A broker writes positions at a limited rate, else within a minute; until then it alone knows the new ledger.
    _until(lambda: real.compacted_ledgers_in_tail(topic, 1) == [brokers_own])
    assert read_claim(real.metadata(LedgerId(brokers_own)).custom_metadata) == CompactedClaim(topic)

    real.admin("PUT", topic, "unload")
    _until(lambda: real.cursor(topic, "__compaction").cursor_ledger is None)
    assert real.cursor(topic, "__compaction").compacted_ledger == brokers_own


def test_every_version_of_a_schema_is_referenced(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    optional_field = {"name": "a", "type": ["null", "int"], "default": None}
    for fields in ([], [optional_field]):
        definition = json.dumps({"type": "record", "name": "R", "fields": fields})
        real.admin("POST", topic, "schema", {"type": "AVRO", "schema": definition, "properties": {}})
    ledgers = schema_references(real.node(paths.schema_path(topic.schema_id)).data)
    assert len(ledgers) == 2
    assert {read_claim(real.metadata(each).custom_metadata) for each in ledgers} == {SchemaClaim(topic.schema_id)}


def test_a_data_ledger_says_whose_it_is(real: ClusterBookkeeping) -> None:
    topic = real.topic()
    real.produce(topic, b"one")
    references = managed_ledger_references(real.node(paths.managed_ledger_path(topic.managed_ledger_name)).data)
    claims = {read_claim(real.metadata(each).custom_metadata) for each in references.ledgers}
    assert claims == {DataClaim(topic.managed_ledger_name)}


def test_deleting_through_a_bookie_is_unconditional_and_idempotent(real: ClusterBookkeeping) -> None:
    ledger_id, metadata = real.closed_ledger(1)
    assert real.http.heartbeat()
    assert ledger_id in real.http.ledger_ids()
    assert real.http.ledger_exists(ledger_id)
    real.http.delete(ledger_id)
    real.http.delete(ledger_id)
    assert not real.http.ledger_exists(ledger_id)
    assert not real.http.ledger_exists(NEVER_WRITTEN)
    assert real.store.read(paths.ledger_path(ledger_id)) is None
    assert real.entries.readable(ledger_id, metadata), "bookies keep the entries until they collect"
