"""What is done with one batch of rows, maybe in another process: functions of the batch alone, answers that travel."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.arrays import NO_LEDGER, Ids, Numbers, narrowed
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.audit.engine.causes import OwnerNode, owner_node
from pulsar_sidecar.audit.engine.decoding import DecodedNodes, decode_nodes, is_compaction_cursor
from pulsar_sidecar.audit.engine.findings import LISTED_LEDGER_COLUMNS, Cases, read_cases
from pulsar_sidecar.audit.engine.places import locate
from pulsar_sidecar.audit.engine.protections import UnreadableNode
from pulsar_sidecar.audit.engine.usage import loaded_topics, named_usage
from pulsar_sidecar.audit.results.tables import LEDGERS
from pulsar_sidecar.ledger_ownership.shadows import Shadow
from pulsar_sidecar.model.names import topic_of_managed_ledger
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR

OWNER_COLUMNS = ("path", "value", "version", "mzxid")
"""What `owner_nodes` looks at."""

LISTED = pa.schema([LEDGERS.field(name) for name in LISTED_LEDGER_COLUMNS])
"""Ledgers as they are judged."""

SIZES = pa.schema([pa.field(name, pa.int64()) for name in ("ledger_id", "czxid", "mzxid", "length")])
"""Ledgers, their rows' order and their lengths."""


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """What is kept of decoded nodes, small enough to travel between processes.

    Attributes:
        rows: how many nodes there were.
        ids: the ledgers of managed ledgers' lists, list by list.
        list_nodes: which nodes these lists are, by their places among the rows.
        list_lengths: how many ledgers each has.
        usage: of the lists (`audit.usage.NAMED_USAGE`), as far as they tell their ledgers' sizes.
        unsized: the lists' other ledgers (`audit.decoding.SINGLES`).
        singles: all other references (`audit.decoding.SINGLES`).
        loaded: of the cursors (`audit.usage.LOADED`).
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

    def naming(self, chosen: Numbers) -> Numbers:
        """The places of the nodes whose lists have some of ``ids``, told by their places."""
        ends = np.cumsum(self.list_lengths)
        return self.list_nodes[np.unique(np.searchsorted(ends, chosen, side="right"))]


def listed_ids(batch: pa.RecordBatch) -> Ids:
    """The ids of a batch of a listing."""
    return narrowed(batch.column("ledger_id").to_numpy())


def dumped_ids(columns: ColumnReader, root: str, batch: pa.RecordBatch) -> tuple[Ids, list[str]]:
    """The ids of a batch of the dump's ledgers, -1 for what is none, and directories that could not be read."""
    ids = columns.ledger_ids(batch.column("path"), root)
    unread = batch.filter(pc.and_(pc.is_null(ids), pc.is_valid(batch.column("unreadable"))))
    return narrowed(ids.fill_null(NO_LEDGER).to_numpy()), unread.column("path").to_pylist()


def decode_part(columns: ColumnReader, batch: pa.RecordBatch) -> DecodedPart:
    """Decode a batch of nodes."""
    decoded = decode_nodes(batch, columns, with_entries=False)
    lists = decoded.lists
    starts = np.flatnonzero(np.diff(lists.node, prepend=-1))
    paths = decoded.paths.filter(pc.ends_with(decoded.paths, f"/{COMPACTION_CURSOR}")).to_pylist()
    return DecodedPart(
        batch.num_rows,
        narrowed(lists.ledger_id),
        lists.node[starts],
        np.diff(starts, append=len(lists.node)),
        named_usage(columns, decoded.usage()),
        decoded.unsized(),
        decoded.singles,
        decoded.unreadable_nodes,
        loaded_topics(columns, decoded.cursors),
        [path for path in paths if is_compaction_cursor(locate(path))],
        list(_shadows(decoded)),
    )


def _shadows(decoded: DecodedNodes) -> Iterator[Shadow]:
    for number, source in decoded.shadows.items():
        topic = topic_of_managed_ledger(locate(decoded.paths[number].as_py()).owner)
        if topic is not None:
            yield Shadow(topic, source)


def lists_naming(columns: ColumnReader, wanted: Numbers, batch: pa.RecordBatch) -> pa.RecordBatch:
    """References to some ledgers from managed ledgers' lists (`audit.decoding.REFERENCES`)."""
    some = columns.may_name(batch.column("value"), wanted)
    return decode_nodes(batch.filter(pa.array(some)), columns).lists_naming(wanted)


def read_ledgers(
    columns: ColumnReader, candidates: Numbers, rows: pa.RecordBatch, ids: Ids
) -> tuple[pa.RecordBatch, Cases]:
    """`SIZES` of the ledgers that are no candidates, and the candidates, from rows as `as_listed` takes."""
    listed = as_listed(pa.array(ids, pa.int64()), rows)
    is_candidate = np.isin(ids, candidates)
    return sizes_of(columns, listed.filter(pa.array(~is_candidate))), read_cases(listed.filter(pa.array(is_candidate)))


def as_listed(ids: pa.Array, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with `NODE_METADATA_COLUMNS` or `LISTED_METADATA_COLUMNS`, with their ledgers' ids."""
    return pa.RecordBatch.from_arrays([ids, *rows.columns], schema=LISTED)


def sizes_of(columns: ColumnReader, ledgers: pa.RecordBatch) -> pa.RecordBatch:
    """The size of each."""
    order = (ledgers.column(name).fill_null(0) for name in ("czxid", "mzxid"))
    lengths = columns.ledger_lengths(ledgers.column("metadata"))
    return pa.RecordBatch.from_arrays([ledgers.column("ledger_id"), *order, lengths], schema=SIZES)


def newest_sizes(sizes: pa.Table) -> pa.Table:
    """A ledger that was deleted and made again while the dump was made is in it twice: the newer one counts."""
    ids, czxids, mzxids = (sizes.column(name).to_numpy() for name in ("ledger_id", "czxid", "mzxid"))
    order = np.lexsort((mzxids, czxids, ids))
    last = np.diff(ids[order], append=NO_LEDGER) != 0
    return sizes.take(pa.array(order[last]))


def age_order(row: Mapping[str, Any]) -> tuple[int, int]:
    """Of two rows of one ledger, which was deleted and made again meanwhile, the larger is the newer."""
    return row["czxid"] or 0, row["mzxid"] or 0


def owner_nodes_at(columns: ColumnReader, paths: pa.Array, batch: pa.RecordBatch) -> list[OwnerNode]:
    """What the nodes at some paths hold."""
    return owner_nodes(columns, batch.filter(pc.is_in(batch.column("path"), value_set=paths)))


def owner_nodes(columns: ColumnReader, nodes: pa.RecordBatch) -> list[OwnerNode]:
    """`audit.causes.owner_node` of each; plain lists are read together."""
    plain = columns.read_nodes(nodes.column("path"), nodes.column("value"))
    lists, misplaced = plain.lists, set(plain.misplaced.tolist())
    starts = np.flatnonzero(np.diff(lists.node, prepend=NO_LEDGER))
    counts = np.diff(starts, append=len(lists.node))
    ends = starts + counts - 1
    summed = zip(lists.node[starts], counts, lists.ledger_id[starts], lists.ledger_id[ends], strict=True)
    read = {int(node): (int(count), int(first), int(last)) for node, count, first, last in summed}
    about = nodes.select(["path", "version", "mzxid"]).to_pylist()
    return [
        OwnerNode(row["path"], row["version"], row["mzxid"], *read[number])
        if number in read and number not in misplaced
        else owner_node({**row, "value": nodes.column("value")[number].as_py()})
        for number, row in enumerate(about)
    ]
