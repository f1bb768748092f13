"""ZooKeeper's multi-read: hundreds of nodes in one request, many requests on their way.

kazoo has no such call, so the request travels as an object of ours through kazoo's connection. Invariants: every path
gets ZooKeeper's own answer, or the whole read fails; a packet asks for no more than what was seen to fit, so that a
run of large nodes never makes the server build an answer of hundreds of megabytes.
"""

import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from kazoo.client import KazooClient
from kazoo.exceptions import UnimplementedError
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.metadata.errors import CLIENT_ERRORS, may_be_repeated, reading_failed
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

_GET_DATA = 4
_ERROR = -1
# ZooKeeper's codes; kazoo's classes carry them too, untyped.
NO_NODE = -101
NO_AUTH = -102

_OP_HEADER = struct.Struct("!iBi")
_RESULT_HEAD = struct.Struct("!iBii")
_LENGTH = struct.Struct("!i")
# czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid
_STAT = struct.Struct("!qqqqiiiqiiq")
_GET_DATA_HEADER = _OP_HEADER.pack(_GET_DATA, 0, -1)
_END = _OP_HEADER.pack(-1, 1, -1)
_NO_WATCH = b"\x00"


@dataclass(frozen=True, slots=True)
class MultiRead:
    """The request (``ZooDefs.OpCode.multiRead``, ZooKeeper 3.6 and later) with one getData per path."""

    type: ClassVar[int] = 22

    paths: tuple[bytes, ...]
    """Encoded, below the real root: chroot included."""

    def serialize(self) -> bytearray:
        """What kazoo writes after the request's header."""
        packet = bytearray()
        for path in self.paths:
            packet += _GET_DATA_HEADER + _LENGTH.pack(len(path)) + path + _NO_WATCH
        packet += _END
        return packet

    def deserialize(self, packet: bytes, offset: int) -> memoryview:
        """The undecoded answer: it is decoded by the thread that asked, not by the connection's."""
        return memoryview(packet)[offset:]

    def __repr__(self) -> str:
        return f"MultiRead({len(self.paths)} paths)"


class _NodeRefusedError(Exception):
    def __init__(self, path: str, code: int) -> None:
        super().__init__(f"ZooKeeper answered {code} for {path}")
        self.path = path
        self.code = code


def decode(answer: memoryview, paths: Sequence[str]) -> list[Node | None]:
    """One result per path.

    Raises:
        TemporaryError: a node was refused, or the answer is not one to this request.
    """
    try:
        return _decode(answer, paths)
    except (struct.error, IndexError) as error:
        raise TemporaryError("ZooKeeper's answer to a multi-read could not be decoded; read again") from error
    except _NodeRefusedError as error:
        advice = "give the sidecar a credential that may read it" if error.code == NO_AUTH else "read again"
        raise TemporaryError(f"ZooKeeper refused to read {error.path} (code {error.code}); {advice}") from error


def _decode(answer: memoryview, paths: Sequence[str]) -> list[Node | None]:
    nodes: list[Node | None] = []
    offset = 0
    for path in paths:
        kind, done, _, length = _RESULT_HEAD.unpack_from(answer, offset)
        offset += _RESULT_HEAD.size
        if done or kind not in (_GET_DATA, _ERROR):
            raise struct.error("not a getData result")
        if kind == _ERROR:
            if length != NO_NODE:
                raise _NodeRefusedError(path, length)
            nodes.append(None)
            continue
        end = offset + max(0, length)
        nodes.append(_node(path, bytes(answer[offset:end]), _STAT.unpack_from(answer, end)))
        offset = end + _STAT.size
    if not _OP_HEADER.unpack_from(answer, offset)[1]:
        raise struct.error("more results than paths")
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
        answer = patience.answer(result)
        assert isinstance(answer, memoryview)
        found = decode(answer, packet)
        size.learn(packet, found)
        nodes += found
        patience.renew()


def _request(client: KazooClient, packet: Sequence[str]) -> MultiRead:
    return MultiRead(tuple(real_path(client, path).encode() for path in packet))


def _name(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{len(paths)} nodes"
