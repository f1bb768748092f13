"""Multi-reads of hundreds of nodes in one request to ZooKeeper, which kazoo lacks and carries for us.

Invariants: every path gets ZooKeeper's own response, or the whole read fails; a packet requests no more than was seen
to fit, so that a run of large nodes never makes the server build a response of hundreds of megabytes.
"""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, NamedTuple, TypeVar

from kazoo.client import KazooClient
from kazoo.handlers.threading import AsyncResult

from pulsar_sidecar.adapters.zookeeper.session import CLIENT_ERRORS, Deadline, KazooSession, real_path, send
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Node

GET_DATA, GET_CHILDREN = 4, 8
_ERROR = -1
# ZooKeeper's codes; kazoo's classes have them too, untyped.
NO_NODE, NO_AUTH = -101, -102

_STAT = struct.Struct("!qqqqiiiqiiq")
"""``Stat``: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid."""
_CHILDREN_COUNT_AT = 56
_OP_HEADER = struct.Struct("!iBi")
_RESULT_HEAD = struct.Struct("!iBii")
_INT = struct.Struct("!i")
_ZXID_IN_REPLY = struct.Struct("!4xq")
_END = _OP_HEADER.pack(-1, 1, -1)
_NO_WATCH = b"\x00"

_UNDECODABLE = "ZooKeeper's answer to a multi-read could not be decoded; read again"
_MAX_NODES = 500
_MAX_REQUEST_BYTES = 256 * 1024
TARGET_ANSWER_BYTES = 512 * 1024
_FIRST_GUESS_BYTES = 128 * 1024
_ANSWER_OVERHEAD_BYTES = 81
_MAX_IN_FLIGHT = 8

Result = TypeVar("Result")


# Every response has the server's zxid in its header (``ReplyHeader``: xid, zxid, err); kazoo does not return it.


@dataclass(frozen=True, slots=True, repr=False)
class MultiOperations:
    """Multi-read: reads of several kinds in one request (``ZooDefs.OpCode.multiRead``, ZooKeeper 3.6 and later)."""

    type: ClassVar[int] = 22

    operations: tuple[tuple[int, bytes], ...]
    """Kind and encoded path, chroot included."""

    def serialize(self) -> bytearray:
        """Return the bytes that kazoo writes after the request's header."""
        packet, head = bytearray(), _RESULT_HEAD.pack
        for kind, path in self.operations:
            packet += head(kind, 0, -1, len(path))
            packet += path
            packet += _NO_WATCH
        packet += _END
        return packet

    def deserialize(self, packet: bytes, offset: int) -> tuple[int, bytes]:
        """Return the server's zxid and the raw responses, which the caller's thread decodes, not the connection's."""
        return _ZXID_IN_REPLY.unpack_from(packet)[0], packet[offset:]


@dataclass(frozen=True, slots=True)
class Sync:
    """Request to let the server catch up with the leader (``ZooDefs.OpCode.sync``); the response is its zxid."""

    type: ClassVar[int] = 9

    path: bytes

    def serialize(self) -> bytes:
        """Return the bytes that kazoo writes after the request's header."""
        return _INT.pack(len(self.path)) + self.path

    def deserialize(self, packet: bytes, offset: int) -> int:
        """Return the server's zxid; nothing else of the response matters."""
        del offset
        zxid: int = _ZXID_IN_REPLY.unpack_from(packet)[0]
        return zxid


def ask(client: KazooClient, paths: Sequence[str], *kinds: int) -> "AsyncResult[object]":
    """Queue reads of these kinds for each path; return the future response of `MultiOperations`."""
    encoded = [real_path(client, path).encode() for path in paths] if client.chroot else map(str.encode, paths)
    return send(client, MultiOperations(tuple((kind, path) for path in encoded for kind in kinds)))


@dataclass(frozen=True, slots=True)
class Refused:
    """ZooKeeper's error code for one operation."""

    code: int


class NodeAt(NamedTuple):
    """Place of a node in a response: its data from ``start`` to ``end``, its ``Stat`` from ``end`` on."""

    start: int
    end: int
    children_count: int


class Listed(NamedTuple):
    """Names of a node's children, and the node itself, as of (nearly) the same moment."""

    names: list[str]
    node: NodeAt


def decoded(answer: bytes, count: int, decode_one: Callable[[bytes, int], tuple[Result, int]]) -> list[Result]:
    """Return ``count`` results: of getData (`parse_node`), or of pairs of getChildren and getData (`parse_children`).

    Raises:
        TemporaryError: this is no response to them.
    """
    results = []
    at = 0
    try:
        for _ in range(count):
            result, at = decode_one(answer, at)
            results.append(result)
        is_end = _OP_HEADER.unpack_from(answer, at)[1]
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise TemporaryError(_UNDECODABLE) from error
    if not is_end:
        raise TemporaryError(_UNDECODABLE)
    return results


def data_starts(answer: bytes, count: int) -> list[int] | None:
    """Return where the data of each of ``count`` nodes begins, and where the next one's would.

    None unless this is a response to getData alone, and has every node. Takes a quarter of the time of `decoded`.
    """
    starts = []
    before, between = _RESULT_HEAD.size, _RESULT_HEAD.size + _STAT.size
    unpack_head = _RESULT_HEAD.unpack_from
    at = before
    try:
        for _ in range(count):
            kind, done, _, length = unpack_head(answer, at - before)
            if kind != GET_DATA or done:
                return None
            starts.append(at)
            at += length + between if length > 0 else between
        is_end = _OP_HEADER.unpack_from(answer, at - before)[1]
    except struct.error:
        return None
    starts.append(at)
    return starts if is_end else None


def parse_node(answer: bytes, at: int) -> tuple[NodeAt | Refused, int]:
    kind, done, _, length = _RESULT_HEAD.unpack_from(answer, at)
    at += _RESULT_HEAD.size
    if kind == GET_DATA and not done:
        end = at + length if length > 0 else at
        (children_count,) = _INT.unpack_from(answer, end + _CHILDREN_COUNT_AT)
        return NodeAt(at, end, children_count), end + _STAT.size
    if kind == _ERROR and not done:
        return Refused(length), at
    raise struct.error("not a getData result")


def parse_children(answer: bytes, at: int) -> tuple[Listed | Refused, int]:
    kind, done, _, count = _RESULT_HEAD.unpack_from(answer, at)
    at += _RESULT_HEAD.size
    if kind == _ERROR and not done:
        return Refused(count), parse_node(answer, at)[1]
    if kind != GET_CHILDREN or done:
        raise struct.error("not a getChildren result")
    names = []
    unpack_length, size = _INT.unpack_from, _INT.size
    for _ in range(count):
        (length,) = unpack_length(answer, at)
        if length <= 0:
            raise struct.error("an empty name")
        at += size
        end = at + length
        names.append(answer[at:end].decode())
        at = end
    node, at = parse_node(answer, at)
    return (node if isinstance(node, Refused) else Listed(names, node)), at


def decode(answer: bytes, paths: Sequence[str]) -> list[Node | None]:
    """Return one result per path.

    Raises:
        TemporaryError: a node was refused, or the response does not match the request.
    """
    nodes: list[Node | None] = []
    for path, result in zip(paths, decoded(answer, len(paths), parse_node), strict=True):
        if not isinstance(result, Refused):
            stat = _STAT.unpack_from(answer, result.end)
            data, version = answer[result.start : result.end], NodeVersion(stat[4])
            nodes.append(Node(path, data, version, stat[2], stat[3], stat[0], stat[9], stat[7] != 0))
        else:
            _demand_absent(path, result)
            nodes.append(None)
    return nodes


class PacketSize:
    """Size of the next packet, estimated from the responses so far.

    It estimates a node's size by its kind, the first part of its path: ledgers are small, managed ledgers need not be.
    An unknown kind counts as large; the estimate grows at once with a large node, and shrinks step by step with small
    ones. A wrong estimate costs the server memory: it builds a whole response, three times its size, before sending
    any.
    """

    def __init__(self) -> None:
        self._bytes_by_kind: dict[str, int] = {}
        self._most = _MAX_NODES
        self.in_flight = 1

    def take(self, paths: Sequence[str], start: int) -> Sequence[str]:
        """Return the paths of the next packet: at least one, within ZooKeeper's limit for a request."""
        answer_bytes, request_bytes = 0, 0
        kind, node_bytes = "//", 0
        some = paths[start : start + self._most]
        for position, path in enumerate(some):
            # Neighbours are of one kind.
            if not path.startswith(kind):
                kind = f"{_kind(path)}/"
                node_bytes = _ANSWER_OVERHEAD_BYTES + self._bytes_by_kind.get(kind[:-1], _FIRST_GUESS_BYTES)
            answer_bytes += node_bytes
            request_bytes += 4 * len(path)
            if answer_bytes > TARGET_ANSWER_BYTES or request_bytes > _MAX_REQUEST_BYTES:
                return some[: max(1, position)]
        return some

    def learn(self, paths: Sequence[str], sizes_bytes: Sequence[int]) -> None:
        """Record the sizes of a response's nodes."""
        largest: dict[str, int] = {}
        for path, size in zip(paths, sizes_bytes, strict=True):
            if size >= largest.get(_kind(path), 0):
                largest[_kind(path)] = size
        for name, size in largest.items():
            self._bytes_by_kind[name] = max(size, self._bytes_by_kind.get(name, _FIRST_GUESS_BYTES) // 4)
        self.in_flight = min(_MAX_IN_FLIGHT, self.in_flight * 2)
        self._most = min(_MAX_NODES, self._most * 2)

    def shrink(self) -> None:
        """Continue after a lost response with a quarter of the nodes, one packet at a time."""
        self._most = max(1, self._most // 4)
        self.in_flight = 1


def _kind(path: str) -> str:
    end = path.find("/", 1)
    return path if end < 0 else path[:end]


def read_nodes(session: KazooSession, paths: Sequence[str]) -> list[Node | None]:
    """Return one result per path, in order, as fresh as the moment of the call.

    Packets lost with a connection are retried, in smaller pieces.

    Raises:
        TemporaryError: no progress within the session's call timeout, or a node was refused.
    """
    return _read_all(session, "read", paths, _NODES)


def list_children(session: KazooSession, paths: Sequence[str]) -> list[list[str] | None]:
    """Return the sorted names of each node's children, None where there is no node; otherwise as `read_nodes`.

    Raises:
        TemporaryError: also where a list and its node's own count of children differ.
    """
    return [None if listing is None else listing[0] for listing in _read_all(session, "list", paths, _LISTS)]


@dataclass(frozen=True, slots=True)
class _Reading(Generic[Result]):
    """Kind of reading: the operations for each path, the decoder of responses, and the bytes of data in a result."""

    kinds: tuple[int, ...]
    decode: Callable[[bytes, Sequence[str]], list[Result]]
    size_bytes: Callable[[Result], int]


def _listings(answer: bytes, paths: Sequence[str]) -> list[tuple[list[str], int] | None]:
    """Return each path's sorted names, and the bytes of the list and the node's data."""
    found: list[tuple[list[str], int] | None] = []
    for path, result in zip(paths, decoded(answer, len(paths), parse_children), strict=True):
        if isinstance(result, Refused):
            _demand_absent(path, result)
            found.append(None)
        elif len(result.names) == result.node.children_count:
            size_bytes = result.node.end - result.node.start + sum(map(len, result.names))
            found.append((sorted(result.names), size_bytes))
        else:
            raise TemporaryError(f"the children of {path} changed while they were listed; list again")
    return found


def _demand_absent(path: str, refused: Refused) -> None:
    if refused.code != NO_NODE:
        advice = "give the sidecar a credential that may read it" if refused.code == NO_AUTH else "read again"
        raise TemporaryError(f"ZooKeeper refused to read {path} (code {refused.code}); {advice}")


_NODES: Final = _Reading((GET_DATA,), decode, lambda node: 0 if node is None else len(node.data))
_LISTS: Final = _Reading((GET_CHILDREN, GET_DATA), _listings, lambda listing: 0 if listing is None else listing[1])


def _read_all(session: KazooSession, verb: str, paths: Sequence[str], reading: _Reading[Result]) -> list[Result]:
    results: list[Result] = []
    size = PacketSize()

    def attempt(client: KazooClient, deadline: Deadline) -> None:
        try:
            _stream(client, paths, results, reading, size, deadline)
        except CLIENT_ERRORS:
            size.shrink()
            raise

    if paths:
        what = paths[0] if len(paths) == 1 else f"{len(paths)} nodes"
        session.reading(f"{verb} {what}", attempt, answers=())
    return results


def _stream(
    client: KazooClient,
    paths: Sequence[str],
    results: list[Result],
    reading: _Reading[Result],
    size: PacketSize,
    deadline: Deadline,
) -> None:
    """Append missing results to ``results``, several packets at a time, until done or the connection breaks."""
    # Responses keep the order of requests: nodes read after the sync are at least as new as the sync.
    synced = client.sync_async("/")
    in_flight: deque[tuple[Sequence[str], AsyncResult[object]]] = deque()
    asked = len(results)
    while len(results) < len(paths):
        while asked < len(paths) and len(in_flight) < size.in_flight:
            packet = size.take(paths, asked)
            in_flight.append((packet, ask(client, packet, *reading.kinds)))
            asked += len(packet)
        deadline.answer(synced)
        packet, result = in_flight.popleft()
        answered = deadline.answer(result)
        assert isinstance(answered, tuple)
        found = reading.decode(answered[1], packet)
        size.learn(packet, [reading.size_bytes(each) for each in found])
        results += found
        deadline.renew()
