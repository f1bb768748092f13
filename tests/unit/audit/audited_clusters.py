"""Small clusters as a dump and a listing, written as `metadata dump` and `ledgers list` write them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pulsar_sidecar.adapters.parquet.output import parquet_output
from pulsar_sidecar.bootstrap.audit_run import perform_audit
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy, AuditRequest, AuditResult
from pulsar_sidecar.features.audit.results.tables import SCHEMAS, CursorLedgerState, Table, schemas_of
from pulsar_sidecar.features.audit.sources.dumping import Subtrees
from pulsar_sidecar.features.audit.sources.manifests import (
    InputKind,
    Manifest,
    NewestWrite,
    OrderRange,
    Proof,
    RowCounts,
    Source,
    SourceKind,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.reports.documents import MANIFEST_NAME

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    ledger_metadata_bytes,
    managed_ledger_bytes,
    position_entry,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.fakes.clock import START_MS
from tests.made_audits import MadeAudit
from tests.unit.audit.sources import INSTANCE_ID, node

TOPIC = "persistent://t/n/topic"
MANAGED_LEDGER = "t/n/persistent/topic"
TOPIC_NODE = f"/managed-ledgers/{MANAGED_LEDGER}"
COMPACTION = f"{TOPIC_NODE}/__compaction"
PLACE = "s3://tiered@http://store:9000"
BUCKET_KEY = "#pulsar.internal.delayed.bucket_1_2"
AS_OF_MS = START_MS + 1000 * HOUR_MS
OLD_MS = START_MS


@dataclass
class AuditedCluster:
    """Contents of a cluster; an age is measured from `AS_OF_MS`.

    Attributes:
        nodes: values by path, None for one that cannot be read.
        ledgers: rows of `NODES` by ledger id, also listed unless in ``unlisted``.
        listed_too: ledgers that only the listing has.
        objects: rows of `OFFLOADED_OBJECTS`; None to leave tiered storage out. ``places`` are the listed ones.
    """

    nodes: dict[str, bytes | None] = field(default_factory=dict)
    ledgers: dict[int, dict[str, Any]] = field(default_factory=dict)
    cursor_ledgers: list[dict[str, Any]] = field(default_factory=list)
    log_segments: list[dict[str, Any]] = field(default_factory=list)
    unlisted: set[int] = field(default_factory=set)
    listed_too: set[int] = field(default_factory=set)
    dump_changes: dict[str, Any] = field(default_factory=dict)
    listing_changes: dict[str, Any] = field(default_factory=dict)
    offloaded_changes: dict[str, Any] = field(default_factory=dict)
    as_of_ms: int = AS_OF_MS
    objects: list[dict[str, Any]] | None = None
    places: tuple[str, ...] = (PLACE,)

    def ledger(self, ledger_id: int, custom: Mapping[str, bytes] | None = None, **changed: Any) -> int:
        """Add a ledger, a data ledger of the topic by default."""
        known = {"ctime_ms": OLD_MS, "mtime_ms": OLD_MS, "czxid": 10 + ledger_id, "mzxid": 20 + ledger_id}
        state = changed.pop("state", LedgerState.CLOSED)
        metadata = {name: changed.pop(name) for name in ("last_entry_id", "length_bytes") if name in changed}
        custom = data_custom_metadata(MANAGED_LEDGER) if custom is None else custom
        value = ledger_metadata_bytes(state, custom, **metadata)
        self.ledgers[ledger_id] = node(ledger_path(LedgerId(ledger_id)), value, **{**known, **changed})
        return ledger_id

    def living(self, ledger_ids: Iterable[int]) -> None:
        """Add a topic with these ledgers, such as enough for no guard to withhold a plan."""
        ids = [self.ledger(ledger_id) for ledger_id in ledger_ids]
        self.nodes["/managed-ledgers/t/n/persistent/living"] = managed_ledger_bytes(ids)

    def dump(self, directory: Path) -> Path:
        rows = [
            node("/ledgers/INSTANCEID", INSTANCE_ID.encode()),
            *(self._node(path, value) for path, value in self.nodes.items()),
            *self.ledgers.values(),
        ]
        return _write(
            directory, (Table.NODES, Table.CURSOR_LEDGERS, Table.LOG_SEGMENTS), self._dump_manifest(), [
                (Table.NODES, rows),
                (Table.CURSOR_LEDGERS, self.cursor_ledgers),
                (Table.LOG_SEGMENTS, self.log_segments),
            ],
        )  # fmt: skip

    def listing(self, directory: Path) -> Path:
        ids = sorted((self.ledgers.keys() - self.unlisted) | self.listed_too)
        rows = [{"ledger_id": ledger_id} for ledger_id in ids]
        manifest = {**_MANIFEST, "kind": InputKind.LISTING, "zxids": OrderRange(500, 600), **self.listing_changes}
        return _write(directory, (Table.LEDGERS,), manifest, [(Table.LEDGERS, rows)])

    def offloaded(self, directory: Path) -> Path | None:
        """Write the offload listing, if there is one."""
        if self.objects is None:
            return None
        counts = {place: RowCounts(sum(row["place"] == place for row in self.objects), 0) for place in self.places}
        kind = {"kind": InputKind.OFFLOADED, "zxids": OrderRange(500, 600), "counts": counts}
        tables = [(Table.OFFLOADED_OBJECTS, self.objects)]
        return _write(directory, (Table.OFFLOADED_OBJECTS,), {**_MANIFEST, **kind, **self.offloaded_changes}, tables)

    def _node(self, path: str, value: bytes | None) -> dict[str, Any]:
        return node(path, value, version=3, mzxid=700) if value is not None else node(path, unreadable="no right to")

    def _dump_manifest(self) -> dict[str, Any]:
        as_of = NewestWrite(950, self.as_of_ms)
        return {**_MANIFEST, "kind": InputKind.DUMP, "zxids": OrderRange(700, 900), "as_of": as_of, **self.dump_changes}


_MANIFEST: dict[str, Any] = {
    "source": Source(SourceKind.ZOOKEEPER, "zookeeper:2181"),
    "tool_version": "1",
    "ledgers_root": "/ledgers",
    "instance_id": INSTANCE_ID,
    "cluster_name": "local",
    "as_of": None,
    "counts": {"nodes": RowCounts(1, 0)},
    "left_out": (),
    "allows_deletion": True,
    "reservations": (),
    "proof": Proof("begun", "ended"),
}


def _write(
    directory: Path, tables: tuple[Table, ...], manifest: dict[str, Any], rows: list[tuple[Table, list[dict[str, Any]]]]
) -> Path:
    with parquet_output(directory, schemas_of(*tables)) as output:
        for table, some in rows:
            for start in range(0, len(some), 7):
                batch = pa.RecordBatch.from_pylist(some[start : start + 7], schema=SCHEMAS[table])
                if table is Table.NODES:
                    for subtree, part in Subtrees("/ledgers").sort(batch):
                        output.write(table, part, subtree)
                else:
                    output.write(table, batch)
        made = Manifest(**manifest, files=output.close_tables())
        output.finish(MANIFEST_NAME, made.document())
    return directory


def full_cluster() -> AuditedCluster:
    """A cluster with every kind of ledger, each of them referenced, and nothing to find."""
    cluster = AuditedCluster()
    cluster.nodes = {
        "/managed-ledgers": b"",
        "/managed-ledgers/t/n/persistent": b"",
        TOPIC_NODE: managed_ledger_bytes([1, 2, 3]),
        f"{TOPIC_NODE}/sub": cursor_bytes(cursor_ledger=4, buckets={BUCKET_KEY: 5}),
        COMPACTION: cursor_bytes(cursor_ledger=6),
        "/schemas/t/n/topic": schema_locator_bytes([7, 8]),
        "/admin/clusters/local": b"{}",
        "/admin/policies/t": b"{}",
    }
    cluster.cursor_ledgers = [compaction_row(9)]
    cluster.log_segments = [segment_row(10)]
    for ledger_id in (1, 2, 3):
        cluster.ledger(ledger_id)
    cluster.ledger(4, cursor_custom_metadata(MANAGED_LEDGER, "sub"))
    cluster.ledger(5, bucket_custom_metadata(TOPIC, "sub", BUCKET_KEY))
    cluster.ledger(6, cursor_custom_metadata(MANAGED_LEDGER, "__compaction"))
    cluster.ledger(7, schema_custom_metadata("t/n/topic"))
    cluster.ledger(8, schema_custom_metadata("t/n/topic"))
    cluster.ledger(9, compacted_custom_metadata(TOPIC))
    cluster.ledger(10, {})
    return cluster


def compaction_row(compacted: int | None, cursor_path: str = COMPACTION, **changed: Any) -> dict[str, Any]:
    """Row with the content of a compaction cursor's ledger."""
    read = {"state": CursorLedgerState.READ.value, "entry": position_entry(compacted), "entry_id": 1}
    return {"cursor_path": cursor_path, "cursor_value": cursor_bytes(cursor_ledger=6), **read, **changed}


def segment_row(ledger_id: int | None, **changed: Any) -> dict[str, Any]:
    path = "/stream/storage/a/ledgers/logrecs_000000000000000001"
    return {"path": path, "kind": "completed", "ledger_id": ledger_id, "value": b"1;2;3", **changed}


NO_WAITING = AuditPolicy(
    min_age_ms=72 * HOUR_MS, look_window_ms=0, max_share=1.0, bookkeeper_exclusive=True, offload_exclusive=True
)
Engine = Callable[[AuditRequest], AuditResult]


def embedded(request: AuditRequest) -> AuditResult:
    return perform_audit(request, lambda text: None)


@dataclass
class Auditor:
    """Audits clusters one after the other."""

    directory: Path
    policy: AuditPolicy = NO_WAITING
    engine: Engine = embedded
    numbers: Iterator[int] = field(default_factory=itertools.count)
    codes: list[int] = field(default_factory=list)

    def audit(self, cluster: AuditedCluster, previous: Path | None = None) -> "ClusterAudit":
        base = self.directory / str(next(self.numbers))
        base.mkdir(parents=True)
        dump, listing = cluster.dump(base / "dump"), cluster.listing(base / "listing")
        offloaded = cluster.offloaded(base / "offloaded")
        audited = self.engine(AuditRequest(dump, listing, base / "audit", previous, self.policy, offloaded=offloaded))
        return ClusterAudit(base / "audit", audited)

    def twice(self, cluster: AuditedCluster) -> "ClusterAudit":
        """Two looks at the same cluster, a day apart."""
        return self.a_day_later(cluster, self.audit(cluster).directory)

    def a_day_later(self, cluster: AuditedCluster, previous: Path) -> "ClusterAudit":
        cluster.as_of_ms += 24 * HOUR_MS
        return self.audit(cluster, previous)


@dataclass
class ClusterAudit(MadeAudit):
    """Cluster with the engine's results."""

    audited: AuditResult

    @property
    def failed(self) -> list[str]:
        """Names of the guards that stopped the plan."""
        return [guard.name for guard in self.summary.guards if not guard.passed]
