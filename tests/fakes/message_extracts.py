"""Extracts of messages made from rows, in memory or as files with small row groups."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pulsar_sidecar.features.duplicates.extracts.tables import LEDGERS, MESSAGES, TABLES, UNSEEN
from pulsar_sidecar.features.duplicates.manifests import ExtractManifest, UnseenCount
from pulsar_sidecar.features.duplicates.rows import MessageRow
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.reports.documents import MANIFEST_NAME, FileDigest

Worked = TypeVar("Worked")
Topics = Mapping[str, Sequence[MessageRow]]
Limitation = Mapping[str, Sequence[UnseenEntries]]


def messages_table(topics: Topics) -> pa.Table:
    """Return the table of all rows, topic after topic."""
    rows = [{"topic": topic, **row._asdict()} for topic, some in topics.items() for row in some]
    plain = pa.schema([pa.field(each.name, getattr(each.type, "value_type", each.type)) for each in MESSAGES])
    return pa.Table.from_pylist(rows, plain).cast(MESSAGES)


def ledgers_table(topics: Topics) -> pa.Table:
    """Return the table of the extract's own counts."""
    rows = []
    for topic, some in topics.items():
        for ledger_id in dict.fromkeys(row.ledger_id for row in some):
            entries = [row.entry_id for row in some if row.ledger_id == ledger_id]
            about = {"topic": topic, "ledger_id": ledger_id, "entries": len(set(entries)), "messages": len(entries)}
            rows.append({**about, "first_entry_id": min(entries), "last_entry_id": max(entries)})
    return pa.Table.from_pylist(rows, LEDGERS)


def unseen_table(unseen: Limitation) -> pa.Table:
    rows = [
        {
            "topic": topic,
            "ledger_id": each.ledger_id,
            "first_entry_id": each.first_entry_id,
            "last_entry_id": each.last_entry_id,
            "cause": each.cause.value,
            "reason": each.reason,
        }
        for topic, some in unseen.items()
        for each in some
    ]
    return pa.Table.from_pylist(rows, UNSEEN)


def manifest_of(topics: Topics, unseen: Limitation, files: Sequence[FileDigest]) -> ExtractManifest:
    ledgers = ledgers_table(topics)
    ranges = [each for some in unseen.values() for each in some]
    return ExtractManifest(
        tool_version="test",
        scope="public/default",
        source="zk:127.0.0.1:2181",
        instance_id="instance",
        topics=len({*topics, *unseen}),
        gone=0,
        ledgers=ledgers.num_rows,
        entries=sum(ledgers.column("entries").to_pylist()),
        messages=sum(map(len, topics.values())),
        unseen={cause.value: _counted(cause, ranges) for cause in {each.cause for each in ranges}},
        files=tuple(files),
        machine_times=(1_000, 2_000),
    )


def _counted(cause: UnseenCause, ranges: Sequence[UnseenEntries]) -> UnseenCount:
    some = [each for each in ranges if each.cause is cause]
    known = [each.last_entry_id - each.first_entry_id + 1 for each in some if each.last_entry_id is not None]
    return UnseenCount(len(some), sum(known), len(some) - len(known))


@dataclass
class MemoryExtract:
    """`ExtractTables` with row groups of ``rows_of_a_group`` rows."""

    topics: Topics
    unseen: Limitation = field(default_factory=dict)
    rows_of_a_group: int = 4

    def __post_init__(self) -> None:
        table = messages_table(self.topics)
        starts = range(0, table.num_rows, self.rows_of_a_group)
        self._groups = [table.slice(start, self.rows_of_a_group) for start in starts]
        self.manifest = manifest_of(self.topics, self.unseen, ())

    @property
    def row_groups(self) -> int:
        return len(self._groups)

    def each(
        self, numbers: Sequence[int], columns: Sequence[str], work: Callable[[int, pa.Table], Worked]
    ) -> Iterator[Worked]:
        return (work(number, self._groups[number].select(columns)) for number in numbers)

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        return {"ledgers": ledgers_table(self.topics), "unseen": unseen_table(self.unseen)}[name].select(columns)


class MemoryScratch:
    """`Scratch` in memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[pa.RecordBatch]] = {}

    def add(self, name: str, rows: pa.RecordBatch) -> None:
        self._rows.setdefault(name, []).append(rows)

    def take(self, name: str) -> pa.Table | None:
        rows = self._rows.pop(name, None)
        return None if rows is None else pa.Table.from_batches(rows)


@dataclass
class MemoryOutput:
    """`TablesOutput` in memory."""

    schemas: Mapping[str, pa.Schema]
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    documents: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def write(self, table: str, rows: pa.RecordBatch, subtree: str | None = None) -> None:
        assert subtree is None
        assert rows.schema.equals(self.schemas[table])
        self.rows.setdefault(table, []).extend(rows.to_pylist())

    def write_text(self, name: str, text: str) -> None:
        self.texts[name] = text

    def close_tables(self) -> tuple[FileDigest, ...]:
        return tuple(FileDigest(f"{name}/part-00000.parquet", 0, 0, "") for name in self.schemas)

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        self.documents[name] = document


@dataclass
class MemoryOutputs:
    """Opener of outputs, which keeps the last one."""

    last: MemoryOutput | None = None

    @contextmanager
    def __call__(self, schemas: Mapping[str, pa.Schema]) -> Iterator[MemoryOutput]:
        output = MemoryOutput(schemas)
        yield output
        self.last = output


def write_extract(
    directory: Path,
    topics: Topics,
    unseen: Limitation | None = None,
    rows_of_a_group: int = 4,
    groups_of_a_file: int = 2,
) -> Path:
    unseen = unseen or {}
    tables = {"messages": messages_table(topics), "ledgers": ledgers_table(topics), "unseen": unseen_table(unseen)}
    files = []
    for name, table in tables.items():
        rows_of_a_file = rows_of_a_group * groups_of_a_file if name == "messages" else max(table.num_rows, 1)
        for number, start in enumerate(range(0, max(table.num_rows, 1), rows_of_a_file)):
            part = table.slice(start, rows_of_a_file)
            path = directory / name / f"part-{number:05d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(part.cast(TABLES[name]), path, row_group_size=rows_of_a_group)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            place = path.relative_to(directory).as_posix()
            files.append(FileDigest(place, part.num_rows, path.stat().st_size, digest))
    manifest = manifest_of(topics, unseen, files)
    (directory / MANIFEST_NAME).write_bytes(orjson.dumps(manifest.document()))
    return directory
