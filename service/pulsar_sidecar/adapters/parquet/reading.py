"""Reads back what `adapters.parquet.output` wrote."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

from pulsar_sidecar.audit.results.tables import SCHEMAS, Subtree, Table


def read_table(directory: Path, table: Table, subtree: Subtree | None = None) -> pa.Table:
    """A whole table, or one part of it, in memory; empty if there is no such part."""
    folder = directory / table.value if subtree is None else directory / table.value / f"subtree={subtree.value}"
    if not folder.exists():
        return SCHEMAS[table].empty_table()
    return ds.dataset(folder, schema=SCHEMAS[table], format="parquet").to_table()


def node_batches(directory: Path, subtree: Subtree) -> Iterator[pa.RecordBatch]:
    """The nodes of one part of a dump, batch by batch; memory does not grow with it."""
    folder = directory / Table.NODES.value / f"subtree={subtree.value}"
    if folder.exists():
        yield from ds.dataset(folder, schema=SCHEMAS[Table.NODES], format="parquet").to_batches()
