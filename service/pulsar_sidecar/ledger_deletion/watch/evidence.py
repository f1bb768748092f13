"""What proves that a ledger leaked, and why it did.

Invariant: a ledger was *seen referenced* only if this watch itself read a node of the ledger's claimed owner that named
it, and later read the same node without it. A record's content is never evidence, because every producer of
``pulsar/system`` could forge it; so evidence that outlives a sidecar is signed with the cluster's key.
"""

from enum import StrEnum
from typing import assert_never

from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.decide import StoredLedger
from pulsar_sidecar.ledger_ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    SchemaClaim,
)
from pulsar_sidecar.ledger_ownership.ledger_metadata import length_bytes
from pulsar_sidecar.ledger_ownership.places import topic_of_schema
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import TopicName, decode_cursor, topic_of_managed_ledger

REQUESTED_BY = "ledger-deletion watch"


class LeakCause(StrEnum):
    """By what a ledger lost its last reference."""

    TRIM = "trim"
    """It left its managed ledger's list: retention, truncation."""
    CURSOR_SWITCH = "cursor-switch"
    """The cursor went on to another ledger, or stored its position in its node."""
    SUBSCRIPTION = "subscription"
    """The subscription was deleted."""
    SCHEMA = "schema"
    TOPIC_DELETION = "topic-deletion"
    NAMESPACE_DELETION = "namespace-deletion"
    COMPACTION = "compaction"
    """A newer compacted view replaced it."""
    DELAYED_INDEX = "delayed-index"
    """Its bucket of the delayed index was merged or used up."""
    OFFLOAD = "offload"
    """The copy in tiered storage replaced BookKeeper's."""
    FAILED_OFFLOAD = "failed-offload"
    """Another offload attempt replaced the one that made this copy in tiered storage."""
    NEVER_LINKED = "never-linked"
    """No node was ever seen to name it."""


def cause_of(component: LedgerComponent, *, owner: bool, topic: bool, namespace: bool, replaced: bool) -> LeakCause:
    """Why a ledger that was seen referenced is not any more; explains and never decides.

    A broker that deletes a topic empties its list first, so a trim may turn out to be a deletion later.

    Args:
        component: what the ledger was for.
        owner: whether the node that named the ledger still exists.
        topic: whether the managed ledger's node does.
        namespace: whether the namespace's policies do, or its local ones.
        replaced: whether the copy in tiered storage has replaced BookKeeper's.
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
    """The record about an unreferenced ledger, not yet signed; None where its owner is not a topic.

    ``dereferenced_ms`` is None for a ledger that was never seen referenced.
    """
    topic, component, cursor_name, schema_id = _named_by(claim)
    if topic is None:
        return None
    mark = Mark(
        unreferenced=True,
        instance_id=instance_id,
        created_ms=ledger.created_ms,
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
    """The record about a copy in tiered storage that a list no longer names, not yet signed."""
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
