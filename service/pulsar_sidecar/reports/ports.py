"""Ports to directories of tables that are being written."""

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from pulsar_sidecar.reports.documents import FileDigest


class UnfinishedDirectory(Protocol):
    """A directory that is being written and is invisible until `finish`."""

    def write_text(self, name: str, text: str) -> None:
        """Add a file that is not a table."""

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the manifest or the summary and make the directory visible in one step."""


class TablesOutput(UnfinishedDirectory, Protocol):
    """An unfinished directory with tables."""

    def write(self, table: str, rows: pa.RecordBatch, subtree: str | None = None) -> None:
        """Add rows to a table, or to a part of it."""

    def close_tables(self) -> tuple[FileDigest, ...]:
        """Close every table and return their files; tables without rows become empty files."""
