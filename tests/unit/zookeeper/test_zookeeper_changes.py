"""ZooKeeper servers that a real one of today cannot stand for: an old one, and one whose events do not arrive."""

import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.zookeeper.zookeeper_changes import ZooKeeperChanges, ZooKeeperTopicChanges
from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes, ChangesLostError, UnwatchableError
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId

CREATE2, DELETE, CREATE, CLOSE, PING, ADD_WATCH, SYNC = 15, 2, 1, -11, 11, 106, 9
UNIMPLEMENTED, NO_AUTH = -6, -102
CREATED, DELETED, CHANGED = 1, 2, 3
OPTIONS = SessionOptions(call_timeout_seconds=2.0)
_HEAD = struct.Struct("!iqi")
_REQUEST = struct.Struct("!ii")


class ScriptedZooKeeper(socketserver.ThreadingTCPServer):
    """Answers every request with success by default, and has no nodes.

    Attributes:
        errors: what requests of a type are answered with.
        echoes: whether listeners hear of creations.
        watched: the paths of watches, in order.
        before_sync: nodes whose events come right before the response to each ``sync``.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.errors: dict[int, int] = {}
        self.echoes = True
        self.watched: list[str] = []
        self.before_sync: list[str] = []
        self.connections: list[_Connection] = []

    @property
    def url(self) -> str:
        return f"zk:127.0.0.1:{self.server_address[1]}"

    def notify(self, kind: int, path: str) -> None:
        """Send an event over the newest connection."""
        self.connections[-1].notify(kind, path)


class _Connection(socketserver.StreamRequestHandler):
    server: ScriptedZooKeeper

    def handle(self) -> None:
        self._next()
        self._send(struct.pack("!iiqi", 0, 30_000, len(self.server.connections) + 1, 16) + b"p" * 16 + b"\x00")
        self.server.connections.append(self)
        while packet := self._next():
            xid, kind = _REQUEST.unpack_from(packet)
            error = self.server.errors.get(kind, 0)
            path = "" if kind in (PING, CLOSE) else _text(packet, _REQUEST.size)
            if kind == ADD_WATCH and not error:
                self.server.watched.append(path)
            if kind == CREATE and not error and self.server.echoes:
                self.notify(CREATED, path)
            if kind == SYNC:
                for each in self.server.before_sync:
                    self.notify(CHANGED, each)
            body = struct.pack("!i", len(path)) + path.encode() if kind in (CREATE, SYNC) else b""
            self._send(_HEAD.pack(xid, 1, error) + (b"" if error else body))
            if error == UNIMPLEMENTED or kind == CLOSE:
                return

    def notify(self, kind: int, path: str) -> None:
        self._send(_HEAD.pack(-1, 1, 0) + struct.pack("!iii", kind, 3, len(path.encode())) + path.encode())

    def _next(self) -> bytes:
        length = self.rfile.read(4)
        return self.rfile.read(struct.unpack("!i", length)[0]) if len(length) == 4 else b""

    def _send(self, packet: bytes) -> None:
        self.wfile.write(struct.pack("!i", len(packet)) + packet)


def _text(packet: bytes, at: int) -> str:
    (length,) = struct.unpack_from("!i", packet, at)
    return packet[at + 4 : at + 4 + length].decode()


@pytest.fixture
def server() -> Iterator[ScriptedZooKeeper]:
    with ScriptedZooKeeper() as scripted:
        serving = threading.Thread(target=scripted.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield scripted
        finally:
            scripted.shutdown()
            serving.join()


@pytest.fixture
def changes(server: ScriptedZooKeeper) -> Iterator[ZooKeeperChanges]:
    with closing(ZooKeeperChanges(server.url, SystemClock(), "/bk/ledgers", options=OPTIONS)) as opened:
        yield opened


def test_a_server_without_the_request_cannot_be_watched(server: ScriptedZooKeeper, changes: ZooKeeperChanges) -> None:
    server.errors[ADD_WATCH] = UNIMPLEMENTED
    for _ in range(2):
        with pytest.raises(UnwatchableError, match="3\\.6"):
            changes.arm()
        with pytest.raises(ChangesLostError):
            changes.take(0)
    server.errors.clear()
    changes.arm()
    assert changes.take(0) == Changes()


def test_refused_watch_is_not_mistaken_for_an_old_server(server: ScriptedZooKeeper, changes: ZooKeeperChanges) -> None:
    server.errors[ADD_WATCH] = NO_AUTH
    with pytest.raises(TemporaryError, match="credential"):
        changes.arm()
    with pytest.raises(ChangesLostError):
        changes.take(0)


def test_watched_paths(server: ScriptedZooKeeper, changes: ZooKeeperChanges) -> None:
    changes.arm()
    canaries = "/pulsar-sidecar/ledger-deletion/watch/canaries"
    assert server.watched == ["/managed-ledgers", "/schemas", "/bk/ledgers", canaries]


def test_events_that_stay_away_are_noticed(server: ScriptedZooKeeper, changes: ZooKeeperChanges) -> None:
    changes.arm()
    assert changes.echo_seconds() < 2
    server.echoes = False
    for call in (changes.echo_seconds, lambda: changes.take(0)):
        with pytest.raises(ChangesLostError, match="canary"):
            call()


def test_an_echo_that_is_refused_proves_nothing_about_the_events(
    server: ScriptedZooKeeper, changes: ZooKeeperChanges
) -> None:
    changes.arm()
    server.errors[CREATE] = NO_AUTH
    with pytest.raises(TemporaryError, match="credential") as refused:
        changes.echo_seconds()
    assert not isinstance(refused.value, ChangesLostError)
    server.notify(CHANGED, "/schemas/a")
    assert changes.take(60) == Changes(("/schemas/a",))


def test_events_of_roots_of_other_kinds_and_of_others_nodes(
    server: ScriptedZooKeeper, changes: ZooKeeperChanges
) -> None:
    changes.arm()
    for kind in (CREATED, DELETED, CHANGED, 4, 7):
        for path in ("/managed-ledgers", "/schemas", "/bk/ledgers", "/bk/ledgers/00/0000", "/ledgers/00/0000/L0001"):
            server.notify(kind, path)
    server.notify(4, "/bk/ledgers/00/0000/L0001")
    server.notify(DELETED, "/bk/ledgers/00/0000/L0002")
    server.notify(7, "/schemas/a")
    changes.echo_seconds()
    assert changes.take(0) == Changes(("/schemas/a",), {LedgerId(2): False})


# Topics alone ----------------------------------------------------------------------------------------------------


@pytest.fixture
def topic_changes(server: ScriptedZooKeeper) -> Iterator[ZooKeeperTopicChanges]:
    with closing(ZooKeeperTopicChanges(server.url, SystemClock(), options=OPTIONS, most_waiting=3)) as opened:
        yield opened


def test_topics_own_nodes_are_watched(server: ScriptedZooKeeper, topic_changes: ZooKeeperTopicChanges) -> None:
    topic_changes.arm()
    assert server.watched == ["/managed-ledgers", "/admin/partitioned-topics"]
    assert topic_changes.catch_up() == ()
    for path in (
        "/managed-ledgers/t/n/persistent",
        "/managed-ledgers/t/n/persistent/topic/cursor",
        "/managed-ledgers/t/n/non-persistent/topic",
        "/admin/partitioned-topics/t/n/persistent",
        "/admin/policies/t/n/persistent/topic",
        "/ledgers/00/0000/L0001",
    ):
        server.notify(CREATED, path)
    topics = ["/managed-ledgers/t/n/persistent/topic", "/admin/partitioned-topics/t/c/n/persistent/%E2%9C%93"]
    for kind, path in zip((DELETED, CHANGED), topics, strict=True):
        server.notify(kind, path)
    assert topic_changes.catch_up() == tuple(topics)
    assert topic_changes.catch_up() == ()


def test_changes_before_the_sync_are_returned(server: ScriptedZooKeeper, topic_changes: ZooKeeperTopicChanges) -> None:
    topic_changes.arm()
    server.before_sync = [f"/managed-ledgers/t/n/persistent/{number}" for number in range(3)]
    for _ in range(20):
        assert topic_changes.catch_up() == tuple(server.before_sync)


def test_a_sync_that_fails_takes_nothing(server: ScriptedZooKeeper, topic_changes: ZooKeeperTopicChanges) -> None:
    topic_changes.arm()
    server.before_sync = ["/managed-ledgers/t/n/persistent/topic"]
    server.errors[SYNC] = NO_AUTH
    with pytest.raises(TemporaryError, match="catch up") as refused:
        topic_changes.catch_up()
    assert not isinstance(refused.value, ChangesLostError)
    server.before_sync = []
    del server.errors[SYNC]
    assert topic_changes.catch_up() == ("/managed-ledgers/t/n/persistent/topic",)


def test_topics_that_no_reader_takes_are_dropped_and_reported(
    server: ScriptedZooKeeper, topic_changes: ZooKeeperTopicChanges
) -> None:
    topic_changes.arm()
    server.before_sync = [f"/managed-ledgers/t/n/persistent/{number}" for number in range(4)]
    for _ in range(2):
        with pytest.raises(ChangesLostError, match="more than 3"):
            topic_changes.catch_up()
    server.before_sync = []
    topic_changes.arm()
    assert topic_changes.catch_up() == ()


def test_an_old_server_cannot_watch_topics_either(
    server: ScriptedZooKeeper, topic_changes: ZooKeeperTopicChanges
) -> None:
    server.errors[ADD_WATCH] = UNIMPLEMENTED
    with pytest.raises(UnwatchableError):
        topic_changes.arm()
