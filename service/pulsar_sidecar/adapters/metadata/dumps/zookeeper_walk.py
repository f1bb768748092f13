"""Walks a living ZooKeeper's tree with multi-reads.

Hundreds of nodes, or many children's lists, go into one request, and several requests are on their way.

Invariants, each of which another tool broke and deleted live data for it:

* a list of children counts only in agreement with its parent's own count of them, read in the same request;
* "no node" for something that a list named is believed only when a new list of its parent does not name it any more;
* no answer may be older than one before it, nor than the ``sync`` at the beginning: a server that fell behind fails
  the walk, it does not shorten it;
* a node that may not be read is a row that says so.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pyarrow as pa
from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.metadata.dumps.raw_nodes import Places, read_nodes, shifted, unread_nodes, unreadable_nodes
from pulsar_sidecar.adapters.metadata.errors import CLIENT_ERRORS, may_be_repeated, reading_failed
from pulsar_sidecar.adapters.metadata.multi_requests import (
    GET_CHILDREN,
    GET_DATA,
    NO_AUTH,
    NO_NODE,
    Listed,
    MultiOperations,
    NodeAt,
    Refused,
    Sync,
    decode_lists,
    decode_nodes,
)
from pulsar_sidecar.adapters.metadata.multiread import PacketSize
from pulsar_sidecar.adapters.metadata.session import KazooSession, Patience, real_path, send
from pulsar_sidecar.model.clocks import Clock, Pace
from pulsar_sidecar.model.errors import TemporaryError

_BATCH_NODES = 32_768
_BATCH_BYTES = 64 * 1024 * 1024
_TRIES = 5
_MAX_PACKET_NODES = 200
_MAX_PACKET_LISTS = 50
_CHILD_BYTES = 48
_TARGET_ANSWER_BYTES = 512 * 1024
_NOT_PERMITTED = "NoAuth: no credential that may read it"


@dataclass(frozen=True, slots=True)
class WalkOrder:
    """What to walk.

    Attributes:
        root: where to begin.
        is_skipped: nodes that are left out with everything below; asked for children, never for ``root``.
        is_unread: nodes without children of which only the existence is wanted.
        nodes_per_second: at most so many nodes and lists are read a second; None for no limit.
    """

    root: str = "/"
    is_skipped: Callable[[str], object] = lambda path: False
    is_unread: Callable[[str], object] = lambda path: False
    nodes_per_second: float | None = None


class _Task(Enum):
    READ = "read nodes"
    LIST = "list children"
    CONFIRM = "list children again, to see what is really gone"


@dataclass(frozen=True, slots=True)
class _Packet:
    task: _Task
    paths: Sequence[str]


class ZooKeeperWalk:
    """One walk over one session.

    Attributes:
        first_zxid: what the server had seen when it was synced with the leader, before the first read.
        last_zxid: the same, after the last read.
        checks: how many comparisons were made, all in agreement.
    """

    def __init__(self, session: KazooSession, clock: Clock, order: WalkOrder) -> None:
        self.first_zxid: int | None = None
        self.last_zxid: int | None = None
        self.checks: Counter[str] = Counter()
        self._session = session
        self._order = order
        self._size = PacketSize()
        self._pace = Pace(clock, order.nodes_per_second)
        self._highest_zxid = 0
        self._to_read = [order.root]
        self._to_list: list[tuple[str, int]] = []
        self._suspects: dict[str, set[str]] = {}
        self._to_confirm: list[str] = []
        self._in_flight: deque[tuple[_Packet, AsyncResult[object]]] = deque()
        self._tries: Counter[str] = Counter()
        self._found = _Found()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every node, as `audit.tables.NODES`, each after its parent; to be called once.

        Raises:
            TemporaryError: the tree could not be walked whole, or what ZooKeeper says contradicts itself.
        """
        patience = self._session.patience()
        is_over = False
        while not is_over:
            client = self._session.connected(patience)
            try:
                self._synced(client, patience)
                while self._has_work():
                    self._work(client, patience)
                    if self._found.is_much:
                        yield from self._found.batches()
                        patience.renew()
                self.last_zxid = self._synced(client, patience)
                is_over = True
            except UnimplementedError as error:
                raise TemporaryError("this ZooKeeper has no multi-read; it takes version 3.6 or later") from error
            except CLIENT_ERRORS as error:
                if not may_be_repeated(error) or patience.is_over():
                    raise reading_failed(error, f"walk {self._order.root}") from error
                self._take_back()
                self._session.pause()
        yield from self._found.batches()

    def _synced(self, client: KazooClient, patience: Patience) -> int:
        zxid = patience.answer(send(client, Sync(real_path(client, "/").encode())))
        assert isinstance(zxid, int)
        self._observe(zxid)
        if self.first_zxid is None:
            self.first_zxid = zxid
        return zxid

    def _has_work(self) -> bool:
        return bool(self._to_read or self._to_list or self._to_confirm or self._in_flight)

    def _work(self, client: KazooClient, patience: Patience) -> None:
        while len(self._in_flight) < self._size.in_flight and (packet := self._next_packet()):
            self._in_flight.append((packet, send(client, _request(client, packet))))
        packet, result = self._in_flight[0]
        answered = patience.answer(result)
        self._in_flight.popleft()
        assert isinstance(answered, tuple)
        zxid, answer = answered
        self._observe(zxid)
        match packet.task:
            case _Task.READ:
                self._take_nodes(packet.paths, answer)
            case _Task.LIST:
                self._take_lists(packet.paths, answer)
            case _Task.CONFIRM:
                self._take_confirmations(packet.paths, answer)
        patience.renew()
        self._pace.after(len(packet.paths))

    def _take_back(self) -> None:
        """After a lost connection: what was asked is to be asked again, in smaller pieces."""
        for packet, _ in self._in_flight:
            match packet.task:
                case _Task.READ:
                    self._to_read += packet.paths
                case _Task.LIST:
                    self._to_list += [(path, 0) for path in packet.paths]
                case _Task.CONFIRM:
                    self._to_confirm += packet.paths
        self._in_flight.clear()
        self._size.shrink()

    def _observe(self, zxid: int) -> None:
        if zxid < self._highest_zxid:
            raise TemporaryError(
                f"ZooKeeper went back from zxid 0x{self._highest_zxid:x} to 0x{zxid:x}: a server that fell behind "
                "answers; begin again, or name another server"
            )
        self._highest_zxid = zxid
        self.checks["zxidsNotGoingBack"] += 1

    # --- asking ----------------------------------------------------------------------------------------------------

    def _next_packet(self) -> _Packet | None:
        if self._to_confirm:
            return _Packet(_Task.CONFIRM, [self._to_confirm.pop()])
        # Leaves first: the more of them are read, the fewer paths wait in memory.
        if self._to_list and len(self._to_read) < _MAX_PACKET_NODES:
            return _Packet(_Task.LIST, self._some_to_list())
        if not self._to_read:
            return None
        most = self._pace.at_once(_MAX_PACKET_NODES)
        paths = self._size.take(self._to_read[: -most - 1 : -1], 0)
        del self._to_read[-len(paths) :]
        return _Packet(_Task.READ, paths)

    def _some_to_list(self) -> list[str]:
        most = self._pace.at_once(_MAX_PACKET_LISTS)
        paths: list[str] = []
        answer_bytes = 0
        while self._to_list and len(paths) < most and (not paths or answer_bytes < _TARGET_ANSWER_BYTES):
            path, children_count = self._to_list.pop()
            paths.append(path)
            answer_bytes += children_count * _CHILD_BYTES
        return paths

    # --- understanding ---------------------------------------------------------------------------------------------

    def _take_nodes(self, paths: Sequence[str], answer: bytes) -> None:
        results = decode_nodes(answer, len(paths))
        self._found.begin(answer)
        leaves: list[str] = []
        nodes: list[NodeAt] = []
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, Refused):
                self._refused(path, result.code)
            elif result[2]:
                self._to_list.append((path, result.children_count))
            else:
                leaves.append(path)
                nodes.append(result)
        self._found.add(leaves, nodes)
        self._learn(paths, results)

    def _learn(self, paths: Sequence[str], results: Sequence[NodeAt | Refused]) -> None:
        """The largest node and both ends stand for a packet: its nodes are neighbours, so they are of one kind."""
        sizes = [result[1] - result[0] if isinstance(result, NodeAt) else 0 for result in results]
        samples = sorted({0, sizes.index(max(sizes)), len(sizes) - 1})
        self._size.learn_sizes([paths[place] for place in samples], [sizes[place] for place in samples])

    def _take_lists(self, paths: Sequence[str], answer: bytes) -> None:
        self._found.begin(answer)
        for path, result in zip(paths, decode_lists(answer, len(paths)), strict=True):
            if isinstance(result, Refused):
                self._refused(path, result.code)
            elif self._agrees(path, result):
                self._found.add([path], [result.node])
                self._take_children(path, result.names)
            else:
                self._to_list.append((path, result.node.children_count))

    def _take_children(self, parent: str, names: list[str]) -> None:
        below = "/" if parent == "/" else f"{parent}/"
        # The last is read first; sorted the other way round, rows come out in order.
        for name in sorted(names, reverse=True):
            path = below + name
            if self._order.is_skipped(path):
                continue
            if self._order.is_unread(path):
                self._found.unread.append(path)
            else:
                self._to_read.append(path)

    def _take_confirmations(self, parents: Sequence[str], answer: bytes) -> None:
        for parent, result in zip(parents, decode_lists(answer, len(parents)), strict=True):
            if isinstance(result, Refused):
                self._refused(parent, result.code, is_known=True)
            elif self._agrees(parent, result):
                self._confirm(parent, frozenset(result.names))
            else:
                self._to_confirm.append(parent)

    def _confirm(self, parent: str, names: frozenset[str]) -> None:
        self.checks["branchesListedAgain"] += 1
        for path in self._suspects.pop(parent, set()):
            if path.rpartition("/")[2] not in names:
                self.checks["goneMeanwhile"] += 1
                continue
            self._try_again(path, "its parent lists it, and ZooKeeper says that there is no such node")
            self._to_read.append(path)

    def _agrees(self, path: str, listed: Listed) -> bool:
        if len(listed.names) == listed.node.children_count:
            self.checks["listsMatchingTheirCount"] += 1
            return True
        self._try_again(path, f"{len(listed.names)} children were listed and it counts {listed.node.children_count}")
        return False

    def _refused(self, path: str, code: int, *, is_known: bool = False) -> None:
        if code == NO_AUTH and not is_known:
            self._found.unreadable.append(path)
        elif code != NO_NODE:
            raise TemporaryError(f"ZooKeeper refused to read {path} (code {code}); read again")
        elif path == self._order.root:
            raise TemporaryError(f"there is no {path} in the metadata store; check the address and the path")
        else:
            # Whether it is gone, its parent decides; what was suspected below it is gone with it.
            self._suspects.pop(path, None)
            parent = path.rpartition("/")[0] or "/"
            self._suspects.setdefault(parent, set()).add(path)
            if parent not in self._to_confirm:
                self._to_confirm.append(parent)

    def _try_again(self, path: str, contradiction: str) -> None:
        self._tries[path] += 1
        if self._tries[path] >= _TRIES:
            raise TemporaryError(f"{path} contradicts itself, {_TRIES} times: {contradiction}; begin again")


@dataclass(slots=True)
class _Found:
    """Nodes read and not yet handed out: the answers, and where in them the nodes are."""

    unread: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    _paths: list[str] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _answers: list[bytes] = field(default_factory=list)
    _base: int = 0
    _total: int = 0

    @property
    def is_much(self) -> bool:
        """Whether it is time to hand out what is here."""
        count = len(self._paths) + len(self.unread) + len(self.unreadable)
        return count >= _BATCH_NODES or self._total >= _BATCH_BYTES

    def begin(self, answer: bytes) -> None:
        """The nodes that are added next are in this answer."""
        self._answers.append(answer)
        self._base, self._total = self._total, self._total + len(answer)

    def add(self, paths: Sequence[str], nodes: Sequence[NodeAt]) -> None:
        """Nodes in the answer that was named last."""
        base = self._base
        self._paths += paths
        self._starts += [base + node[0] for node in nodes]
        self._ends += [base + node[1] for node in nodes]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Hand everything out."""
        if self._paths:
            ends = pa.array(self._ends, pa.int32())
            places = Places(pa.array(self._starts, pa.int32()), ends, shifted(ends, 0))
            yield read_nodes(pa.array(self._paths, pa.string()), b"".join(self._answers), places)
        if self.unreadable:
            yield unreadable_nodes(self.unreadable, [_NOT_PERMITTED] * len(self.unreadable))
        if self.unread:
            yield unread_nodes(self.unread)
        self.unread, self.unreadable = [], []
        self._paths, self._starts, self._ends, self._answers = [], [], [], []
        self._base = self._total = 0


def _request(client: KazooClient, packet: _Packet) -> MultiOperations:
    kinds = (GET_DATA,) if packet.task is _Task.READ else (GET_CHILDREN, GET_DATA)
    return MultiOperations(tuple((kind, real_path(client, path).encode()) for path in packet.paths for kind in kinds))
