"""Copies of a standalone's RocksDB as sources of dumps and listings.

A key is a node's path; there need not be one for the directories above it. A value begins with a header
(``RocksdbMetadataStore.MetaValue``, Pulsar 4.0.8) with times but no order of changes: the times stand for the order.

Invariant: a copy is read whole or the reading raises. RocksDB checks its manifest, the size of each file, the checksum
of each block, and its log to the last byte. It cannot notice that the copy is old, or that the standalone ran while it
was taken, so no deletion is planned from any. Nothing is written into the copy: RocksDB opens links to its files.
"""

import fcntl
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.ports import ReadResult
from pulsar_sidecar.features.audit.results.tables import NODES
from pulsar_sidecar.features.audit.sources.listing import ledgers_among
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, Proof, Source, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.ownership.paths import identity_paths, instance_id_of

if TYPE_CHECKING:
    from rocksdict import Rdict

_BATCH_NODES = 65_536
_FILES = re.compile(r"CURRENT|MANIFEST-\d+|\d+\.(log|sst)")
# Its own size, format, version, owner, time of creation, time of the last write, ephemeral.
_HEADER = struct.Struct(">iiqqqqb")
_OWN_KEYS = b"__metadata_"
_ONLY_NOMINATES = (
    "a copy of RocksDB does not show its age, and only the standalone's own process may write to the original: "
    "docs/audit.md explains how to act on a finding"
)


class RocksDBCopy:
    """`audit.ports.NodeSource` of the directory that a standalone's ``metadataStoreUrl`` names, or of a copy."""

    def __init__(self, path: Path, *, skip: tuple[str, ...] = ()) -> None:
        self.source = Source(SourceKind.ROCKSDB_COPY, str(path))
        self._path = path
        self._skip = tuple(beginning.encode() for beginning in skip)
        self._ending: ReadResult | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        newest_ms = nodes = 0
        with opened(self._path) as database:
            rows = _rows(database, self._skip)
            while batch := list(islice(rows, _BATCH_NODES)):
                nodes += len(batch)
                newest_ms = max(newest_ms, *(row["mzxid"] or 0 for row in batch))
                yield pa.RecordBatch.from_pylist(batch, schema=NODES)
            proof = Proof(
                f"opened at sequence number {database.latest_sequence_number()}",
                "read to the end; log, files and blocks agree with their checksums",
                {"nodesInCopy": nodes},
            )
        self._ending = ReadResult(OrderRange(newest_ms, newest_ms), proof, (_ONLY_NOMINATES,))

    def ending(self) -> ReadResult:
        if self._ending is None:
            raise TemporaryError("the copy was not read to its end; begin again")
        return self._ending


class LedgersOfCopy(RocksDBCopy):
    """`audit.ports.LedgerSource` of the same directory: in a standalone BookKeeper has no other metadata store."""

    def __init__(self, path: Path, ledgers_root: str) -> None:
        super().__init__(path)
        self._root = ledgers_root

    def instance_id(self) -> str:
        paths = identity_paths(self._root)
        with opened(self._path) as database:
            values = [database.get(path.encode()) for path in paths]
        return instance_id_of(map(_node, paths, values), self._root)

    def batches(self) -> Iterator[pa.RecordBatch]:
        # Directories of ledgers have numbers for names; other nodes there are BookKeeper's own.
        numbered = f"^{re.escape(self._root)}/[0-9]"
        below = (part.filter(pc.match_substring_regex(part.column("path"), numbered)) for part in super().batches())
        return ledgers_among(below, self._root)


@contextmanager
def opened(path: Path) -> "Iterator[Rdict]":
    """Open a directory of RocksDB's for reading.

    `InvalidInputError`: it is not one, the standalone runs, or the library is missing. `TemporaryError`: RocksDB found
    damage, now or later.
    """
    try:
        from rocksdict import AccessType, DBRecoveryMode, Options, Rdict
    except ModuleNotFoundError as error:
        raise InvalidInputError("RocksDB needs a library of its own; pip install 'pulsar-sidecar[rocksdb]'") from error
    files = _files(path)
    options = Options(raw_mode=True)
    # By default RocksDB takes a log that is cut off for the end of what was written.
    options.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    options.set_paranoid_checks(True)
    with TemporaryDirectory() as links:
        for file in files:
            Path(links, file.name).symlink_to(file.absolute())
        try:
            with Rdict(links, options, access_type=AccessType.read_only(error_if_log_file_exist=False)) as database:
                _demand_listed(files, database)
                yield database
        except Exception as error:  # RocksDB's errors have no class of their own.
            raise TemporaryError(
                f"RocksDB cannot read all of {path} ({error}); stop the standalone, and copy the whole directory again"
            ) from error


def _files(path: Path) -> list[Path]:
    try:
        files = [file for file in path.iterdir() if _FILES.fullmatch(file.name)]
        _demand_stopped(path)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror})") from error
    # Without its newest log a database opens as it was when that log was begun.
    if not {"CURRENT", ".log"} <= {file.suffix or file.name for file in files}:
        raise InvalidInputError(
            f"{path} has no CURRENT or no log of RocksDB; copy the whole directory of the standalone's metadata, "
            "which is data/metadata unless --metadata-dir names another"
        )
    return files


def _demand_listed(files: list[Path], database: "Rdict") -> None:
    # With any options RocksDB takes a manifest that is cut off for the end of what was written.
    listed = {str(file["name"]).lstrip("/") for file in database.live_files()}
    if unlisted := {file.name for file in files if file.suffix == ".sst"} - listed:
        raise TemporaryError(f"its manifest does not list {min(unlisted)}")


def _demand_stopped(path: Path) -> None:
    with suppress(FileNotFoundError), (path / "LOCK").open("rb") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidInputError(f"the standalone at {path} is running; stop it, then copy the directory") from error


def _rows(database: "Rdict", skip: tuple[bytes, ...]) -> Iterator[dict[str, Any]]:
    keys = database.iter()
    keys.seek_to_first()
    while keys.valid():
        key = keys.key()
        if not key.startswith((_OWN_KEYS, *skip)):
            yield _row(key.decode(), keys.value())
        keys.next()
    # An iterator that met damage is not valid either.
    keys.status()


def _row(path: str, value: bytes) -> dict[str, Any]:
    with suppress(struct.error):
        size, form, version, _, created_ms, modified_ms, ephemeral = _HEADER.unpack_from(value)
        # Newer formats only make the header longer.
        if form >= 1 and _HEADER.size <= size <= len(value):
            row = {"path": path, "value": value[size:], "version": version, "ctime_ms": created_ms}
            times = {"mtime_ms": modified_ms, "czxid": created_ms, "mzxid": modified_ms}
            return {**row, **times, "ephemeral": ephemeral > 0, "unreadable": None}
    nothing = dict.fromkeys(NODES.names)
    return {**nothing, "path": path, "unreadable": "its value does not begin with the header of Pulsar 4.0.8"}


def _node(path: str, value: bytes | None) -> Node | None:
    if value is None:
        return None
    row = _row(path, value)
    if row["unreadable"] is not None:
        raise TemporaryError(f"{path} cannot be read: {row['unreadable']}")
    created_ms = row["ctime_ms"]
    return Node(path, row["value"], NodeVersion(row["version"]), created_ms, row["mtime_ms"], created_ms)
