"""A dump, a listing and an earlier audit as the embedded engine reads them, on all processors when it is worth it.

Invariant: every file was compared with its manifest before the first row is read.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.adapters.parquet.audits import AuditTables, open_audit
from service.adapters.parquet.memory import keep_freed_memory
from service.adapters.parquet.reading import open_tables, read_table
from service.audit.comparing import EarlierAudit
from service.audit.findings import EARLIER_COLUMNS
from service.audit.manifests import MANIFEST_NAME, Kind, Manifest
from service.audit.summaries import SUMMARY_NAME, Input
from service.audit.summing_up import input_of, input_of_audit
from service.audit.tables import Subtree, Table
from service.audit.usage import counts_of_usage
from service.audit.varints import Numbers
from service.model.errors import TemporaryError

Worked = TypeVar("Worked")

_WORTH_PROCESSES_ROWS = 400_000
_MAX_PROCESSES = 8


@contextmanager
def open_inputs(dump: Path, listing: Path) -> Iterator["ParquetInputs"]:
    """Open both, every file compared with its manifest.

    Raises:
        InvalidInputError: one of them is not what it says.
    """
    dumped, listed = open_tables(dump, Kind.DUMP), open_tables(listing, Kind.LISTING)
    rows = sum(file.rows for manifest in (dumped, listed) for file in manifest.files)
    if rows >= _WORTH_PROCESSES_ROWS:
        keep_freed_memory()
    with _Workers(rows >= _WORTH_PROCESSES_ROWS) as workers:
        yield ParquetInputs(dump, listing, dumped, listed, workers)


class ParquetInputs:
    """`service.audit.ports.AuditInputs` over files."""

    def __init__(self, dump: Path, listing: Path, dumped: Manifest, listed: Manifest, workers: "_Workers") -> None:
        self._directories = (dump, listing)
        self.dump = dumped
        self.listing = listed
        self._workers = workers

    @property
    def inputs(self) -> Mapping[str, Input]:
        """See `AuditInputs.inputs`."""
        dump, listing = self._directories
        return {
            "dump": input_of(self.dump, _sha256(dump / MANIFEST_NAME)),
            "listing": input_of(self.listing, _sha256(listing / MANIFEST_NAME)),
        }

    def nodes(
        self, subtree: Subtree, columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked]
    ) -> Iterator[Worked]:
        """See `AuditInputs.nodes`."""
        return self._workers.go_through(self._nodes(subtree), columns, work)

    def nodes_at(
        self, subtree: Subtree, columns: Sequence[str], positions: Numbers, work: Callable[[pa.RecordBatch], Worked]
    ) -> Iterator[Worked]:
        """See `AuditInputs.nodes_at`."""
        return self._workers.go_through(_chosen(self._nodes(subtree), positions), columns, work)

    def ledgers(self, columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked]) -> Iterator[Worked]:
        """See `AuditInputs.ledgers`."""
        return self._workers.go_through(self._ledgers(), columns, work)

    def ledgers_at(
        self, columns: Sequence[str], positions: Numbers, work: Callable[[pa.RecordBatch], Worked]
    ) -> Iterator[Worked]:
        """See `AuditInputs.ledgers_at`."""
        return self._workers.go_through(_chosen(self._ledgers(), positions), columns, work)

    def table(self, table: Table) -> pa.Table:
        """See `AuditInputs.table`."""
        return read_table(self._directories[0], table)

    def _nodes(self, subtree: Subtree) -> list["_RowGroup"]:
        return _row_groups(self._directories[0], self.dump, f"{Table.NODES.value}/subtree={subtree.value}/")

    def _ledgers(self) -> list["_RowGroup"]:
        return _row_groups(self._directories[1], self.listing, f"{Table.LEDGERS.value}/")


def open_earlier(directory: Path) -> EarlierAudit:
    """An audit as a later one looks at it.

    Raises:
        InvalidInputError: it is not what it says.
    """
    summary = open_audit(directory)
    tables = AuditTables(directory, summary)
    usage = counts_of_usage(tables.table(Table.LEDGER_USAGE), "kind")
    orphans = tables.table(Table.ORPHAN_LEDGERS).select(EARLIER_COLUMNS)
    return EarlierAudit(
        summary,
        {kind: count.ledgers for kind, count in usage.items()},
        input_of_audit(summary, _sha256(directory / SUMMARY_NAME)),
        lambda ids: orphans.filter(pc.is_in(orphans.column("ledger_id"), value_set=ids)),
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A piece of a file that is read at once; ``positions`` None means all of its rows."""

    path: Path
    number: int
    rows: int
    positions: Numbers | None = None


def _row_groups(directory: Path, manifest: Manifest, beginning: str) -> list[_RowGroup]:
    groups = []
    for name in sorted(file.path for file in manifest.files if file.path.startswith(beginning)):
        metadata = pq.read_metadata(directory / name)
        groups += [
            _RowGroup(directory / name, number, metadata.row_group(number).num_rows)
            for number in range(metadata.num_row_groups)
        ]
    return groups


def _chosen(groups: Sequence[_RowGroup], positions: Numbers) -> list[_RowGroup]:
    """The row groups with any of these positions, which count through all of them."""
    starts = np.cumsum([0, *(group.rows for group in groups)])
    cuts = np.searchsorted(positions, starts)
    return [
        _RowGroup(group.path, group.number, group.rows, positions[first:last] - start)
        for group, start, first, last in zip(groups, starts, cuts, cuts[1:], strict=False)
        if first < last
    ]


def _work_on(columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked], group: _RowGroup) -> Worked:
    with pq.ParquetFile(group.path) as file:
        rows = file.read_row_group(group.number, columns=list(columns), use_threads=False).combine_chunks()
    batch = rows.to_batches()[0]
    return work(batch if group.positions is None else batch.take(pa.array(group.positions)))


@dataclass(slots=True)
class _Workers:
    """Processes of our own for large inputs, started when the first one is there."""

    _worth_it: bool
    _pool: ProcessPoolExecutor | None = field(default=None)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def go_through(
        self, groups: Sequence[_RowGroup], columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked]
    ) -> Iterator[Worked]:
        """The work's answers, in order; processes begin with it at once."""
        one = partial(_work_on, columns, work)
        processors = len(os.sched_getaffinity(0))
        if processors == 1 or not self._worth_it:
            return map(one, groups)
        if self._pool is None:
            # Never forked: this process has threads of Arrow's.
            self._pool = ProcessPoolExecutor(
                min(processors, _MAX_PROCESSES), mp_context=get_context("spawn"), initializer=keep_freed_memory
            )
        return _unbroken(self._pool.map(one, groups))


def _unbroken(answers: Iterator[Worked]) -> Iterator[Worked]:
    try:
        yield from answers
    except BrokenProcessPool as error:
        raise TemporaryError("a process of this audit was killed; was there too little memory?") from error
