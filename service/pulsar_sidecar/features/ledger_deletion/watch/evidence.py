"""Evidence that a ledger leaked, and the cause.

Invariant: a ledger was *seen referenced* only if this watch itself read a node of the ledger's claimed owner that named
it, and later read the same node without it. A record's content is never evidence, because every producer of
``pulsar/system`` could forge it; so evidence that outlives a sidecar is signed with the cluster's key.
"""

from typing import assert_never

from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import StoredLedger
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import TopicName, decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.ownership.claims import BucketClaim, Claim, CompactedClaim, CursorClaim, DataClaim, SchemaClaim
from pulsar_sidecar.ownership.ledger_metadata import length_bytes
from pulsar_sidecar.ownership.places import topic_of_schema

REQUESTED_BY = "ledger-deletion watch"


def cause_of(component: LedgerComponent, *, owner: bool, topic: bool, namespace: bool, replaced: bool) -> LeakCause:
    """Return why a ledger lost its references; it explains and never decides.

    A broker that deletes a topic empties its list first, so a trim may turn out to be a deletion later.

    Args:
        component: kind of the ledger.
        owner: True if the node that named the ledger still exists.
        topic: True if the managed ledger's node exists.
        namespace: True if the namespace's policies exist, or its local ones.
        replaced: True if the copy in tiered storage has replaced BookKeeper's.
    """
    match component:
        case LedgerComponent.MANAGED_LEDGER if replaced:
            return LeakCause.OFFLOAD
        case LedgerComponent.MANAGED_LEDGER if owner:
            return LeakCause.TRIM
        case LedgerComponent.SCHEMA_STORAGE if namespace:
            return LeakCause.SCHEMA
        case LedgerComponent.MANAGED_CURSOR if owner:
            return LeakCause.CURSOR_SWITCH
        case LedgerComponent.COMPACTED_LEDGER if topic:
            return LeakCause.COMPACTION
        case LedgerComponent.DELAYED_INDEX_BUCKET if owner:
            return LeakCause.DELAYED_INDEX
        case LedgerComponent.MANAGED_CURSOR | LedgerComponent.DELAYED_INDEX_BUCKET if topic:
            return LeakCause.SUBSCRIPTION
        case _:
            return LeakCause.TOPIC_DELETION if namespace else LeakCause.NAMESPACE_DELETION


def record_of(
    ledger_id: LedgerId, ledger: StoredLedger, claim: Claim, instance_id: str, dereferenced_ms: int | None
) -> PendingDeleteLedgerInfo | None:
    """Return the unsigned record about an unreferenced ledger; None where its owner is not a topic.

    ``dereferenced_ms`` is None for a ledger that was never seen referenced.
    """
    topic, component, cursor_name, schema_id = _named_by(claim)
    if topic is None:
        return None
    mark = Mark(
        unreferenced=True,
        instance_id=instance_id,
        created_ms=ledger.birth.created_ms,
        created_order=ledger.birth.created_order,
        length_bytes=length_bytes(ledger.metadata),
        requested_by=REQUESTED_BY,
        dereferenced_ms=dereferenced_ms,
    )
    return PendingDeleteLedgerInfo(
        topic, component, LedgerType.LEDGER, ledger_id, cursor_name=cursor_name, schema_id=schema_id, mark=mark
    )


def record_of_copy(
    topic: TopicName, ledger_id: LedgerId, context: OffloadContext, instance_id: str, dereferenced_ms: int
) -> PendingDeleteLedgerInfo:
    """Return the unsigned record about a copy in tiered storage that a list no longer names."""
    mark = Mark(unreferenced=True, instance_id=instance_id, requested_by=REQUESTED_BY, dereferenced_ms=dereferenced_ms)
    component, ledger_type = LedgerComponent.MANAGED_LEDGER, LedgerType.OFFLOAD_LEDGER
    return PendingDeleteLedgerInfo(topic, component, ledger_type, ledger_id, offload_context=context, mark=mark)


def _named_by(claim: Claim) -> tuple[TopicName | None, LedgerComponent, str | None, str | None]:
    match claim:
        case DataClaim(managed_ledger):
            return topic_of_managed_ledger(managed_ledger), LedgerComponent.MANAGED_LEDGER, None, None
        case CursorClaim(managed_ledger, cursor):
            topic = topic_of_managed_ledger(managed_ledger)
            return topic, LedgerComponent.MANAGED_CURSOR, decode_cursor(cursor) or cursor, None
        case SchemaClaim(schema_id):
            return topic_of_schema(schema_id), LedgerComponent.SCHEMA_STORAGE, None, schema_id
        case CompactedClaim(topic):
            return topic, LedgerComponent.COMPACTED_LEDGER, None, None
        case BucketClaim(topic, subscription, _):
            return topic, LedgerComponent.DELAYED_INDEX_BUCKET, subscription, None
        case never:
            assert_never(never)
