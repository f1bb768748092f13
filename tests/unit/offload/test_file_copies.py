"""Copies of the filesystem driver, and files that are none."""

from pathlib import Path
from uuid import UUID

import pytest
from pulsar_sidecar.adapters.offload.file_copies import MapFiles
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import InvalidInputError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.offload_locations import OffloadedCopy
from pulsar_sidecar.protobuf.DataFormats_pb2 import LedgerMetadataFormat

from tests.fakes import map_files

ATTEMPT = UUID("de226a77-a189-46e1-958b-4a18f357396e")
ORDERS = ManagedLedgerName("public/default/persistent/..%2F..%2Forders")
COPY = OffloadedCopy(LedgerId(4), ATTEMPT, ORDERS)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    directory = tmp_path / "base"
    (directory / ORDERS).mkdir(parents=True)
    return directory


@pytest.fixture
def copy_directory(base: Path) -> Path:
    directory = base / ORDERS / COPY.directory_name
    write_map_file(directory)
    return directory


def write_map_file(directory: Path) -> None:
    directory.mkdir(parents=True)
    for name in ("data", "index"):
        (directory / name).write_bytes(b"SEQ\x06\x21org.apache.hadoop.io.LongWritable")
        (directory / f".{name}.crc").write_bytes(b"crc\x00")


def contents(directory: Path) -> set[Path]:
    return {path.relative_to(directory) for path in directory.rglob("*")}


def test_only_the_copys_own_directory_goes(base: Path, copy_directory: Path) -> None:
    write_map_file(copy_directory.with_name("5-" + str(ATTEMPT)))
    before = contents(base)

    assert MapFiles(base).delete(COPY) is OffloadDeletion.DELETED

    assert before - contents(base) == {
        path.relative_to(base) for path in [copy_directory, *(copy_directory / name for name in FILES)]
    }


FILES = ("data", "index", ".data.crc", ".index.crc")


@pytest.mark.parametrize("left", [(), ("data",), ("index", ".index.crc")])
def test_leftovers_of_an_interrupted_deletion_are_deleted(
    base: Path, copy_directory: Path, left: tuple[str, ...]
) -> None:
    for name in set(FILES) - set(left):
        (copy_directory / name).unlink()
    assert MapFiles(base).delete(COPY) is OffloadDeletion.DELETED
    assert not copy_directory.exists()


def test_empty_files_of_a_dead_writer_are_deleted(base: Path, copy_directory: Path) -> None:
    (copy_directory / "index").write_bytes(b"")
    assert MapFiles(base).delete(COPY) is OffloadDeletion.DELETED


@pytest.mark.parametrize(
    "managed_ledger",
    [
        "",
        "/",
        "/etc",
        "..",
        "public/default/../../..",
        "public//default",
        "public/./default",
        "public/\0/default",
        "a/",
    ],
)
def test_names_that_leave_the_base_are_refused(base: Path, copy_directory: Path, managed_ledger: str) -> None:
    copy = OffloadedCopy(COPY.ledger_id, COPY.attempt, ManagedLedgerName(managed_ledger))
    before = contents(base.parent)
    with pytest.raises(InvalidInputError):
        MapFiles(base).delete(copy)
    assert contents(base.parent) == before


@pytest.mark.parametrize("depth", ["tenant", "managed-ledger", "copy"])
def test_symbolic_links_are_not_followed(base: Path, copy_directory: Path, depth: str, tmp_path: Path) -> None:
    moved = {
        "tenant": base / "public",
        "managed-ledger": base / ORDERS,
        "copy": copy_directory,
    }[depth]
    real = tmp_path / "real"
    moved.rename(real)
    moved.symlink_to(real)
    with pytest.raises(PermanentError, match="symbolic"):
        MapFiles(base).delete(COPY)
    assert (copy_directory / "data").exists()


def test_link_inside_the_copy_is_refused(base: Path, copy_directory: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"SEQ")
    (copy_directory / "data").unlink()
    (copy_directory / "data").symlink_to(victim)
    with pytest.raises(PermanentError, match="'data'"):
        MapFiles(base).delete(COPY)
    assert victim.exists()
    assert (copy_directory / "index").exists()


@pytest.mark.parametrize("name", ["notes.txt", "part-00000", ".DATA.crc"])
def test_a_directory_with_something_else_in_it_stays(base: Path, copy_directory: Path, name: str) -> None:
    (copy_directory / name).write_bytes(b"SEQ")
    with pytest.raises(PermanentError, match="not a MapFile"):
        MapFiles(base).delete(COPY)
    assert {path.name for path in copy_directory.iterdir()} == {*FILES, name}


def test_a_directory_named_like_a_file_of_the_copy_stays(base: Path, copy_directory: Path) -> None:
    (copy_directory / "data").unlink()
    (copy_directory / "data").mkdir()
    with pytest.raises(PermanentError, match="not a MapFile"):
        MapFiles(base).delete(COPY)
    assert (copy_directory / "index").exists()


def test_data_other_than_a_sequence_file_is_kept(base: Path, copy_directory: Path) -> None:
    (copy_directory / "data").write_bytes(b"SQLite format 3")
    with pytest.raises(PermanentError, match="not a MapFile"):
        MapFiles(base).delete(COPY)
    assert (copy_directory / "index").exists()


def test_a_file_that_is_still_open_is_waited_for(base: Path, copy_directory: Path) -> None:
    (copy_directory / ".nfs0000000000000001").write_bytes(b"")
    with pytest.raises(TemporaryError, match="still open"):
        MapFiles(base).delete(COPY)


def test_an_empty_base_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="mounted"):
        MapFiles(tmp_path).delete(COPY)


def test_a_missing_base_is_not_mounted(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="mount"):
        MapFiles(tmp_path / "missing").delete(COPY)


def test_a_missing_managed_ledger_below_a_filled_base_is_gone(base: Path) -> None:
    copy = OffloadedCopy(COPY.ledger_id, COPY.attempt, ManagedLedgerName("other/ns/persistent/t"))
    assert MapFiles(base).delete(copy) is OffloadDeletion.GONE


@pytest.fixture
def whole_copy(base: Path) -> Path:
    directory = base / ORDERS / COPY.directory_name
    directory.mkdir()
    for part in ("data", "index"):
        map_files.write_map_file(directory, part)
    return directory


@pytest.mark.parametrize("data", [map_files.data_file(), map_files.data_file(compressed=False)])
def test_a_copy_with_every_entry_is_whole(base: Path, whole_copy: Path, data: bytes) -> None:
    map_files.write_map_file(whole_copy, "data", data)
    before = contents(base)
    assert MapFiles(base).is_whole(COPY)
    assert contents(base) == before


@pytest.mark.parametrize("name", FILES)
def test_a_copy_without_one_of_its_files_is_not_whole(base: Path, whole_copy: Path, name: str) -> None:
    (whole_copy / name).unlink()
    assert not MapFiles(base).is_whole(COPY)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [-1, 10])
def test_a_changed_byte_is_found(base: Path, whole_copy: Path, name: str, place: int) -> None:
    content = bytearray((whole_copy / name).read_bytes())
    content[place] ^= 1
    (whole_copy / name).write_bytes(content)
    assert not MapFiles(base).is_whole(COPY)


@pytest.mark.parametrize("name", [".data.crc", ".index.crc"])
@pytest.mark.parametrize("change", [b"", b"crc\0", b"crc\0\0\0\0\0", b"\0", None])
def test_checksums_with_too_few_or_too_many_bytes(
    base: Path, whole_copy: Path, name: str, change: bytes | None
) -> None:
    path = whole_copy / name
    path.write_bytes(path.read_bytes() + b"\0" if change is None else change)
    assert not MapFiles(base).is_whole(COPY)


@pytest.mark.parametrize("compressed", [True, False])
def test_data_that_a_full_disk_cut_are_not_whole(base: Path, whole_copy: Path, compressed: bool) -> None:
    data = map_files.data_file(compressed=compressed)
    for length in (0, *range(len(b"SEQ"), len(data))):
        map_files.write_map_file(whole_copy, "data", data[:length])
        assert not MapFiles(base).is_whole(COPY), length


@pytest.mark.parametrize(
    "data",
    [
        map_files.data_file(map_files.LAST_ENTRY_ID),
        map_files.data_file(map_files.LAST_ENTRY_ID + 2),
        map_files.data_file(0),
        map_files.data_file() + b"\0",
        map_files.data_file(0, map_files.ledger_metadata(state=LedgerMetadataFormat.OPEN)),
        map_files.data_file(metadata=map_files.ledger_metadata(state=LedgerMetadataFormat.IN_RECOVERY)),
        map_files.data_file(metadata=map_files.ledger_metadata() + b"\x78\x01"),
        map_files.data_file(metadata=b""),
        map_files.data_file().replace(b"DefaultCodec", b"SnappyCodecX"),
        map_files.data_file().replace(map_files.SYNC, bytes(16), 1),
        map_files.data_file(compressed=False).replace(b"\x00\x00\x00\x08" + bytes(8), b"\x00\x00\x00\x08" + b"\1" * 8),
        map_files.data_file(compressed=False).replace(b"\x00\x00\x00\x08\xff", b"\x00\x00\x00\x09\xff"),
    ],
)
def test_data_that_are_not_understood_are_not_whole(base: Path, whole_copy: Path, data: bytes) -> None:
    map_files.write_map_file(whole_copy, "data", data)
    assert not MapFiles(base).is_whole(COPY)


def test_an_index_that_was_never_begun_makes_no_whole_copy(base: Path, whole_copy: Path) -> None:
    map_files.write_map_file(whole_copy, "index", b"")
    assert not MapFiles(base).is_whole(COPY)


def test_a_base_that_is_not_mounted_lacks_no_copy(base: Path, tmp_path: Path) -> None:
    for unmounted in (tmp_path / "missing", tmp_path / "empty"):
        with pytest.raises(TemporaryError, match="mount"):
            MapFiles(unmounted).is_whole(COPY)
        (tmp_path / "empty").mkdir(exist_ok=True)


def test_a_copy_that_is_something_else_is_refused(base: Path, whole_copy: Path) -> None:
    (whole_copy / "notes.txt").write_bytes(b"SEQ")
    with pytest.raises(PermanentError, match="not a MapFile"):
        MapFiles(base).is_whole(COPY)
