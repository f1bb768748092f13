"""A source of nodes and a source of ledgers in memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pulsar_sidecar.features.audit.ports import ReadResult
from pulsar_sidecar.features.audit.results.tables import LEDGERS, NODES
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, Proof, Source, SourceKind

from tests.fakes.clock import START_MS

INSTANCE_ID = "instance"


def node(path: str, value: bytes | None = b"", **columns: Any) -> dict[str, Any]:
    """A row of `NODES`."""
    known = {"version": 0, "ctime_ms": START_MS, "mtime_ms": START_MS, "czxid": 1, "mzxid": 1, "ephemeral": False}
    if columns.get("unreadable"):
        return {"path": path, "value": None, **columns}
    return {"path": path, "value": value, **known, **columns}


SMALL_CLUSTER: tuple[dict[str, Any], ...] = (
    node("/"),
    node("/zookeeper"),
    node("/zookeeper/quota"),
    node("/ledgers"),
    node("/ledgers/INSTANCEID", INSTANCE_ID.encode()),
    node("/ledgers/idgen"),
    node("/ledgers/00"),
    node("/ledgers/00/0000"),
    node("/ledgers/00/0000/L0007", b"metadata", mzxid=40, mtime_ms=START_MS + 5),
    node("/managed-ledgers"),
    node("/managed-ledgers/t/n/persistent/topic", b"info", mzxid=30, mtime_ms=START_MS + 99),
    node("/managed-ledgers/t/n/persistent/topic/__compaction", b"cursor"),
    node("/managed-ledgers/t/n/persistent/__compaction", b"a topic of that name"),
    node("/schemas/t/n/topic", b"locator"),
    node("/admin/clusters/local", b"{}"),
    node("/admin/clusters/global", b"{}"),
    node("/admin/policies/t/n", b"{}"),
    node("/stream/storage", b"1\nBKDL\n{}"),
    node("/stream/storage/a/ledgers/logrecs_000000000000000001", b"4294967301;130;6;9;1;1;2;0;0;0;0"),
    node("/counters"),
)


@dataclass
class Nodes:
    """`NodeSource` over rows; ``failure`` is raised after them."""

    rows: Sequence[Mapping[str, Any]] = SMALL_CLUSTER
    failure: BaseException | None = None
    reservations: tuple[str, ...] = ()
    batch: int = 6
    source: Source = field(default_factory=lambda: Source(SourceKind.ZOOKEEPER, "zookeeper:2181"))

    def batches(self) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(self.rows), self.batch):
            yield pa.RecordBatch.from_pylist(list(self.rows[start : start + self.batch]), schema=NODES)
        if self.failure is not None:
            raise self.failure

    def ending(self) -> ReadResult:
        return ReadResult(OrderRange(20, 35), Proof("begun", "ended", {"lists": 3}), self.reservations)


@dataclass
class Ledgers:
    """`LedgerSource` over rows."""

    rows: Sequence[Mapping[str, Any]]
    failure: Exception | None = None
    source: Source = field(default_factory=lambda: Source(SourceKind.ZOOKEEPER, "zookeeper:2181"))

    def instance_id(self) -> str | None:
        return INSTANCE_ID

    def batches(self) -> Iterator[pa.RecordBatch]:
        if self.rows:
            yield pa.RecordBatch.from_pylist(list(self.rows), schema=LEDGERS)
        if self.failure is not None:
            raise self.failure

    def ending(self) -> ReadResult:
        return ReadResult(OrderRange(20, 35), Proof("begun", "ended"))
