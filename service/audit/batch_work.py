"""What is done with one batch of rows, maybe in another process: functions of the batch alone, answers that travel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.audit.decoding import Reference, decode_nodes, is_compaction_cursor
from service.audit.findings import LEDGER_NODE_COLUMNS, LISTED_LEDGER_COLUMNS, ledger_length
from service.audit.ledger_ids import ledger_ids
from service.audit.ledger_lists import Numbers
from service.audit.places import locate
from service.audit.shields import Damage
from service.audit.tables import LEDGERS

NO_LEDGER = -1
LISTED = pa.schema([LEDGERS.field(name) for name in LISTED_LEDGER_COLUMNS])
"""Ledgers as they are judged."""

Sized = tuple[int, int, int, int | None]
"""A ledger, its row's order (czxid, mzxid) and its length."""

_COMPACTION_CURSOR = "/__compaction$"


@dataclass(frozen=True, slots=True)
class DecodedPart:
    """What is kept of decoded nodes, small enough to travel between processes; ``ids`` are those of lists."""

    ids: Numbers
    usage: pa.RecordBatch
    others: list[Reference]
    damages: list[Damage]
    cursors: dict[str, bool]
    compaction_cursors: list[str]


def listed_ids(batch: pa.RecordBatch) -> Numbers:
    """The ids of a batch of a listing."""
    ids: Numbers = batch.column("ledger_id").to_numpy()
    return ids


def dumped_ids(root: str, batch: pa.RecordBatch) -> tuple[Numbers, list[str]]:
    """The ids of a batch of the dump's ledgers, -1 for what is none, and directories that could not be read."""
    ids = ledger_ids(batch.column("path"), root)
    unread = batch.filter(pc.and_(pc.is_null(ids), pc.is_valid(batch.column("unreadable"))))
    return ids.fill_null(NO_LEDGER).to_numpy(), unread.column("path").to_pylist()


def decode_part(batch: pa.RecordBatch) -> DecodedPart:
    """Decode a batch of nodes."""
    decoded = decode_nodes(batch)
    ends = pc.match_substring_regex(batch.column("path"), _COMPACTION_CURSOR)
    paths = batch.column("path").filter(ends).to_pylist()
    return DecodedPart(
        decoded.lists.ledger_id,
        decoded.usage(),
        decoded.others,
        decoded.damages,
        decoded.cursors,
        [path for path in paths if is_compaction_cursor(locate(path))],
    )


def lists_naming(wanted: Numbers, batch: pa.RecordBatch) -> pa.RecordBatch:
    """References to some ledgers from managed ledgers' lists (`service.audit.decoding.REFERENCES`)."""
    decoded = decode_nodes(batch)
    decoded.others.clear()
    return decoded.references_to(wanted)


def read_ledgers(root: str, candidates: Numbers, batch: pa.RecordBatch) -> tuple[list[Sized], pa.RecordBatch]:
    """Lengths of the ledgers that are no candidates, and the candidates' rows."""
    if "path" in batch.schema.names:
        batch = as_listed(batch, root)
    is_candidate = np.isin(batch.column("ledger_id").to_numpy(), candidates)
    return sizes_of(batch.filter(pa.array(~is_candidate))), batch.filter(pa.array(is_candidate))


def as_listed(nodes: pa.RecordBatch, root: str) -> pa.RecordBatch:
    """Nodes of ledgers in the columns of a listing."""
    rest = (nodes.column(name) for name in LEDGER_NODE_COLUMNS[1:])
    return pa.RecordBatch.from_arrays([ledger_ids(nodes.column("path"), root), *rest], schema=LISTED)


def sizes_of(ledgers: pa.RecordBatch) -> list[Sized]:
    """The size of each."""
    rows = ledgers.select(["ledger_id", "metadata", "czxid", "mzxid"]).to_pylist()
    return [(row["ledger_id"], *age_order(row), ledger_length(row["metadata"])) for row in rows]


def age_order(row: Mapping[str, Any]) -> tuple[int, int]:
    """Of two rows of one ledger, which was deleted and made again meanwhile, the larger is the newer."""
    return row["czxid"] or 0, row["mzxid"] or 0


def nodes_named(paths: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The nodes at some paths."""
    return batch.filter(pc.is_in(batch.column("path"), value_set=paths))
