"""Reads hundreds of nodes in one request to ZooKeeper, many requests on their way.

Invariants: every path gets ZooKeeper's own answer, or the whole read fails; a packet asks for no more than what was
seen to fit, so that a run of large nodes never makes the server build an answer of hundreds of megabytes.
"""

from collections import deque
from collections.abc import Sequence

from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.metadata.errors import CLIENT_ERRORS, may_be_repeated, reading_failed
from pulsar_sidecar.adapters.metadata.multi_requests import (
    GET_DATA,
    NO_AUTH,
    NO_NODE,
    STAT,
    MultiOperations,
    Refused,
    decode_nodes,
)
from pulsar_sidecar.adapters.metadata.session import KazooSession, Patience, real_path, send
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Node

_MAX_NODES = 200
_MAX_REQUEST_BYTES = 256 * 1024
_TARGET_ANSWER_BYTES = 512 * 1024
_FIRST_GUESS_BYTES = 128 * 1024
_ANSWER_OVERHEAD_BYTES = 81
_MAX_IN_FLIGHT = 8


def decode(answer: bytes, paths: Sequence[str]) -> list[Node | None]:
    """One result per path.

    Raises:
        TemporaryError: a node was refused, or the answer is not one to this request.
    """
    nodes: list[Node | None] = []
    for path, result in zip(paths, decode_nodes(answer, len(paths)), strict=True):
        if not isinstance(result, Refused):
            nodes.append(_node(path, answer[result.start : result.end], STAT.unpack_from(answer, result.end)))
        elif result.code == NO_NODE:
            nodes.append(None)
        else:
            advice = "give the sidecar a credential that may read it" if result.code == NO_AUTH else "read again"
            raise TemporaryError(f"ZooKeeper refused to read {path} (code {result.code}); {advice}")
    return nodes


def _node(path: str, data: bytes, stat: tuple[int, ...]) -> Node:
    return Node(path, data, NodeVersion(stat[4]), stat[2], stat[3], stat[0], stat[9], stat[7] != 0)


class PacketSize:
    """Which nodes the next packet asks for, learnt from the answers so far.

    A node's size is guessed by its kind, the first part of its path: ledgers are small, managed ledgers need not be.
    An unknown kind is suspected to be large, a large node is believed at once, and small ones step by step. A wrong
    guess costs the server memory: it builds a whole answer, three times its size, before sending any of it.
    """

    def __init__(self) -> None:
        self._bytes_by_kind: dict[str, int] = {}
        self._most = _MAX_NODES
        self.in_flight = 1

    def take(self, paths: Sequence[str], start: int) -> Sequence[str]:
        """The paths of the next packet: at least one, within ZooKeeper's limit for a request."""
        answer_bytes, request_bytes = 0, 0
        for position in range(start, min(len(paths), start + self._most)):
            path = paths[position]
            answer_bytes += _ANSWER_OVERHEAD_BYTES + self._bytes_by_kind.get(kind(path), _FIRST_GUESS_BYTES)
            request_bytes += 4 * len(path)
            too_much = answer_bytes > _TARGET_ANSWER_BYTES or request_bytes > _MAX_REQUEST_BYTES
            if too_much and position > start:
                return paths[start:position]
        return paths[start : start + self._most]

    def learn(self, paths: Sequence[str], nodes: Sequence[Node | None]) -> None:
        """Take note of an answer."""
        self.learn_sizes(paths, [0 if node is None else len(node.data) for node in nodes])

    def learn_sizes(self, paths: Sequence[str], sizes_bytes: Sequence[int]) -> None:
        """Take note of how large the nodes of an answer were."""
        largest: dict[str, int] = {}
        for path, size in zip(paths, sizes_bytes, strict=True):
            if size >= largest.get(kind(path), 0):
                largest[kind(path)] = size
        for name, size in largest.items():
            self._bytes_by_kind[name] = max(size, self._bytes_by_kind.get(name, _FIRST_GUESS_BYTES) // 4)
        self.in_flight = min(_MAX_IN_FLIGHT, self.in_flight * 2)
        self._most = min(_MAX_NODES, self._most * 2)

    def shrink(self) -> None:
        """After a lost answer: a quarter of the nodes, one packet at a time."""
        self._most = max(1, self._most // 4)
        self.in_flight = 1


def kind(path: str) -> str:
    """The first part of a path, such as ``ledgers``."""
    end = path.find("/", 1)
    return path if end < 0 else path[:end]


class MultiReader:
    """Reads many nodes over one session, as fresh as the moment of the call."""

    def __init__(self, session: KazooSession) -> None:
        self._session = session

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """One result per path, in order; packets lost with a connection are asked for again, in smaller pieces.

        Raises:
            TemporaryError: no progress for as long as the session's patience lasts, or a node was refused.
        """
        nodes: list[Node | None] = []
        size = PacketSize()
        patience = self._session.patience()
        while len(nodes) < len(paths):
            client = self._session.connected(patience)
            try:
                _stream(client, paths, nodes, size, patience)
            except UnimplementedError as error:
                raise TemporaryError("this ZooKeeper has no multi-read; it takes version 3.6 or later") from error
            except CLIENT_ERRORS as error:
                if not may_be_repeated(error) or patience.is_over():
                    raise reading_failed(error, f"read {_name(paths)}") from error
                size.shrink()
                self._session.pause()
        return nodes


def _stream(
    client: KazooClient, paths: Sequence[str], nodes: list[Node | None], size: PacketSize, patience: Patience
) -> None:
    """Append to ``nodes`` what is missing, several packets at a time, until done or the connection breaks."""
    # Answers keep the order of requests: what is read after the sync is at least as new as the sync.
    synced = client.sync_async("/")
    in_flight: deque[tuple[Sequence[str], AsyncResult[object]]] = deque()
    asked = len(nodes)
    while len(nodes) < len(paths):
        while asked < len(paths) and len(in_flight) < size.in_flight:
            packet = size.take(paths, asked)
            in_flight.append((packet, send(client, _request(client, packet))))
            asked += len(packet)
        patience.answer(synced)
        packet, result = in_flight.popleft()
        answered = patience.answer(result)
        assert isinstance(answered, tuple)
        found = decode(answered[1], packet)
        size.learn(packet, found)
        nodes += found
        patience.renew()


def _request(client: KazooClient, packet: Sequence[str]) -> MultiOperations:
    return MultiOperations(tuple((GET_DATA, real_path(client, path).encode()) for path in packet))


def _name(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} nodes"
