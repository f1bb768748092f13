"""Audits as tests write them: rows of findings with sensible columns, and a summary that fits them."""

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pulsar_sidecar.features.audit.engine.running import AUDIT_TABLES
from pulsar_sidecar.features.audit.engine.usage import count_of_lengths
from pulsar_sidecar.features.audit.requests import EXCLUSIVE
from pulsar_sidecar.features.audit.results.plans import PlanDigest
from pulsar_sidecar.features.audit.results.summaries import (
    AuditSummary,
    Count,
    GuardResult,
    HistoryEntry,
    Input,
    PlanSummary,
)
from pulsar_sidecar.features.audit.results.tables import (
    ORPHAN_LEDGERS,
    SCHEMAS,
    OffloadFinding,
    OrphanCause,
    OrphanStatus,
    Table,
)
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.reports.audit_pages import age_label
from pulsar_sidecar.reports.documents import Engine, Limitation

AUDIT_ID = "20260706T120000Z-5f0c"
INSTANCE_ID = "5a6b7c8d-0000-4000-8000-000000000001"
STORE_TIME_MS = 1_783_339_200_000
DAY_MS = 86_400_000


def orphan(ledger_id: int, **changed: Any) -> dict[str, Any]:
    """One row of `ORPHAN_LEDGERS`: a deletable data ledger of a half-deleted topic, unless changed."""
    row: dict[str, Any] = {
        "ledger_id": ledger_id,
        "standing": OrphanStatus.DELETABLE.value,
        "reason": "seen unreferenced twice, 5 days apart",
        "row": None,
        "kind": LedgerKind.DATA.value,
        "cause": OrphanCause.HALF_DELETED_TOPIC.value,
        "tenant": "public",
        "namespace": "public/default",
        "topic": f"persistent://public/default/orders-{ledger_id % 7}",
        "managed_ledger": f"public/default/persistent/orders-{ledger_id % 7}",
        "cursor_name": None,
        "schema_id": None,
        "state": "CLOSED",
        "length_bytes": 1000 + ledger_id,
        "age_ms": 10 * DAY_MS,
        "ctime_ms": STORE_TIME_MS - 10 * DAY_MS,
        "version": 1,
        "czxid": 100 + ledger_id,
        "mzxid": 200 + ledger_id,
        "evidence": ["the managed ledger's node does not exist"],
        "metadata": b"\x01metadata",
    }
    return row | changed


def numbered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in the order of ledger ids, the deletable ones numbered from 0."""
    ordered = sorted(rows, key=lambda row: int(row["ledger_id"]))
    numbers = iter(range(len(ordered)))
    deletable = OrphanStatus.DELETABLE.value
    return [row | {"row": next(numbers) if row["standing"] == deletable else None} for row in ordered]


def orphan_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(numbered(rows), ORPHAN_LEDGERS)


def offloaded(ledger_id: int, **changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ledger_id": ledger_id,
        "attempt": "00000000-0000-0000-0000-000000000001",
        "finding": OffloadFinding.LOST.value,
        "reason": "index missing",
        "place": "s3://tiered",
        "objects": "data",
        "length_bytes": 5,
    }
    return row | changed


def missing(ledger_id: int, **changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ledger_id": ledger_id,
        "kind": LedgerKind.DATA.value,
        "referenced_by": "/managed-ledgers/public/default/persistent/lost",
        "tenant": "public",
        "namespace": "public/default",
        "topic": "persistent://public/default/lost",
        "cursor_name": None,
        "entries": 10,
        "size_bytes": 1234,
        "affected": "readers of persistent://public/default/lost cannot read 10 entries",
    }
    return row | changed


def unattributed(ledger_id: int, **changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "ledger_id": ledger_id,
        "reason": "its metadata names no component of Pulsar's",
        "state": "CLOSED",
        "length_bytes": 77,
        "age_ms": 40 * DAY_MS,
        "ctime_ms": STORE_TIME_MS - 40 * DAY_MS,
        "version": 3,
        "metadata": b"\x01other",
    }
    return row | changed


def usage(topic: str, **changed: Any) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tenant": "public",
        "namespace": "public/default",
        "topic": topic,
        "kind": LedgerKind.DATA.value,
        "loaded": True,
        "ledgers": 3,
        "bytes": 3000,
        "unknown_size_ledgers": 1,
    }
    return row | changed


Rows = Sequence[dict[str, Any]]


def audit_tables(
    orphans: Rows = (), missing: Rows = (), unattributed: Rows = (), usage: Rows = (), offloaded: Rows = ()
) -> dict[Table, pa.Table]:
    """An audit's tables, in the order of `AUDIT_TABLES`."""
    rows = (numbered(orphans), missing, unattributed, usage, offloaded)
    return {
        table: pa.Table.from_pylist(list(some), SCHEMAS[table]) for table, some in zip(AUDIT_TABLES, rows, strict=True)
    }


def plan_of(
    orphans: pa.Table, audit_id: str = AUDIT_ID, instance_id: str = INSTANCE_ID, rows: int = 1000
) -> PlanSummary:
    """The plan of the deletable ones among these, fed in batches of this many rows."""
    digest = PlanDigest(audit_id, instance_id)
    deletable = orphans.filter(pa.compute.equal(orphans["standing"], OrphanStatus.DELETABLE.value))
    for batch in deletable.combine_chunks().to_batches(max_chunksize=rows):
        digest.add(batch)
    return digest.plan()


def counted(rows: Sequence[dict[str, Any]], column: str) -> dict[str, Count]:
    values = {row[column] or "" for row in rows}
    return {value: count_of(row for row in rows if (row[column] or "") == value) for value in values}


def count_of(rows: Iterable[dict[str, Any]]) -> Count:
    return count_of_lengths(pa.array([row["length_bytes"] for row in rows], pa.int64()))


def summary(orphans: Sequence[dict[str, Any]] = (), **changed: Any) -> AuditSummary:
    """A summary of an audit that found these orphans, and nothing missing."""
    table = orphan_table(orphans)
    ages = [row | {"age": age_label(row["age_ms"])} for row in orphans]
    plan = plan_of(table, changed.get("audit_id", AUDIT_ID), changed.get("instance_id", INSTANCE_ID))
    total = count_of(orphans)
    look = HistoryEntry(AUDIT_ID, STORE_TIME_MS, Count(1000, 10**9), total, plan.ledgers, 0, 0)
    values: dict[str, Any] = {
        "audit_id": AUDIT_ID,
        "engine": Engine.EMBEDDED,
        "tool_version": "0.1.0",
        "instance_id": INSTANCE_ID,
        "cluster_name": "standalone",
        "ledgers_root": "/ledgers",
        "store_time_ms": STORE_TIME_MS,
        "inputs": {
            "dump": Input("a" * 64, "zk zookeeper:2181", 100, 200, STORE_TIME_MS),
            "listing": Input("b" * 64, "zk zookeeper:2181", 10, 90),
        },
        "policy": {"min-age": "3 days", "max-orphan-share": 0.05, "override": False, EXCLUSIVE: True},
        "existing": Count(1000, 10**9),
        "referenced": Count(1000 - len(orphans), 10**9 - total.known_bytes),
        "references": 1100,
        "orphans": counted(orphans, "standing"),
        "orphans_by_kind": counted(orphans, "kind"),
        "orphans_by_cause": counted(orphans, "cause"),
        "orphans_by_tenant": counted(orphans, "tenant"),
        "orphans_by_age": counted(ages, "age"),
        "existing_by_kind": {"data": Count(900, 9 * 10**8), "cursor": Count(100, 10**8)},
        "existing_by_tenant": {"public": Count(1000, 10**9)},
        "missing": 0,
        "unattributed": Count(),
        "guards": (GuardResult("same-cluster", True, INSTANCE_ID, INSTANCE_ID, "dump and listing are of one cluster"),),
        "unseen": (Limitation("offloaded objects", 0, "objects in tiered storage are not audited"),),
        "plan": plan,
        "history": (look,),
    }
    return AuditSummary(**(values | changed))
