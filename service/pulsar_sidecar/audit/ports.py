"""What dumps and listings need from outside.

`NodeSource` is the port of metadata stores: a driver of another one would yield the same rows, with
its own order of changes for ``czxid`` and ``mzxid``. `LedgerSource` is the port of BookKeeper.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

import pyarrow as pa

from pulsar_sidecar.analysis.ports import TablesOutput
from pulsar_sidecar.audit.arrays import Ids, Numbers
from pulsar_sidecar.audit.results.tables import Subtree, Table
from pulsar_sidecar.audit.sources.manifests import Manifest, OrderRange, Proof, Source

Worked = TypeVar("Worked")

Work = Callable[[pa.RecordBatch], Worked]
"""What is done with one batch of rows."""

Part = Subtree | Literal[Table.LEDGERS]
"""Some of a dump's nodes, or the listing."""


@dataclass(frozen=True, slots=True)
class ReadResult:
    """What a source knows once it was read to its end."""

    zxids: OrderRange
    proof: Proof
    reservations: tuple[str, ...] = ()
    """Why ledgers may not be deleted for what was read here; empty if they may."""


class NodeSource(Protocol):
    """One reading of a metadata store, or of a copy of one: whole, or it raises."""

    source: Source
    """Where it reads."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every node once, as `audit.results.tables.NODES`, each after its parent; to be called once.

        Raises:
            TemporaryError: something could not be read, or contradicts itself. What was yielded is then worthless.
        """

    def ending(self) -> ReadResult:
        """What is known now; to be called after the last batch."""


class LedgerSource(NodeSource, Protocol):
    """One listing of all ledgers in the same way; its batches are `audit.results.tables.LEDGERS`, every ledger once."""

    def instance_id(self) -> str | None:
        """BookKeeper's id of the ledger storage, None if the source does not report it."""


class AuditInputs(Protocol):
    """A dump and a listing, opened: every file matches its manifest.

    ``work`` runs on one batch of rows at a time, maybe in another process and several at once; the answers come in the
    order of the rows. It and its answers must be picklable.
    """

    dump: Manifest

    def rows(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        """Go through a part."""

    def columns(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        """The same for work of a few steps over whole columns, whose answers are large."""

    def rows_at(
        self, part: Part, columns: Sequence[str], positions: Numbers, work: Work[Worked], ids: Ids | None = None
    ) -> Iterator[Worked]:
        """Go through some rows of a part, by their places in the order of `rows`, ascending.

        ``ids`` are their ledgers, as a first column of the rows.
        """

    def table(self, table: Table) -> pa.Table:
        """One of the dump's small tables, whole."""


OpenOutput = Callable[[Mapping[str, pa.Schema]], AbstractContextManager[TablesOutput]]
"""Begins a directory that will hold these tables; left without `TablesOutput.finish`, it leaves nothing behind.

Raises `InvalidInputError` when there is something at its place already.
"""
