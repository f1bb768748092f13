"""Extracts of messages on a disk, and scratch files while one is analysed."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from pulsar_sidecar.adapters.parquet.directories import demand_files, hidden_beside, read_document
from pulsar_sidecar.adapters.parquet.inputs import Workers, demand_digests
from pulsar_sidecar.adapters.parquet.row_groups import RowGroup, row_groups
from pulsar_sidecar.features.duplicates.extracts.tables import TABLES
from pulsar_sidecar.features.duplicates.manifests import parse_manifest
from pulsar_sidecar.reports.documents import MANIFEST_NAME

Worked = TypeVar("Worked")


class MessageExtract:
    """An open extract (`ExtractTables`), in which every file matches the manifest."""

    def __init__(self, directory: Path, threads: Workers) -> None:
        """Compare every file with the manifest. `InvalidInputError`: it is not a whole extract."""
        advice = ": it is not an extract, or an unfinished one"
        self.manifest = parse_manifest(read_document(directory, MANIFEST_NAME, advice))
        demand_files(directory, {file.path for file in self.manifest.files}, MANIFEST_NAME)
        self._directory = directory
        self._threads = threads
        demand_digests(threads, (directory, self.manifest.files))
        self._groups = row_groups(directory, self.manifest.files, "messages/")
        self.row_groups = len(self._groups)

    def each(
        self, numbers: Sequence[int], columns: Sequence[str], work: Callable[[int, pa.Table], Worked]
    ) -> Iterator[Worked]:
        chosen = [(number, self._groups[number]) for number in numbers]
        return self._threads(partial(_work_on, list(columns), work), chosen)

    def table(self, name: str, columns: Sequence[str]) -> pa.Table:
        groups = row_groups(self._directory, self.manifest.files, f"{name}/")
        tables = [_read(list(columns), group) for group in groups]
        return pa.concat_tables(tables) if tables else TABLES[name].empty_table().select(columns)


def _work_on(columns: list[str], work: Callable[[int, pa.Table], Worked], chosen: tuple[int, RowGroup]) -> Worked:
    number, group = chosen
    return work(number, _read(columns, group))


def _read(columns: list[str], group: RowGroup) -> pa.Table:
    with pq.ParquetFile(group.path) as file:
        return file.read_row_group(group.number, columns=columns, use_threads=False)


@contextmanager
def disk_scratch(beside: Path) -> Iterator["DiskScratch"]:
    """Make a scratch directory beside the one being made; it is removed however the work ends, short of a kill."""
    with hidden_beside(beside, "aside") as directory:
        scratch = DiskScratch(directory)
        try:
            yield scratch
        finally:
            scratch.close()


class DiskScratch:
    """`Scratch` on a disk, with one file for each name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._open: dict[str, ipc.RecordBatchStreamWriter] = {}

    def add(self, name: str, rows: pa.RecordBatch) -> None:
        writer = self._open.get(name)
        if writer is None:
            writer = self._open[name] = ipc.new_stream(os.fspath(self._directory / name), rows.schema)
        writer.write_batch(rows)

    def take(self, name: str) -> pa.Table | None:
        writer = self._open.pop(name, None)
        if writer is None:
            return None
        writer.close()
        path = self._directory / name
        with path.open("rb") as file, ipc.open_stream(file) as stream:
            table = pa.Table.from_batches(stream)
        path.unlink()
        return table

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()
