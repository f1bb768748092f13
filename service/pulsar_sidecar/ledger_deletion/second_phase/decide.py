"""The evaluation: pure, total, and the only place that decides "delete".

Invariant: `Delete` and `DeleteOffloaded` are returned only when the ledger is the one that the record describes,
everything that could reference it was read and does not, the live owner does not use it, and it is old enough that no
broker can be about to link it. Anything unknown waits. `Facts` are what is known at that moment: read, never assumed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import assert_never

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_ownership.claims import (
    BucketClaim,
    Claim,
    ClaimReading,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    ForeignLedger,
    SchemaClaim,
    UnknownClaim,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerMetadata, LedgerState, LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.model.topic_stats import TopicInternalStats


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger's metadata node as it was read.

    Attributes:
        raw: the node's bytes, kept so that the ledger can be restored.
        claim: the kind and owner that the ledger's custom metadata names.
        replication_locked: auto-recovery or a bookie's garbage collector works on it right now.
    """

    path: str
    raw: bytes
    version: NodeVersion
    created_ms: int
    metadata: LedgerMetadata
    claim: ClaimReading
    replication_locked: bool = False


@dataclass(frozen=True, slots=True)
class UndecodableLedger:
    """A ledger's metadata node that exists but cannot be read by this version."""

    reason: str


@dataclass(frozen=True, slots=True)
class Referenced:
    """A node of the claimed owner references the ledger."""

    by: Guard


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """Every node that could reference the ledger was read and does not.

    Attributes:
        read: the nodes that were read, as far as they exist.
        other_copy_listed: the managed ledger lists the id for another copy than the one that is to go: the one in
            tiered storage that has replaced BookKeeper's, or the one of another offload attempt.
    """

    read: tuple[Guard, ...] = ()
    other_copy_listed: bool = False


@dataclass(frozen=True, slots=True)
class ReferencesUnknown:
    """A node that could reference the ledger could not be read or understood."""

    reason: str


References = Referenced | Unreferenced | ReferencesUnknown


@dataclass(frozen=True, slots=True)
class Facts:
    """What `decide.decide` judges by.

    Attributes:
        instance_id: BookKeeper's instance id of this cluster.
        ledger: the ledger's node; None when the store has none.
        references: what the owner that the ledger claims references.
        owner: the live owner's view; None when the topic is loaded nowhere.
        operation_running: the two-phase topic deletion that wrote the record has not ended.
        now_ms: the store's clock.
        in_use_since_ms: when the record was first found in use, on the store's clock; the message carries it.
        from_own_list: the record is signed: a list of this Pulsar cluster named the ledger.
        protected_until_ms: ``undelete`` restored the ledger and protects it until then; None if it did not.
        under_replication_mark: path of auto-recovery's mark of the ledger, None when there is none.
    """

    record: PendingDeleteLedgerInfo
    instance_id: str
    ledger: StoredLedger | UndecodableLedger | None
    references: References
    owner: TopicInternalStats | None
    operation_running: bool
    now_ms: int
    in_use_since_ms: int | None
    from_own_list: bool = False
    protected_until_ms: int | None = None
    under_replication_mark: str | None = None


UNKNOWN_END = 2**62
"""The end of an undeleted ledger's protection that cannot be read: protected until an operator ends it."""


class OutcomeReason(Enum):
    """Why a record was decided as it was; the values are what outcomes and metrics carry."""

    UNREFERENCED = "unreferenced"
    ALREADY_GONE = "already-gone"
    IN_USE = "ledger-still-in-use"
    MALFORMED = "malformed"
    OTHER_CLUSTER = "other-cluster"
    OTHER_LEDGER = "id-belongs-to-another-ledger"
    MISMATCH = "metadata-mismatch"
    NOT_PULSARS = "not-pulsars"
    UNKNOWN_COMPONENT = "unknown-component"
    REFUSED_BY_STORAGE = "refused-by-storage"
    BOOKKEEPER_MAY_BE_SHARED = "bookkeeper-may-be-shared"
    MAY_STILL_SHRINK = "in-use-before-list-shrinks"
    OPERATION_RUNNING = "topic-deletion-running"
    OWNER_STILL_USES = "owner-still-uses"
    BROUGHT_BACK = "brought-back"
    STILL_BEING_READ = "still-being-read"
    TOO_YOUNG = "too-young"
    REPLICATION_RUNNING = "replication-running"
    METADATA_UNREADABLE = "metadata-unreadable"
    REFERENCES_UNKNOWN = "references-unknown"
    CHANGED_MEANWHILE = "changed-meanwhile"
    OUTCOME_UNKNOWN = "outcome-unknown"
    TEMPORARY_FAILURE = "temporary-failure"


@dataclass(frozen=True, slots=True)
class DeletionPolicy:
    """The waiting times of the evaluation, in milliseconds on the store's clock.

    Attributes:
        open_min_age_ms: an OPEN or IN_RECOVERY ledger younger than this is never deleted.
        unlinked_min_age_ms: the same for kinds that Pulsar writes and closes before it links them.
        in_use_wait_ms: how long "in use" may be an early look at a list that is about to shrink, for a record
            without a mark.
        bookkeeper_exclusive: the operator declares that no other Pulsar cluster keeps ledgers in this BookKeeper. Only
            then "nothing references it" is evidence: another cluster's references cannot be seen from here.
    """

    open_min_age_ms: int
    unlinked_min_age_ms: int
    in_use_wait_ms: int
    bookkeeper_exclusive: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete exactly this version of the ledger's node while every guard holds."""

    ledger: StoredLedger
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffloaded:
    """Delete the copy in tiered storage that this offload attempt made."""

    context: OffloadContext
    read: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Final without deletion: acknowledge and record the reason."""

    reason: OutcomeReason
    detail: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Reconsume later and count a try; ``delay_ms`` None means the configured delay."""

    reason: OutcomeReason
    detail: str
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Postpone:
    """Look again soon without counting a try: nothing failed, something is still running."""

    reason: OutcomeReason
    detail: str


@dataclass(frozen=True, slots=True)
class SendToDeadLetters:
    """To the dead-letter topic at once: only an operator can change what is in the way, and redrive it then."""

    reason: OutcomeReason
    detail: str


Verdict = Delete | DeleteOffloaded | Keep | RetryLater | Postpone | SendToDeadLetters

LINKED_AFTER_CLOSING = (SchemaClaim, CompactedClaim, BucketClaim)
"""Kinds that exist, closed, for a moment before any node references them (their writers link them last)."""


def decide(facts: Facts, policy: DeletionPolicy) -> Verdict:
    """Judge one record (PIP-186 "The second phase")."""
    own_instance = facts.record.mark.instance_id
    if own_instance is not None and own_instance != facts.instance_id:
        return Keep(OutcomeReason.OTHER_CLUSTER, f"the record is about {own_instance}, this is {facts.instance_id}")
    match facts.record.ledger_type:
        case LedgerType.LEDGER:
            return _decide_ledger(facts, policy)
        case LedgerType.OFFLOAD_LEDGER:
            return _decide_offloaded(facts, policy)
        case never:
            assert_never(never)


def _decide_ledger(facts: Facts, policy: DeletionPolicy) -> Verdict:
    if facts.ledger is None:
        return Keep(OutcomeReason.ALREADY_GONE, "there is no such ledger")
    if isinstance(facts.ledger, UndecodableLedger):
        return RetryLater(OutcomeReason.METADATA_UNREADABLE, facts.ledger.reason)
    mismatch = _mismatch(facts.record, facts.ledger)
    if mismatch is not None:
        return mismatch
    references = _unreferenced(facts, policy)
    if not isinstance(references, Unreferenced):
        return references
    return (
        _may_be_another_clusters(facts, policy)
        or _brought_back(facts)
        or _owner_objects(facts, references)
        or _owner_may_hold_bucket(facts, facts.ledger)
        or _too_young(facts, facts.ledger, policy)
        or _replication(facts.ledger)
        or Delete(facts.ledger, references.read)
    )


def _decide_offloaded(facts: Facts, policy: DeletionPolicy) -> Verdict:
    context = facts.record.offload_context
    if context is None:
        return Keep(OutcomeReason.MALFORMED, "the record has no offloadContext")
    references = _unreferenced(facts, policy)
    if not isinstance(references, Unreferenced):
        return references
    return (
        _may_be_another_clusters(facts, policy)
        or _owner_objects(facts, references)
        or DeleteOffloaded(context, references.read)
    )


def _unreferenced(facts: Facts, policy: DeletionPolicy) -> Unreferenced | Verdict:
    """What was read where nothing references the ledger; otherwise the verdict."""
    match facts.references:
        case ReferencesUnknown(reason):
            return RetryLater(OutcomeReason.REFERENCES_UNKNOWN, reason)
        case Referenced(by):
            return _decide_in_use(facts, by, policy)
        case Unreferenced() as references:
            return references
        case never:
            assert_never(never)


# --- is it the record's ledger? -----------------------------------------------------------------------------------


def _mismatch(record: PendingDeleteLedgerInfo, ledger: StoredLedger) -> Keep | None:
    marked_ms = record.mark.created_ms
    if marked_ms is not None and marked_ms != ledger.created_ms:
        return Keep(
            OutcomeReason.OTHER_LEDGER, f"it was created at {ledger.created_ms} ms, the record means {marked_ms}"
        )
    claim = ledger.claim
    if isinstance(claim, ForeignLedger):
        return Keep(OutcomeReason.NOT_PULSARS, "its metadata does not name Pulsar as its application")
    if isinstance(claim, UnknownClaim):
        return Keep(OutcomeReason.UNKNOWN_COMPONENT, claim.reason)
    if not matches(record, claim):
        return Keep(OutcomeReason.MISMATCH, f"its metadata names {claim}")
    return None


def matches(record: PendingDeleteLedgerInfo, claim: Claim) -> bool:
    """PIP-186 ``checkIsMatch``: whether the ledger's own metadata matches the record."""
    match claim:
        case DataClaim(managed_ledger):
            expected = LedgerComponent.MANAGED_LEDGER
            same_owner = managed_ledger == record.topic.managed_ledger_name
        case CursorClaim(managed_ledger, cursor):
            expected = LedgerComponent.MANAGED_CURSOR
            same_owner = managed_ledger == record.topic.managed_ledger_name and _same_cursor(record, cursor)
        case SchemaClaim(schema_id):
            expected = LedgerComponent.SCHEMA_STORAGE
            named = record.schema_id if isinstance(record.schema_id, str) else schema_id
            same_owner = schema_id == record.topic.schema_id == named
        case CompactedClaim(topic):
            expected = LedgerComponent.COMPACTED_LEDGER
            same_owner = topic == record.topic
        case BucketClaim(topic, subscription, _):
            expected = LedgerComponent.DELAYED_INDEX_BUCKET
            unnamed = record.cursor_name is None
            same_owner = topic == record.topic and (unnamed or _same_cursor(record, encode_cursor(subscription)))
        case never:
            assert_never(never)
    return record.component is expected and same_owner


def _same_cursor(record: PendingDeleteLedgerInfo, encoded: str) -> bool:
    return record.cursor_name is not None and encoded in (record.cursor_name, encode_cursor(record.cursor_name))


# --- it is referenced: final, or an early look? --------------------------------------------------------------------


def _decide_in_use(facts: Facts, by: Guard, policy: DeletionPolicy) -> Verdict:
    """The rule that neither loses nor spins (docs/decisions/0002-in-use-is-final.md)."""
    detail = f"{by.path} at version {by.version} references it"
    mark = facts.record.mark
    if facts.operation_running:
        return Postpone(OutcomeReason.OPERATION_RUNNING, detail)
    if mark.unreferenced:
        return Keep(OutcomeReason.IN_USE, detail)
    if mark.marked_version is not None:
        if by.version <= mark.marked_version:
            return RetryLater(
                OutcomeReason.MAY_STILL_SHRINK, f"{detail}, it was marked at version {mark.marked_version}"
            )
        return Keep(OutcomeReason.IN_USE, f"{detail}, it was marked at version {mark.marked_version}")
    # A broker that was asked before the operation's end, without an answer, may still be at work.
    return _wait_to_shrink(facts, detail, policy)


def _wait_to_shrink(facts: Facts, detail: str, policy: DeletionPolicy) -> Verdict:
    since = facts.now_ms if facts.in_use_since_ms is None else facts.in_use_since_ms
    left_ms = since + policy.in_use_wait_ms - facts.now_ms
    if left_ms <= 0:
        return Keep(OutcomeReason.IN_USE, f"{detail}, and still did after the waiting time")
    return RetryLater(OutcomeReason.MAY_STILL_SHRINK, detail, min(left_ms, policy.in_use_wait_ms))


# --- it is not referenced: is that evidence, and may it go now? ------------------------------------------------------


def _may_be_another_clusters(facts: Facts, policy: DeletionPolicy) -> SendToDeadLetters | None:
    if policy.bookkeeper_exclusive or facts.from_own_list:
        return None
    return SendToDeadLetters(
        OutcomeReason.BOOKKEEPER_MAY_BE_SHARED,
        "nothing in this Pulsar cluster references it, but another cluster on the same BookKeeper may; if this "
        "BookKeeper serves only this cluster, set bookkeeperExclusiveToCluster=true and redrive the record",
    )


def _brought_back(facts: Facts) -> RetryLater | None:
    until_ms = facts.protected_until_ms
    if until_ms is None or until_ms <= facts.now_ms:
        return None
    if until_ms >= UNKNOWN_END:
        return RetryLater(OutcomeReason.BROUGHT_BACK, "undelete restored it; it is protected until an operator ends it")
    end = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="seconds")
    detail = f"undelete restored it; it is protected until {end}"
    return RetryLater(OutcomeReason.BROUGHT_BACK, detail, until_ms - facts.now_ms)


def _owner_objects(facts: Facts, references: Unreferenced) -> Verdict | None:
    owner, ledger_id = facts.owner, facts.record.ledger_id
    # The owner lists ids, not copies: what it lists then is the copy that the list entry means.
    if owner is None or references.other_copy_listed:
        return None
    listed = (owner.ledgers, owner.cursor_ledgers, owner.schema_ledgers)
    if any(ledger_id in ledgers for ledgers in listed) or ledger_id == owner.compacted_ledger:
        return _wait(facts, OutcomeReason.OWNER_STILL_USES, f"{owner.broker} has the topic loaded and lists the ledger")
    if ledger_id in owner.ledgers_being_read:
        return _wait(facts, OutcomeReason.STILL_BEING_READ, f"a cursor on {owner.broker} is reading the ledger")
    return None


def _owner_may_hold_bucket(facts: Facts, ledger: StoredLedger) -> Verdict | None:
    # A tracker keeps using a bucket whose pointer it failed to store, and no call shows what it keeps in memory.
    if not isinstance(ledger.claim, BucketClaim) or facts.owner is None:
        return None
    if ledger.claim.subscription not in facts.owner.cursors:
        return None
    return _wait(
        facts, OutcomeReason.OWNER_STILL_USES, f"{facts.owner.broker} has the subscription's delayed index loaded"
    )


def _wait(facts: Facts, reason: OutcomeReason, detail: str) -> Verdict:
    return Postpone(reason, detail) if facts.operation_running else RetryLater(reason, detail)


def _too_young(facts: Facts, ledger: StoredLedger, policy: DeletionPolicy) -> RetryLater | None:
    if facts.from_own_list and facts.record.mark.dereferenced_ms is not None:
        # The ages are for ledgers that a broker may be about to link; this one was linked, and then taken out.
        return None
    min_age_ms = 0
    if ledger.metadata.state is not LedgerState.CLOSED:
        min_age_ms = policy.open_min_age_ms
    if isinstance(ledger.claim, LINKED_AFTER_CLOSING):
        min_age_ms = max(min_age_ms, policy.unlinked_min_age_ms)
    age_ms = max(0, facts.now_ms - ledger.created_ms)
    if age_ms >= min_age_ms:
        return None
    detail = f"it is {ledger.metadata.state.name} and {age_ms} ms old; its minimum age is {min_age_ms} ms"
    return RetryLater(OutcomeReason.TOO_YOUNG, detail, min_age_ms - age_ms)


def _replication(ledger: StoredLedger) -> RetryLater | None:
    if not ledger.replication_locked:
        return None
    return RetryLater(OutcomeReason.REPLICATION_RUNNING, "its copies are being repaired")
