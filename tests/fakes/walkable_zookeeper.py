"""A ZooKeeper server in memory for walks: it serves multi-reads and syncs byte for byte, and lies on request.

It replaces a kazoo session, so that tests cover the walk's own requests and decoding.
"""

import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kazoo.exceptions import ConnectionLoss
from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from pulsar_sidecar.adapters.metadata_access import WalkOptions
from pulsar_sidecar.adapters.zookeeper.multiread import GET_CHILDREN, GET_DATA, MultiOperations, Sync
from pulsar_sidecar.adapters.zookeeper.node_walk import Matches, NodeWalk
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession
from pulsar_sidecar.adapters.zookeeper.whole_store import ZooKeeperWholeStore
from pulsar_sidecar.adapters.zookeeper.zookeeper_walk import ZooKeeperWalk
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.fakes.clock import FakeClock

NO_NODE, NO_AUTH = -101, -102
_PATIENCE_SECONDS = 5.0


@dataclass(slots=True)
class ServedNode:
    """A node and the relevant part of its ``Stat``."""

    value: bytes = b""
    version: int = 0
    czxid: int = 1
    mzxid: int = 1
    ctime: int = 1_700_000_000_000
    mtime: int = 1_700_000_000_000
    owner: int = 0


@dataclass(slots=True)
class WalkableZooKeeper:
    """A tree with lies.

    Attributes:
        nodes: nodes by path, with all parents.
        zxid: zxid in every reply's header.
        hidden_children: names missing from a node's list although the node counts them.
        answered_as_missing: number of reads of an existing node that return NoNode.
        forbidden: nodes that no client may read.
        before: function called with the kind of operation and the path before each operation.
        lost_requests: number of next requests that lose their connection.
    """

    nodes: dict[str, ServedNode] = field(default_factory=lambda: {"/": ServedNode()})
    zxid: int = 100
    hidden_children: dict[str, set[str]] = field(default_factory=dict)
    answered_as_missing: Counter[str] = field(default_factory=Counter)
    forbidden: set[str] = field(default_factory=set)
    before: Callable[[int, str], None] = lambda kind, path: None
    lost_requests: int = 0
    requests: int = 0
    chroot: str = ""
    connected: bool = True
    _names: dict[str, dict[str, None]] = field(default_factory=dict)
    handler: SequentialThreadingHandler = field(default_factory=SequentialThreadingHandler)

    def put(self, path: str, value: bytes = b"", **stat: Any) -> None:
        parent = path.rpartition("/")[0]
        if parent and parent not in self.nodes:
            self.put(parent)
        self.nodes[path] = ServedNode(value, **stat)
        self._names.setdefault(parent or "/", {})[path.rpartition("/")[2]] = None

    def remove(self, path: str) -> None:
        for gone in [known for known in self.nodes if known == path or known.startswith(f"{path}/")]:
            del self.nodes[gone]
            self._names.pop(gone, None)
        self._names[path.rpartition("/")[0] or "/"].pop(path.rpartition("/")[2], None)

    def walk(self, clock: Clock | None = None, **order: Any) -> ZooKeeperWalk:
        return _Walk(self, clock or FakeClock(), **order)

    def whole_store(self, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> ZooKeeperWholeStore:
        """Return everything on this server, read by its own walks."""
        return _WholeStore(self, ledgers_root)

    def children(self, path: str) -> list[str]:
        return list(self._names.get(path, ()))

    # --- the part of kazoo's client that a walk uses ---------------------------------------------------------------

    def _call(self, request: object, result: AsyncResult) -> None:
        self.requests += 1
        if self.lost_requests:
            self.lost_requests -= 1
            result.set_exception(ConnectionLoss())
            return
        header = struct.pack("!iqi", 1, self.zxid, 0)
        if isinstance(request, Sync):
            result.set(request.deserialize(header, len(header)))
            return
        assert isinstance(request, MultiOperations)
        body = b"".join(self._operation(kind, path.decode()) for kind, path in request.operations)
        packet = header + body + struct.pack("!iBi", -1, 1, -1)
        result.set(request.deserialize(packet, len(header)))

    def _operation(self, kind: int, path: str) -> bytes:
        self.before(kind, path)
        code = self._error(path)
        if code is not None:
            return struct.pack("!iBii", -1, 0, code, code)
        head = struct.pack("!iBi", kind, 0, 0)
        if kind == GET_CHILDREN:
            hidden = self.hidden_children.get(path, set())
            names = [name.encode() for name in self.children(path) if name not in hidden]
            return head + struct.pack("!i", len(names)) + b"".join(struct.pack("!i", len(n)) + n for n in names)
        assert kind == GET_DATA
        node = self.nodes[path]
        stat = struct.pack(
            "!qqqqiiiqiiq", node.czxid, node.mzxid, node.ctime, node.mtime, node.version, 0, 0, node.owner,
            len(node.value), len(self.children(path)), node.mzxid,
        )  # fmt: skip
        return head + struct.pack("!i", len(node.value)) + node.value + stat

    def _error(self, path: str) -> int | None:
        if path in self.forbidden:
            return NO_AUTH
        if self.answered_as_missing[path] > 0:
            self.answered_as_missing[path] -= 1
            return NO_NODE
        return None if path in self.nodes else NO_NODE


class _Walk(ZooKeeperWalk):
    def __init__(self, server: WalkableZooKeeper, clock: Clock, **order: Any) -> None:
        super().__init__("zk:memory", clock, **order)
        self._server = server

    def _session(self) -> KazooSession:
        return _Session(self._server, self._clock)


class _WholeStore(ZooKeeperWholeStore):
    def __init__(self, server: WalkableZooKeeper, ledgers_root: str) -> None:
        super().__init__("zk:memory", FakeClock(), ledgers_root)
        self._server = server

    def _walk(self, root: str, is_skipped: Matches, *, hurry: StopSignal | None = None, **bounds: Any) -> NodeWalk:
        return self._server.walk(options=WalkOptions(hurry=hurry), root=root, is_skipped=is_skipped, **bounds)


class _Session(KazooSession):
    """A session whose client is the fake."""

    def __init__(self, server: WalkableZooKeeper, clock: Clock) -> None:
        self._server = server
        self._clock = clock
        self._closed = threading.Event()

    def deadline(self) -> Deadline:
        return Deadline(self._clock, _PATIENCE_SECONDS)

    def connected(self, deadline: Deadline) -> Any:
        return self._server

    def close(self) -> None:
        """Do nothing."""
