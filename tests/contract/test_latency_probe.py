"""The probe of the metadata store's latency, and deletions that keep to a limit.

On a ZooKeeper server of their own that is frozen, thawed and restarted.
"""

import contextlib
import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from pulsar_sidecar.adapters.latency_probe import RECONNECT_SECONDS
from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreCredential
from pulsar_sidecar.adapters.metadata_stores import latency_probe
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion

from tests.cluster.open_loop import open_loop_client
from tests.cluster.patience import until
from tests.contract.metadata_store_servers import LoneZooKeeper, lone_zookeeper

CLOCK = SystemClock()


@dataclass
class Listener:
    """Recorder of observations."""

    observed: list[float] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)
    probed_at: float | None = None

    @contextlib.contextmanager
    def probing(self) -> Iterator[None]:
        self.threads.add(threading.current_thread().name)
        self.probed_at = began = CLOCK.monotonic_seconds()
        yield
        self.probed_at = None
        self.observed.append(CLOCK.monotonic_seconds() - began)

    def is_waiting(self) -> bool:
        """Return True while a probe has had no response for a while."""
        return self.probed_at is not None and CLOCK.monotonic_seconds() - self.probed_at > 0.3

    def probe_interval_seconds(self) -> float:
        return 0.01


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneZooKeeper]:
    with lone_zookeeper(tmp_path_factory.mktemp("probe") / "zookeeper") as server:
        yield server


@contextlib.contextmanager
def probing(
    url: str, credential: StoreCredential | None = None, call_timeout_seconds: float = 10.0
) -> Iterator[Listener]:
    listener = Listener()
    options = SessionOptions(credential=credential, call_timeout_seconds=call_timeout_seconds)
    probe = latency_probe(url, CLOCK, options, listener)
    probe.start()
    try:
        yield listener
    finally:
        probe.close()
    until(lambda: not _probing_threads(), "the probe's thread has ended")


def test_it_measures_again_and_again(server: LoneZooKeeper) -> None:
    with probing(server.url) as listener:
        until(lambda: len(listener.observed) > 50, "there are fifty measurements")
    assert all(0 < seconds < 10 for seconds in listener.observed)
    assert sorted(listener.observed)[10] < 0.1
    assert listener.threads == {"latency-probe"}


def test_it_presents_a_credential(server: LoneZooKeeper) -> None:
    with probing(server.url, StoreCredential("digest", "user:password")) as listener:
        until(lambda: listener.observed, "there is a measurement")


def test_a_credential_that_is_refused_is_no_measurement(server: LoneZooKeeper) -> None:
    with probing(server.url, StoreCredential("no-such-scheme", "x")) as listener:
        CLOCK.wait_seconds(1.5, threading.Event())
    assert listener.observed == []


def test_while_the_server_stands_still_it_is_reported_and_then_for_how_long(server: LoneZooKeeper) -> None:
    with probing(server.url) as listener:
        until(lambda: listener.observed, "there is a measurement")
        server.freeze()
        try:
            until(listener.is_waiting, "the probe is overdue")
        finally:
            server.thaw()
        until(lambda: max(listener.observed) > 0.3, "the late answer has come")
        count = len(listener.observed)
        until(lambda: len(listener.observed) > count + 5, "it continues")


def test_closing_does_not_wait_for_a_server_that_stands_still(server: LoneZooKeeper) -> None:
    listener = Listener()
    probe = latency_probe(server.url, CLOCK, SessionOptions(), listener)
    probe.start()
    until(lambda: listener.observed, "there is a measurement")
    server.freeze()
    try:
        until(listener.is_waiting, "the probe is overdue")
        began = CLOCK.monotonic_seconds()
        probe.close()
        assert CLOCK.monotonic_seconds() - began < 10
    finally:
        server.thaw()
    until(lambda: not _probing_threads(), "the probe's thread has ended")


def _probing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "latency-probe"]


def test_it_comes_back_after_the_server_did(server: LoneZooKeeper) -> None:
    with probing(server.url) as listener:
        until(lambda: listener.observed, "there is a measurement")
        server.kill()
        count = len(listener.observed)
        server.restart()
        until(lambda: len(listener.observed) > count + 5, "it measures again")


def test_an_unreachable_server_is_no_measurement_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pulsar_sidecar.adapters.latency_probe")
    with probing("zk:127.0.0.1:1", call_timeout_seconds=0.5) as listener:
        until(lambda: caplog.records, "it is logged")
        CLOCK.wait_seconds(1.5 * RECONNECT_SECONDS, threading.Event())
    assert listener.observed == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the latency of the metadata store at 127.0.0.1"
    ]


def test_the_benchmarks_client_measures_reads_and_writes(server: LoneZooKeeper) -> None:
    host, port = parse_metadata_store_url(server.url).servers[0].rsplit(":", 1)
    with open_loop_client("zookeeper", host, int(port), rate=200) as client:
        latencies = client.over(1.0)
    assert 0 < len(latencies.milliseconds) <= 300, "a busy machine does fewer than 200"
    assert 0 < latencies.p(50) <= latencies.p(99) <= latencies.p(100)


@dataclass
class SmallSteps:
    """Allows this many deletions at a time, and counts transactions."""

    most: int
    sent: int = 0
    in_flight: int = 0
    highest: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def most_in_flight(self) -> int:
        return self.most

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        with self.lock:
            self.sent += 1
            self.in_flight += 1
            self.highest = max(self.highest, self.in_flight)
        yield
        with self.lock:
            self.in_flight -= 1


@pytest.mark.parametrize(("most", "sent"), [(1, 120), (7, 18), (50, 3), (500, 2)])
def test_deletions_keep_to_the_limit(server: LoneZooKeeper, most: int, sent: int) -> None:
    limit = SmallSteps(most)
    with ZooKeeperMetadataStore(server.url, CLOCK, limit=limit) as store:
        deletions = _nodes(store, 120)
        assert set(store.delete_many(deletions)) == {DeletionResult.DELETED}
        assert store.read_many([deletion.path for deletion in deletions]) == [None] * 120
    assert (limit.sent, limit.highest) == (sent, 1)


def test_the_limit_is_for_all_calls_together(server: LoneZooKeeper) -> None:
    limit = SmallSteps(10)
    with ZooKeeperMetadataStore(server.url, CLOCK, limit=limit) as store, ThreadPoolExecutor(3) as pool:
        parts = [_nodes(store, 200) for _ in range(3)]
        for results in pool.map(store.delete_many, parts):
            assert set(results) == {DeletionResult.DELETED}
    assert (limit.sent, limit.highest) == (60, 1)


def test_a_single_deletion_does_not_wait_for_thousands(server: LoneZooKeeper) -> None:
    limit = SmallSteps(1)
    with ZooKeeperMetadataStore(server.url, CLOCK, limit=limit) as store, ThreadPoolExecutor(1) as pool:
        many, one = _nodes(store, 1_000), _nodes(store, 1)
        deleted = pool.submit(store.delete_many, many)
        until(lambda: limit.sent > 0, "the thousand are on their way")
        assert store.delete_many(one) == [DeletionResult.DELETED]
        assert not deleted.done()
        assert set(deleted.result()) == {DeletionResult.DELETED}


def test_deletions_whose_answers_are_lost_are_not_on_their_way_for_ever(server: LoneZooKeeper) -> None:
    limit = AdaptiveLimit(CLOCK, 2.0)
    with ZooKeeperMetadataStore(server.url, CLOCK, SessionOptions(call_timeout_seconds=1.0), limit=limit) as store:
        deletions = _nodes(store, 50)
        server.freeze()
        try:
            assert store.delete_many(deletions)[-1] is DeletionResult.UNKNOWN
        finally:
            server.thaw()
    CLOCK.wait_seconds(1.1, threading.Event())
    assert limit.probe_interval_seconds() > 0.005


def _nodes(store: ZooKeeperMetadataStore, count: int) -> list[GuardedDeletion]:
    nodes = [store.create(f"/limited/{secrets.token_hex(8)}", b"x") for _ in range(count)]
    return [GuardedDeletion(node.path, node.version) for node in nodes]
