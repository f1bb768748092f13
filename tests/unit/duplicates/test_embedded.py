"""The embedded engine finds everything by the rules, wherever the row groups are cut."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.parquet.directories import sha256_of
from pulsar_sidecar.bootstrap.deduplication_files import look_for_duplicates
from pulsar_sidecar.features.duplicates.extracts import embedded
from pulsar_sidecar.features.duplicates.extracts.embedded import EmbeddedEngine
from pulsar_sidecar.features.duplicates.extracts.results import DuplicatesSummary
from pulsar_sidecar.features.duplicates.extracts.tables import SCHEMAS
from pulsar_sidecar.features.duplicates.findings import EarlierMessages, MessagePlace, SequenceComparison
from pulsar_sidecar.features.duplicates.requests import DuplicatesRequest
from pulsar_sidecar.features.duplicates.rows import WHOLE_BATCH, FindingKind, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.features.duplicates.verify import TopicResult
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.reports.documents import (
    EXIT_CLEAN,
    EXIT_ERROR,
    MANIFEST_NAME,
    OWNERS_DIRECTORY,
    OWNERS_FILE,
    SUMMARY_NAME,
)

from tests.fakes.message_extracts import MemoryExtract, MemoryOutput, MemoryOutputs, MemoryScratch, write_extract
from tests.unit.duplicates.rows import Log, log_of

TOPICS = tuple(f"persistent://public/default/{name}" for name in ("a", "b-partition-0"))
Tables = Mapping[str, list[dict[str, Any]]]
_COLUMNS = {
    FindingKind.DUPLICATE: "duplicates",
    FindingKind.REUSED: "reused",
    FindingKind.REPEATED: "repeated",
    FindingKind.GOING_BACK: "going_back",
    FindingKind.EPOCH: "epochs",
}


def looked_through(extract: MemoryExtract) -> tuple[DuplicatesSummary, MemoryOutput]:
    outputs = MemoryOutputs()
    engine = EmbeddedEngine(extract, outputs, _scratch, lambda _: None)
    summary = engine.search(extract.manifest, "digest", tool_version="test", place="found")
    assert outputs.last is not None
    return summary, outputs.last


class _scratch(MemoryScratch):  # noqa: N801  # a function to its callers
    def __enter__(self) -> MemoryScratch:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.take("suspects-0") is None


def by_the_rules(topics: Mapping[str, Sequence[MessageRow]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of findings and of producers."""
    findings, producers = [], []
    for topic, rows in topics.items():
        watch = SequenceComparison()
        for row in rows:
            watch.take(row)
        occurrences = EarlierMessages(watch.suspects)
        for row in rows:
            occurrences.take(row)
        found = list(occurrences.findings())
        for each in found:
            about = {"topic": topic, "producer": each.producer.name, "replicated_from": each.producer.replicated_from}
            findings.append(
                {
                    **about,
                    "finding": each.kind.value,
                    "sequence_id": each.sequence_id,
                    **_columns_of(each.place, ""),
                    "message_kind": each.message_kind.name.lower(),
                    "publish_time_ms": each.publish_time_ms,
                    "highest": each.highest,
                    **_columns_of(each.earlier, "earlier_"),
                }
            )
        counts = Counter((each.producer, each.kind) for each in found)
        for producer, each_counts in watch.producers.items():
            about = {"topic": topic, "producer": producer.name, "replicated_from": producer.replicated_from}
            kinds = {column: counts[producer, kind] for kind, column in _COLUMNS.items()}
            producers.append({**about, **asdict(each_counts), **kinds})
    return findings, producers


def _columns_of(place: MessagePlace | None, prefix: str) -> dict[str, int | None]:
    parts = (None, None, None) if place is None else place
    names = ("ledger_id", "entry_id", "batch_index")
    return {f"{prefix}{name}": part for name, part in zip(names, parts, strict=True)}


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


_IDS = st.one_of(st.integers(0, 6), st.sampled_from([-(2**63), -1, 2**63 - 1]))
_ROWS = st.tuples(
    _IDS,
    st.integers(0, 1),
    st.sampled_from(["p", "q"]),
    st.sampled_from([None, None, "r1"]),
    st.sampled_from([MessageKind.MESSAGE, *MessageKind]),
    st.sampled_from([PayloadState.READ, PayloadState.READ, *PayloadState]),
    st.sampled_from([(-1, 1), (-1, 1), (0, 2), (1, 2)]),
    st.sampled_from([0, 0, 0, WHOLE_BATCH]),
)


def drawn(rows: Sequence[tuple[Any, ...]]) -> list[MessageRow]:
    log = Log()
    for sequence_id, payload, producer, replicated_from, kind, state, (chunk_id, chunks), batch_index in rows:
        log.add(
            sequence_id,
            payload,
            producer=producer,
            replicated_from=replicated_from,
            kind=kind,
            state=state,
            chunk_id=chunk_id,
            chunks=chunks,
        )
        log.rows[-1] = log.rows[-1]._replace(batch_index=batch_index)
    return log.rows


@given(
    st.lists(_ROWS, max_size=40),
    st.lists(_ROWS, max_size=12),
    st.integers(1, 9),
    st.sampled_from([(1_000_000, 1_000_000), (1, 1_000_000), (1, 0), (3, 4)]),
)
def test_the_engine_finds_the_same_as_the_rules(
    first: list[tuple[Any, ...]], second: list[tuple[Any, ...]], rows_of_a_group: int, limits: tuple[int, int]
) -> None:
    topics = {topic: drawn(rows) for topic, rows in zip(TOPICS, (first, second), strict=True)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "_SUSPECTS_OF_A_PART", limits[0])
        patch.setattr(embedded, "_MOST_IDS_HELD", limits[1])
        summary, output = looked_through(MemoryExtract(topics, rows_of_a_group=rows_of_a_group))
    findings, producers = by_the_rules(topics)
    assert ordered(output.rows.get("findings", [])) == ordered(findings)
    assert ordered(output.rows.get("producers", [])) == ordered(producers)
    assert summary.findings == {
        kind.value: sum(row["finding"] == kind.value for row in findings) for kind in FindingKind
    }
    assert (summary.rows, summary.producers) == (len(first) + len(second), len(producers))
    assert summary.messages == sum(row["messages"] for row in producers)
    is_proven = not any(row["unopened_batches"] for row in producers)
    clean = TopicResult.CLEAN if is_proven else TopicResult.NOT_PROVEN
    assert summary.result is (TopicResult.FINDINGS if findings else clean)


def test_extracts_of_single_partitions_have_the_findings_of_one_of_all() -> None:
    topics = {topic: log_of(*ids) for topic, ids in zip(TOPICS, ((0, 1, 1, 0), (0, 1, 0, 5, 2)), strict=True)}
    _, together = looked_through(MemoryExtract(topics, rows_of_a_group=3))
    alone = [looked_through(MemoryExtract({topic: rows}, rows_of_a_group=3))[1] for topic, rows in topics.items()]
    for table in SCHEMAS:
        rows = ordered([row for output in alone for row in output.rows[table]])
        assert rows == ordered(together.rows[table])
        assert {row["topic"] for row in rows} == set(TOPICS)


def test_however_many_suspects_there_are_few_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_SUSPECTS_OF_A_PART", 1)
    monkeypatch.setattr(embedded, "_MOST_PARTS", 3)
    names = set()
    add = MemoryScratch.add

    def noted(scratch: MemoryScratch, name: str, rows: pa.RecordBatch) -> None:
        names.add(name)
        add(scratch, name, rows)

    monkeypatch.setattr(MemoryScratch, "add", noted)
    rows = log_of(*(number % 50 for number in range(100)))
    summary, _ = looked_through(MemoryExtract({TOPICS[0]: rows}))
    assert summary.result is TopicResult.FINDINGS
    assert names == {f"{name}-{part}" for name in ("suspects", "stored") for part in range(3)}


def rising(count: int) -> list[MessageRow]:
    return log_of(*range(count))


def unseen(cause: UnseenCause) -> UnseenEntries:
    return UnseenEntries(LedgerId(9), EntryId(0), EntryId(4), cause, "why")


@pytest.mark.parametrize(
    ("cause", "verdict", "exit_code"),
    [
        (UnseenCause.OFFLOADED, TopicResult.NOT_PROVEN, EXIT_ERROR),
        (UnseenCause.UNREADABLE, TopicResult.NOT_PROVEN, EXIT_ERROR),
        (UnseenCause.TRIMMED, TopicResult.CLEAN, EXIT_CLEAN),
    ],
)
def test_unseen_entries_are_never_clean(cause: UnseenCause, verdict: TopicResult, exit_code: int) -> None:
    summary, output = looked_through(MemoryExtract({TOPICS[0]: rising(9)}, {TOPICS[1]: [unseen(cause)]}))
    assert (summary.result, summary.exit_code) == (verdict, exit_code)
    topics = {row["topic"]: row for row in output.rows["topics"]}
    assert topics[TOPICS[0]]["verdict"] == "clean"
    assert topics[TOPICS[1]]["verdict"] == verdict.value
    assert f"({cause.value})" in output.texts["report.html"]
    assert summary.unseen[0].count == 5


def test_a_batch_with_only_its_lowest_id_known_proves_nothing() -> None:
    rows = rising(3)
    batch = rows[2]._replace(batch_index=WHOLE_BATCH, payload_state=PayloadState.ENCRYPTED, payload_hash=0)
    summary, output = looked_through(MemoryExtract({TOPICS[0]: [*rows[:2], batch]}))
    assert (summary.result, summary.exit_code) == (TopicResult.NOT_PROVEN, EXIT_ERROR)
    assert output.rows["topics"][0]["verdict"] == "not-proven"
    assert "batches whose messages&#39; ids are unknown" in output.texts["report.html"]


def test_an_extract_whose_own_counts_contradict_it_is_refused() -> None:
    extract = MemoryExtract({TOPICS[0]: rising(9)})
    extract.topics = {TOPICS[0]: rising(8)}
    with pytest.raises(InvalidInputError, match=f"9 messages of {TOPICS[0]} and counts 8"):
        looked_through(extract)
    extract = MemoryExtract({TOPICS[0]: rising(9)})
    extract.manifest = MemoryExtract({TOPICS[0]: rising(7)}).manifest
    with pytest.raises(InvalidInputError, match="has 9 messages, and its manifest counts 7"):
        looked_through(extract)


@pytest.mark.parametrize("rows_of_a_group", [1, 2, 3, 20])
def test_an_extract_out_of_order_is_refused(rows_of_a_group: int) -> None:
    rows = rising(6)
    for swapped in ([*rows[:2], rows[3], rows[2], *rows[4:]], [*rows[:3], rows[2], *rows[3:]]):
        with pytest.raises(InvalidInputError, match=f"the messages of {TOPICS[0]} are not in the order"):
            looked_through(MemoryExtract({TOPICS[0]: swapped}, rows_of_a_group=rows_of_a_group))


def test_the_report_shows_findings_and_escapes_names() -> None:
    log = Log()
    hostile = '<script>alert("1")</script>'
    for sequence_id in (0, 1, 1, 0):
        log.add(sequence_id, producer=hostile)
    rows = [*log.rows, log.rows[-1]._replace(entry_id=EntryId(99), publish_time_ms=2**62)]
    summary, output = looked_through(MemoryExtract({TOPICS[0]: rows}))
    page = output.texts["report.html"]
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert f"{2**62} ms" in page
    assert "3 duplicate" in page
    assert output.documents["summary.json"] == summary.document()
    assert output.documents["summary.json"]["verdict"] == "findings"


def test_the_report_has_the_worst_producers_and_topics_and_the_first_findings_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    for sequence_id, producer in ((5, "few"), (5, "few"), *((9, "most") for _ in range(4))):
        log.add(sequence_id, producer=producer)
    extract = MemoryExtract({TOPICS[0]: log_of(0, 1, 0, 1, 0), TOPICS[1]: log.rows})
    shown: dict[str, list[dict[str, Any]]] = {}
    monkeypatch.setattr(embedded, "_report", lambda summary, rows, place: shown.update(rows) or "")
    looked_through(extract)
    places = [(row["topic"], row["ledger_id"], row["entry_id"]) for row in shown["findings"]]
    assert (len(places), places) == (7, sorted(places))
    assert [(row["producer"], row["findings"]) for row in shown["producers"]] == [("p", 3), ("most", 3), ("few", 1)]
    assert [(row["topic"], row["findings"]) for row in shown["topics"]] == [(TOPICS[1], 4), (TOPICS[0], 3)]


def test_empty_extract_is_clean() -> None:
    summary, output = looked_through(MemoryExtract({}))
    assert summary.exit_code == EXIT_CLEAN
    assert output.rows == {}


# --- extracts as files ---------------------------------------------------------------------------------------------


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
    files = json.loads((tmp_path / "found" / SUMMARY_NAME).read_text())["files"]
    assert files == {
        path.relative_to(tmp_path / "found").as_posix(): sha256_of(path)
        for path in (tmp_path / "found").rglob("*.parquet")
    }
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
    with pytest.raises(InvalidInputError, match="already exists"):
        look_for_duplicates(DuplicatesRequest(extract, tmp_path / "found"), lambda _: None)
