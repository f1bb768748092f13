"""Ledgers and bytes by owner, and the references that lead to ledgers that do not exist.

References of single nodes are summed by their owner; those to missing ledgers are subtracted again.

BookKeeper assigns ids in ascending order. So a reference to a ledger that is younger than every ledger that was seen
was created while the inputs were taken, and proves nothing: the next audit calls it missing, or none does. A compaction
cursor's node continues to name the compacted ledger that it named when its cursor ledger began. Where the same
cursor names a younger one, compaction has replaced the older and deleted it: the older is not missing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.features.audit.arrays import Numbers, sums_between
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.results.summaries import Count
from pulsar_sidecar.features.audit.results.tables import LEDGER_USAGE, MISSING_LEDGERS
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import java_url_decode
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.places import Owner, locate, owner_at
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.reports.schemas import schema_of

NAMED_USAGE = schema_of("""
    tenant string, namespace string, topic string, kind string not null, ledgers bigint not null,
    bytes bigint not null, unknown_size_ledgers bigint not null
""")
"""Numbers and bytes of owners' ledgers, by kind; several rows for one owner."""

LOADED = schema_of("topic string, in_ledger boolean")
"""Topics with a cursor; ``in_ledger`` is True if its position is in a ledger. Several rows for one topic."""

_PARTITION = "-partition-[0-9]+$"
_KEYS = ("tenant", "namespace", "topic", "kind")
_SUMS = ("ledgers", "bytes", "unknown_size_ledgers")


def named_usage(columns: ColumnReader, paths: pa.Array, kinds: pa.Array, *sums: Any) -> pa.RecordBatch:
    """Return `NAMED_USAGE` of nodes at these paths; ``sums`` are ledgers, bytes, and ledgers of unknown size."""
    counts = (pa.array(each) for each in sums)
    return pa.RecordBatch.from_arrays([*columns.owners_at(paths), kinds, *counts], schema=NAMED_USAGE)


def single_usage(columns: ColumnReader, singles: pa.Table, sizes: pa.Table) -> pa.RecordBatch:
    """Return `NAMED_USAGE` of single references, a row each; ``sizes`` has ``ledger_id`` and ``length``, as known."""
    ids, lengths = (sizes.column(name).combine_chunks() for name in ("ledger_id", "length"))
    named, kinds, paths = (singles.column(name).combine_chunks() for name in ("ledger_id", "kind", "path"))
    found = lengths.take(pc.index_in(named, value_set=ids))
    counts = (pa.repeat(1, len(named)), found.fill_null(0), found.is_null().cast(pa.int64()))
    return named_usage(columns, paths, kinds, *counts)


def negative_usage(columns: ColumnReader, missing: pa.RecordBatch) -> pa.RecordBatch:
    """Return `NAMED_USAGE` of missing ledgers with a size in managed ledgers' lists (``REFERENCES``), below zero.

    Missing ledgers of other lists are `audit.engine.decoding.DecodedNodes.unsized`, which are counted one by one.
    """
    is_data = pc.equal(missing.column("kind"), LedgerKind.DATA.value)
    listed = missing.filter(pc.and_(is_data, pc.is_valid(missing.column("size_bytes"))))
    taken = (pa.repeat(-1, listed.num_rows), pc.negate(listed.column("size_bytes")), pa.repeat(0, listed.num_rows))
    return named_usage(columns, listed.column("path"), listed.column("kind"), *taken)


def loaded_topics(columns: ColumnReader, cursors: pa.RecordBatch) -> pa.RecordBatch:
    """Return `LOADED` of `audit.columnar.reader.CURSORS`."""
    _, _, topics = columns.owners_of(cursors.column("managed_ledger"))
    loaded = pa.RecordBatch.from_arrays([topics, cursors.column("in_ledger")], schema=LOADED)
    return loaded.filter(pc.is_valid(topics))


def usage_table(
    named: Iterable[pa.RecordBatch], loaded: Iterable[pa.RecordBatch], shadows: Collection[str] = ()
) -> pa.Table:
    """Return `LEDGER_USAGE`, sorted by its keys; ``shadows`` are shadow topics, partitioned ones by their own names."""
    rows = _without_copies(pa.Table.from_batches(named, NAMED_USAGE), shadows)
    encoded = {name: _encoded(rows.column(name)) for name in _KEYS}
    # There are nearly as many owners as rows, so sorting takes half as long as looking each one up.
    order, starts = _in_order([_ranks(texts) for texts in encoded.values()])
    sums = {name: sums_between(rows.column(name).to_numpy()[order], starts) for name in _SUMS}
    there = sums["ledgers"] > 0
    owners = pa.array(order[starts][there])
    columns = {name: texts.take(owners).dictionary_decode() for name, texts in encoded.items()}
    columns.update((name, pa.array(summed[there])) for name, summed in sums.items())
    nothing_known = pc.equal(columns["ledgers"], columns["unknown_size_ledgers"])
    columns["bytes"] = pc.if_else(nothing_known, pa.scalar(None, pa.int64()), columns["bytes"])
    flags = _loaded(encoded["topic"], pa.Table.from_batches(loaded, LOADED)).take(owners)
    is_schema = pc.equal(columns["kind"], LedgerKind.SCHEMA.value)
    columns["loaded"] = pc.if_else(is_schema, pa.scalar(None, pa.bool_()), flags)
    batch = pa.RecordBatch.from_arrays([columns[name] for name in LEDGER_USAGE.names], schema=LEDGER_USAGE)
    return pa.Table.from_batches([batch], LEDGER_USAGE)


def _without_copies(named: pa.Table, shadows: Collection[str]) -> pa.Table:
    """Remove the lists of shadows' partitions: brokers write the source only into the partitioned topic's node."""
    if not shadows:
        return named
    bases = pc.replace_substring_regex(named.column("topic").combine_chunks(), _PARTITION, "")
    copies = pc.and_(
        pc.equal(named.column("kind"), LedgerKind.DATA.value),
        pc.is_in(bases, value_set=pa.array(sorted(shadows), pa.string())),
    )
    return named.filter(pc.invert(copies))


def _encoded(texts: pa.ChunkedArray) -> Any:
    return pc.dictionary_encode(texts.combine_chunks())  # type: ignore[attr-defined]  # the stubs lack it


def _ranks(texts: Any) -> Numbers:
    # Nulls last. Comparing four texts at a time takes ten times as long.
    ranks = pc.rank(texts.dictionary, tiebreaker="dense")
    found: Numbers = ranks.take(texts.indices).cast(pa.int64()).fill_null(len(ranks) + 1).to_numpy()
    return found


def _in_order(ranks: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """Return the order of the rows, and the start of each group of equal ones in it."""
    order: Numbers = np.lexsort(ranks[::-1])
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = np.any([np.diff(ranked[order]) != 0 for ranked in ranks], axis=0)
    return order, np.flatnonzero(is_first)


def _loaded(topics: Any, loaded: pa.Table) -> pa.Array:
    """Return True for each encoded topic with a cursor whose position is in a ledger; null without a cursor."""
    elsewhere = len(topics.dictionary)
    places = pc.index_in(loaded.column("topic"), value_set=topics.dictionary).fill_null(elsewhere).to_numpy()
    has_cursor = np.zeros(elsewhere + 1, np.bool_)
    in_ledger = has_cursor.copy()
    has_cursor[places] = True
    in_ledger[places[loaded.column("in_ledger").to_numpy()]] = True
    return pa.array(in_ledger, mask=~has_cursor).take(topics.indices)


def counts_of_usage(usage: pa.Table, column: str) -> dict[str, Count]:
    """Count `LEDGER_USAGE` by the values of a column; the empty string stands for none."""
    summed = usage.group_by([column]).aggregate([(name, "sum") for name in _SUMS])
    return {row[column] or "": Count.of(*(row[f"{name}_sum"] for name in _SUMS)) for row in summed.to_pylist()}


def counts_of_rows(rows: pa.Table, column: str) -> dict[str, Count]:
    unknown = rows.column("length_bytes").is_null().cast(pa.int64())
    sizes = {"bytes": rows.column("length_bytes"), "unknown_size_ledgers": unknown}
    return counts_of_usage(
        pa.table({column: rows.column(column), "ledgers": pa.repeat(1, rows.num_rows), **sizes}), column
    )


def count_of_lengths(lengths: pa.ChunkedArray | pa.Array) -> Count:
    """Count ledgers of these lengths, null where one is unknown."""
    return Count.of(len(lengths), pc.sum(lengths).as_py(), lengths.null_count)


def missing_rows(references: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Return `MISSING_LEDGERS` of references to missing ledgers (rows of `audit.engine.decoding.REFERENCES`)."""
    return pa.RecordBatch.from_pylist([_missing_row(each) for each in references], schema=MISSING_LEDGERS)


def without_unread(gone: Numbers, unread: Collection[str], root: str) -> Numbers:
    """Remove missing ledgers below unreadable directories: they may exist there."""
    if not unread:
        return gone
    below = tuple(f"{path}/" for path in unread)
    seen = [not ledger_path(LedgerId(ledger_id), root).startswith(below) for ledger_id in gone.tolist()]
    return gone[np.array(seen, np.bool_)]


def without_replaced(gone: pa.Table, singles: pa.Table) -> pa.Table:
    """Remove from ``gone`` (`audit.columnar.reader.SINGLES`) compacted ledgers whose cursor names a younger one."""
    compacted = singles.filter(pc.equal(singles.column("kind"), LedgerKind.COMPACTED.value))
    youngest: dict[str, int] = {}
    for path, ledger_id in zip(*(compacted.column(name).to_pylist() for name in ("path", "ledger_id")), strict=True):
        youngest[path] = max(ledger_id, youngest.get(path, -1))
    stays = [
        row["kind"] != LedgerKind.COMPACTED.value or row["ledger_id"] == youngest[row["path"]]
        for row in gone.to_pylist()
    ]
    return gone.filter(pa.array(stays, pa.bool_()))


def _missing_row(reference: Mapping[str, Any]) -> dict[str, Any]:
    kind, path = LedgerKind(reference["kind"]), reference["path"]
    owner = Owner() if kind is LedgerKind.LOG_SEGMENT else owner_at(path)
    cursor = _cursor_name(path)
    return {
        "ledger_id": reference["ledger_id"],
        "kind": kind.value,
        "referenced_by": path,
        "tenant": owner.tenant,
        "namespace": owner.namespace,
        "topic": owner.topic,
        "cursor_name": cursor,
        "entries": reference["entries"],
        "size_bytes": reference["size_bytes"],
        "affected": _affected(kind, owner.topic or path, cursor, reference),
    }


def _cursor_name(path: str) -> str | None:
    cursor = locate(path).cursor
    if cursor is None:
        return None
    try:
        return java_url_decode(cursor)
    except UnicodeError:
        return cursor


def _affected(kind: LedgerKind, whose: str, cursor: str | None, reference: Mapping[str, Any]) -> str:
    match kind:
        case LedgerKind.DATA if reference["size_bytes"] is None:
            return f"{whose} lost the ledger that it wrote to last, with an unknown number of entries"
        case LedgerKind.DATA:
            entries, size = reference["entries"], reference["size_bytes"]
            return (
                f"{whose} lost {format_count(entries, 'entry')} ({format_count(size, 'byte')}); consumers stop "
                "there or skip them"
            )
        case LedgerKind.CURSOR:
            return f"the subscription {cursor} of {whose} falls back to an older position, and receives messages again"
        case LedgerKind.SCHEMA:
            return f"producers and consumers of {whose} cannot get one version of its schema"
        case LedgerKind.COMPACTED:
            lost = f"readers of the compacted view of {whose} fail until it is compacted again"
            return f"{lost}, unless a broker has just replaced it and not stored that yet (it does within a minute)"
        case LedgerKind.DELAYED_INDEX_BUCKET:
            return (
                f"no message is lost, but once {whose} is loaded again, brokers of 4.0.8 keep all delayed messages of "
                f"the subscription {cursor} in memory, after reading its backlog again, and leave its other buckets "
                "behind until it is deleted"
            )
        case LedgerKind.LOG_SEGMENT:
            return f"the package or the state that {whose} belongs to cannot be read completely"
        case LedgerKind.UNKNOWN:
            return f"the owner {whose} cannot read it"
