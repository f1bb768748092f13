"""The file that is published and the checkpoint beside it, on a real file system."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.local_files.publishing_files import CheckpointFile, checkpoint_path, source_file
from pulsar_sidecar.features.publishing.checkpoint import Checkpoint, Mark, StoredPoint
from pulsar_sidecar.features.publishing.records import RecordFormat
from pulsar_sidecar.features.publishing.routing import HashingScheme
from pulsar_sidecar.model.errors import InvalidInputError, TemporaryError

CHECKPOINT = Checkpoint(
    "t",
    "p",
    RecordFormat.LINES,
    HashingScheme.JAVA_STRING_HASH,
    False,
    (StoredPoint(None, None),),
    3,
    (Mark(9, "ab" * 32),),
)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "c")
    assert file.read() is None
    for records in (3, 4):
        written = replace(CHECKPOINT, records=records)
        file.write(written)
        assert file.read() == written
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_a_checkpoint_that_was_never_finished_is_not_one(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "c")
    file.write(CHECKPOINT)
    (tmp_path / ".c.new").write_text("{")
    assert file.read() == CHECKPOINT
    file.write(replace(CHECKPOINT, records=9))
    assert file.read() == replace(CHECKPOINT, records=9)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff"])
def test_the_error_for_a_damaged_checkpoint_names_the_remedy(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    with pytest.raises(InvalidInputError, match="move it away"):
        CheckpointFile(tmp_path / "c").read()


def test_unusable_checkpoint_path_raises_temporary_error(tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match="cannot be written"):
        CheckpointFile(tmp_path / "nowhere" / "c").write(CHECKPOINT)
    with pytest.raises(TemporaryError, match="cannot be read"):
        CheckpointFile(tmp_path).read()


def test_a_checkpoint_is_beside_its_file() -> None:
    assert checkpoint_path(Path("a/b.txt"), "loader-1") == Path("a/b.txt.loader-1.checkpoint")
    assert checkpoint_path(Path("b"), "../x y") == Path("b.___x_y.checkpoint")


def test_a_source_is_a_regular_file_of_the_size_it_has_now(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"a\nb\n")
    with source_file(path) as source, path.open("ab") as more:
        more.write(b"c\n")
        more.flush()
        assert (source.size, source.file.read(4)) == (4, b"a\nb\n")


def test_invalid_sources_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # without a writer, for which nothing waits
    for name, reason in (("nowhere", "No such file"), (".", "not a regular file"), ("pipe", "not a regular file")):
        with pytest.raises(InvalidInputError, match=reason), source_file(tmp_path / name):
            pass


def test_a_disk_that_fails_while_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\n")
    with pytest.raises(TemporaryError, match="cannot be read"), source_file(tmp_path / "f"):
        raise OSError(5, "Input/output error")
