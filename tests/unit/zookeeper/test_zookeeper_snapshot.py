"""Snapshots: whole ones are read exactly, all others are refused, whatever happened to them."""

import gzip
import io
import random
import struct
from pathlib import Path

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.zookeeper import snapshot_format
from pulsar_sidecar.adapters.zookeeper.snapshot_format import DamagedSnapshotError, SnapshotReader, decompressed
from pulsar_sidecar.adapters.zookeeper.snapshots import SnapshotFile
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, SourceKind
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

from tests.fakes.zookeeper_snapshots import SnapshotNode, SnapshotWriter

GOLDEN = Path(__file__).parent / "snapshots"
NAME = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs", "Cc", "Co"]), min_size=1, max_size=8)
PATHS = st.lists(NAME, min_size=1, max_size=4).map(lambda names: "/" + "/".join(names))
LONGS, INTS = st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1)
NODES = st.builds(
    SnapshotNode,
    path=PATHS.filter(lambda path: len(path) > 1),
    value=st.none() | st.binary(max_size=60),
    version=INTS,
    czxid=LONGS,
    mzxid=LONGS,
    ctime=LONGS,
    mtime=LONGS,
    owner=st.sampled_from([0, 7, 2**40]),
)
SOME = [SnapshotNode("/a", b"1", mzxid=5), SnapshotNode("/a/b", None), SnapshotNode("/a/c", b"x" * 300, version=9)]


def rows_of(data: bytes, skip: tuple[bytes, ...] = ()) -> list[dict[str, object]]:
    reader = SnapshotReader(decompressed(io.BufferedReader(io.BytesIO(data))), skip)  # type: ignore[arg-type]
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert reader.read_bytes >= len(data) or data[:4] != b"ZKSN"
    return rows


def expected(node: SnapshotNode) -> dict[str, object]:
    return {
        "path": node.path, "value": node.value or b"", "version": node.version, "ctime_ms": node.ctime,
        "mtime_ms": node.mtime, "czxid": node.czxid, "mzxid": node.mzxid, "ephemeral": node.owner != 0,
        "unreadable": None,
    }  # fmt: skip


@given(st.lists(NODES, max_size=12), st.booleans(), st.none() | st.integers(0, 2**62), st.integers(0, 3))
def test_reader_returns_what_the_writer_wrote(
    nodes: list[SnapshotNode], digest: bool, last_zxid: int | None, sessions: int
) -> None:
    data = SnapshotWriter(digest=digest, last_zxid=last_zxid).snapshot(nodes, sessions)
    reader = SnapshotReader(iter([data]))
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    assert rows == [expected(SnapshotNode("", None)), *map(expected, nodes)]
    assert (reader.nodes, reader.last_zxid, reader.read_bytes) == (len(nodes) + 1, last_zxid, len(data))


@pytest.mark.parametrize(("chunk", "batch"), [(1, 1), (7, 2), (64, 3), (200, 10_000)])
def test_nodes_are_cut_right_wherever_the_pieces_end(chunk: int, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_format, "BATCH_NODES", batch)
    rng = random.Random(chunk)
    nodes = [SnapshotNode(f"/{n}", rng.randbytes(rng.randrange(90)) or None, version=n) for n in range(120)]
    data = SnapshotWriter().snapshot(nodes)
    reader = SnapshotReader(data[start : start + chunk] for start in range(0, len(data), chunk))
    assert [row for part in reader.batches() for row in part.to_pylist()][1:] == [expected(node) for node in nodes]


def test_beginnings_of_paths_are_read_over() -> None:
    nodes = [SnapshotNode(f"/ledgers/{n:02d}/x") for n in range(30)] + SOME
    rows = rows_of(SnapshotWriter().snapshot(nodes), (b"/ledgers/0", b"/ledgers/1"))
    assert [row["path"] for row in rows] == ["", *(f"/ledgers/{n}/x" for n in range(20, 30)), "/a", "/a/b", "/a/c"]


# --- damage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lambda data: xerial(data, 100)], ids=["plain", "gz", "snappy"]
)
@given(data=st.data())
def test_a_snapshot_that_was_cut_off_is_refused(compress: object, data: st.DataObject) -> None:
    whole = compress(SnapshotWriter().snapshot(SOME))  # type: ignore[operator]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    # A snapshot may end after any of its seals: ZooKeeper before 3.6 and before 3.9 wrote no more. What is lost then
    # is no node.
    if compress is bytes and len(cut) in ends_after_nodes():
        assert len(rows_of(cut)) == len(SOME) + 1
        return
    with pytest.raises(DamagedSnapshotError):
        rows_of(cut)


def ends_after_nodes() -> set[int]:
    bare = len(SnapshotWriter(digest=False, last_zxid=None).snapshot(SOME))
    with_digest = len(SnapshotWriter(last_zxid=None).snapshot(SOME))
    return {bare, with_digest}


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lambda data: xerial(data, 100)], ids=["plain", "gz", "snappy"]
)
@given(data=st.data())
def test_a_flipped_bit_is_never_a_partial_result(compress: object, data: st.DataObject) -> None:
    intact = SnapshotWriter().snapshot(SOME)
    whole = bytearray(compress(intact))  # type: ignore[operator]
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        rows = rows_of(bytes(whole))
    except TemporaryError:
        return
    # Only where a container keeps what is not needed, such as the time in gzip's header.
    assert compress is not bytes
    assert rows == rows_of(intact)


@given(st.binary(max_size=200), st.binary(min_size=1, max_size=60))
def test_invalid_snapshot_is_refused(noise: bytes, after: bytes) -> None:
    for data in (noise, b"ZKSN" + noise, SnapshotWriter().snapshot(SOME) + after):
        with pytest.raises(DamagedSnapshotError):
            rows_of(data)


@pytest.mark.parametrize(("writer", "reason"), [
    (SnapshotWriter(magic=b"ZKLG"), "does not begin with ZKSN"),
    (SnapshotWriter(version=3), "format 3"),
])  # fmt: skip
def test_another_format_is_refused_by_name(writer: SnapshotWriter, reason: str) -> None:
    with pytest.raises(DamagedSnapshotError, match=reason):
        rows_of(writer.snapshot(SOME))


@pytest.mark.parametrize(("path_bytes", "value_bytes"), [(2**31 - 1, 0), (-2, 0), (4, 2**31 - 1), (4, -2)])
def test_impossible_lengths_ask_for_no_memory(path_bytes: int, value_bytes: int) -> None:
    start = SnapshotWriter().snapshot([])
    head = start[: start.index(struct.pack(">i", 1) + b"/", 60)]
    data = head + struct.pack(">i", path_bytes) + b"/abc" + struct.pack(">i", value_bytes) + bytes(200)
    with pytest.raises(DamagedSnapshotError):
        rows_of(data)


# --- compressed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compress",
    [gzip.compress, lambda data: xerial(data, 64), lambda data: xerial(data, 10**6)],
    ids=["gz", "snappy", "snappy-in-one-block"],
)
def test_compressed_snapshots_are_recognised_by_their_beginning(compress: object) -> None:
    data = SnapshotWriter().snapshot(SOME)
    assert rows_of(compress(data)) == rows_of(data)  # type: ignore[operator]


def xerial(data: bytes, block: int) -> bytes:
    """Compress like ``SnappyOutputStream``."""
    out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for start in range(0, len(data), block):
        piece = bytes(cramjam.snappy.compress_raw(data[start : start + block]))
        out += struct.pack(">i", len(piece)) + piece
    return out


# --- files ---------------------------------------------------------------------------------------------------------


def nodes_of(source: SnapshotFile) -> list[dict[str, object]]:
    return [row for batch in source.batches() for row in batch.to_pylist()]


def test_a_file_states_its_time_and_that_nothing_may_be_deleted_for_it(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.1f"
    path.write_bytes(SnapshotWriter(last_zxid=0x22).snapshot(SOME))
    source = SnapshotFile(path)
    assert [row["path"] for row in nodes_of(source)] == ["/", "/a", "/a/b", "/a/c"]
    ending = source.ending()
    assert source.source.kind is SourceKind.ZOOKEEPER_SNAPSHOT
    assert ending.zxids == OrderRange(0x1F, 0x22)
    assert "log beside it" in ending.reservations[0]
    assert ending.proof.checks["nodesInSnapshot"] == 4


@pytest.mark.parametrize("name", ["snapshot", "snapshot.", "snapshot.xyz", "log.1", "dump.1f", "snapshot.1f.zst"])
def test_a_file_without_its_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="keep ZooKeeper's own"):
        SnapshotFile(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        nodes_of(SnapshotFile(tmp_path / "snapshot.1"))


def test_a_file_older_than_its_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.30"
    path.write_bytes(SnapshotWriter(last_zxid=0x22).snapshot(SOME))
    with pytest.raises(TemporaryError, match="under the name that ZooKeeper gave it"):
        nodes_of(SnapshotFile(path))


def test_an_unfinished_reading_has_no_ending(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.1"
    path.write_bytes(SnapshotWriter().snapshot(SOME)[:-50])
    source = SnapshotFile(path)
    with pytest.raises(DamagedSnapshotError):
        nodes_of(source)
    with pytest.raises(TemporaryError, match="not read to its end"):
        source.ending()


def test_a_chroot_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.1"
    path.write_bytes(SnapshotWriter().snapshot([*SOME, SnapshotNode("/ab"), SnapshotNode("/a/c/d")]))
    assert [row["path"] for row in nodes_of(SnapshotFile(path, chroot="/a"))] == ["/", "/b", "/c", "/c/d"]
    assert [row["path"] for row in nodes_of(SnapshotFile(path, chroot="/a", skip=("/c",)))] == ["/", "/b"]
    with pytest.raises(TemporaryError, match="no /x"):
        nodes_of(SnapshotFile(path, chroot="/x"))


# --- what a real ZooKeeper wrote -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("snapshot.*")), ids=lambda path: path.name)
def test_snapshots_of_a_real_zookeeper(path: Path) -> None:
    source = SnapshotFile(path)
    rows = {str(row["path"]): row for row in nodes_of(source)}
    assert {"/", "/zookeeper", "/ledgers/INSTANCEID", "/managed-ledgers", "/schemas", "/admin/clusters"} <= set(rows)
    # No child without its parent: ZooKeeper's own condition for a tree.
    assert all((name.rpartition("/")[0] or "/") in rows for name in rows)
    ending = source.ending()
    assert ending.zxids.last is not None
    assert ending.zxids.first is not None
    newest = max(int(str(row["mzxid"])) for row in rows.values())
    assert newest <= ending.zxids.last
    assert 1_600_000_000_000 < int(str(rows["/managed-ledgers"]["ctime_ms"])) < 2_500_000_000_000
    assert any(row["ephemeral"] for row in rows.values())
    assert any(row["version"] for row in rows.values())


def test_there_are_snapshots_of_a_real_zookeeper() -> None:
    assert list(GOLDEN.glob("snapshot.*"))
