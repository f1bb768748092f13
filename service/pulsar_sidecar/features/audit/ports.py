"""Ports of dumps, listings and audits.

`NodeSource` is the port of metadata stores: a driver of another store would yield the same rows, with its own order of
changes for ``czxid`` and ``mzxid``. `LedgerSource` is the port of BookKeeper.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

import pyarrow as pa

from pulsar_sidecar.features.audit.arrays import Mask, Numbers
from pulsar_sidecar.features.audit.results.tables import Subtree, Table
from pulsar_sidecar.features.audit.sources.manifests import Manifest, OrderRange, Proof, Source
from pulsar_sidecar.reports.ports import TablesOutput

Worked = TypeVar("Worked")

Work = Callable[[pa.RecordBatch], Worked]
"""Function of one batch of rows."""

Part = Subtree | Literal[Table.LEDGERS]
"""Subtree of a dump's nodes, or the listing."""

Beside = Mapping[str, Numbers | Mask]
NOTHING: Final[Beside] = {}


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Facts that a source knows after its last batch."""

    zxids: OrderRange
    proof: Proof
    reservations: tuple[str, ...] = ()
    """Reasons not to delete ledgers by this reading; empty if there are none."""


class NodeSource(Protocol):
    """One reading of a metadata store, or of a copy of one: it is whole, or it raises."""

    source: Source
    """Address that it reads."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield every node once, as `audit.results.tables.NODES`, each after its parent; to be called once.

        After `TemporaryError` (a node could not be read, or the source is inconsistent) earlier batches are worthless.
        """

    def ending(self) -> ReadResult:
        """Return the facts that are known after the last batch; to be called after it."""


class LedgerSource(NodeSource, Protocol):
    """One listing of all ledgers, like `NodeSource`; it yields every ledger once, as `audit.results.tables.LEDGERS`."""

    def instance_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StoreMoment:
    """Moment in the order of the metadata store's changes, and the cluster it is about.

    Attributes:
        clusters: names of all clusters in the store.
    """

    zxid: int
    instance_id: str
    clusters: tuple[str, ...]


class OffloadedObjects(Protocol):
    """Listing of one place of tiered storage."""

    @property
    def location(self) -> str:
        """Place as ``offloadAllowedLocations`` has it."""

    def rows(self) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield every object once, some at a time, as rows of `audit.results.tables.OFFLOADED_OBJECTS`.

        After `TemporaryError` (something could not be read) earlier rows are worthless.
        """


class AuditInputs(Protocol):
    """Opened dump and listing; every file matches its manifest.

    ``work`` runs on one batch of rows at a time, maybe in another process and several at once; the results come in the
    order of the rows. ``work`` and its results must be picklable.
    """

    dump: Manifest
    offloaded: Manifest | None

    def rows(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        """Work on every row of a part."""

    def columns(self, part: Part, columns: Sequence[str], work: Work[Worked]) -> Iterator[Worked]:
        """Work on every row like `rows`, for work of few steps over whole columns with large results."""

    def rows_at(
        self, part: Part, columns: Sequence[str], positions: Numbers, work: Work[Worked], beside: Beside = NOTHING
    ) -> Iterator[Worked]:
        """Work on some rows of a part, given by their ascending positions in the order of `rows`.

        ``beside`` are further columns of these rows, which come first.
        """

    def table(self, table: Table) -> pa.Table:
        """Return one of the dump's small tables."""

    def offloaded_objects(self) -> pa.Table:
        """Return the objects of the offload listing; none without one."""


OpenOutput = Callable[[Mapping[str, pa.Schema]], AbstractContextManager[TablesOutput]]
"""Open a directory that will hold these tables; left without `TablesOutput.finish`, it leaves nothing behind.

Raises `InvalidInputError` if something is at its place already.
"""
