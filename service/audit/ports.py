"""What dumps and listings need from the world.

`NodeSource` is the port of metadata stores: a driver of another one (etcd, Oxia, RocksDB) yields the same rows, with
its own order of changes for ``czxid`` and ``mzxid``. `LedgerSource` is the port of BookKeeper.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from service.audit.manifests import FileDigest, Manifest, OrderRange, Proof, Source
from service.audit.tables import Subtree, Table

Say = Callable[[str], None]
"""Tells a person how far it is; says nothing that matters later."""


@dataclass(frozen=True, slots=True)
class Ending:
    """What a source knows once it was read to its end."""

    zxids: OrderRange
    proof: Proof
    reservations: tuple[str, ...] = ()
    """Why ledgers may not be deleted for what was read here; empty if they may."""


class NodeSource(Protocol):
    """One reading of a metadata store, or of a copy of one: whole, or it raises."""

    @property
    def source(self) -> Source:
        """Where it reads."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every node once, as `service.audit.tables.NODES`, each after its parent; to be called once.

        Raises:
            TemporaryError: something could not be read, or contradicts itself. What was yielded is then worthless.
        """
        ...

    def ending(self) -> Ending:
        """What is known now; to be called after the last batch."""
        ...


class LedgerSource(Protocol):
    """One listing of all ledgers: whole, or it raises."""

    @property
    def source(self) -> Source:
        """Where it reads."""
        ...

    def instance_id(self) -> str | None:
        """BookKeeper's id of the ledger storage, None if the source does not tell."""
        ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every ledger once, as `service.audit.tables.LEDGERS`; to be called once.

        Raises:
            TemporaryError: the listing could not be finished, or contradicts itself.
        """
        ...

    def ending(self) -> Ending:
        """What is known now; to be called after the last batch."""
        ...


class TablesOutput(Protocol):
    """A directory in the making, of which nothing is to be seen until `finish`."""

    def write(self, table: Table, rows: pa.RecordBatch, subtree: Subtree | None = None) -> None:
        """Add rows to a table, or to one part of it."""
        ...

    def close_tables(self) -> tuple[FileDigest, ...]:
        """End every table; tables without rows become empty files."""
        ...

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest and let the directory appear, all at once."""
        ...


OpenOutput = Callable[[tuple[Table, ...]], AbstractContextManager[TablesOutput]]
"""Begins a directory that will hold these tables; left without `TablesOutput.finish`, it leaves nothing behind.

Raises `InvalidInputError` when there is something at its place already.
"""
