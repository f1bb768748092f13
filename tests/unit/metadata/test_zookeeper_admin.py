"""The AdminServer's stream: a whole snapshot, or an error that names the remedy."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperCredential
from pulsar_sidecar.adapters.metadata.snapshot_format import DamagedSnapshotError
from pulsar_sidecar.adapters.metadata.snapshots import AdminServer
from pulsar_sidecar.audit.sources.manifests import OrderRange, Source, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

from tests.fakes.zookeeper_snapshots import SnapshotNode, SnapshotWriter

SNAPSHOT = SnapshotWriter(last_zxid=0x22).snapshot([SnapshotNode("/a", b"1"), SnapshotNode("/a/b")])


class ZooKeeperAdmin(ThreadingHTTPServer):
    """Answers as 3.9.4 does by default."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.body = SNAPSHOT
        self.cut_bytes = 0
        self.headers: dict[str, str] = {"last_zxid": "0x1f"}
        self.version = "3.9.4-7246445ec281"
        self.authorizations: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: ZooKeeperAdmin

    def do_GET(self) -> None:
        if not self.path.startswith("/commands/snapshot?streaming=true"):
            self._answer(200, b'{"version" : "%s"}' % self.server.version.encode(), {})
            return
        self.server.authorizations.append(self.headers.get("Authorization"))
        self._answer(self.server.status, self.server.body, self.server.headers, self.server.cut_bytes)

    def _answer(self, status: int, body: bytes, headers: dict[str, str], cut_bytes: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: len(body) - cut_bytes])

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@pytest.fixture
def admin() -> Iterator[ZooKeeperAdmin]:
    with ZooKeeperAdmin() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def paths(admin: ZooKeeperAdmin) -> list[str]:
    nodes = AdminServer(f"{admin.url}/", lambda text: None)
    return [row["path"] for batch in nodes.batches() for row in batch.to_pylist()]


def test_a_whole_snapshot(admin: ZooKeeperAdmin) -> None:
    nodes = AdminServer(admin.url, lambda text: None)
    assert [row["path"] for batch in nodes.batches() for row in batch.to_pylist()] == ["/", "/a", "/a/b"]
    assert nodes.source == Source(SourceKind.ZOOKEEPER_ADMIN, admin.url)
    assert nodes.ending().zxids == OrderRange(0x1F, 0x22)
    assert nodes.ending().reservations == ()


def test_a_credential_is_sent_or_that_of_an_identity_without_rights(admin: ZooKeeperAdmin) -> None:
    paths(admin)
    server = AdminServer(admin.url, lambda text: None, credential=ZooKeeperCredential("digest", "super:secret"))
    list(server.batches())
    assert admin.authorizations == ["digest pulsar-sidecar:", "digest super:secret"]


@pytest.mark.parametrize(("status", "advice"), [
    (401, "enabled scheme"), (403, "all of them on /"), (404, "3.9 or later"), (429, "5 minutes"),
    (503, "admin.snapshot.enabled"), (500, "ZooKeeper's log"), (302, "302"),
])  # fmt: skip
def test_every_refusal_names_its_remedy(admin: ZooKeeperAdmin, status: int, advice: str) -> None:
    admin.status = status
    with pytest.raises(TemporaryError, match=advice):
        paths(admin)


@pytest.mark.parametrize("cut", [1, 20, 80, len(SNAPSHOT)])
def test_a_stream_that_breaks_off_fails(admin: ZooKeeperAdmin, cut: int) -> None:
    admin.cut_bytes = cut
    with pytest.raises(TemporaryError):
        paths(admin)


def test_a_damaged_stream_fails(admin: ZooKeeperAdmin) -> None:
    admin.body = SNAPSHOT[:200] + b"?" + SNAPSHOT[201:]
    with pytest.raises(DamagedSnapshotError):
        paths(admin)


@pytest.mark.parametrize("headers", [{}, {"last_zxid": ""}, {"last_zxid": "none"}])
def test_a_stream_without_its_time(admin: ZooKeeperAdmin, headers: dict[str, str]) -> None:
    admin.headers = headers
    with pytest.raises(TemporaryError, match="no last_zxid"):
        paths(admin)


def test_versions_with_a_known_hole_are_named(admin: ZooKeeperAdmin) -> None:
    lines: list[str] = []
    for version in ("3.9.3", "3.9.4", "3.10.0"):
        admin.version = version
        list(AdminServer(admin.url, lines.append).batches())
    assert len(lines) == 1
    assert "CVE-2025-58457" in lines[0]


def test_no_listener_and_no_address() -> None:
    with pytest.raises(TemporaryError, match="check admin"):
        list(AdminServer("http://127.0.0.1:9", lambda text: None).batches())
    with pytest.raises(InvalidInputError, match="not an address"):
        list(AdminServer("http://", lambda text: None).batches())
