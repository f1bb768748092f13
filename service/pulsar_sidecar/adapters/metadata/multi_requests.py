"""ZooKeeper's multi-read and its answers: requests that kazoo does not have, and carries for us.

Every answer comes with the zxid at which the server stood, which is in the reply's header; kazoo hands it to nobody.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pulsar_sidecar.model.errors import TemporaryError

GET_DATA, GET_CHILDREN = 4, 8
STAT = struct.Struct("!qqqqiiiqiiq")
"""``Stat``: czxid, mzxid, ctime, mtime, version, cversion, aversion, ephemeralOwner, dataLength, numChildren, pzxid."""
_CHILDREN_COUNT_AT = 56
_ERROR = -1
# ZooKeeper's codes; kazoo's classes carry them too, untyped.
NO_NODE, NO_AUTH = -101, -102

_OP_HEADER = struct.Struct("!iBi")
_RESULT_HEAD = struct.Struct("!iBii")
_INT = struct.Struct("!i")
_ZXID_IN_REPLY = struct.Struct("!4xq")
_END = _OP_HEADER.pack(-1, 1, -1)
_NO_WATCH = b"\x00"


@dataclass(frozen=True, slots=True)
class MultiOperations:
    """Reads of several kinds in one request (``ZooDefs.OpCode.multiRead``, ZooKeeper 3.6 and later)."""

    type: ClassVar[int] = 22

    operations: tuple[tuple[int, bytes], ...]
    """Kind and encoded path, chroot included."""

    def serialize(self) -> bytearray:
        """What kazoo writes after the request's header."""
        packet = bytearray()
        for kind, path in self.operations:
            packet += _OP_HEADER.pack(kind, 0, -1) + _INT.pack(len(path)) + path + _NO_WATCH
        packet += _END
        return packet

    def deserialize(self, packet: bytes, offset: int) -> tuple[int, bytes]:
        """The server's zxid, and the answers undecoded: the thread that asked decodes them, not the connection's."""
        return zxid_of_reply(packet), packet[offset:]

    def __repr__(self) -> str:
        return f"MultiOperations({len(self.operations)})"


@dataclass(frozen=True, slots=True)
class Sync:
    """Lets the server catch up with the leader (``ZooDefs.OpCode.sync``); the answer is its zxid then."""

    type: ClassVar[int] = 9

    path: bytes

    def serialize(self) -> bytes:
        """What kazoo writes after the request's header."""
        return _INT.pack(len(self.path)) + self.path

    def deserialize(self, packet: bytes, offset: int) -> int:
        """The server's zxid; nothing else of the answer matters."""
        del offset
        return zxid_of_reply(packet)


def zxid_of_reply(packet: bytes) -> int:
    """The zxid in a reply's header (``ReplyHeader``: xid, zxid, err)."""
    zxid: int = _ZXID_IN_REPLY.unpack_from(packet)[0]
    return zxid


@dataclass(frozen=True, slots=True)
class Refused:
    """ZooKeeper's error code for one operation."""

    code: int


class NodeAt(NamedTuple):
    """Where in an answer a node is: its data from ``start`` to ``end``, its ``Stat`` from ``end`` on."""

    start: int
    end: int
    children_count: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A node's children's names, and the node itself, as of (nearly) the same moment."""

    names: list[str]
    node: NodeAt


def decode_nodes(answer: bytes, count: int) -> list[NodeAt | Refused]:
    """The results of as many getData operations.

    Raises:
        TemporaryError: this is no answer to them.
    """
    try:
        results: list[NodeAt | Refused] = []
        at = 0
        for _ in range(count):
            result, at = _node(answer, at)
            results.append(result)
        _demand_end(answer, at)
    except (struct.error, IndexError) as error:
        raise _undecodable() from error
    return results


def decode_lists(answer: bytes, count: int) -> list[Listed | Refused]:
    """The results of as many pairs of getChildren and getData.

    Raises:
        TemporaryError: this is no answer to them.
    """
    try:
        results: list[Listed | Refused] = []
        at = 0
        for _ in range(count):
            names, at = _names(answer, at)
            node, at = _node(answer, at)
            if isinstance(names, Refused):
                results.append(names)
            else:
                results.append(node if isinstance(node, Refused) else Listed(names, node))
        _demand_end(answer, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _undecodable() from error
    return results


def _node(answer: bytes, at: int) -> tuple[NodeAt | Refused, int]:
    kind, done, _, length = _RESULT_HEAD.unpack_from(answer, at)
    at += _RESULT_HEAD.size
    if kind == GET_DATA and not done:
        end = at + length if length > 0 else at
        (children_count,) = _INT.unpack_from(answer, end + _CHILDREN_COUNT_AT)
        return NodeAt(at, end, children_count), end + STAT.size
    if kind == _ERROR and not done:
        return Refused(length), at
    raise struct.error("not a getData result")


def _names(answer: bytes, at: int) -> tuple[list[str] | Refused, int]:
    kind, done, _, count = _RESULT_HEAD.unpack_from(answer, at)
    at += _RESULT_HEAD.size
    if kind == _ERROR and not done:
        return Refused(count), at
    if kind != GET_CHILDREN or done:
        raise struct.error("not a getChildren result")
    names = []
    for _ in range(count):
        (length,) = _INT.unpack_from(answer, at)
        at += _INT.size
        name = answer[at : at + length]
        if length <= 0 or len(name) != length:
            raise struct.error("a name without its end")
        names.append(name.decode())
        at += length
    return names, at


def _demand_end(answer: bytes, at: int) -> None:
    if not _OP_HEADER.unpack_from(answer, at)[1]:
        raise struct.error("more results than operations")


def _undecodable() -> TemporaryError:
    return TemporaryError("ZooKeeper's answer to a multi-read could not be decoded; read again")
