"""Copies of a standalone's RocksDB: whole ones are read exactly, all others are refused, and none is written to."""

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.adapters.rocksdb import copies
from pulsar_sidecar.adapters.rocksdb.copies import LedgersOfCopy, RocksDBCopy
from pulsar_sidecar.bootstrap.audit_sources import take_dump
from pulsar_sidecar.features.audit.requests import DumpRequest
from pulsar_sidecar.features.audit.sources.manifests import OrderRange
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError
from rocksdict import Options, Rdict

LEDGER, LEADER = "/ledgers/00/0000/L0007", "/loadbalance/leader"
OLD = {f"/managed-ledgers/t/n/persistent/{n:04d}": b"old" * 20 for n in range(2_000)}
NEW = {"/ledgers/INSTANCEID": b"an-id", LEDGER: b"metadata", LEADER: b"", "/ledgers/available/b:1": b"bookie"}
LOCKED = "import fcntl,sys; held = open(sys.argv[1], 'r+'); fcntl.lockf(held, fcntl.LOCK_EX); print(); sys.stdin.read()"


def stored(data: bytes, version: int, *, size: int = 41, form: int = 1, ephemeral: bool = False) -> bytes:
    """Return a value as Pulsar stores it."""
    return struct.pack(">iiqqqqb", size, form, version, 9, 1_000, 2_000 + version, ephemeral) + data


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy with old nodes in a file of blocks, and new ones in the log alone, as after a kill."""
    with Rdict(str(tmp_path / "live"), Options(raw_mode=True)) as database:
        for path, value in OLD.items():
            database[path.encode()] = stored(value, 0)
        database.flush()
        for path, value in NEW.items():
            database[path.encode()] = stored(value, 4, ephemeral=path == LEADER)
        database[b"__metadata_instanceId_key"] = bytes(8)
        return Path(shutil.copytree(tmp_path / "live", tmp_path / "copy"))


def rows_of(source: RocksDBCopy) -> list[dict[str, Any]]:
    return [row for batch in source.batches() for row in batch.to_pylist()]


def change(copy: Path, key: str, value: bytes) -> None:
    with Rdict(str(copy), Options(raw_mode=True)) as database:
        database[key.encode()] = value


def test_every_node_is_read_once_and_nothing_is_written(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_BATCH_NODES", 600)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    source = RocksDBCopy(copy)
    rows = rows_of(source)
    assert {row["path"]: row["value"] for row in rows} == OLD | NEW
    assert len(rows) == len(OLD | NEW)
    assert next(row for row in rows if row["path"] == LEADER) == {
        "path": LEADER, "value": b"", "version": 4, "ctime_ms": 1_000, "mtime_ms": 2_004, "czxid": 1_000,
        "mzxid": 2_004, "ephemeral": True, "unreadable": None,
    }  # fmt: skip
    ending = source.ending()
    assert (ending.zxids, ending.proof.checks) == (OrderRange(2_004, 2_004), {"nodesInCopy": len(rows)})
    assert "only the standalone's own process" in ending.reservations[0]
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before


def test_nodes_are_left_out_and_ledgers_listed(copy: Path) -> None:
    paths = {row["path"] for row in rows_of(RocksDBCopy(copy, skip=("/managed-ledgers/", "/ledgers/0")))}
    assert paths == NEW.keys() - {LEDGER}
    listing = LedgersOfCopy(copy, "/ledgers")
    assert listing.instance_id() == "an-id"
    (row,) = rows_of(listing)
    assert (row["ledger_id"], row["metadata"], row["version"]) == (7, b"metadata", 4)
    assert listing.ending().zxids == OrderRange(2_004, 2_004)


def test_a_longer_header_is_read_over(copy: Path) -> None:
    change(copy, LEADER, stored(b"12345data", 5, size=46, form=2))
    assert next(row["value"] for row in rows_of(RocksDBCopy(copy)) if row["path"] == LEADER) == b"data"


@pytest.mark.parametrize(
    "value", [b"", b"short", stored(b"", 1, size=42), stored(b"", 1, size=8), stored(b"", 1, form=0)]
)
def test_a_value_without_its_header_is_unreadable_not_absent(copy: Path, value: bytes) -> None:
    change(copy, "/ledgers/INSTANCEID", value)
    (row,) = [row for row in rows_of(RocksDBCopy(copy)) if row["unreadable"] is not None]
    assert (row["path"], row["value"]) == ("/ledgers/INSTANCEID", None)
    with pytest.raises(TemporaryError, match=r"^/ledgers/INSTANCEID cannot be read"):
        LedgersOfCopy(copy, "/ledgers").instance_id()
    with pytest.raises(TemporaryError, match=r"^there is no BookKeeper instance id"):
        LedgersOfCopy(copy, "/elsewhere").instance_id()


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


@pytest.mark.parametrize("files", ["*.sst", "*.log", "MANIFEST-*"])
@pytest.mark.parametrize("damage", [flipped, lambda data: data[:-40]], ids=["flipped", "cut"])
def test_a_damaged_copy_is_refused(copy: Path, files: str, damage: Callable[[bytes], bytes]) -> None:
    for file in copy.glob(files):
        file.write_bytes(damage(file.read_bytes()))
    source = RocksDBCopy(copy)
    with pytest.raises(TemporaryError, match="copy the whole directory again"):
        rows_of(source)
    with pytest.raises(TemporaryError, match="not read to its end"):
        source.ending()


@pytest.mark.parametrize("files", ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "*"])
def test_a_copy_without_a_file_is_refused(copy: Path, files: str) -> None:
    for file in copy.glob(files):
        file.unlink()
    with pytest.raises((TemporaryError, InvalidInputError), match="copy the whole directory"):
        rows_of(RocksDBCopy(copy))


def test_a_running_standalone_and_no_directory_are_refused(copy: Path) -> None:
    command = [sys.executable, "-c", LOCKED, str(copy / "LOCK")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        holder.stdout.readline()
        with pytest.raises(InvalidInputError, match="is running; stop it"):
            rows_of(RocksDBCopy(copy))
    with pytest.raises(InvalidInputError, match="cannot be read"):
        rows_of(RocksDBCopy(copy / "none"))


@pytest.mark.parametrize("options", [{"chroot": "/c"}, {"cursors_from": "zk:a"}, {"nodes_per_second": 5.0}])
def test_options_of_zookeeper_are_refused(copy: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="are for ZooKeeper"):
        take_dump(DumpRequest(f"rocksdb-copy:{copy}", tmp_path / "dump", **options), print)


def test_a_missing_library_is_named_with_its_extra(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(InvalidInputError, match=r"pulsar-sidecar\[rocksdb\]"):
        rows_of(RocksDBCopy(copy))
