"""Reads audits back, and refuses what is not exactly what an engine wrote."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from pulsar_sidecar.adapters.parquet.manifest_files import demand_sha256
from pulsar_sidecar.audit.results.summaries import SUMMARY_NAME, AuditSummary, parse_summary
from pulsar_sidecar.audit.results.tables import SCHEMAS, OrphanStatus, Table
from pulsar_sidecar.model.errors import InvalidInputError

_BATCH_ROWS = 16_384


def open_audit(directory: Path) -> AuditSummary:
    """The summary of an audit, after every file of its tables was compared with it.

    Raises:
        InvalidInputError: no audit, or a file is missing, damaged or too many.
    """
    summary = read_summary(directory)
    there = {path.relative_to(directory).as_posix() for path in directory.rglob("*.parquet")}
    if there != set(summary.files):
        raise InvalidInputError(f"{directory} does not hold exactly the files of its {SUMMARY_NAME}; make it again")
    for name, sha256 in summary.files.items():
        demand_sha256(directory / name, sha256)
    return summary


def read_summary(directory: Path) -> AuditSummary:
    """The summary alone, without a look at the tables.

    Raises:
        InvalidInputError: there is none that can be read.
    """
    try:
        document = json.loads((directory / SUMMARY_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInputError(
            f"{directory} holds no readable {SUMMARY_NAME}: it is no audit, or one that was not finished"
        ) from error
    try:
        return parse_summary(document)
    except InvalidInputError as error:
        raise InvalidInputError(f"{directory / SUMMARY_NAME}: {error}") from error


class AuditTables:
    """The tables of one audit that was opened with `open_audit`."""

    def __init__(self, directory: Path, summary: AuditSummary) -> None:
        self._directory = directory
        self._summary = summary

    def table(self, table: Table, equal: Mapping[str, Any] | None = None) -> pa.Table:
        """A table in memory, or those of its rows in which these columns have these values."""
        files = self._files(table)
        if not files:
            return SCHEMAS[table].empty_table()
        chosen = None
        for column, value in (equal or {}).items():
            this = ds.field(column) == value
            chosen = this if chosen is None else chosen & this
        return ds.dataset(files, schema=SCHEMAS[table], format="parquet").to_table(filter=chosen)

    def deletable(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The plan's rows in order; ``columns`` must name ``standing``.

        Memory does not grow with the plan. That the order is right is for `audit.plans.PlanDigest` to see.
        """
        for path in self._files(Table.ORPHAN_LEDGERS):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                    yield batch.filter(pc.equal(batch.column("standing"), OrphanStatus.DELETABLE.value))

    def _files(self, table: Table) -> list[str]:
        # Engines number the parts of a table in the order of its rows.
        names = sorted(name for name in self._summary.files if name.partition("/")[0] == table.value)
        return [str(self._directory / name) for name in names]
