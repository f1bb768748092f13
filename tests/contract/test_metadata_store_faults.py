"""The ZooKeeper driver while ZooKeeper freezes, dies, forgets the session, refuses, or sends nonsense."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from kazoo.security import make_digest_acl
from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreCredential
from pulsar_sidecar.adapters.zookeeper.session import send
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.errors import InvalidInputError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion

from tests.cluster.patience import until
from tests.contract.metadata_store_servers import (
    CLOCK,
    LoneZooKeeper,
    Poison,
    expire,
    open_patiently,
    raw_client,
    without_kazoo_log,
)

V0 = NodeVersion(0)
PATIENCE_SECONDS = 2.0
SESSION_TIMEOUT_MS = 4_000
NEVER = threading.Event()
SECRET = "the-secret-of-the-test"


@pytest.fixture
def store(url: str) -> Iterator[ZooKeeperMetadataStore]:
    with open_impatiently(url) as opened:
        wait_until_it_answers(opened)
        yield opened


def open_impatiently(url: str, credential: StoreCredential | None = None) -> ZooKeeperMetadataStore:
    return ZooKeeperMetadataStore(url, CLOCK, SessionOptions(SESSION_TIMEOUT_MS, PATIENCE_SECONDS, credential))


def fill(url: str, count: int) -> list[str]:
    paths = [f"/n/{number:06d}" for number in range(count)]
    with open_patiently(url) as store, ThreadPoolExecutor(16) as pool:
        store.create("/n/parent", b"")
        list(pool.map(lambda path: store.create(path, b"x" * 200), paths))
    return paths


def wait_until_it_answers(store: ZooKeeperMetadataStore) -> None:
    def answers() -> bool:
        try:
            return store.read("/") is not None
        except TemporaryError:
            return False

    until(answers, "the store answers", 60)


def elapsed_seconds(started: float) -> float:
    return CLOCK.monotonic_seconds() - started


def test_a_frozen_server_is_waited_for_no_longer_than_patience_lasts(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore
) -> None:
    store.create("/a", b"")
    zookeeper.freeze()
    try:
        for call in (
            lambda: store.read("/a"),
            lambda: store.read_many(["/a", "/b"]),
            lambda: store.children("/a"),
            store.now_ms,
        ):
            started = CLOCK.monotonic_seconds()
            with pytest.raises(TemporaryError):
                call()
            assert elapsed_seconds(started) < PATIENCE_SECONDS + 1.5
    finally:
        zookeeper.thaw()
    wait_until_it_answers(store)
    assert store.read("/a") is not None


def test_writes_to_a_frozen_server_have_no_known_outcome(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore
) -> None:
    for name in ("a", "b", "c"):
        store.create(f"/{name}", b"")
    zookeeper.freeze()
    try:
        with ThreadPoolExecutor(4) as pool:
            many = pool.submit(store.delete_many, [GuardedDeletion("/a", V0), GuardedDeletion("/none", V0)])
            one = pool.submit(store.delete, "/b", V0)
            write = pool.submit(store.write, "/c", b"2", V0)
            create = pool.submit(store.create, "/d", b"")
            assert many.result() == [DeletionResult.UNKNOWN, DeletionResult.UNKNOWN]
            assert one.result() is DeletionResult.UNKNOWN
            assert isinstance(write.exception(), OutcomeUnknownError)
            assert isinstance(create.exception(), OutcomeUnknownError)
    finally:
        zookeeper.thaw()
    wait_until_it_answers(store)


def test_after_a_long_absence_calls_fail_at_once_and_then_recover(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore
) -> None:
    store.create("/a", b"")
    zookeeper.kill()
    try:
        with pytest.raises(TemporaryError):
            store.read("/a")
        CLOCK.wait_seconds(PATIENCE_SECONDS, NEVER)
        started = CLOCK.monotonic_seconds()
        for _ in range(10):
            with pytest.raises(TemporaryError, match="no connection"):
                store.read("/a")
            with pytest.raises(TemporaryError, match="no connection"):
                store.delete_many([GuardedDeletion("/a", V0)])
            with pytest.raises(TemporaryError, match="no connection"):
                store.write("/a", b"", V0)
        assert elapsed_seconds(started) < 1
    finally:
        zookeeper.restart()
    wait_until_it_answers(store)
    assert store.delete_many([GuardedDeletion("/a", V0)]) == [DeletionResult.DELETED]


def test_a_read_survives_a_restart_within_its_patience(zookeeper: LoneZooKeeper, url: str) -> None:
    with open_patiently(url) as store:
        wait_until_it_answers(store)
        paths = fill(url, 3_000)
        asked = [path for path in paths for _ in range(20)]
        with ThreadPoolExecutor(1) as pool:
            zookeeper.freeze()
            reading = pool.submit(store.read_many, asked)
            CLOCK.wait_seconds(0.5, NEVER)
            zookeeper.restart()
            assert [node and node.path for node in reading.result()] == asked


def test_deletions_under_way_when_the_server_dies_are_never_claimed(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore, url: str
) -> None:
    paths = fill(url, 6_000)
    guard = Guard("/n/parent", V0)
    with (
        open_patiently(url) as observer,
        ThreadPoolExecutor(1) as pool,
    ):
        deleting = pool.submit(store.delete_many, [GuardedDeletion(path, V0, (guard,)) for path in paths])
        while len(observer.children("/n") or []) > 5_500 and not deleting.done():
            pass
        zookeeper.kill()
        results = deleting.result()
        zookeeper.restart()
        wait_until_it_answers(store)
        found = observer.read_many(paths)
    assert set(results) <= {DeletionResult.DELETED, DeletionResult.UNKNOWN}
    assert all(node is None for node, result in zip(found, results, strict=True) if result is DeletionResult.DELETED)
    again = store.delete_many([GuardedDeletion(path, V0, (guard,)) for path in paths])
    assert [result is DeletionResult.DELETED for result in again] == [node is not None for node in found]


def test_deletions_in_flight_when_the_connection_breaks_are_unknown(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore, url: str
) -> None:
    paths = fill(url, 2_000)
    zookeeper.freeze()
    with ThreadPoolExecutor(1) as pool:
        deleting = pool.submit(store.delete_many, [GuardedDeletion(path, V0) for path in paths])
        CLOCK.wait_seconds(0.3, NEVER)
        zookeeper.kill()
        started = CLOCK.monotonic_seconds()
        try:
            assert deleting.result() == [DeletionResult.UNKNOWN] * 2_000
            assert elapsed_seconds(started) < 1
        finally:
            zookeeper.restart()
    wait_until_it_answers(store)
    assert set(store.delete_many([GuardedDeletion(path, V0) for path in paths])) <= {
        DeletionResult.DELETED,
        DeletionResult.GONE,
    }


def test_a_new_session_is_known_by_its_epoch(zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore) -> None:
    store.create("/mine", b"", ephemeral=True)
    epoch = store.epoch
    expire(store._client, zookeeper.url)
    until(lambda: store.epoch != epoch, "another session is known", 30)
    wait_until_it_answers(store)
    assert store.epoch == epoch + 1
    assert store.read("/mine") is None
    assert store.create("/mine", b"", ephemeral=True).ephemeral
    assert store.now_ms() > 0


def test_a_reconnection_keeps_session_and_ephemeral_nodes(
    zookeeper: LoneZooKeeper, store: ZooKeeperMetadataStore
) -> None:
    store.create("/mine", b"", ephemeral=True)
    epoch = store.epoch
    zookeeper.restart()
    wait_until_it_answers(store)
    assert store.epoch == epoch
    assert store.read("/mine") is not None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_connection_whose_thread_died_is_replaced(store: ZooKeeperMetadataStore) -> None:
    store.create("/a", b"")
    epoch = store.epoch
    with without_kazoo_log():
        send(store._client, Poison())
        wait_until_it_answers(store)
    assert store.read("/a") is not None
    assert store.epoch == epoch + 1


@contextmanager
def private_nodes(url: str) -> Iterator[None]:
    acl = [make_digest_acl("sidecar", SECRET, all=True)]
    with raw_client(url) as owner:
        owner.add_auth("digest", f"sidecar:{SECRET}")
        owner.create_async("/private", b"1", acl).get()
        owner.create_async("/private/node", b"2", acl).get()
        try:
            yield
        finally:
            owner.delete("/private", recursive=True)


def test_what_may_not_be_read_is_not_absent(url: str) -> None:
    with private_nodes(url), open_impatiently(url) as store:
        for call in (
            lambda: store.read("/private/node"),
            lambda: store.read_many(["/", "/private/node"]),
            lambda: store.children("/private"),
            lambda: store.write("/private/node", b"3", V0),
            lambda: store.delete("/private/node", V0),
            lambda: store.delete_many([GuardedDeletion("/private/node", V0)]),
            lambda: store.delete_many([GuardedDeletion("/gone", V0, (Guard("/private/node", V0),))]),
        ):
            with pytest.raises(TemporaryError, match="credential"):
                call()


def test_a_refused_deletion_does_not_stop_its_neighbours(url: str) -> None:
    refused = GuardedDeletion("/private/node", V0)
    badly_guarded = GuardedDeletion("/b", V0, (Guard("/private/node", V0),))
    with private_nodes(url), open_impatiently(url) as store:
        store.create("/a", b"")
        store.create("/b", b"")
        wanted = [refused, GuardedDeletion("/a", V0), badly_guarded, GuardedDeletion("/gone", V0)]
        unknown, deleted, gone = DeletionResult.UNKNOWN, DeletionResult.DELETED, DeletionResult.GONE
        assert store.delete_many(wanted) == [unknown, deleted, unknown, gone]
        assert store.read("/b") is not None


def test_a_credential_opens_and_stays_out_of_the_logs(url: str, caplog: pytest.LogCaptureFixture) -> None:
    credential = StoreCredential("digest", f"sidecar:{SECRET}")
    with private_nodes(url):
        with open_impatiently(url) as earlier:
            earlier.read("/")
        caplog.set_level(1)
        caplog.set_level(1, "pulsar_sidecar.adapters.zookeeper.session.kazoo")
        caplog.clear()
        with open_impatiently(url, credential) as store:
            node = store.read("/private/node")
            assert node is not None
            assert node.data == b"2"
            assert store.write("/private/node", b"3", V0) == 1
        assert SECRET not in caplog.text
    assert SECRET not in repr(credential)


def test_a_root_that_does_not_exist_is_an_error_and_no_empty_store(zookeeper: LoneZooKeeper) -> None:
    with open_impatiently(f"{zookeeper.url}/no-such-root") as store:
        for call in (
            lambda: store.read("/a"),
            lambda: store.children("/"),
            lambda: store.delete_many([GuardedDeletion("/a", V0)]),
            lambda: store.create("/a", b""),
        ):
            with pytest.raises(TemporaryError, match="no-such-root"):
                call()


def test_no_listener(store: ZooKeeperMetadataStore) -> None:
    with open_impatiently("zk:127.0.0.1:1") as unreachable, pytest.raises(TemporaryError, match="no connection"):
        unreachable.read("/")


def test_too_large_a_node_is_refused_before_it_breaks_the_connection(store: ZooKeeperMetadataStore) -> None:
    store.create("/a", b"")
    epoch = store.epoch
    with pytest.raises(InvalidInputError, match="more than"):
        store.write("/a", b"x" * 11_000_000, V0)
    with pytest.raises(InvalidInputError, match="longer than"):
        store.read("/" + "x" * 1_000_000)
    assert store.read("/a") is not None
    assert store.epoch == epoch


def test_large_nodes_among_small_ones_do_not_exhaust_a_small_server(store: ZooKeeperMetadataStore, url: str) -> None:
    """The server has 128 MB; it ends when they do not suffice for the requested response."""
    small = fill(url, 600)
    large = [f"/large/{number}" for number in range(24)]
    for path in large:
        store.create(path, b"x" * 1_040_000)
    epoch = store.epoch
    asked = [*small, *large, *small, *large]
    assert [node and node.path for node in store.read_many(asked)] == asked
    deletions = [GuardedDeletion(path, NodeVersion(1)) for path in [*small, *large]]
    assert store.delete_many(deletions) == [DeletionResult.CONFLICT] * len(deletions)
    assert store.epoch == epoch
    assert store.delete_many([GuardedDeletion(path, V0) for path in large]) == [DeletionResult.DELETED] * len(large)


def test_closing_twice_and_calling_after_closing(url: str) -> None:
    store = open_impatiently(url)
    store.create("/a", b"")
    store.close()
    store.close()
    with pytest.raises(TemporaryError, match="closed"):
        store.read("/a")


def test_closing_while_the_server_is_dead(zookeeper: LoneZooKeeper, url: str) -> None:
    store = open_impatiently(url)
    store.create("/a", b"", ephemeral=True)
    zookeeper.kill()
    try:
        started = CLOCK.monotonic_seconds()
        store.close()
        assert elapsed_seconds(started) < SESSION_TIMEOUT_MS / 1000 + 8
    finally:
        zookeeper.restart()
