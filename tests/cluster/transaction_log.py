"""ZooKeeper's transaction log as ground truth of the references at the moment of a ledger's deletion.

The server logs every change in order and with its session, so the log misses nothing between two readings, and needs no
clock. A file is a header of 16 bytes and then, for each change, a checksum (8 bytes), a length (4), that many bytes and
the letter B; the rest of a file is zeros (``FileTxnLog``, ``TxnHeader``).
"""

import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pulsar_sidecar.features.ledger_deletion.control import INSTANCES
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.features.ledger_deletion.watch.named_ledgers import named_ledgers
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, SCHEMAS, ledger_id_of_path
from pulsar_sidecar.ownership.places import Place, locate
from pulsar_sidecar.ownership.references import cursor_references

from tests.cluster.running import ClusterUnderTest

_FILE_HEADER_BYTES = 16
_RECORD = struct.Struct("!qi")
_TRANSACTION = struct.Struct("!qiqqi")
"""``TxnHeader``: session, number within the session, zxid, time, type."""
_INT = struct.Struct("!i")
_END = b"B"
_CREATES = frozenset({1, 15, 19, 21})
_DELETES = frozenset({2, 20})
_SET_DATA, _MULTI = 5, 14


@dataclass(frozen=True, slots=True)
class Change:
    """A node created, changed (``data``) or removed (None)."""

    zxid: int
    session: int
    path: str
    data: bytes | None
    is_new: bool


@dataclass(frozen=True, slots=True)
class LedgerDeletion:
    """The removal of a ledger's node while other nodes named the ledger."""

    ledger_id: LedgerId
    zxid: int
    session: int
    named_by: tuple[str, ...]


class TransactionLog:
    """The changes so far and their consequences; `read_on` reads newer ones."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        """Initialise without reading; skip the test if the cluster's files are not on this machine."""
        directory = cluster.addresses.directory
        if directory is None:
            pytest.skip("ZooKeeper's files are read on this machine only; this cluster runs elsewhere")
        self._directory: Path = directory / "zookeeper" / "data" / "version-2"
        self._file: Path | None = None
        self._offset = 0
        self._named: dict[str, frozenset[LedgerId]] = {}
        self._naming: dict[LedgerId, set[str]] = {}
        self._data: dict[str, bytes] = {}
        self._sidecars: set[int] = set()
        self._deleted_by: dict[LedgerId, int] = {}
        self._while_named: list[LedgerDeletion] = []
        self.evidence: Counter[LedgerId] = Counter()
        """Numbers of evidence that a watch has written, by leaked ledger."""
        self.first_named_by: dict[LedgerId, str] = {}
        """Path of the first node that named a ledger."""
        self.changes = 0

    def read_on(self) -> None:
        """Read the changes since the last call."""
        for change in self._changes():
            self._take(change)

    def ever_named(self) -> frozenset[LedgerId]:
        """Read on and return ledgers that a node names or has named."""
        self.read_on()
        return frozenset(self._naming)

    def deleted_by_sidecars(self) -> frozenset[LedgerId]:
        """Return deleted ledgers whose nodes a sidecar removed."""
        return frozenset(id_ for id_, session in self._deleted_by.items() if session in self._sidecars)

    def left_buckets(self) -> frozenset[LedgerId]:
        """Read on and return deleted ledgers that only cursors name as buckets, and that no sidecar removed.

        Brokers delete a bucket's ledger before the cursor's property: a broker that dies, or is refused, between the
        two leaves the property forever (``ImmutableBucket.asyncDeleteBucketSnapshot``).
        """
        self.read_on()
        return frozenset(
            ledger_id
            for ledger_id, session in self._deleted_by.items()
            if session not in self._sidecars
            and (naming := self._naming.get(ledger_id))
            and all(ledger_id in _buckets(path, self._data[path]) for path in naming)
        )

    def demand_nothing_referenced_was_deleted(self, ledger_ids: Collection[LedgerId]) -> None:
        """Demand that no sidecar removed a ledger named at that moment, and that sidecars removed all of these.

        A session is a sidecar's if it ever registered one; tests also clean up below ``/pulsar-sidecar``.
        """
        self.read_on()
        wrong = [each for each in self._while_named if each.session in self._sidecars]
        assert not wrong, f"referenced ledgers were deleted: {wrong}"
        others = set(ledger_ids) - self.deleted_by_sidecars()
        assert not others, f"ledgers that no sidecar has deleted, by ZooKeeper's transaction log: {sorted(others)}"

    # --- meaning of a change ---------------------------------------------------------------------------------------

    def _take(self, change: Change) -> None:
        self.changes += 1
        path = change.path
        if path.startswith(f"{INSTANCES}/") and change.is_new:
            self._sidecars.add(change.session)
        elif path.startswith(f"{LEAKS}/") and change.data is not None:
            name = path.rpartition("/")[2]
            if name.isdecimal():  # not a copy in tiered storage
                self.evidence[LedgerId(int(name))] += 1
        elif path.startswith((f"{MANAGED_LEDGERS}/", f"{SCHEMAS}/")):
            self._name(path, change.data)
        elif (ledger_id := ledger_id_of_path(path)) is not None:
            if change.data is None:
                self._remove(ledger_id, change)
            elif change.is_new:
                self._deleted_by.pop(ledger_id, None)

    def _name(self, path: str, data: bytes | None) -> None:
        before = self._named.pop(path, frozenset())
        try:
            now = frozenset() if data is None else _references(path, data)
        except UndecodableError:
            # A node that a test damaged on purpose keeps its former references.
            now = before
        else:
            self._data[path] = data or b""
        if now:
            self._named[path] = now
        for ledger_id in before - now:
            self._naming[ledger_id].discard(path)
        for ledger_id in now - before:
            self._naming.setdefault(ledger_id, set()).add(path)
            self.first_named_by.setdefault(ledger_id, path)

    def _remove(self, ledger_id: LedgerId, change: Change) -> None:
        self._deleted_by[ledger_id] = change.session
        naming = self._naming.get(ledger_id)
        if naming:
            deletion = LedgerDeletion(ledger_id, change.zxid, change.session, tuple(sorted(naming)))
            self._while_named.append(deletion)

    # --- the files -------------------------------------------------------------------------------------------------

    def _changes(self) -> Iterator[Change]:
        files = sorted(self._directory.glob("log.*"), key=_first_zxid)
        for file in files:
            if self._file is not None and _first_zxid(file) < _first_zxid(self._file):
                continue
            if file != self._file:
                self._file, self._offset = file, _FILE_HEADER_BYTES
            yield from self._changes_of(file)

    def _changes_of(self, file: Path) -> Iterator[Change]:
        with file.open("rb") as log:
            log.seek(self._offset)
            while len(head := log.read(_RECORD.size)) == _RECORD.size:
                _, length = _RECORD.unpack(head)
                body = log.read(length + 1) if length > 0 else b""
                if len(body) != length + 1 or body[-1:] != _END:
                    return  # the end, or an unfinished change of a server that was killed or still writes
                self._offset += len(head) + len(body)
                session, _, zxid, _, kind = _TRANSACTION.unpack_from(body)
                yield from _changes_in(zxid, session, kind, body[_TRANSACTION.size : -1])


def demand_nothing_referenced_was_deleted(cluster: ClusterUnderTest, ledger_ids: Collection[LedgerId]) -> None:
    """See `TransactionLog.demand_nothing_referenced_was_deleted`, from the cluster's first change on."""
    TransactionLog(cluster).demand_nothing_referenced_was_deleted(ledger_ids)


def _first_zxid(file: Path) -> int:
    return int(file.suffix.removeprefix("."), 16)


def _changes_in(zxid: int, session: int, kind: int, body: bytes) -> Iterator[Change]:
    if kind == _MULTI:
        (count,) = _INT.unpack_from(body)
        offset = _INT.size
        for _ in range(count):
            (inner,) = _INT.unpack_from(body, offset)
            data, offset = _buffer(body, offset + _INT.size)
            yield from _changes_in(zxid, session, inner, data)
    elif kind in _DELETES:
        path, _ = _buffer(body, 0)
        yield Change(zxid, session, path.decode(), None, is_new=False)
    elif kind in _CREATES or kind == _SET_DATA:
        path, offset = _buffer(body, 0)
        data, _ = _buffer(body, offset)
        yield Change(zxid, session, path.decode(), data, is_new=kind != _SET_DATA)


def _buffer(body: bytes, offset: int) -> tuple[bytes, int]:
    """Return the bytes of a string or a buffer and the offset after them; a length of -1 means none."""
    (length,) = _INT.unpack_from(body, offset)
    start, end = offset + _INT.size, offset + _INT.size + max(length, 0)
    return body[start:end], end


def _buckets(path: str, data: bytes) -> frozenset[LedgerId]:
    is_cursor = locate(path).place is Place.CURSOR
    return frozenset(cursor_references(data).buckets.values()) if is_cursor else frozenset()


def _references(path: str, data: bytes) -> frozenset[LedgerId]:
    named = named_ledgers(path, data).ids
    if path.endswith(f"/{COMPACTION_CURSOR}"):
        cursor = cursor_references(data)
        if cursor.cursor_ledger is not None:
            # The last entry of the cursor's ledger is then right, and the node's compacted ledger outdated.
            return named - {cursor.compacted_ledger}
    return named
