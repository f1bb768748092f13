"""Walk of a live ZooKeeper's tree with multi-reads.

One request has hundreds of nodes, or many children's lists, and several requests are in flight.

Invariants, each of which another tool broke and deleted live data for it:

* a list of children counts only in agreement with its parent's own count of them, read in the same request;
* "no node" for something that a list named is believed only when a new list of its parent no longer names it;
* no response may be older than an earlier one, nor than the ``sync`` at the beginning: a server that fell behind fails
  the walk, it does not shorten it;
* an unreadable node is a row with its reason.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.metadata_access import UNLIMITED, SessionOptions, WalkOptions
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.adapters.zookeeper.multiread import (
    GET_CHILDREN,
    GET_DATA,
    NO_AUTH,
    NO_NODE,
    TARGET_ANSWER_BYTES,
    Listed,
    NodeAt,
    PacketSize,
    Refused,
    Sync,
    ask,
    data_starts,
    decoded,
    parse_children,
    parse_node,
)
from pulsar_sidecar.adapters.zookeeper.session import CLIENT_ERRORS, Deadline, KazooSession, real_path, send
from pulsar_sidecar.features.audit.sources.manifests import Source, SourceKind
from pulsar_sidecar.model.clocks import Clock, Pace
from pulsar_sidecar.model.errors import TemporaryError

_CALL_TIMEOUT_SECONDS = 30.0
PIECE_NODES = 32_768
_BATCH_BYTES = 64 * 1024 * 1024
_MAX_ATTEMPTS = 5
_MAX_PACKET_NODES = 500
_MAX_PACKET_LISTS = 50
_CHILD_BYTES = 48
_UNKNOWN_CHILDREN = TARGET_ANSWER_BYTES // _CHILD_BYTES
"""Assumed number of children of a node that was not counted, so that it is listed alone, or last."""
NOT_PERMITTED = "NoAuth: no credential that may read it"


Matches = Callable[[str], object]
"""Predicate over paths."""


def nothing(path: str) -> bool:
    """Return False for every path."""
    del path
    return False


@dataclass(frozen=True, slots=True)
class Leaves:
    """Nodes read in bulk, and nothing below them; only few of them matter.

    Attributes:
        is_one: predicate over a parent's path and a child's name.
        may_matter: predicate over bytes in which nodes' data begin at some places; False lets all of them go.
    """

    is_one: Callable[[str, str], bool]
    may_matter: Callable[[bytes, Sequence[int]], bool]


NO_LEAVES = Leaves(lambda _parent, _name: False, lambda _answer, _starts: True)


def ledger_filters(ledgers_root: str, *, with_metadata: bool) -> tuple[Matches, Matches]:
    """Return ``is_skipped`` and ``is_unread`` of a walk below ``ledgers_root`` that needs only ledgers."""
    root = re.escape(ledgers_root)
    # Directories of ledgers have numbers for names; other nodes there are BookKeeper's own.
    is_skipped = re.compile(rf"{root}/[^0-9][^/]*").fullmatch
    return is_skipped, re.compile(rf"{root}/.+/L[0-9]{{4}}" if not with_metadata else r"(?!)").fullmatch


@dataclass(frozen=True, slots=True)
class WalkedNodes:
    """Some nodes of a walk, as they came over the wire.

    Attributes:
        paths: paths of the nodes that were read.
        values: beginning and end of each value in ``data``; its ``Stat`` follows.
        unreadable: nodes that may not be read, for `NOT_PERMITTED`.
        unread: nodes that exist and were not read.
        passed_over: number of leaves that were read, and do not matter.
    """

    paths: Sequence[str]
    values: tuple[Sequence[int], Sequence[int]]
    data: bytes
    unreadable: Sequence[str]
    unread: Sequence[str]
    passed_over: int = 0


class NodeWalk:
    """Walk that reads every node below some roots once, in bulk; a session lives as long as the walk.

    Attributes:
        source: the metadata store.
        first_zxid: the server's zxid when it was synced with the leader, before the first read.
        last_zxid: the server's zxid when it was synced again, after the last read.
        checks: number of comparisons of each kind, all in agreement.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        options: WalkOptions = UNLIMITED,
        *,
        root: str = "/",
        is_skipped: Matches = nothing,
        is_unread: Matches = nothing,
        leaves: Leaves = NO_LEAVES,
        piece_nodes: int = PIECE_NODES,
    ) -> None:
        """Prepare a walk of the metadata store at Pulsar's ``metadataStoreUrl``.

        Skipped nodes are left out with everything below them; ``is_skipped`` is never called for ``root``. Unread ones,
        which have no children, are only named.
        """
        self.source = Source(SourceKind.ZOOKEEPER, parse_metadata_store_url(url).hosts)
        self.first_zxid: int | None = None
        self.last_zxid: int | None = None
        self.checks: Counter[str] = Counter()
        self._url = url
        self._clock = clock
        self._credential, self._tls = options.credential, options.tls
        self._root = root
        self._is_skipped = is_skipped
        self._is_unread = is_unread
        self._leaves = leaves
        self._size = PacketSize()
        self._pace = Pace(clock, options.nodes_per_second, options.hurry)
        self._highest_zxid = 0
        self._to_read = [root]
        self._leaves_to_read: list[str] = []
        self._to_list: list[tuple[str, int]] = []
        # By parent, listed nodes that ZooKeeper then reported not to exist; each parent waits to be listed again.
        self._suspects: dict[str, set[str]] = {}
        # Each with the stack from which its paths were taken; None for lists.
        self._in_flight: deque[tuple[list[str] | None, Sequence[str], AsyncResult[object]]] = deque()
        self._tries: Counter[str] = Counter()
        self._found = _Found(piece_nodes)

    def pieces(self) -> Iterator[WalkedNodes]:
        """Yield every node once, each after its parent; call this once.

        Raises:
            TemporaryError: something could not be read, or is inconsistent; discard the yielded nodes.
        """
        with self._session() as session:
            while self.last_zxid is None:
                session.reading(f"walk {self._root}", self._advance, answers=())
                yield self._found.taken()

    def _session(self) -> KazooSession:
        options = SessionOptions(call_timeout_seconds=_CALL_TIMEOUT_SECONDS, credential=self._credential, tls=self._tls)
        return KazooSession(self._url, self._clock, options)

    def _advance(self, client: KazooClient, deadline: Deadline) -> None:
        """Continue the walk until a batch is full, or to the end."""
        try:
            if not self._in_flight:
                zxid = self._synced(client, deadline)
                self.first_zxid = zxid if self.first_zxid is None else self.first_zxid
            while self._to_read or self._leaves_to_read or self._to_list or self._in_flight:
                self._work(client, deadline)
                if self._found.is_much:
                    return
            self.last_zxid = self._synced(client, deadline)
        except CLIENT_ERRORS:
            # Requests in flight are retried, in smaller pieces.
            for stack, paths, _ in self._in_flight:
                if stack is None:
                    self._to_list += [(path, _UNKNOWN_CHILDREN) for path in paths]
                else:
                    stack.extend(paths)
            self._in_flight.clear()
            self._size.shrink()
            raise

    def _synced(self, client: KazooClient, deadline: Deadline) -> int:
        zxid = deadline.answer(send(client, Sync(real_path(client, "/").encode())))
        assert isinstance(zxid, int)
        self._observe(zxid)
        return zxid

    def _work(self, client: KazooClient, deadline: Deadline) -> None:
        while len(self._in_flight) < self._size.in_flight and (self._to_list or self._to_read or self._leaves_to_read):
            # Lists last, so that fewer paths wait in memory.
            stack = self._leaves_to_read if len(self._leaves_to_read) > len(self._to_read) else self._to_read
            if self._to_list and len(stack) < _MAX_PACKET_NODES:
                paths = self._next_lists()
                self._in_flight.append((None, paths, ask(client, paths, GET_CHILDREN, GET_DATA)))
            else:
                paths = self._next_nodes(stack)
                self._in_flight.append((stack, paths, ask(client, paths, GET_DATA)))
        origin, paths, result = self._in_flight[0]
        answered = deadline.answer(result)
        self._in_flight.popleft()
        assert isinstance(answered, tuple)
        zxid, answer = answered
        self._observe(zxid)
        if origin is None:
            self._take_lists(paths, answer)
        elif origin is self._leaves_to_read:
            self._take_leaves(paths, answer)
        else:
            self._take_nodes(paths, answer)
        deadline.renew()
        self._pace.wait_after(len(paths))

    def _observe(self, zxid: int) -> None:
        if zxid < self._highest_zxid:
            raise TemporaryError(
                f"ZooKeeper went back from zxid 0x{self._highest_zxid:x} to 0x{zxid:x}: a server that has fallen "
                "behind is answering; begin again, or name another server"
            )
        self._highest_zxid = zxid
        self.checks["zxidsNotGoingBack"] += 1

    def _next_nodes(self, stack: list[str]) -> Sequence[str]:
        most = self._pace.batch_size(_MAX_PACKET_NODES)
        paths = self._size.take(stack[: -most - 1 : -1], 0)
        del stack[-len(paths) :]
        return paths

    def _next_lists(self) -> Sequence[str]:
        most = self._pace.batch_size(_MAX_PACKET_LISTS)
        paths: list[str] = []
        answer_bytes = 0
        while self._to_list and len(paths) < most and (not paths or answer_bytes < TARGET_ANSWER_BYTES):
            path, children_count = self._to_list.pop()
            paths.append(path)
            answer_bytes += children_count * _CHILD_BYTES
        return paths

    def _take_leaves(self, paths: Sequence[str], answer: bytes) -> None:
        starts = data_starts(answer, len(paths))
        if starts is None or self._leaves.may_matter(answer, starts[:-1]):
            self._take_nodes(paths, answer, are_leaves=True)
        else:
            self._found.passed_over += len(paths)
            self._learn(paths, [after - start for start, after in pairwise(starts)])

    def _take_nodes(self, paths: Sequence[str], answer: bytes, *, are_leaves: bool = False) -> None:
        self._found.begin(answer)
        results = decoded(answer, len(paths), parse_node)
        childless: list[str] = []
        nodes: list[NodeAt] = []
        sizes: list[int] = []
        for path, result in zip(paths, results, strict=True):
            if isinstance(result, Refused):
                self._refused(path, result.code)
                sizes.append(0)
                continue
            start, end, children_count = result
            sizes.append(end - start)
            if children_count and not are_leaves:
                self._to_list.append((path, children_count))
            else:
                childless.append(path)
                nodes.append(result)
        self._found.add(childless, nodes)
        self._learn(paths, sizes)

    def _learn(self, paths: Sequence[str], sizes: Sequence[int]) -> None:
        # The largest node and both ends represent a packet: its nodes are neighbours, so they are of one kind.
        samples = sorted({0, sizes.index(max(sizes)), len(sizes) - 1})
        self._size.learn([paths[place] for place in samples], [sizes[place] for place in samples])

    def _take_lists(self, paths: Sequence[str], answer: bytes) -> None:
        self._found.begin(answer)
        for path, result in zip(paths, decoded(answer, len(paths), parse_children), strict=True):
            if isinstance(result, Refused):
                self._refused(path, result.code)
            elif not self._agrees(path, result):
                self._to_list.append((path, result.node.children_count))
            elif path in self._suspects:
                self._confirm(path, frozenset(result.names))
            else:
                self._found.add([path], [result.node])
                self._take_children(path, result.names)

    def _take_children(self, parent: str, names: list[str]) -> None:
        below = "/" if parent == "/" else f"{parent}/"
        # The last is read first; in reverse order, rows come out in order.
        for name in sorted(names, reverse=True):
            path = below + name
            if self._leaves.is_one(parent, name):
                self._leaves_to_read.append(path)
            elif self._is_skipped(path):
                continue
            elif self._is_unread(path):
                self._found.unread.append(path)
            else:
                self._to_read.append(path)

    def _confirm(self, parent: str, names: frozenset[str]) -> None:
        self.checks["branchesListedAgain"] += 1
        for path in self._suspects.pop(parent):
            name = path.rpartition("/")[2]
            if name not in names:
                self.checks["goneMeanwhile"] += 1
                continue
            self._try_again(path, "its parent lists it, and ZooKeeper has no such node")
            (self._leaves_to_read if self._leaves.is_one(parent, name) else self._to_read).append(path)

    def _agrees(self, path: str, listed: Listed) -> bool:
        if len(listed.names) == listed.node.children_count:
            self.checks["listsMatchingTheirCount"] += 1
            return True
        self._try_again(path, f"{len(listed.names)} children were listed and it counts {listed.node.children_count}")
        return False

    def _refused(self, path: str, code: int) -> None:
        # If it is gone, so are the nodes below it that are in doubt.
        is_known = self._suspects.pop(path, None) is not None
        if code == NO_AUTH and not is_known:
            self._found.unreadable.append(path)
        elif code != NO_NODE:
            raise TemporaryError(f"ZooKeeper refused to read {path} (code {code}); read again")
        elif path == self._root:
            raise TemporaryError(f"there is no {path} in the metadata store; check the address and the path")
        else:
            # Its parent's list decides whether it is gone.
            parent = path.rpartition("/")[0] or "/"
            if parent not in self._suspects:
                self._suspects[parent] = set()
                self._to_list.append((parent, _UNKNOWN_CHILDREN))
            self._suspects[parent].add(path)

    def _try_again(self, path: str, contradiction: str) -> None:
        self._tries[path] += 1
        if self._tries[path] >= _MAX_ATTEMPTS:
            raise TemporaryError(
                f"{path} returned inconsistent results {_MAX_ATTEMPTS} times: {contradiction}; begin again"
            )


@dataclass(slots=True)
class _Found:
    """Nodes read and not yet yielded: the responses, and the nodes' places in them."""

    most: int
    unread: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    passed_over: int = 0
    _paths: list[str] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)
    _answers: list[bytes] = field(default_factory=list)
    _base: int = 0
    _total: int = 0

    @property
    def is_much(self) -> bool:
        count = len(self._paths) + len(self.unread) + len(self.unreadable) + self.passed_over
        return count >= self.most or self._total >= _BATCH_BYTES

    def begin(self, answer: bytes) -> None:
        self._answers.append(answer)
        self._base, self._total = self._total, self._total + len(answer)

    def add(self, paths: Sequence[str], nodes: Sequence[NodeAt]) -> None:
        base = self._base
        self._paths += paths
        self._starts += [base + node[0] for node in nodes]
        self._ends += [base + node[1] for node in nodes]

    def taken(self) -> WalkedNodes:
        places = (self._starts, self._ends)
        data = b"".join(self._answers)
        taken = WalkedNodes(self._paths, places, data, self.unreadable, self.unread, self.passed_over)
        self.unread, self.unreadable, self.passed_over = [], [], 0
        self._paths, self._starts, self._ends, self._answers = [], [], [], []
        self._base = self._total = 0
        return taken
