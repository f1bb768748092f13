"""Audits on disk, as an engine leaves them."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace
from pulsar_sidecar.features.audit.results.summaries import AuditSummary
from pulsar_sidecar.reports.documents import SUMMARY_NAME

from tests.unit.audit.findings import Rows, audit_tables, count_of, summary


def write_audit(
    directory: Path,
    orphans: Rows = (),
    missing: Rows = (),
    unattributed: Rows = (),
    usage: Rows = (),
    offloaded: Rows = (),
    rows_per_file: int = 1000,
    **changed: Any,
) -> AuditSummary:
    """Write an audit with these rows, and a summary that fits them unless changed."""
    written = summary(orphans, **{"missing": len(missing), "unattributed": count_of(unattributed), **changed})
    files: dict[str, str] = {}
    for table, rows in audit_tables(orphans, missing, unattributed, usage, offloaded).items():
        files |= _write_parts(directory, f"{table.value}/audit_id={written.audit_id}", rows, rows_per_file)
    written = replace(written, files=files)
    (directory / SUMMARY_NAME).write_text(json.dumps(written.document()))
    return written


def _write_parts(directory: Path, folder: str, rows: pa.Table, rows_per_file: int) -> dict[str, str]:
    (directory / folder).mkdir(parents=True)
    files = {}
    for number, first in enumerate(range(0, max(rows.num_rows, 1), rows_per_file)):
        name = f"{folder}/part-{number:05}.parquet"
        pq.write_table(rows.slice(first, rows_per_file), directory / name)
        files[name] = hashlib.sha256((directory / name).read_bytes()).hexdigest()
    return files
