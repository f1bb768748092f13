"""Large made-up clusters as dumps and listings, fast enough to make a hundred million ledgers.

Topics come in groups of five, with lists of 4 to 150 ledgers unless asked otherwise, the last of each still written to.
Each topic has a cursor with a ledger; one of five has another cursor that is not loaded, and a schema. Ids are given
out as on a cluster where all topics roll at the same time, so a list's are far apart, and two of three have been
deleted since. One ledger in a thousand, or a larger share, is an orphan of some topic; a few references lead nowhere.
Every number has a fixed width, so that nodes of one kind are one array.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.features.audit.results.tables import LEDGERS, NODES, Subtree, Table, schemas_of
from pulsar_sidecar.features.audit.sources.manifests import (
    InputKind,
    Manifest,
    NewestWrite,
    OrderRange,
    Proof,
    RowCounts,
    Source,
    SourceKind,
)
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.reports.documents import MANIFEST_NAME

from tests.fakes.bookkeeper import (
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    ledger_metadata_bytes,
    schema_custom_metadata,
    schema_locator_bytes,
)

LISTS = (4, 10, 30, 56, 150)
"""How many ledgers the lists of five neighbouring topics have."""
FIRST_LEDGER = 2**21
"""From here to 2**28, an id is 4 bytes long in protobuf."""
_TOPICS_OF_A_GROUP = len(LISTS)
_WIDEST_GAP = 3
_FIRST_WIDE, _LAST_WIDE = 2**28, 2**31
_WIDE = 5
"""Bytes of an id between these in protobuf."""
_SCATTER = 15_485_863
"""A prime: with it, neighbouring slots get ids far apart."""
_LOST = 40
_BATCH = 131_072
_GROUPS_AT_ONCE = 1_024
_DAY_MS = 86_400_000
_NOW_MS = 1_790_000_000_000
_DIGITS = 9
_NAME = "t/n/persistent/topic-" + "#" * _DIGITS
_SCHEMA_ID = "t/n/topic-" + "#" * _DIGITS
_STAMPS = (
    data_custom_metadata(_NAME),
    cursor_custom_metadata(_NAME, "sub"),
    schema_custom_metadata(_SCHEMA_ID),
)
_INSTANCE_ID = "made-up"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class MadeUpCluster:
    """Groups of topics with their defects.

    A ledger's *slot* is its place in its group, after the slots of earlier groups: first the data ledgers of each
    topic, then the cursors' ledgers, then the schema's. Behind all groups are the slots of orphans, and ids follow from
    slots.
    """

    groups: int
    orphan_share: float = 0.001
    lists: tuple[int, ...] = LISTS
    is_wide: bool = False
    day: int = 0

    @classmethod
    def of(
        cls, ledgers: int, orphan_share: float = 0.001, lists: tuple[int, ...] = LISTS, *, is_wide: bool = False
    ) -> "MadeUpCluster":
        """One with about this many ledgers, whose ids are spread over 32 bits if it ``is_wide``."""
        of_a_group = sum(lists) + len(lists) + 1
        return cls(max(1, round(ledgers / of_a_group / (1 + orphan_share))), orphan_share, lists, is_wide)

    @property
    def orphans(self) -> int:
        return max(1, int(self._slots * self.orphan_share))

    @property
    def _data(self) -> int:
        return sum(self.lists)

    @property
    def _schema(self) -> int:
        return self._data + len(self.lists)

    @property
    def _of_a_group(self) -> int:
        return self._schema + 1

    @property
    def _starts(self) -> Numbers:
        return np.cumsum([0, *self.lists])

    @property
    def _first(self) -> int:
        return _FIRST_WIDE if self.is_wide else FIRST_LEDGER

    @property
    def referenced(self) -> int:
        """Ledgers that are referenced and exist."""
        return self._slots - self.lost

    @property
    def lost(self) -> int:
        """References to ledgers that do not exist."""
        return min(_LOST, self.groups)

    @property
    def ledgers(self) -> int:
        return self.referenced + self.orphans

    @property
    def _slots(self) -> int:
        return self.groups * self._of_a_group

    @property
    def _all_slots(self) -> int:
        return self._slots + self.orphans

    @property
    def _gap(self) -> int:
        if self.is_wide:
            return (_LAST_WIDE - _FIRST_WIDE) // self._all_slots
        return min(_WIDEST_GAP, (_FIRST_WIDE - FIRST_LEDGER) // self._all_slots)

    def ids(self) -> Iterator[Numbers]:
        """Every ledger that exists, ascending, some at a time."""
        for numbers in _in_batches(self._all_slots):
            some = self._first + self._gap * numbers
            yield some[~self._is_lost(self.slots(some))]

    def references(self) -> Iterator[Numbers]:
        """Every ledger that is referenced, as the groups have them, some at a time."""
        return (self.ids_of(slots) for slots in _in_batches(self._slots))

    def ids_of(self, slots: Numbers) -> Numbers:
        """The ids of slots."""
        return self._first + self._gap * (slots * _SCATTER % self._all_slots)

    def slots(self, ids: Numbers) -> Numbers:
        """The slots of ids."""
        back = pow(_SCATTER, -1, self._all_slots)
        return (ids - self._first) // self._gap * back % self._all_slots

    def _is_lost(self, slots: Numbers) -> Mask:
        # The last ledger but one of the longest list.
        return (slots % self._of_a_group == self._data - 2) & (slots < self.lost * self._of_a_group)

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Make the dump and the listing below a directory."""
        directory.mkdir(parents=True, exist_ok=True)
        return self._write_dump(directory / "dump"), self._write_listing(directory / "listing")

    def _write_listing(self, directory: Path) -> Path:
        with parquet_output(directory, schemas_of(Table.LEDGERS)) as output:
            for some in self.ids():
                output.write(Table.LEDGERS, _batch(LEDGERS, len(some), {"ledger_id": pa.array(some)}))
            manifest = self._manifest(InputKind.LISTING, OrderRange(1, 10 + self.day), output.close_tables())
            output.finish(MANIFEST_NAME, manifest.document())
        return directory

    def _write_dump(self, directory: Path) -> Path:
        with parquet_output(directory, schemas_of(Table.NODES, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS)) as output:
            for batch in self._managed_ledgers():
                output.write(Table.NODES, batch, Subtree.MANAGED_LEDGERS)
            for batch in self._schemas():
                output.write(Table.NODES, batch, Subtree.SCHEMAS)
            for batch in self._ledgers():
                output.write(Table.NODES, batch, Subtree.LEDGERS)
            zxids = OrderRange(20 + self.day, 30 + self.day)
            manifest = self._manifest(InputKind.DUMP, zxids, output.close_tables())
            output.finish(MANIFEST_NAME, manifest.document())
        return directory

    def _manifest(self, kind: InputKind, zxids: OrderRange, files: Any) -> Manifest:
        return Manifest(
            kind=kind,
            source=Source(SourceKind.ZOOKEEPER, "made-up:2181"),
            tool_version="0",
            ledgers_root="/ledgers",
            instance_id=_INSTANCE_ID,
            cluster_name="made-up",
            zxids=zxids,
            as_of=NewestWrite(30 + self.day, _NOW_MS + self.day * _DAY_MS),
            counts={"nodes": RowCounts()},
            left_out=(),
            allows_deletion=True,
            reservations=(),
            proof=Proof("made up", "made up"),
            files=files,
        )

    def _managed_ledgers(self) -> Iterator[pa.RecordBatch]:
        order = np.random.default_rng(self.groups)
        for start in range(0, self.groups, _GROUPS_AT_ONCE):
            groups = np.arange(start, min(start + _GROUPS_AT_ONCE, self.groups))
            made = pa.concat_batches(
                [batch for place in range(_TOPICS_OF_A_GROUP) for batch in self._topics(groups, place)]
            )
            yield made.take(pa.array(order.permutation(made.num_rows)))

    def _topics(self, groups: Numbers, place: int) -> Iterator[pa.RecordBatch]:
        """The nodes of one topic of each group: the list, a cursor, and for one of them a cursor that is not loaded."""
        topics = groups * _TOPICS_OF_A_GROUP + place
        path = _text(f"/managed-ledgers/{_NAME}", topics)
        yield _nodes(path, self._lists(groups, place))
        yield _nodes(_text(f"/managed-ledgers/{_NAME}/sub", topics), self._cursors(groups, place))
        if not place:
            idle = np.tile(np.frombuffer(_idle_cursor(), np.uint8), (len(groups), 1))
            yield _nodes(_text(f"/managed-ledgers/{_NAME}/idle", topics), idle)

    def _lists(self, groups: Numbers, place: int) -> Bytes:
        slots = groups[:, None] * self._of_a_group + np.arange(self._starts[place], self._starts[place + 1])
        ids = np.sort(self.ids_of(slots), axis=1)
        closed = ml.ManagedLedgerInfo()
        closed.ledgerInfo.add(ledgerId=self._first, entries=10_000, size=FIRST_LEDGER, timestamp=_NOW_MS)
        written = ml.ManagedLedgerInfo()
        written.ledgerInfo.add(ledgerId=self._first, timestamp=0)
        lists = _with_numbers(closed.SerializeToString(), ids[:, :-1], _sizes(ids[:, :-1]))
        last = _with_numbers(written.SerializeToString(), ids[:, -1:])
        return np.concatenate([lists.reshape(len(groups), -1), last.reshape(len(groups), -1)], axis=1)

    def _cursors(self, groups: Numbers, place: int) -> Bytes:
        ids = self.ids_of(groups * self._of_a_group + self._data + place)
        return _with_numbers(cursor_bytes(self._first), ids)

    def _schemas(self) -> Iterator[pa.RecordBatch]:
        for groups in _in_batches(self.groups):
            template = schema_locator_bytes([self._first])
            ids = self.ids_of(groups * self._of_a_group + self._schema)
            marks = template.count(_varint(self._first))
            values = _with_numbers(template, *([ids] * marks))
            yield _nodes(_text(f"/schemas/{_SCHEMA_ID}", groups * _TOPICS_OF_A_GROUP), values)

    def _ledgers(self) -> Iterator[pa.RecordBatch]:
        for some in self.ids():
            slots = self.slots(some)
            in_group = slots % self._of_a_group
            kinds = np.where(
                slots >= self._slots, 0, np.searchsorted([self._data, self._schema], in_group, side="right")
            )
            made = [
                _nodes(_ledger_paths(some[kinds == kind]), self._metadata(some[kinds == kind], custom))
                for kind, custom in enumerate(_STAMPS)
                if (kinds == kind).any()
            ]
            yield pa.concat_batches(made).take(pa.array(np.argsort(np.argsort(kinds, kind="stable"))))

    def _metadata(self, ids: Numbers, custom: dict[str, bytes]) -> Bytes:
        template = ledger_metadata_bytes(custom_metadata=custom, length_bytes=FIRST_LEDGER)
        rows = _fill(template, self._topics_of(self.slots(ids)))
        at = template.index(_varint(FIRST_LEDGER))
        rows[:, at : at + 4] = varint4(_sizes(ids))
        return rows

    def _topics_of(self, slots: Numbers) -> Numbers:
        """The topic of each; an orphan's is any."""
        group, place = slots // self._of_a_group, slots % self._of_a_group
        of_cursor = np.where(place == self._schema, 0, place - self._data)
        topic = np.where(place < self._data, np.searchsorted(self._starts, place, side="right") - 1, of_cursor)
        return (group % self.groups) * _TOPICS_OF_A_GROUP + topic


def _in_batches(count: int) -> Iterator[Numbers]:
    return (np.arange(start, min(start + _BATCH, count)) for start in range(0, count, _BATCH))


def _idle_cursor() -> bytes:
    """A cursor whose position is in its node, with messages acknowledged singly."""
    info = ml.ManagedCursorInfo.FromString(cursor_bytes(mark_delete=(FIRST_LEDGER, 4)))
    deleted = info.individualDeletedMessages.add()
    deleted.lowerEndpoint.ledgerId = deleted.upperEndpoint.ledgerId = FIRST_LEDGER
    deleted.lowerEndpoint.entryId, deleted.upperEndpoint.entryId = 6, 8
    return info.SerializeToString()


def _with_numbers(template: bytes, *numbers: Numbers) -> Bytes:
    """The template once for each place of the arrays, with their numbers where it has a first id, in this order."""
    values = np.empty((*numbers[0].shape, len(template)), np.uint8)
    values[:] = np.frombuffer(template, np.uint8)
    at = 0
    for some in numbers:
        spelled = _varints(some)
        width = spelled.shape[-1]
        at = template.index(_varint(FIRST_LEDGER if width < _WIDE else _FIRST_WIDE), at)
        values[..., at : at + width] = spelled
        at += width
    return values


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
    """Sizes as different as real ones."""
    return FIRST_LEDGER + ids * 2_654_435_761 % (2**27)


def _decimal(numbers: Numbers, digits: int) -> Bytes:
    powers = 10 ** np.arange(digits - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def varint4(numbers: Numbers) -> Bytes:
    """Protobuf's spelling of numbers from 2**21 to 2**28, 4 bytes each."""
    return _spelled(numbers, 4)


def _varint(number: int) -> bytes:
    return _varints(np.array([number])).tobytes()


def _varints(numbers: Numbers) -> Bytes:
    return _spelled(numbers, _WIDE if numbers.max(initial=0) >= _FIRST_WIDE else _WIDE - 1)


def _spelled(numbers: Numbers, width: int) -> Bytes:
    groups = numbers[..., None] >> 7 * np.arange(width) & 0x7F
    groups[..., :-1] |= 0x80
    return groups.astype(np.uint8)
