"""Walks a living ZooKeeper's tree with multi-reads.

Hundreds of nodes, or many children's lists, go into one request, and several requests are on their way.

Invariants, each of which another tool broke and deleted live data for it:

* a list of children counts only in agreement with its parent's own count of them, read in the same request;
* "no node" for something that a list named is believed only when a new list of its parent does not name it any more;
* no answer may be older than one before it, nor than the ``sync`` at the beginning: a server that fell behind fails
  the walk, it does not shorten it;
* a node that may not be read is a row with that reason.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.metadata.addressing import ZooKeeperCredential, ZooKeeperTls, parse_metadata_store_url
from pulsar_sidecar.adapters.metadata.multiread import (
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
    a_list,
    a_node,
    ask,
    decoded,
)
from pulsar_sidecar.adapters.metadata.session import (
    CLIENT_ERRORS,
    KazooSession,
    Patience,
    SessionOptions,
    real_path,
    send,
)
from pulsar_sidecar.audit.sources.manifests import Source, SourceKind
from pulsar_sidecar.model.clocks import Clock, Pace
from pulsar_sidecar.model.errors import TemporaryError

_PATIENCE_SECONDS = 30.0
_BATCH_NODES = 32_768
_BATCH_BYTES = 64 * 1024 * 1024
_TRIES = 5
_MAX_PACKET_NODES = 200
_MAX_PACKET_LISTS = 50
_CHILD_BYTES = 48
_UNKNOWN_CHILDREN = TARGET_ANSWER_BYTES // _CHILD_BYTES
"""As many as fill an answer: a node whose children were not counted is listed alone, or last."""
NOT_PERMITTED = "NoAuth: no credential that may read it"


@dataclass(frozen=True, slots=True)
class WalkOptions:
    """How nodes are read: by whom, how many a second at most, None for no limit, and over which TLS."""

    credential: ZooKeeperCredential | None = None
    nodes_per_second: float | None = None
    tls: ZooKeeperTls | None = None


UNLIMITED = WalkOptions()

Matches = Callable[[str], object]
"""What is true of some paths."""


def ledger_filters(ledgers_root: str, *, with_metadata: bool) -> tuple[Matches, Matches]:
    """``is_skipped`` and ``is_unread`` of a walk below ``ledgers_root`` that is after ledgers alone."""
    root = re.escape(ledgers_root)
    # Directories of ledgers have numbers for names; everything else there is BookKeeper's own business.
    is_skipped = re.compile(rf"{root}/[^0-9][^/]*").fullmatch
    return is_skipped, re.compile(rf"{root}/.+/L[0-9]{{4}}" if not with_metadata else r"(?!)").fullmatch


@dataclass(frozen=True, slots=True)
class WalkedNodes:
    """Some nodes of a walk, as they came over the wire.

    Attributes:
        paths: of the nodes that were read.
        values: where in ``data`` the value of each begins and ends; its ``Stat`` follows.
        unreadable: nodes that may not be read, for `NOT_PERMITTED`.
        unread: nodes that exist and were not asked for.
    """

    paths: Sequence[str]
    values: tuple[Sequence[int], Sequence[int]]
    data: bytes
    unreadable: Sequence[str]
    unread: Sequence[str]


class NodeWalk:
    """One walk of a metadata store; a session lives as long as the walk.

    Attributes:
        source: where it reads.
        first_zxid: what the server had seen when it was synced with the leader, before the first read.
        last_zxid: the same, after the last read.
        checks: how many comparisons were made, all in agreement.
    """

    def __init__(
        self,
        url: str,
        clock: Clock,
        options: WalkOptions = UNLIMITED,
        *,
        root: str = "/",
        is_skipped: Matches = lambda path: False,
        is_unread: Matches = lambda path: False,
    ) -> None:
        """Prepare a walk of the metadata store at Pulsar's ``metadataStoreUrl``.

        Nodes that are skipped are left out with everything below; ``is_skipped`` is never asked for ``root``. Of unread
        ones, which have no children, only the existence is wanted.
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
        self._size = PacketSize()
        self._pace = Pace(clock, options.nodes_per_second)
        self._highest_zxid = 0
        self._to_read = [root]
        self._to_list: list[tuple[str, int]] = []
        # By parent, what its list named and ZooKeeper answered not to be there; each parent waits to be listed again.
        self._suspects: dict[str, set[str]] = {}
        self._in_flight: deque[tuple[bool, Sequence[str], AsyncResult[object]]] = deque()
        self._tries: Counter[str] = Counter()
        self._found = _Found()

    def pieces(self) -> Iterator[WalkedNodes]:
        """Every node once, each after its parent; to be called once.

        Raises:
            TemporaryError: something could not be read, or contradicts itself. What was yielded is then worthless.
        """
        with self._session() as session:
            while self.last_zxid is None:
                session.reading(f"walk {self._root}", self._advance, answers=())
                yield self._found.taken()

    def _session(self) -> KazooSession:
        options = SessionOptions(patience_seconds=_PATIENCE_SECONDS, credential=self._credential, tls=self._tls)
        return KazooSession(self._url, self._clock, options)

    def _advance(self, client: KazooClient, patience: Patience) -> None:
        """Walk on until a batch is full, or to the end."""
        try:
            if not self._in_flight:
                zxid = self._synced(client, patience)
                self.first_zxid = zxid if self.first_zxid is None else self.first_zxid
            while self._to_read or self._to_list or self._in_flight:
                self._work(client, patience)
                if self._found.is_much:
                    return
            self.last_zxid = self._synced(client, patience)
        except CLIENT_ERRORS:
            # What was asked is to be asked again, in smaller pieces.
            for lists, paths, _ in self._in_flight:
                if lists:
                    self._to_list += [(path, _UNKNOWN_CHILDREN) for path in paths]
                else:
                    self._to_read += paths
            self._in_flight.clear()
            self._size.shrink()
            raise

    def _synced(self, client: KazooClient, patience: Patience) -> int:
        zxid = patience.answer(send(client, Sync(real_path(client, "/").encode())))
        assert isinstance(zxid, int)
        self._observe(zxid)
        return zxid

    def _work(self, client: KazooClient, patience: Patience) -> None:
        while len(self._in_flight) < self._size.in_flight and (self._to_list or self._to_read):
            # Leaves first: the more of them are read, the fewer paths wait in memory.
            if self._to_list and len(self._to_read) < _MAX_PACKET_NODES:
                paths = self._next_lists()
                self._in_flight.append((True, paths, ask(client, paths, GET_CHILDREN, GET_DATA)))
            else:
                paths = self._next_nodes()
                self._in_flight.append((False, paths, ask(client, paths, GET_DATA)))
        lists, paths, result = self._in_flight[0]
        answered = patience.answer(result)
        self._in_flight.popleft()
        assert isinstance(answered, tuple)
        zxid, answer = answered
        self._observe(zxid)
        self._found.begin(answer)
        (self._take_lists if lists else self._take_nodes)(paths, answer)
        patience.renew()
        self._pace.after(len(paths))

    def _observe(self, zxid: int) -> None:
        if zxid < self._highest_zxid:
            raise TemporaryError(
                f"ZooKeeper went back from zxid 0x{self._highest_zxid:x} to 0x{zxid:x}: a server that fell behind "
                "answers; begin again, or name another server"
            )
        self._highest_zxid = zxid
        self.checks["zxidsNotGoingBack"] += 1

    def _next_nodes(self) -> Sequence[str]:
        most = self._pace.at_once(_MAX_PACKET_NODES)
        paths = self._size.take(self._to_read[: -most - 1 : -1], 0)
        del self._to_read[-len(paths) :]
        return paths

    def _next_lists(self) -> Sequence[str]:
        most = self._pace.at_once(_MAX_PACKET_LISTS)
        paths: list[str] = []
        answer_bytes = 0
        while self._to_list and len(paths) < most and (not paths or answer_bytes < TARGET_ANSWER_BYTES):
            path, children_count = self._to_list.pop()
            paths.append(path)
            answer_bytes += children_count * _CHILD_BYTES
        return paths

    def _take_nodes(self, paths: Sequence[str], answer: bytes) -> None:
        results = decoded(answer, len(paths), a_node)
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
        # The largest node and both ends stand for a packet: its nodes are neighbours, so they are of one kind.
        sizes = [result[1] - result[0] if isinstance(result, NodeAt) else 0 for result in results]
        samples = sorted({0, sizes.index(max(sizes)), len(sizes) - 1})
        self._size.learn([paths[place] for place in samples], [sizes[place] for place in samples])

    def _take_lists(self, paths: Sequence[str], answer: bytes) -> None:
        for path, result in zip(paths, decoded(answer, len(paths), a_list), strict=True):
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
        # The last is read first; sorted the other way round, rows come out in order.
        for name in sorted(names, reverse=True):
            path = below + name
            if self._is_skipped(path):
                continue
            if self._is_unread(path):
                self._found.unread.append(path)
            else:
                self._to_read.append(path)

    def _confirm(self, parent: str, names: frozenset[str]) -> None:
        self.checks["branchesListedAgain"] += 1
        for path in self._suspects.pop(parent):
            if path.rpartition("/")[2] not in names:
                self.checks["goneMeanwhile"] += 1
                continue
            self._try_again(path, "its parent lists it, and ZooKeeper has no such node")
            self._to_read.append(path)

    def _agrees(self, path: str, listed: Listed) -> bool:
        if len(listed.names) == listed.node.children_count:
            self.checks["listsMatchingTheirCount"] += 1
            return True
        self._try_again(path, f"{len(listed.names)} children were listed and it counts {listed.node.children_count}")
        return False

    def _refused(self, path: str, code: int) -> None:
        # What was suspected below it is gone with it, if it is gone.
        is_known = self._suspects.pop(path, None) is not None
        if code == NO_AUTH and not is_known:
            self._found.unreadable.append(path)
        elif code != NO_NODE:
            raise TemporaryError(f"ZooKeeper refused to read {path} (code {code}); read again")
        elif path == self._root:
            raise TemporaryError(f"there is no {path} in the metadata store; check the address and the path")
        else:
            # Whether it is gone, its parent decides.
            parent = path.rpartition("/")[0] or "/"
            if parent not in self._suspects:
                self._suspects[parent] = set()
                self._to_list.append((parent, _UNKNOWN_CHILDREN))
            self._suspects[parent].add(path)

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

    def taken(self) -> WalkedNodes:
        """Hand everything out."""
        places = (self._starts, self._ends)
        taken = WalkedNodes(self._paths, places, b"".join(self._answers), self.unreadable, self.unread)
        self.unread, self.unreadable = [], []
        self._paths, self._starts, self._ends, self._answers = [], [], [], []
        self._base = self._total = 0
        return taken
