"""Hearing of ZooKeeper's changes while connections break: missed changes are never ignored."""

import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult
from kazoo.protocol.states import ZnodeStat
from kazoo.security import make_digest_acl
from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreCredential, WalkOptions
from pulsar_sidecar.adapters.zookeeper.session import send
from pulsar_sidecar.adapters.zookeeper.whole_store import ZooKeeperWholeStore
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes, ChangesLostError
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path

from tests.cluster.patience import until
from tests.contract.metadata_store_servers import (
    CLOCK,
    PATIENT,
    LoneZooKeeper,
    Poison,
    arm_in_time,
    expire,
    open_patiently,
    raw_client,
    without_kazoo_log,
)

ROOT = DEFAULT_LEDGERS_ROOT
PATIENCE_SECONDS = 10.0
SESSION_TIMEOUT_MS = 4_000
SECRET = "sidecar:the-secret-of-the-test"
CUTS = 15


@pytest.fixture
def store(url: str) -> Iterator[ZooKeeperMetadataStore]:
    with open_patiently(url) as opened:
        yield opened


@pytest.fixture
def changes(url: str) -> Iterator[ZooKeeperChanges]:
    with closing(listen(url)) as opened:
        opened.arm()
        yield opened


def listen(
    url: str,
    credential: StoreCredential | None = None,
    call_timeout_seconds: float = PATIENCE_SECONDS,
    session_timeout_ms: int = SESSION_TIMEOUT_MS,
) -> ZooKeeperChanges:
    options = SessionOptions(session_timeout_ms, call_timeout_seconds, credential)
    return ZooKeeperChanges(url, CLOCK, ROOT, options=options)


def heard(changes: ZooKeeperChanges) -> Changes:
    changes.echo_seconds()
    return changes.take(0)


def client_of(changes: ZooKeeperChanges) -> KazooClient:
    return changes._session._client


def cut(changes: ZooKeeperChanges) -> None:
    """Break the connection; the session continues."""
    connection = client_of(changes)._connection._socket
    if connection is not None:
        # It may be broken already.
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def wait_for_another(before: object, changes: ZooKeeperChanges) -> None:
    """Until the connection is back; it may be lost and restored between two looks."""
    until(
        lambda: client_of(changes).connected and client_of(changes)._connection._socket is not before,
        "the connection is there again",
        60,
    )


# What breaks a connection ----------------------------------------------------------------------------------------


def _freeze_for_long(server: LoneZooKeeper, changes: ZooKeeperChanges) -> None:
    server.freeze()
    try:
        until(lambda: not client_of(changes).connected, "kazoo gives the connection up")
    finally:
        server.thaw()


BREAKS: Mapping[str, Callable[[LoneZooKeeper, ZooKeeperChanges], object]] = {
    "cut": lambda server, changes: cut(changes),
    "expired": lambda server, changes: expire(client_of(changes), server.url),
    "restarted": lambda server, changes: server.restart(),
    "frozen": _freeze_for_long,
}


@pytest.mark.parametrize("way", BREAKS)
def test_a_connection_that_came_back_between_two_calls_is_noticed(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore, changes: ZooKeeperChanges, way: str
) -> None:
    store.create("/schemas/before", b"")
    assert heard(changes) == Changes(("/schemas/before",))
    before = client_of(changes)._connection._socket
    BREAKS[way](zookeeper, changes)
    wait_for_another(before, changes)
    store.read("/")
    store.create("/schemas/missed", b"")
    for call in (lambda: changes.take(0), lambda: changes.take(60), changes.echo_seconds):
        with pytest.raises(ChangesLostError):
            call()
    arm_in_time(changes)
    store.create("/schemas/after", b"")
    assert heard(changes) == Changes(("/schemas/after",))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_connection_whose_thread_died_is_noticed_and_replaced(
    store: ZooKeeperMetadataStore, changes: ZooKeeperChanges
) -> None:
    before = client_of(changes)
    with without_kazoo_log():
        send(before, Poison())
        with pytest.raises(ChangesLostError):
            changes.take(60)
        arm_in_time(changes)
    assert client_of(changes) is not before
    store.create("/schemas/after", b"")
    assert heard(changes) == Changes(("/schemas/after",))


def test_waiting_ends_when_the_connection_breaks(changes: ZooKeeperChanges) -> None:
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(changes.take, 600)
        cut(changes)
        assert isinstance(taking.exception(60), ChangesLostError)


def test_what_was_heard_before_a_break_is_not_handed_out(
    store: ZooKeeperMetadataStore, changes: ZooKeeperChanges
) -> None:
    store.create("/schemas/a", b"")
    changes.echo_seconds()
    before = client_of(changes)._connection._socket
    cut(changes)
    wait_for_another(before, changes)
    with pytest.raises(ChangesLostError):
        changes.take(0)


def test_a_server_that_stands_still_does_not_echo(zookeeper: LoneZooKeeper, url: str) -> None:
    with closing(listen(url, call_timeout_seconds=1.0)) as changes:
        changes.arm()
        changes.echo_seconds()
        zookeeper.freeze()
        try:
            started = CLOCK.monotonic_seconds()
            with pytest.raises(ChangesLostError):
                changes.echo_seconds()
            assert CLOCK.monotonic_seconds() - started < 5
        finally:
            zookeeper.thaw()
        with pytest.raises(ChangesLostError):
            changes.take(0)
        arm_in_time(changes)
        assert heard(changes) == Changes()


def test_without_a_server_there_is_nothing_to_hear(zookeeper: LoneZooKeeper, url: str) -> None:
    with closing(listen(url, call_timeout_seconds=2.0)) as changes:
        changes.arm()
        zookeeper.kill()
        try:
            with pytest.raises(TemporaryError):
                changes.arm()
            with pytest.raises(ChangesLostError):
                changes.take(0)
        finally:
            zookeeper.restart()
        arm_in_time(changes)
        assert heard(changes) == Changes()


def test_a_root_that_does_not_exist_is_an_error(zookeeper: LoneZooKeeper) -> None:
    with closing(listen(f"{zookeeper.url}/no-such-root")) as changes, pytest.raises(TemporaryError, match="no-such"):
        changes.arm()


# Many changes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lasting_changes(url: str) -> Iterator[ZooKeeperChanges]:
    """Changes in a session that a busy machine does not end."""
    with closing(listen(url, call_timeout_seconds=60, session_timeout_ms=60_000)) as opened:
        opened.arm()
        yield opened


def test_of_twenty_thousand_changes_each_is_named(url: str, lasting_changes: ZooKeeperChanges) -> None:
    changes = lasting_changes
    nodes = [f"/schemas/{number:05d}" for number in range(5_000)]
    ledgers = {LedgerId(number): ledger_path(LedgerId(number)) for number in range(5_000)}
    seen_nodes: set[str] = set()
    seen_ledgers: dict[LedgerId, bool] = {}
    with ThreadPoolExecutor(1) as pool:
        changing = pool.submit(_make_and_remove, url, [*nodes, *ledgers.values()])
        while not changing.done():
            found = changes.take(0.01)
            seen_nodes.update(found.nodes)
            seen_ledgers.update(found.ledgers)
        changing.result()
    found = heard(changes)
    assert seen_nodes | set(found.nodes) == set(nodes)
    assert {**seen_ledgers, **found.ledgers} == dict.fromkeys(ledgers, False)


def _make_and_remove(url: str, paths: list[str]) -> None:
    with open_patiently(url) as store:
        for parent in {path.rpartition("/")[0] for path in paths} - {"/schemas"}:
            store.create(f"{parent}/x", b"")
        store.create("/schemas", b"")
    with raw_client(url) as client:
        for made in [client.create_async(path) for path in paths]:
            made.get()
        for removed in [client.delete_async(path) for path in paths]:
            removed.get()


def test_who_reads_everything_after_each_break_misses_nothing(url: str, store: ZooKeeperMetadataStore) -> None:
    """A copy that follows the events, and is read again when they may be missing, ends as the store does."""
    store.create("/managed-ledgers/t", b"")
    whole = ZooKeeperWholeStore(url, CLOCK, ROOT)
    copy: dict[str, bytes] = {}
    breaks = 0
    enough = threading.Event()
    with closing(listen(url)) as changes, ThreadPoolExecutor(2) as pool, ExitStack() as at_the_end:
        at_the_end.callback(enough.set)
        cutting = pool.submit(_cut_until, enough, changes)
        writing = pool.submit(_write_until, cutting.done, url)
        while True:
            is_over = writing.done()
            try:
                found = heard(changes) if is_over else changes.take(0.02)
            except ChangesLostError:
                breaks += 1
                if breaks > CUTS:
                    enough.set()
                arm_in_time(changes)
                copy = {node.path: node.data for nodes in whole.nodes() for node in nodes}
                continue
            for path, node in zip(found.nodes, store.read_many(found.nodes), strict=True):
                if node is None:
                    copy.pop(path, None)
                else:
                    copy[path] = node.data
            if is_over:
                break
        assert writing.result() > 1_000
    assert breaks > CUTS
    assert copy == {node.path: node.data for nodes in whole.nodes() for node in nodes}


def _cut_until(enough: threading.Event, changes: ZooKeeperChanges) -> None:
    for _ in range(CUTS * 10):
        if CLOCK.wait_seconds(random.uniform(0.1, 0.5), enough):
            break
        cut(changes)


def _write_until(is_over: Callable[[], bool], url: str) -> int:
    existing: set[str] = set()
    count = 0
    with raw_client(url) as client:
        while not is_over():
            answers: list[AsyncResult[str] | AsyncResult[bool] | AsyncResult[ZnodeStat]] = []
            for _ in range(20):
                path = f"/managed-ledgers/t/{random.randrange(200)}"
                count += 1
                if path not in existing:
                    existing.add(path)
                    answers.append(client.create_async(path, b"%d" % count))
                elif random.random() < 0.5:
                    existing.remove(path)
                    answers.append(client.delete_async(path))
                else:
                    answers.append(client.set_async(path, b"%d" % count))
            for answer in answers:
                answer.get()
    return count


def test_too_many_that_no_reader_takes_are_dropped_and_reported(url: str, store: ZooKeeperMetadataStore) -> None:
    store.create("/schemas/x", b"")
    with closing(ZooKeeperChanges(url, CLOCK, ROOT, options=PATIENT, most_waiting=100)) as changes:
        changes.arm()
        for version in range(200):
            store.write("/schemas/x", b"", NodeVersion(version))
        for number in range(99):
            store.create(f"/schemas/{number}", b"")
        assert len(heard(changes).nodes) == 100
        for number in range(101):
            store.create(f"/schemas/more-{number}", b"")
        with pytest.raises(ChangesLostError, match="more than 100"):
            heard(changes)
        with pytest.raises(ChangesLostError, match="more than 100"):
            changes.take(0)
        changes.arm()
        assert heard(changes) == Changes()


# Access control --------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_withheld_unless_a_credential_opens_it(url: str, store: ZooKeeperMetadataStore) -> None:
    secret = "/managed-ledgers/secret"
    store.create("/managed-ledgers/open", b"1")
    store.create(ledger_path(LedgerId(1)), b"")
    credential = StoreCredential("digest", SECRET)
    acl = [make_digest_acl(*SECRET.split(":"), all=True)]
    with (
        raw_client(url) as owner,
        closing(listen(url)) as unreachable,
        closing(listen(url, credential)) as sidecar,
    ):
        owner.add_auth("digest", SECRET)
        unreachable.arm()
        sidecar.arm()
        owner.create_async(secret, b"2", acl).get()
        owner.create_async(f"{secret}/below", b"3", acl).get()
        try:
            assert heard(unreachable) == Changes()
            assert heard(sidecar) == Changes((secret, f"{secret}/below"))
            blind, seeing = (ZooKeeperWholeStore(url, CLOCK, ROOT, WalkOptions(given)) for given in (None, credential))
            named = {node.path: node for nodes in blind.nodes() for node in nodes}
            assert named.keys() == {"/managed-ledgers/open", secret}
            assert "NoAuth" in str(named[secret].unreadable)
            found = {node.path: node.data for nodes in seeing.nodes() for node in nodes}
            assert found == {"/managed-ledgers/open": b"1", secret: b"2", f"{secret}/below": b"3"}
            owner.set_acls("/managed-ledgers", acl)
            [(root,)] = [nodes for nodes in blind.nodes() if nodes]
            assert root.path == "/managed-ledgers"
            assert root.unreadable is not None
            owner.set_acls("/ledgers/00", acl)
            with pytest.raises(TemporaryError, match="credential"):
                list(blind.ledger_ids())
            assert [ids.tolist() for ids in seeing.ledger_ids()] == [[1]]
        finally:
            owner.delete("/managed-ledgers", recursive=True)
            owner.delete("/ledgers", recursive=True)
