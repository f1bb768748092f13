"""Copies in tiered storage, as an offload listing has them, and the contexts that name them."""

from typing import Any
from uuid import UUID

from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.adapters.pulsar_topics.pending_deletions import PendingDeletionSender, producer_name
from pulsar_sidecar.features.audit.applying import send_plan, verified_plan
from pulsar_sidecar.features.audit.plan_progress import begin
from pulsar_sidecar.features.audit.requests import HOUR_MS
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, parse_record
from pulsar_sidecar.model.ledgers import OffloadContext

from tests.fakes.clock import FakeClock
from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.audit.audited_clusters import AS_OF_MS, MANAGED_LEDGER, PLACE, ClusterAudit

OLD_MS = AS_OF_MS - 1_000 * HOUR_MS
DATA_BYTES, INDEX_BYTES = 1_200, 224
WHOLE = DATA_BYTES + INDEX_BYTES
DRIVER = {"bucket": "tiered", "region": "", "serviceEndpoint": "http://store:9000"}


def context(attempt: int, **changed: Any) -> OffloadContext:
    known = {"complete": True, "bookkeeper_deleted": False, "offloaded_ms": 0}
    return OffloadContext(0, attempt, "S3", DRIVER, **{**known, **changed})


def stored(ledger_id: int, attempt: int, role: str, **changed: Any) -> dict[str, Any]:
    """Return one object of a copy of the topic's, whole unless changed."""
    is_index = role == "index"
    known = {
        "place": PLACE,
        "driver": "S3",
        "region": "us-east-1",
        "object": f"{UUID(int=attempt)}-ledger-{ledger_id}{'-index' if is_index else ''}",
        "role": role,
        "ledger_id": ledger_id,
        "attempt": str(UUID(int=attempt)),
        "managed_ledger": MANAGED_LEDGER,
        "cluster": "local",
        "size_bytes": INDEX_BYTES if is_index else DATA_BYTES,
        "modified_ms": OLD_MS,
        "indexed_bytes": DATA_BYTES if is_index else None,
    }
    return {**known, **changed}


def copy(ledger_id: int, attempt: int, **changed: Any) -> list[dict[str, Any]]:
    return [stored(ledger_id, attempt, role, **changed) for role in ("data", "index")]


def sent_records(audit: ClusterAudit) -> list[PendingDeleteLedgerInfo]:
    """Send the plan of an audit, and return its records."""
    batches = AuditTables(audit.directory, audit.summary).deletable
    clock, store = FakeClock(), FakeMetadataStore()
    topics = FakeDeletionTopics(clock)
    plan = verified_plan(audit.summary, batches)
    publisher = topics.publisher(DeletionTopic.PENDING, producer_name(plan.sha256), first_use=True)
    sender = PendingDeletionSender(publisher, clock, "instance", "audit")
    held = begin(store, plan.sha256, audit.summary.audit_id, plan.rows, clock.now_ms())
    send_plan(plan, held, batches, store, sender.send, clock, lambda _: None, 10, lambda *_: None)
    publisher.close()
    return [parse_record(message.payload) for message in topics.messages(DeletionTopic.PENDING)]
