"""Extracts as files: what is not whole is refused, and nothing but the finished directory is left behind."""

from collections.abc import Callable
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from pulsar_sidecar.bootstrap.deduplication_files import look_for_duplicates
from pulsar_sidecar.features.duplicates.extracts import embedded
from pulsar_sidecar.features.duplicates.extracts.tables import SCHEMAS
from pulsar_sidecar.features.duplicates.requests import DuplicatesRequest
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.reports.documents import MANIFEST_NAME, OWNERS_DIRECTORY, OWNERS_FILE

from tests.fakes.message_extracts import write_extract
from tests.unit.duplicates.duplicates.test_embedded import TOPICS, by_the_rules, ordered, rising
from tests.unit.duplicates.rows import log_of


def test_tables_are_written_for_their_owner_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_SUSPECTS_OF_A_PART", 2)  # so that suspects lie in several files meanwhile
    topics = {TOPICS[0]: log_of(*range(20), *range(10, 15), 3, 20), TOPICS[1]: rising(9)}
    extract, lines = write_extract(tmp_path / "extract", topics), list[str]()
    concluded = look_for_duplicates(DuplicatesRequest(extract, tmp_path / "found"), lines.append)
    assert concluded.exit_code == 2
    assert concluded.sentence == "findings: 36 messages of 2 producers, 6 duplicate, in 1 topic"
    assert lines == [
        "looking through 36 rows of 2 topics",
        "found 6 messages whose sequence id does not rise; looking for their ids",
    ]
    findings, producers = by_the_rules(topics)
    tables = {name: ds.dataset(tmp_path / "found" / name).to_table() for name in SCHEMAS}
    assert {name: table.schema for name, table in tables.items()} == SCHEMAS
    assert ordered(tables["findings"].to_pylist()) == ordered(findings)
    assert ordered(tables["producers"].to_pylist()) == ordered(producers)
    assert [row["verdict"] for row in tables["topics"].to_pylist()] == ["findings", "clean"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["extract", "found"]
    rights = {path.stat().st_mode & 0o777 for path in (tmp_path / "found").rglob("*")}
    assert rights == {OWNERS_DIRECTORY, OWNERS_FILE}


def changed(file: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda extract: (extract / file).write_bytes(change((extract / file).read_bytes()))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda extract: (extract / "messages/part-00001.parquet").unlink(), "does not contain exactly the files"),
        (lambda extract: (extract / "messages/part-00009.parquet").touch(), "does not contain exactly the files"),
        (changed("messages/part-00000.parquet", lambda data: data[:-1] + b"x"), "does not match its SHA-256"),
        (
            changed(MANIFEST_NAME, lambda data: data.replace(b"true", b"false")),
            "not the manifest of a complete extract",
        ),
        (lambda extract: (extract / MANIFEST_NAME).unlink(), "has no readable manifest.json"),
    ],
    ids=["without a file", "with another file", "damaged", "unfinished", "without a manifest"],
)
def test_an_incomplete_extract_is_refused(tmp_path: Path, spoil: Callable[[Path], object], reason: str) -> None:
    extract = write_extract(tmp_path / "extract", {TOPICS[0]: rising(20)})
    spoil(extract)
    with pytest.raises(InvalidInputError, match=reason):
        look_for_duplicates(DuplicatesRequest(extract, tmp_path / "found"), lambda _: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["extract"]


def test_existing_output_is_not_overwritten(tmp_path: Path) -> None:
    extract = write_extract(tmp_path / "extract", {TOPICS[0]: rising(2)})
    (tmp_path / "found").mkdir()
    with pytest.raises(InvalidInputError, match="exists already"):
        look_for_duplicates(DuplicatesRequest(extract, tmp_path / "found"), lambda _: None)
