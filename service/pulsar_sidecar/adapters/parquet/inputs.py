"""Rows of dumps, listings and audits; an audit's inputs are read on all processors if it is worthwhile."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pulsar_sidecar.adapters.parquet.directories import demand_sha256, open_audit, sha256_of
from pulsar_sidecar.adapters.parquet.row_groups import (
    ROWS_AT_ONCE,
    RowGroup,
    marked_groups,
    row_groups,
    work_on_group,
    work_on_rows,
)
from pulsar_sidecar.features.audit.arrays import Numbers
from pulsar_sidecar.features.audit.engine.comparing import EarlierAudit
from pulsar_sidecar.features.audit.engine.judging import EARLIER_COLUMNS
from pulsar_sidecar.features.audit.engine.offloaded import EARLIER_COPY
from pulsar_sidecar.features.audit.engine.running import input_of_audit
from pulsar_sidecar.features.audit.engine.usage import counts_of_usage
from pulsar_sidecar.features.audit.ports import NOTHING, Beside, Part, Work
from pulsar_sidecar.features.audit.results.guards import EarlierCounts
from pulsar_sidecar.features.audit.results.plans import COPY_COLUMNS, PLAN_COLUMNS
from pulsar_sidecar.features.audit.results.report import shown_columns
from pulsar_sidecar.features.audit.results.summaries import AuditSummary
from pulsar_sidecar.features.audit.results.tables import SCHEMAS, OffloadFinding, OrphanStatus, Subtree, Table
from pulsar_sidecar.features.audit.sources.manifests import Manifest
from pulsar_sidecar.reports.documents import SUMMARY_NAME, FileDigest

Piece = TypeVar("Piece")
Worked = TypeVar("Worked")


class Workers(Protocol):
    """Pool that works on many pieces; results come in the pieces' order."""

    def __call__(self, work: Callable[[Piece], Worked], pieces: Sequence[Piece], /) -> Iterator[Worked]:
        """Return the results as `map` does; other workers begin at once."""


def demand_digests(threads: Workers, *directories: tuple[Path, Sequence[FileDigest]]) -> None:
    """Raise `InvalidInputError` for directories with a file that does not match its digest."""
    files = [(directory / file.path, file.sha256) for directory, files in directories for file in files]
    for _ in threads(lambda file: demand_sha256(*file), files):
        pass


def read_table(directory: Path, table: Table) -> pa.Table:
    """Return a whole table in memory; empty if there is no such table."""
    folder = directory / table.value
    if not folder.exists():
        return SCHEMAS[table].empty_table()
    return ds.dataset(folder, schema=SCHEMAS[table], format="parquet").to_table()


def node_batches(directory: Path, subtree: Subtree, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the nodes of one part of a dump, or some columns of them, in batches; memory does not grow with it."""
    folder = directory / Table.NODES.value / f"subtree={subtree.value}"
    if folder.exists():
        nodes = ds.dataset(folder, schema=SCHEMAS[Table.NODES], format="parquet")
        yield from nodes.to_batches(columns=None if columns is None else list(columns))


class AuditTables:
    """Tables of an audit opened with `directories.open_audit`."""

    def __init__(self, directory: Path, summary: AuditSummary) -> None:
        self._directory = directory
        self._summary = summary

    def table(
        self, table: Table, equal: Mapping[str, Any] | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return a table in memory, or the rows whose columns have these values, or some of the columns."""
        names = list(columns or SCHEMAS[table].names)
        files = self._files(table)
        if not files:
            return SCHEMAS[table].empty_table().select(names)
        chosen = None
        for column, value in (equal or {}).items():
            this = ds.field(column) == value
            chosen = this if chosen is None else chosen & this
        return ds.dataset(files, schema=SCHEMAS[table], format="parquet").to_table(columns=names, filter=chosen)

    def shown(self, table: Table, equal: Mapping[str, Any] | None = None) -> pa.Table:
        """Return a table without the columns that nothing shows, which are most of its bytes."""
        return self.table(table, equal, shown_columns(SCHEMAS[table]))

    def deletable(self) -> Iterator[pa.RecordBatch]:
        """Yield the plan's rows in order, of ledgers with `PLAN_COLUMNS` and then of copies with `COPY_COLUMNS`.

        Memory does not grow with the plan. `audit.results.plans.PlanDigest` verifies the order.
        """
        for table, columns in ((Table.ORPHAN_LEDGERS, PLAN_COLUMNS), (Table.OFFLOADED_LEDGERS, COPY_COLUMNS)):
            for path in self._files(table):
                with pq.ParquetFile(path) as file:
                    for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=list(columns)):
                        yield batch.filter(pc.equal(batch.column("standing"), OrphanStatus.DELETABLE.value))

    def _files(self, table: Table) -> list[str]:
        # Engines number the parts of a table in the order of its rows.
        names = sorted(name for name in self._summary.files if name.partition("/")[0] == table.value)
        return [str(self._directory / name) for name in names]


class ParquetInputs:
    """`audit.ports.AuditInputs` over files that were all compared with their manifests."""

    def __init__(
        self,
        dump: Path,
        listing: Path,
        dumped: Manifest,
        listed: Manifest,
        processes: Workers,
        threads: Workers,
        offloaded: tuple[Path, Manifest] | None = None,
    ) -> None:
        """Compare the files of all directories with their manifests; `InvalidInputError` if one does not match.

        ``processes`` run work of many small steps, and pickle it, its pieces and results; ``threads`` run work of few
        long steps, each of which releases the interpreter's lock.
        """
        self._directories = (dump, listing)
        self.dump = dumped
        self.listing = listed
        self._offloaded = None if offloaded is None else offloaded[0]
        self.offloaded = None if offloaded is None else offloaded[1]
        self._processes = processes
        self._threads = threads
        third = () if offloaded is None else ((offloaded[0], offloaded[1].files),)
        demand_digests(threads, (dump, dumped.files), (listing, listed.files), *third)

    def rows(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        return chain.from_iterable(self._processes(partial(work_on_group, columns, work), self._groups(part)))

    def columns(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        return chain.from_iterable(self._threads(partial(work_on_group, columns, work), self._groups(part)))

    def rows_at(
        self, part: Part, columns: Sequence[str], positions: Numbers, work: Work[Worked], beside: Beside = NOTHING
    ) -> Iterator[Worked]:
        groups = marked_groups(self._groups(part), positions, beside)
        return self._processes(partial(work_on_rows, columns, work), groups)

    def table(self, table: Table) -> pa.Table:
        return read_table(self._directories[0], table)

    def offloaded_objects(self) -> pa.Table:
        if self._offloaded is None:
            return SCHEMAS[Table.OFFLOADED_OBJECTS].empty_table()
        return read_table(self._offloaded, Table.OFFLOADED_OBJECTS)

    def _groups(self, part: Part) -> list[RowGroup]:
        dump, listing = self._directories
        if part is Table.LEDGERS:
            return row_groups(listing, self.listing.files, f"{part.value}/")
        return row_groups(dump, self.dump.files, f"{Table.NODES.value}/subtree={part.value}/")


def open_earlier(directory: Path) -> EarlierAudit:
    """Return an audit as a later one reads it. `InvalidInputError`: a file does not match its digest."""
    summary = open_audit(directory)
    tables = AuditTables(directory, summary)
    usage = counts_of_usage(tables.table(Table.LEDGER_USAGE), "kind")
    orphans = tables.table(Table.ORPHAN_LEDGERS, columns=EARLIER_COLUMNS)
    return EarlierAudit(
        EarlierCounts(summary, {kind: count.ledgers for kind, count in usage.items()}),
        input_of_audit(summary, sha256_of(directory / SUMMARY_NAME)),
        lambda ids: orphans.filter(pc.is_in(orphans.column("ledger_id"), value_set=ids)),
        tables.table(Table.OFFLOADED_LEDGERS, {"finding": OffloadFinding.UNREFERENCED.value}, EARLIER_COPY),
    )
