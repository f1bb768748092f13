"""A dump, a listing and an earlier audit as the embedded engine reads them, on all processors when it is worth it.

Invariant: every file was compared with its manifest before the first row is read.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_sidecar.adapters.parquet.audits import AuditTables, open_audit
from pulsar_sidecar.adapters.parquet.manifest_files import demand_sha256
from pulsar_sidecar.adapters.parquet.reading import read_table
from pulsar_sidecar.adapters.parquet.row_groups import (
    RowGroup,
    marked_groups,
    row_groups,
    work_on_group,
    work_on_ledgers,
    work_on_rows,
)
from pulsar_sidecar.adapters.parquet.workers import Workers
from pulsar_sidecar.audit.arrays import Ids, Numbers
from pulsar_sidecar.audit.engine.comparing import EarlierAudit
from pulsar_sidecar.audit.engine.judging import EARLIER_COLUMNS
from pulsar_sidecar.audit.engine.running import input_of, input_of_audit
from pulsar_sidecar.audit.engine.usage import counts_of_usage
from pulsar_sidecar.audit.ports import Part
from pulsar_sidecar.audit.results.guards import Earlier
from pulsar_sidecar.audit.results.summaries import SUMMARY_NAME, Input
from pulsar_sidecar.audit.results.tables import Table
from pulsar_sidecar.audit.sources.manifests import MANIFEST_NAME, Manifest

Worked = TypeVar("Worked")


def open_inputs(dump: Path, listing: Path, dumped: Manifest, listed: Manifest, workers: Workers) -> "ParquetInputs":
    """Both with their manifests, every file compared with them.

    Raises:
        InvalidInputError: one of them is not what it says.
    """
    files = [
        (directory / file.path, file.sha256)
        for directory, manifest in ((dump, dumped), (listing, listed))
        for file in manifest.files
    ]
    for _ in workers.by_threads(lambda file: demand_sha256(*file), files):
        pass
    return ParquetInputs(dump, listing, dumped, listed, workers)


class ParquetInputs:
    """`audit.ports.AuditInputs` over files."""

    def __init__(self, dump: Path, listing: Path, dumped: Manifest, listed: Manifest, workers: Workers) -> None:
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

    def rows(self, part: Part, columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked]) -> Iterator[Worked]:
        """See `AuditInputs.rows`."""
        return chain.from_iterable(
            self._workers.by_processes(partial(work_on_group, columns, work), self._groups(part))
        )

    def columns(self, part: Part, columns: Sequence[str], work: Callable[[pa.RecordBatch], Worked]) -> Iterator[Worked]:
        """See `AuditInputs.columns`."""
        return chain.from_iterable(self._workers.by_threads(partial(work_on_group, columns, work), self._groups(part)))

    def rows_at(
        self, part: Part, columns: Sequence[str], positions: Numbers, work: Callable[[pa.RecordBatch], Worked]
    ) -> Iterator[Worked]:
        """See `AuditInputs.rows_at`."""
        groups = marked_groups(self._groups(part), positions)
        return self._workers.by_processes(partial(work_on_rows, columns, work), groups)

    def ledgers_at(
        self,
        part: Part,
        columns: Sequence[str],
        positions: Numbers,
        ids: Ids,
        work: Callable[[pa.RecordBatch, Ids], Worked],
    ) -> Iterator[Worked]:
        """See `AuditInputs.ledgers_at`."""
        marked = marked_groups(self._groups(part), positions, ids)
        return self._workers.by_processes(partial(work_on_ledgers, columns, work), marked)

    def table(self, table: Table) -> pa.Table:
        """See `AuditInputs.table`."""
        return read_table(self._directories[0], table)

    def _groups(self, part: Part) -> list[RowGroup]:
        dump, listing = self._directories
        if part is Table.LEDGERS:
            return row_groups(listing, self.listing, f"{part.value}/")
        return row_groups(dump, self.dump, f"{Table.NODES.value}/subtree={part.value}/")


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
        Earlier(summary, {kind: count.ledgers for kind, count in usage.items()}),
        input_of_audit(summary, _sha256(directory / SUMMARY_NAME)),
        lambda ids: orphans.filter(pc.is_in(orphans.column("ledger_id"), value_set=ids)),
    )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
