"""Decoding of nodes into references, a batch at a time, maybe in another process.

Both engines call it, each on its own batches. Invariant: each reference of a batch comes out, or the node that holds
it comes out as an `UnreadableNode`; a node that was not understood never counts as one without references.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import NO_LEDGER, Ids, LedgerLists, Mask, Numbers, as_narrow_ids, sums_between
from pulsar_sidecar.features.audit.columnar.reader import CURSORS, SINGLES, ColumnReader, PlainNodes
from pulsar_sidecar.features.audit.engine.leftover_nodes import pending_acks
from pulsar_sidecar.features.audit.engine.offloaded import COPIES, copies_in_list
from pulsar_sidecar.features.audit.engine.usage import loaded_topics, named_usage
from pulsar_sidecar.features.audit.results.tables import CursorLedgerState
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.names import topic_of_managed_ledger
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.places import LocatedNode, Place, locate
from pulsar_sidecar.ownership.protections import Scope, UnreadableNode, undecodable_node, unreadable_node
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
    schema_references,
)
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, Shadow

_SCHEMA_SLASHES = 2

NODE_COLUMNS = ("path", "value", "unreadable")
"""Columns of `audit.results.tables.NODES` that decoding reads."""

REFERENCES = pa.schema([*SINGLES, pa.field("entries", pa.int64()), pa.field("size_bytes", pa.int64())])
"""Single references. ``size_bytes`` and ``entries`` are null where the node does not report them."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Reference that is not an element of a managed ledger's list; ``path`` is the node's, whichever engine read it."""

    ledger_id: int
    kind: LedgerKind
    path: str


@dataclass(slots=True)
class DecodedNodes:
    """References of a batch of nodes.

    Attributes:
        lists: data ledgers of managed ledgers; ``node`` is the position in ``paths``.
        shadows: positions of managed ledgers whose list copies a source's, with their spelling of the source.
        singles: all other references (`SINGLES`).
        cursors: each cursor that was read (`CURSORS`).
        copies: offload contexts in the lists (`audit.engine.offloaded.COPIES`).
    """

    paths: pa.Array
    lists: LedgerLists
    shadows: dict[int, str]
    singles: pa.RecordBatch
    unreadable_nodes: list[UnreadableNode]
    cursors: pa.RecordBatch
    copies: pa.RecordBatch

    def usage(self, columns: ColumnReader) -> pa.RecordBatch:
        """Return `NAMED_USAGE` of the managed ledgers' lists, without `unsized`."""
        chosen = self._own() & self.lists.closed
        nodes, sizes = self.lists.node[chosen], self.lists.size_bytes[chosen]
        starts = np.flatnonzero(np.diff(nodes, prepend=-1))
        paths = self.paths.take(pa.array(nodes[starts]))
        sums = (np.diff(starts, append=len(nodes)), sums_between(sizes, starts), np.zeros_like(starts))
        return named_usage(columns, paths, pa.repeat(LedgerKind.DATA.value, len(paths)), *sums)

    def unsized(self) -> pa.RecordBatch:
        """Return `SINGLES` of the lists' ledgers without a size there: only BookKeeper knows whether they have one."""
        chosen = self._own() & ~self.lists.closed
        kinds = pa.repeat(LedgerKind.DATA.value, int(chosen.sum()))
        paths = self.paths.take(pa.array(self.lists.node[chosen]))
        return pa.RecordBatch.from_arrays([pa.array(self.lists.ledger_id[chosen]), kinds, paths], schema=SINGLES)

    def _own(self) -> Mask:
        if not self.shadows:
            return np.ones(len(self.lists.node), np.bool_)
        return ~np.isin(self.lists.node, list(self.shadows))

    def lists_naming(self, ledger_ids: Numbers) -> pa.RecordBatch:
        """Return `REFERENCES` of the lists to these ledgers."""
        lists = self.lists
        chosen = np.flatnonzero(np.isin(lists.ledger_id, ledger_ids))
        known = pa.array(lists.closed[chosen])
        none = pa.scalar(None, pa.int64())
        return pa.RecordBatch.from_arrays(
            [
                pa.array(lists.ledger_id[chosen]),
                pa.repeat(LedgerKind.DATA.value, len(chosen)),
                self.paths.take(pa.array(lists.node[chosen])),
                pc.if_else(known, pa.array(lists.entries[chosen]), none),
                pc.if_else(known, pa.array(lists.size_bytes[chosen]), none),
            ],
            schema=REFERENCES,
        )


def singles_batch(references: Iterable[Reference]) -> pa.RecordBatch:
    """Return the references as `SINGLES`, each once."""
    every = dict.fromkeys(references)
    rows = [{"ledger_id": each.ledger_id, "kind": each.kind.value, "path": each.path} for each in every]
    return pa.RecordBatch.from_pylist(rows, schema=SINGLES)


def single_references(singles: pa.Table) -> pa.RecordBatch:
    """Return `SINGLES` as `REFERENCES`; nodes do not report their sizes."""
    none = pa.nulls(singles.num_rows, pa.int64())
    columns = (column.combine_chunks() for column in singles.columns)
    return pa.RecordBatch.from_arrays([*columns, none, none], schema=REFERENCES)


def decode_nodes(nodes: pa.RecordBatch, columns: ColumnReader, *, with_entries: bool = True) -> DecodedNodes:
    """Decode nodes of the subtrees ``managed-ledgers`` and ``schemas``; columns `NODE_COLUMNS` at least.

    Only `DecodedNodes.lists_naming` returns ledgers' numbers of entries, and only ``with_entries``.
    """
    values, paths = nodes.column("value"), nodes.column("path")
    plain = columns.read_nodes(paths, values, with_entries=with_entries)
    reader = _Reader(nodes, plain)
    singles = pa.concat_batches([plain.singles, singles_batch(reader.others)])
    cursors = pa.concat_batches([plain.cursors, pa.RecordBatch.from_pylist(reader.cursors, schema=CURSORS)])
    joined = _joined(plain.lists, reader.list_rows)
    copies = pa.RecordBatch.from_pylist(reader.copies, schema=COPIES)
    return DecodedNodes(paths, joined, reader.shadows, singles, reader.unreadable_nodes, cursors, copies)


class _Reader:
    """Exact reader of the nodes that are not of a plain shape, one by one."""

    def __init__(self, nodes: pa.RecordBatch, plain: PlainNodes) -> None:
        self.list_rows: list[tuple[int, int, int, int, bool]] = []
        self.shadows: dict[int, str] = {}
        self.others: list[Reference] = []
        self.unreadable_nodes: list[UnreadableNode] = []
        self.cursors: list[dict[str, Any]] = []
        self.copies: list[dict[str, Any]] = []

        paths, values = nodes.column("path"), nodes.column("value")
        for row in nodes.filter(pc.is_null(values)).select(["path", "unreadable"]).to_pylist():
            self.unreadable_nodes.append(unreadable_node(row["path"], row["unreadable"] or "its value is missing"))
        # Nodes above others have no data; a cursor or a schema without data has lost it.
        for path in paths.filter(pc.equal(pc.binary_length(values), 0)).to_pylist():
            located = locate(path)
            is_schema = located.place is Place.SCHEMA and located.owner.count("/") >= _SCHEMA_SLASHES
            if located.place is Place.CURSOR or is_schema:
                self.unreadable_nodes.append(undecodable_node(path, located.place, "it holds no data"))
        left = pa.array(plain.left)
        for number, path, value in zip(
            plain.left.tolist(), paths.take(left).to_pylist(), values.take(left).to_pylist(), strict=True
        ):
            if value:
                self._read(number, path, value)
        for path in paths.take(pa.array(plain.misplaced)).to_pylist():
            self._refuse_misplaced(path, locate(path))

    def _refuse_misplaced(self, path: str, located: LocatedNode) -> bool:
        """Refuse a list where a cursor or a schema belongs; its references still count."""
        if located.place not in (Place.CURSOR, Place.SCHEMA):
            return False
        self.unreadable_nodes.append(undecodable_node(path, located.place, "it holds a managed ledger's list"))
        return True

    def _read(self, number: int, path: str, value: bytes) -> None:
        located = locate(path)
        readers = {
            Place.MANAGED_LEDGER: (self._read_list,),
            Place.CURSOR: (self._read_cursor, self._read_list),
            Place.SCHEMA: (self._read_schema, self._read_list),
        }.get(located.place, (self._read_list, self._read_cursor))
        reasons = []
        for read in readers:
            try:
                read(number, path, located, value)
            except UndecodableError as error:
                reasons.append(str(error))
            else:
                return
        self.unreadable_nodes.append(undecodable_node(path, located.place, "; ".join(reasons)))

    def _read_list(self, number: int, path: str, located: LocatedNode, value: bytes) -> None:
        listed = managed_ledger_references(value)
        if not self._refuse_misplaced(path, located) and SHADOW_SOURCE in listed.properties:
            self.shadows[number] = listed.properties[SHADOW_SOURCE]
        self.copies += copies_in_list(path, listed.ledgers)
        for ledger_id, entry in listed.ledgers.items():
            # Once tiered storage's copy has replaced BookKeeper's, the list no longer refers to BookKeeper's.
            if entry.in_bookkeeper:
                self.list_rows.append((number, ledger_id, entry.entries, entry.size_bytes, entry.closed_ms != 0))

    def _read_cursor(self, number: int, path: str, located: LocatedNode, value: bytes) -> None:
        cursor = cursor_references(value)
        self.others += cursor_node_references(path, cursor)
        if located.place in (Place.CURSOR, Place.EITHER):
            self.cursors.append({"managed_ledger": located.owner, "in_ledger": cursor.cursor_ledger is not None})

    def _read_schema(self, number: int, path: str, located: LocatedNode, value: bytes) -> None:
        self.others += [Reference(each, LedgerKind.SCHEMA, path) for each in schema_references(value)]


def cursor_node_references(path: str, cursor: CursorReferences) -> list[Reference]:
    """Return all ledgers that a cursor's node names; its cursor ledger may name a newer compacted ledger."""
    named = [Reference(bucket, LedgerKind.DELAYED_INDEX_BUCKET, path) for bucket in cursor.buckets.values()]
    if cursor.cursor_ledger is not None:
        named.append(Reference(cursor.cursor_ledger, LedgerKind.CURSOR, path))
    if cursor.compacted_ledger is not None:
        named.append(Reference(cursor.compacted_ledger, LedgerKind.COMPACTED, path))
    return named


def decode_cursor_ledgers(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Reference], list[UnreadableNode]]:
    """Return the references of compaction cursors' ledgers (rows of `audit.results.tables.CURSOR_LEDGERS`)."""
    references: list[Reference] = []
    unreadable_nodes: list[UnreadableNode] = []
    for row in rows:
        path = row["cursor_path"]
        try:
            references += _cursor_row_references(path, row)
        except UndecodableError as error:
            unreadable_nodes.append(UnreadableNode(path, Scope.COMPACTED, str(error)))
    return references, unreadable_nodes


def _cursor_row_references(path: str, row: Mapping[str, Any]) -> Iterator[Reference]:
    if row["cursor_value"] is not None:
        yield from cursor_node_references(path, cursor_references(row["cursor_value"]))
    match CursorLedgerState(row["state"]):
        case CursorLedgerState.READ:
            compacted = position_entry_compacted_ledger(row["entry"])
            if compacted is not None:
                yield Reference(compacted, LedgerKind.COMPACTED, path)
        case CursorLedgerState.NO_LEDGER | CursorLedgerState.NO_CURSOR:
            pass
        case CursorLedgerState.LEDGER_GONE:
            raise UndecodableError("the cursor's ledger does not exist; repair or delete the topic first")
        case CursorLedgerState.UNREADABLE:
            raise UndecodableError(row["unreadable"] or "it was not read")


def unread_compaction_cursors(cursor_paths: Iterable[str], read: Iterable[str]) -> list[UnreadableNode]:
    """Return the compaction cursors whose ledgers the dump does not have."""
    unread = set(cursor_paths) - set(read)
    return [UnreadableNode(path, Scope.COMPACTED, "the dump did not read its ledger") for path in unread]


def decode_log_segments(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Reference], int]:
    """Return DistributedLog's references, and the number of records that could not be read."""
    read = [row for row in rows if row["ledger_id"] is not None]
    references = [Reference(row["ledger_id"], LedgerKind.LOG_SEGMENT, row["path"]) for row in read]
    return references, len(rows) - len(read)


def _joined(lists: LedgerLists, rows: Sequence[tuple[int, int, int, int, bool]]) -> LedgerLists:
    if not rows:
        return lists
    more = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    old = (lists.node, lists.ledger_id, lists.entries, lists.size_bytes, lists.closed)
    columns = [np.concatenate([column, added]) for column, added in zip(old, more, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    node, ledger_id, entries, size, closed = (column[order] for column in columns)
    return LedgerLists(node, ledger_id, entries, size, closed != 0)


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """Compact result of decoding nodes, small enough to pass between processes.

    Attributes:
        ids: ledgers of managed ledgers' lists, list by list.
        list_nodes: positions of these lists' nodes among the rows.
        usage: usage of the lists (`audit.engine.usage.NAMED_USAGE`), as far as they have their ledgers' sizes.
        unsized: the lists' other ledgers (`audit.columnar.reader.SINGLES`).
        singles: all other references (`audit.columnar.reader.SINGLES`).
        loaded: loaded topics, by the cursors (`audit.engine.usage.LOADED`).
        copies: offload contexts in the lists (`audit.engine.offloaded.COPIES`).
    """

    rows: int
    ids: Ids
    list_nodes: Numbers
    list_lengths: Numbers
    usage: pa.RecordBatch
    unsized: pa.RecordBatch
    singles: pa.RecordBatch
    unreadable_nodes: list[UnreadableNode]
    loaded: pa.RecordBatch
    compaction_cursors: list[str]
    shadows: list[Shadow]
    pending_acks: list[str]
    copies: pa.RecordBatch

    def naming(self, chosen: Numbers) -> Numbers:
        """Return the positions of the nodes whose lists have some of ``ids``, chosen by their places."""
        ends = np.cumsum(self.list_lengths)
        return self.list_nodes[np.unique(np.searchsorted(ends, chosen, side="right"))]


def listed_ids(batch: pa.RecordBatch) -> Ids:
    return as_narrow_ids(batch.column("ledger_id").to_numpy())


def dumped_ids(columns: ColumnReader, root: str, batch: pa.RecordBatch) -> tuple[Ids, list[str]]:
    """Return the ids of a batch of the dump's ledgers, -1 for other nodes, and the unreadable directories."""
    ids = columns.ledger_ids(batch.column("path"), root)
    unread = batch.filter(pc.and_(pc.is_null(ids), pc.is_valid(batch.column("unreadable"))))
    return as_narrow_ids(ids.fill_null(NO_LEDGER).to_numpy()), unread.column("path").to_pylist()


def decode_part(columns: ColumnReader, batch: pa.RecordBatch) -> DecodedPart:
    decoded = decode_nodes(batch, columns, with_entries=False)
    lists = decoded.lists
    starts = np.flatnonzero(np.diff(lists.node, prepend=-1))
    named_so = decoded.paths.filter(pc.ends_with(decoded.paths, f"/{COMPACTION_CURSOR}")).to_pylist()
    return DecodedPart(
        batch.num_rows,
        as_narrow_ids(lists.ledger_id),
        lists.node[starts],
        np.diff(starts, append=len(lists.node)),
        decoded.usage(columns),
        decoded.unsized(),
        decoded.singles,
        decoded.unreadable_nodes,
        loaded_topics(columns, decoded.cursors),
        [path for path in named_so if locate(path).place in (Place.CURSOR, Place.EITHER)],
        list(_shadows(decoded)),
        pending_acks(decoded.paths),
        decoded.copies,
    )


def _shadows(decoded: DecodedNodes) -> Iterator[Shadow]:
    for number, source in decoded.shadows.items():
        topic = topic_of_managed_ledger(locate(decoded.paths[number].as_py()).owner)
        if topic is not None:
            yield Shadow(topic, source)


def lists_naming(columns: ColumnReader, wanted: Numbers, batch: pa.RecordBatch) -> pa.RecordBatch:
    some = columns.may_name(batch.column("value"), wanted)
    return decode_nodes(batch.filter(pa.array(some)), columns).lists_naming(wanted)


def referring_paths(
    ledger_id: int,
    nodes: Iterable[pa.RecordBatch],
    cursor_ledgers: Iterable[Mapping[str, Any]],
    log_segments: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Return the paths of all nodes that reference a ledger, sorted.

    ``nodes`` are of the subtrees ``managed-ledgers`` and ``schemas``, the others rows of their tables.
    """
    elsewhere = decode_cursor_ledgers(cursor_ledgers)[0] + decode_log_segments(log_segments)[0]
    found = {reference.path for reference in elsewhere if reference.ledger_id == ledger_id}
    for batch in nodes:
        decoded = decode_nodes(batch.select(list(NODE_COLUMNS)), ColumnReader())
        singles = decoded.singles.filter(pc.equal(decoded.singles.column("ledger_id"), ledger_id))
        for references in (decoded.lists_naming(np.array([ledger_id])), singles):
            found.update(references.column("path").to_pylist())
    return sorted(found)
