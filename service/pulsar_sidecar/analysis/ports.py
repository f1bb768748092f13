"""Directories of tables in the making."""

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa

from pulsar_sidecar.analysis.documents import FileDigest


class UnfinishedDirectory(Protocol):
    """A directory in the making, of which nothing is to be seen until `finish`."""

    def write_text(self, name: str, text: str) -> None:
        """Add a file that is no table."""

    def finish(self, name: str, document: Mapping[str, Any]) -> None:
        """Write the manifest or the summary and let the directory appear, all at once."""


class TablesOutput(UnfinishedDirectory, Protocol):
    """The same with tables."""

    def write(self, table: str, rows: pa.RecordBatch, subtree: str | None = None) -> None:
        """Add rows to a table, or to one part of it."""

    def close_tables(self) -> tuple[FileDigest, ...]:
        """End every table; tables without rows become empty files."""
