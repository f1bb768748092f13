"""Large made-up clusters as dumps and listings, fast enough to make a hundred million ledgers.

Each topic has `LEDGERS_OF_A_TOPIC` data ledgers, whose ids lie as far apart as those of topics that roll at the same
time, and one cursor. One ledger in a thousand is an orphan of some topic; a few references lead nowhere. Every number
has a fixed width, so that all nodes of a batch are one array.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from service.adapters.parquet.output import parquet_output
from service.audit.manifests import (
    MANIFEST_NAME,
    Kind,
    Manifest,
    Moment,
    OrderRange,
    Proof,
    Rows,
    Source,
    SourceKind,
)
from service.audit.tables import LEDGERS, NODES, Subtree, Table
from service.wire import MLDataFormats_pb2 as ml
from tests.fakes.bookkeeper import (
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    ledger_metadata_bytes,
)

LEDGERS_OF_A_TOPIC = 50
FIRST_LEDGER = 2**21
"""From here to 2**28, an id is 4 bytes long in protobuf."""
_LOST = 40
_BATCH = 131_072
_TOPICS_AT_ONCE = 4_096
_DAY_MS = 86_400_000
_NOW_MS = 1_790_000_000_000
_DIGITS = 9
_NAME = "t/n/persistent/topic-" + "#" * _DIGITS
_INSTANCE_ID = "made-up"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class MadeUpCluster:
    """So many topics, and what is wrong with them."""

    topics: int
    day: int = 0

    @classmethod
    def of(cls, ledgers: int, day: int = 0) -> "MadeUpCluster":
        """One with about so many ledgers; ``day`` is when it is looked at."""
        return cls(max(1, round(ledgers / (LEDGERS_OF_A_TOPIC + 1) / 1.001)), day)

    @property
    def orphans(self) -> int:
        return max(1, self.topics * (LEDGERS_OF_A_TOPIC + 1) // 1000)

    @property
    def referenced(self) -> int:
        """Ledgers that are referenced and exist."""
        return self.topics * (LEDGERS_OF_A_TOPIC + 1) - self.lost

    @property
    def lost(self) -> int:
        """References to ledgers that do not exist."""
        return min(_LOST, self.topics)

    @property
    def ledgers(self) -> int:
        return self.referenced + self.orphans

    def ids(self) -> Numbers:
        """Every ledger that exists, ascending: the first ledgers of all topics, then their second ones, and so on."""
        count = self.topics * (LEDGERS_OF_A_TOPIC + 1) + self.orphans
        return np.arange(FIRST_LEDGER + self.lost, FIRST_LEDGER + count)

    def owner(self, ids: Numbers) -> Numbers:
        """The topic of each ledger."""
        return (ids - FIRST_LEDGER) % self.topics

    def is_cursors(self, ids: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether a cursor's."""
        return (ids - FIRST_LEDGER) // self.topics == LEDGERS_OF_A_TOPIC

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Make the dump and the listing below a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        return self._write_dump(directory / "dump"), self._write_listing(directory / "listing")

    def _write_listing(self, directory: Path) -> Path:
        ids = self.ids()
        with parquet_output(directory, (Table.LEDGERS,)) as output:
            for start in range(0, len(ids), _BATCH):
                some = ids[start : start + _BATCH]
                output.write(Table.LEDGERS, _batch(LEDGERS, len(some), {"ledger_id": pa.array(some)}))
            manifest = self._manifest(Kind.LISTING, OrderRange(1, 10 + self.day), output.close_tables())
            output.finish(MANIFEST_NAME, manifest.document())
        return directory

    def _write_dump(self, directory: Path) -> Path:
        with parquet_output(directory, (Table.NODES, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS)) as output:
            for batch in self._managed_ledgers():
                output.write(Table.NODES, batch, Subtree.MANAGED_LEDGERS)
            for batch in self._ledgers():
                output.write(Table.NODES, batch, Subtree.LEDGERS)
            zxids = OrderRange(20 + self.day, 30 + self.day)
            manifest = self._manifest(Kind.DUMP, zxids, output.close_tables())
            output.finish(MANIFEST_NAME, manifest.document())
        return directory

    def _manifest(self, kind: Kind, zxids: OrderRange, files: Any) -> Manifest:
        return Manifest(
            kind=kind,
            source=Source(SourceKind.ZOOKEEPER, "made-up:2181"),
            tool_version="0",
            ledgers_root="/ledgers",
            instance_id=_INSTANCE_ID,
            cluster_name="made-up",
            zxids=zxids,
            as_of=Moment(30 + self.day, _NOW_MS + self.day * _DAY_MS),
            counts={"nodes": Rows()},
            left_out=(),
            may_condemn=True,
            reservations=(),
            proof=Proof("made up", "made up"),
            files=files,
        )

    def _managed_ledgers(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, self.topics, _TOPICS_AT_ONCE):
            topics = np.arange(start, min(start + _TOPICS_AT_ONCE, self.topics))
            path = _text(f"/managed-ledgers/{_NAME}", topics)
            yield _nodes(path, self._lists(topics))
            yield _nodes(_text(f"/managed-ledgers/{_NAME}/sub", topics), self._cursors(topics))

    def _lists(self, topics: Numbers) -> Bytes:
        info = ml.ManagedLedgerInfo()
        info.ledgerInfo.add(ledgerId=FIRST_LEDGER, entries=10_000, size=FIRST_LEDGER, timestamp=_NOW_MS)
        template = np.frombuffer(info.SerializeToString(), np.uint8)
        values = np.empty((len(topics), LEDGERS_OF_A_TOPIC, len(template)), np.uint8)
        values[:] = template
        ids = FIRST_LEDGER + topics[:, None] + np.arange(LEDGERS_OF_A_TOPIC) * self.topics
        values[:, :, 3:7] = _varint4(ids)
        size_at = template.tobytes().rindex(_varint4(np.array([FIRST_LEDGER])).tobytes())
        values[:, :, size_at : size_at + 4] = _varint4(_sizes(ids))
        return values.reshape(len(topics), -1)

    def _cursors(self, topics: Numbers) -> Bytes:
        template = np.frombuffer(cursor_bytes(FIRST_LEDGER), np.uint8)
        values = np.tile(template, (len(topics), 1))
        values[:, 1:5] = _varint4(FIRST_LEDGER + topics + LEDGERS_OF_A_TOPIC * self.topics)
        return values

    def _ledgers(self) -> Iterator[pa.RecordBatch]:
        ids = self.ids()
        for start in range(0, len(ids), _BATCH):
            some = ids[start : start + _BATCH]
            for cursors in (False, True):
                chosen = some[self.is_cursors(some) == cursors]
                if len(chosen):
                    yield _nodes(_ledger_paths(chosen), self._metadata(chosen, cursors))

    def _metadata(self, ids: Numbers, cursors: bool) -> Bytes:
        custom = cursor_custom_metadata(_NAME, "sub") if cursors else data_custom_metadata(_NAME)
        template = ledger_metadata_bytes(custom_metadata=custom, length_bytes=FIRST_LEDGER)
        rows = _fill(template, self.owner(ids))
        at = template.index(_varint4(np.array([FIRST_LEDGER])).tobytes())
        rows[:, at : at + 4] = _varint4(_sizes(ids))
        return rows


def _nodes(paths: Bytes, values: Bytes) -> pa.RecordBatch:
    count = len(paths)
    numbers = {
        "version": pa.repeat(1, count),
        "ctime_ms": pa.repeat(_NOW_MS - 30 * _DAY_MS, count),
        "mtime_ms": pa.repeat(_NOW_MS - 30 * _DAY_MS, count),
        "czxid": pa.repeat(5, count),
        "mzxid": pa.repeat(6, count),
    }
    columns = {
        "path": _strings(paths, pa.string()),
        "value": _strings(values, pa.binary()),
        **{name: column.cast(pa.int64()) for name, column in numbers.items()},
        "ephemeral": pa.repeat(False, count),
    }
    return _batch(NODES, count, columns)


def _batch(schema: pa.Schema, count: int, columns: dict[str, pa.Array]) -> pa.RecordBatch:
    arrays = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _strings(rows: Bytes, kind: pa.DataType) -> pa.Array:
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    return pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.tobytes())])


def _text(template: str, numbers: Numbers) -> Bytes:
    return _fill(template.encode(), numbers)


def _fill(template: bytes, numbers: Numbers) -> Bytes:
    """The template once for each number, with the number instead of its marks."""
    rows = np.tile(np.frombuffer(template, np.uint8), (len(numbers), 1))
    at = template.index(b"#" * _DIGITS)
    rows[:, at : at + _DIGITS] = _decimal(numbers, _DIGITS)
    return rows


def _ledger_paths(ids: Numbers) -> Bytes:
    rows = np.tile(np.frombuffer(b"/ledgers/00/0000/L0000", np.uint8), (len(ids), 1))
    rows[:, [9, 10, 12, 13, 14, 15, 18, 19, 20, 21]] = _decimal(ids, 10)
    return rows


def _sizes(ids: Numbers) -> Numbers:
    """As different as real ones."""
    return FIRST_LEDGER + ids * 2_654_435_761 % (2**27)


def _decimal(numbers: Numbers, digits: int) -> Bytes:
    powers = 10 ** np.arange(digits - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _varint4(numbers: Numbers) -> Bytes:
    groups = numbers[..., None] >> np.array([0, 7, 14, 21]) & 0x7F
    groups[..., :3] |= 0x80
    return groups.astype(np.uint8)
