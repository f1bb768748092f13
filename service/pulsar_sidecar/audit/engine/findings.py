"""The rows of an audit's tables, put together in the same way by both engines.

Invariant: what an engine does by itself is moving rows; every value in a table is computed here or below.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.audit.engine.candidates import Claimed, Unattributed, read_candidate
from pulsar_sidecar.audit.engine.causes import OwnerNode
from pulsar_sidecar.audit.engine.judging import EarlierLook, Judge
from pulsar_sidecar.audit.results.tables import ORPHAN_LEDGERS, UNATTRIBUTED_LEDGERS, OrphanStatus

_WRITES = ("version", "ctime_ms", "czxid", "mzxid", "unreadable")
NODE_METADATA_COLUMNS = ("value", *_WRITES)
"""What of `audit.tables.NODES` judging looks at, where the ledger's id is known."""

LISTED_METADATA_COLUMNS = ("metadata", *_WRITES)
"""What of `audit.tables.LEDGERS` it looks at in the same way, where the dump was made without ledgers."""

LEDGER_NODE_COLUMNS = ("path", *NODE_METADATA_COLUMNS)
LISTED_LEDGER_COLUMNS = ("ledger_id", *LISTED_METADATA_COLUMNS)
"""The same with what tells the id."""

EARLIER_COLUMNS = ("ledger_id", "version", "czxid", "mzxid", "first_seen_ms")
"""What of the earlier audit's orphans judging looks at."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Unreferenced ledgers whose metadata was read: the rows and what each says of itself."""

    rows: list[dict[str, Any]]
    readings: list[Claimed | Unattributed]

    def owner_paths(self) -> set[str]:
        """The nodes that tell causes."""
        claimed = [reading for reading in self.readings if isinstance(reading, Claimed)]
        return {path for each in claimed for path in (each.owner_path, each.topic_path) if path is not None}


def read_cases(ledgers: pa.RecordBatch) -> Cases:
    """Read rows with `LISTED_LEDGER_COLUMNS`."""
    rows = ledgers.to_pylist()
    return Cases(rows, [read_candidate(row) for row in rows])


def judge_cases(
    judge: Judge, cases: Cases, nodes: Mapping[str, OwnerNode], earlier: Mapping[int, EarlierLook]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """`ORPHAN_LEDGERS`, not yet numbered, and `UNATTRIBUTED_LEDGERS`."""
    orphans, unattributed = [], []
    for row, reading in zip(cases.rows, cases.readings, strict=True):
        if isinstance(reading, Unattributed):
            unattributed.append(judge.unattributed(row, reading))
        else:
            orphans.append(judge.orphan(row, reading, nodes, earlier.get(row["ledger_id"])))
    return (
        pa.RecordBatch.from_pylist(orphans, schema=ORPHAN_LEDGERS),
        pa.RecordBatch.from_pylist(unattributed, schema=UNATTRIBUTED_LEDGERS),
    )


def earlier_looks(rows: pa.Table) -> dict[int, EarlierLook]:
    """By ledger id, from rows with `EARLIER_COLUMNS`."""
    return {
        row["ledger_id"]: EarlierLook(row["version"], row["czxid"], row["mzxid"], row["first_seen_ms"])
        for row in rows.select(EARLIER_COLUMNS).to_pylist()
    }


def withheld(orphans: pa.Table, guards: str) -> pa.Table:
    """The same orphans with no condemned ones, because guards said no; ``guards`` names them."""
    return _mapped(orphans, lambda batch: _withheld(batch, guards))


def numbered(orphans: pa.Table) -> pa.Table:
    """The same orphans in the order of ledger ids, the condemned ones numbered from 0."""
    ordered = orphans.sort_by([("ledger_id", "ascending")]).combine_chunks()
    return _mapped(ordered, number_deletable)


def number_deletable(batch: pa.RecordBatch, first: int = 0) -> pa.RecordBatch:
    """One batch in the order of ledger ids, its condemned ledgers numbered from ``first``."""
    condemned = is_deletable(batch)
    mask = condemned.to_numpy(zero_copy_only=False)
    numbers = pa.array(np.cumsum(mask, dtype=np.int64) + (first - 1), mask=~mask)
    return batch.set_column(ORPHAN_LEDGERS.names.index("row"), ORPHAN_LEDGERS.field("row"), numbers)


def is_deletable(batch: pa.RecordBatch) -> pa.Array:
    """Which rows are condemned."""
    return pc.equal(batch.column("standing"), OrphanStatus.DELETABLE.value)


def _withheld(batch: pa.RecordBatch, guards: str) -> pa.RecordBatch:
    condemned = is_deletable(batch)
    for name, text in (
        ("standing", pa.scalar(OrphanStatus.WITHHELD.value)),
        ("reason", pa.scalar(f"it would be condemned, but a guard of the whole audit did not pass: {guards}")),
    ):
        column = pc.if_else(condemned, text, batch.column(name))
        batch = batch.set_column(ORPHAN_LEDGERS.names.index(name), ORPHAN_LEDGERS.field(name), column)
    return batch


def _mapped(table: pa.Table, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches([change(batch) for batch in table.to_batches()], ORPHAN_LEDGERS)
