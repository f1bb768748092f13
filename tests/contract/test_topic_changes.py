"""Guarantees of watching topics' own nodes, in memory and on a real server, and while connections break."""

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pytest
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.metadata_stores import open_store, open_topic_changes, open_whole_store
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperTopicChanges
from pulsar_sidecar.features.ledger_deletion.watch.ports import ChangesLostError, TopicChanges
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_index import ShadowIndex
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.cluster.patience import PATIENCE_SECONDS
from tests.contract.metadata_store_servers import (
    CLOCK,
    PATIENT,
    LoneZooKeeper,
    arm_in_time,
    expire,
    open_patiently,
    raw_client,
)
from tests.contract.test_store_changes_faults import cut, wait_for_another
from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.watched_store import FakeTopicChanges

V0 = NodeVersion(0)
TOPIC = "/managed-ledgers/t/n/persistent/a%2Fb"
PARTITIONED = "/admin/partitioned-topics/t/c/n/persistent/name-%E2%9C%93"
SOURCE = "persistent://public/default/orders"
BUSY_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A store, and the watch of its topics."""

    store: MetadataStore
    changes: TopicChanges


@pytest.fixture
def unarmed(store_url: str | None) -> Iterator[Watched]:
    if store_url is None:
        fake = FakeMetadataStore()
        yield Watched(fake, FakeTopicChanges(fake.other_session(), FakeClock()))
        return
    with (
        open_store(store_url, CLOCK, PATIENT) as store,
        closing(open_topic_changes(store_url, CLOCK, PATIENT)) as changes,
    ):
        yield Watched(store, changes)


@pytest.fixture
def watched(unarmed: Watched) -> Watched:
    unarmed.changes.arm()
    return unarmed


@pytest.mark.parametrize("path", [TOPIC, PARTITIONED, "/managed-ledgers/t/persistent/persistent/x"])
def test_what_becomes_of_a_topics_node_is_named_once(watched: Watched, path: str) -> None:
    watched.store.create(path, b"1")
    assert watched.changes.catch_up() == (path,)
    assert watched.changes.catch_up() == ()
    watched.store.write(path, b"1", V0)
    watched.store.write(path, b"2", NodeVersion(1))
    assert watched.changes.catch_up() == (path,)
    watched.store.delete(path)
    assert watched.changes.catch_up() == (path,)


@pytest.mark.parametrize(
    "path",
    [
        f"{TOPIC}/cursor",
        "/managed-ledgers/t/n/non-persistent/a",
        "/admin/policies/t/n/persistent/a",
        "/schemas/t/n/persistent",
        "/ledgers/00/0000/L0007",
    ],
)
def test_other_nodes_are_not_named(watched: Watched, path: str) -> None:
    watched.store.create(TOPIC, b"")
    watched.changes.catch_up()
    watched.store.create(path, b"")
    watched.store.write(path, b"1", V0)
    watched.store.delete(path)
    assert watched.changes.catch_up() == ()


def test_a_change_is_named_by_the_next_call(watched: Watched) -> None:
    for number in range(300):
        watched.store.create(f"{TOPIC}-{number}", b"")
        assert watched.changes.catch_up() == (f"{TOPIC}-{number}",)


def test_nothing_is_heard_before_arming_and_arming_again_forgets(unarmed: Watched) -> None:
    with pytest.raises(ChangesLostError):
        unarmed.changes.catch_up()
    unarmed.changes.arm()
    unarmed.store.create(TOPIC, b"")
    unarmed.changes.arm()
    # Events in flight when the watches are set again may be reported.
    assert unarmed.changes.catch_up() in ((), (TOPIC,))
    unarmed.store.create(PARTITIONED, b"")
    assert unarmed.changes.catch_up() == (PARTITIONED,)
    unarmed.changes.close()
    unarmed.changes.close()
    with pytest.raises(ChangesLostError):
        unarmed.changes.catch_up()


# Connections that break ------------------------------------------------------------------------------------------


def listen(url: str) -> ZooKeeperTopicChanges:
    return ZooKeeperTopicChanges(url, CLOCK, options=SessionOptions(4_000, 10.0))


@pytest.mark.parametrize("way", ["cut", "expired", "restarted"])
def test_a_connection_that_came_back_between_two_calls_is_noticed(zookeeper: LoneZooKeeper, url: str, way: str) -> None:
    with open_patiently(url) as store, closing(listen(url)) as changes:
        changes.arm()
        client = changes._session._client
        before = client._connection._socket
        match way:
            case "cut":
                cut(changes)
            case "expired":
                expire(client, zookeeper.url)
            case _:
                zookeeper.restart()
        wait_for_another(before, changes)
        store.read("/")
        store.create(TOPIC, b"")
        for _ in range(2):
            with pytest.raises(ChangesLostError):
                changes.catch_up()
        arm_in_time(changes)
        store.create(PARTITIONED, b"")
        assert changes.catch_up() == (PARTITIONED,)


def test_without_a_server_nothing_is_known(zookeeper: LoneZooKeeper, url: str) -> None:
    with closing(ZooKeeperTopicChanges(url, CLOCK, options=SessionOptions(4_000, 2.0))) as changes:
        changes.arm()
        zookeeper.kill()
        try:
            for _ in range(2):
                with pytest.raises(TemporaryError):
                    changes.catch_up()
        finally:
            zookeeper.restart()
        arm_in_time(changes)
        assert changes.catch_up() == ()


def test_an_index_misses_no_shadow_while_connections_break(zookeeper: LoneZooKeeper, url: str) -> None:
    """Each shadow is named by a look that begins after it was made, or the look fails; and so is each removal."""
    source = parse_topic_name(SOURCE)
    stop, enough = threading.Event(), threading.Event()
    with (
        open_patiently(url) as store,
        raw_client(url) as writer,
        closing(listen(url)) as changes,
        ThreadPoolExecutor(2) as pool,
    ):
        store.create("/managed-ledgers/t/n/persistent/x", managed_ledger_bytes([1]))
        index = ShadowIndex(store, open_whole_store(url, CLOCK, DEFAULT_LEDGERS_ROOT), changes, CLOCK, stop)
        running = pool.submit(index.run)
        cutting = pool.submit(_cut_until, enough, changes)
        data = managed_ledger_bytes([1], properties={SHADOW_SOURCE: SOURCE})
        existing: set[str] = set()
        looks = failures = 0
        deadline = CLOCK.monotonic_seconds() + BUSY_SECONDS
        try:
            while CLOCK.monotonic_seconds() < deadline or looks < 100:
                name = f"shadow-{random.randrange(50)}"
                path = f"/managed-ledgers/t/n/persistent/{name}"
                if name in existing:
                    writer.delete_async(path).get()
                else:
                    writer.create_async(path, data).get()
                existing ^= {name}
                try:
                    found = {shadow.topic.local_name for shadow in index.shadows_of({source})}
                except TemporaryError:
                    failures += 1
                    continue
                looks += 1
                assert found == existing
        finally:
            enough.set()
            stop.set()
            index.wake()
        cutting.result(PATIENCE_SECONDS)
        running.result(PATIENCE_SECONDS)
    assert looks >= 100, failures


def _cut_until(enough: threading.Event, changes: ZooKeeperTopicChanges) -> None:
    while not CLOCK.wait_seconds(random.uniform(0.1, 0.5), enough):
        cut(changes)


def test_looks_of_many_threads_are_answered_by_few_requests(url: str) -> None:
    source, stop = parse_topic_name(SOURCE), threading.Event()
    with open_patiently(url) as store, closing(listen(url)) as changes, ThreadPoolExecutor(51) as pool:
        index = ShadowIndex(store, open_whole_store(url, CLOCK, DEFAULT_LEDGERS_ROOT), changes, CLOCK, stop)
        running = pool.submit(index.run)
        try:
            for number in range(20):
                store.create(f"{TOPIC}-{number}", managed_ledger_bytes([1], properties={SHADOW_SOURCE: SOURCE}))
                looks = [pool.submit(partial(index.shadows_of, {source})) for _ in range(50)]
                assert {len(look.result(PATIENCE_SECONDS)) for look in looks} == {number + 1}
        finally:
            stop.set()
            index.wake()
        running.result(PATIENCE_SECONDS)
