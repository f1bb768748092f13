"""An audit's directory, read back."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.adapters.parquet.inputs import AuditTables, node_batches
from pulsar_sidecar.features.audit.engine.running import AUDIT_TABLES
from pulsar_sidecar.features.audit.results.summaries import AuditSummary
from pulsar_sidecar.features.audit.results.tables import Subtree, Table
from pulsar_sidecar.reports.documents import Engine


@dataclass
class MadeAudit:
    """One audit, by any engine."""

    directory: Path

    @cached_property
    def summary(self) -> AuditSummary:
        return open_audit(self.directory)

    def rows(self, table: Table) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = AuditTables(self.directory, self.summary).table(table).to_pylist()
        return rows

    @cached_property
    def orphans(self) -> dict[int, dict[str, Any]]:
        """Rows by ledger."""
        return {row["ledger_id"]: row for row in self.rows(Table.ORPHAN_LEDGERS)}

    @property
    def standings(self) -> dict[int, str]:
        return {ledger_id: row["standing"] for ledger_id, row in self.orphans.items()}

    @property
    def offloaded(self) -> list[dict[str, Any]]:
        return self.rows(Table.OFFLOADED_LEDGERS)

    @property
    def missing(self) -> list[dict[str, Any]]:
        return self.rows(Table.MISSING_LEDGERS)

    @property
    def unattributed(self) -> dict[int, str]:
        """Reasons by ledger."""
        return {row["ledger_id"]: row["reason"] for row in self.rows(Table.UNATTRIBUTED_LEDGERS)}


def dumped_nodes(directory: Path, subtree: Subtree) -> list[dict[str, Any]]:
    return [row for batch in node_batches(directory, subtree) for row in batch.to_pylist()]


def open_to_others(directory: Path) -> list[Path]:
    """Return files of a dump, listing or audit that users other than its owner may access, or its owner may not."""
    wanted = {True: 0o700, False: 0o600}
    return [path for path in (directory, *directory.rglob("*")) if path.stat().st_mode & 0o777 != wanted[path.is_dir()]]


def comparable(directory: Path) -> tuple[dict[str, list[dict[str, Any]]], AuditSummary]:
    """Everything in which the engines may not differ."""
    summary = open_audit(directory)
    tables = AuditTables(directory, summary)
    rows = {table.value: tables.table(table).to_pylist() for table in AUDIT_TABLES}
    rows["ledger_usage"].sort(key=repr)
    assert (directory / "report.html").exists()
    # Which engine it was, and the files' digests, may differ.
    return rows, replace(summary, engine=Engine.EMBEDDED, files={})
