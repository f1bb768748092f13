"""Writer of snapshots in ZooKeeper's own format (``FileSnap``), of ZooKeeper 3.9 or older versions."""

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SnapshotNode:
    """A node in a snapshot; ``value`` is None without data."""

    path: str
    value: bytes | None = b""
    version: int = 0
    czxid: int = 1
    mzxid: int = 1
    ctime: int = 1_700_000_000_000
    mtime: int = 1_700_000_000_000
    owner: int = 0


@dataclass(slots=True)
class SnapshotWriter:
    """Builder of a snapshot, any part of which a test can corrupt."""

    magic: bytes = b"ZKSN"
    version: int = 2
    digest: bool = True
    last_zxid: int | None = 1
    _out: bytearray = field(default_factory=bytearray)

    def snapshot(self, nodes: Iterable[SnapshotNode], sessions: int = 2) -> bytes:
        """Return the whole file of ``nodes`` without the root, which it writes first."""
        self._out = bytearray(self.magic + struct.pack(">iq", self.version, -1))
        self._out += struct.pack(">i", sessions) + struct.pack(">qi", 7, 30_000) * sessions
        self._acl()
        for node in [SnapshotNode("", None), *nodes]:
            self._node(node)
        self._text(b"/")
        self._seal()
        if self.digest:
            self._out += struct.pack(">qiq", self.last_zxid or 0, 2, 99)
            self._seal()
        if self.last_zxid is not None:
            self._out += struct.pack(">q", self.last_zxid)
            self._seal()
        return bytes(self._out)

    def _acl(self) -> None:
        self._out += struct.pack(">iqii", 1, 1, 1, 31)
        self._text(b"world")
        self._text(b"anyone")

    def _node(self, node: SnapshotNode) -> None:
        self._text(node.path.encode())
        self._out += struct.pack(">i", -1) if node.value is None else struct.pack(">i", len(node.value)) + node.value
        times = (node.czxid, node.mzxid, node.ctime, node.mtime)
        self._out += struct.pack(">qqqqqiiiqq", 1, *times, node.version, 0, 0, node.owner, node.mzxid)

    def _text(self, text: bytes) -> None:
        self._out += struct.pack(">i", len(text)) + text

    def _seal(self) -> None:
        self._out += struct.pack(">q", zlib.adler32(self._out))
        self._text(b"/")
