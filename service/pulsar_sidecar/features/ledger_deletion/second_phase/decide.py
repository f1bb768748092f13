"""The evaluation: pure, total, and the only place that decides "delete".

Invariant: `Delete` and `DeleteOffloaded` are returned only when the ledger is the one that the record describes,
every node that could reference it was read and does not, the live owner does not use it, it is old enough that no
broker can be about to link it, and a copy that a list names as the only one was read and is whole. Anything unknown
waits. `Facts` are read, never assumed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import assert_never

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerMetadata, LedgerState, LedgerType, OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import UNKNOWN_BIRTH, Birth, Guard
from pulsar_sidecar.model.names import encode_cursor
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.claims import (
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


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger's metadata node as read.

    Attributes:
        created_ms: creation time, or a later one, of which ages are computed.
        raw: the node's bytes, kept so that the ledger can be restored.
        claim: the kind and owner that the ledger's custom metadata names.
        replication_locked: True while auto-recovery or a bookie's garbage collector works on it.
    """

    path: str
    raw: bytes
    version: NodeVersion
    created_ms: int
    birth: Birth
    metadata: LedgerMetadata
    claim: ClaimReading
    replication_locked: bool = False
    modified_order: int | None = None


@dataclass(frozen=True, slots=True)
class UndecodableLedger:
    """A ledger's metadata node that exists but that this version cannot decode."""

    reason: str


@dataclass(frozen=True, slots=True)
class Referenced:
    """Evidence that a node of the claimed owner references the ledger."""

    by: Guard


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """Evidence that every node that could reference the ledger was read and does not.

    Attributes:
        read: existing nodes that were read.
        other_copy_listed: True if the managed ledger lists the id for another copy than the one to delete: the copy in
            tiered storage that has replaced BookKeeper's, or that of another offload attempt.
        only_copy: that other copy, if the list names it as the only one.
    """

    read: tuple[Guard, ...] = ()
    other_copy_listed: bool = False
    only_copy: OffloadContext | None = None


@dataclass(frozen=True, slots=True)
class ReferencesUnknown:
    """Result when a node that could reference the ledger could not be read or decoded."""

    reason: str


References = Referenced | Unreferenced | ReferencesUnknown


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that `decide.decide` judges by.

    Attributes:
        instance_id: BookKeeper's instance id of this cluster.
        ledger: the ledger's node; None when the store has none.
        references: result of searching for references in the owner that the ledger claims.
        owner: the live owner's view; None when no broker has loaded the topic.
        operation_running: True while the two-phase topic deletion that wrote the record has not ended.
        now_ms: time on the store's clock.
        in_use_since_ms: time at which the record was first found in use, on the store's clock; the message carries it.
        from_own_list: True if the record is signed: a list of this Pulsar cluster named the ledger.
        protected_until_ms: end of the protection of a ledger that ``undelete`` restored; None for others.
        under_replication_mark: path of auto-recovery's mark of the ledger, None when there is none.
        only_copy_whole: True if the copy that the list names as the only one was read and is whole; None if it was not
            read yet.
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
    only_copy_whole: bool | Unreadable | None = None


UNKNOWN_END = 2**62
"""End of an undeleted ledger's protection that cannot be decoded: protected until an operator ends it."""


class OutcomeReason(Enum):
    """Reason for a decision on a record; outcomes and metrics carry the values."""

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
    MAY_BE_LAST_COPY = "may-be-the-last-copy"
    METADATA_UNREADABLE = "metadata-unreadable"
    REFERENCES_UNKNOWN = "references-unknown"
    CHANGED_MEANWHILE = "changed-meanwhile"
    OUTCOME_UNKNOWN = "outcome-unknown"
    TEMPORARY_FAILURE = "temporary-failure"


@dataclass(frozen=True, slots=True)
class DeletionPolicy:
    """Waiting times of the evaluation, in milliseconds on the store's clock.

    Attributes:
        open_min_age_ms: minimum age of an OPEN or IN_RECOVERY ledger; a younger one is never deleted.
        unlinked_min_age_ms: minimum age for kinds that Pulsar writes and closes before it links them.
        in_use_wait_ms: time for which "in use" may mean a list that is about to shrink, for a record without a mark.
        bookkeeper_exclusive: True if the operator declares that no other Pulsar cluster keeps ledgers in this
            BookKeeper. Only then is "nothing references it" evidence: the sidecar cannot see another cluster's
            references.
    """

    open_min_age_ms: int
    unlinked_min_age_ms: int
    in_use_wait_ms: int
    bookkeeper_exclusive: bool


@dataclass(frozen=True, slots=True)
class Delete:
    """Verdict: delete exactly this version of the ledger's node while every guard holds."""

    ledger: StoredLedger
    guards: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class DeleteOffloaded:
    """Verdict: delete the copy in tiered storage of this offload attempt."""

    context: OffloadContext
    read: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """Verdict: final without deletion; acknowledge and record the reason."""

    reason: OutcomeReason
    detail: str


@dataclass(frozen=True, slots=True)
class RetryLater:
    """Verdict: reconsume later and count a retry; ``delay_ms`` None means the configured delay."""

    reason: OutcomeReason
    detail: str
    delay_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Postpone:
    """Verdict: evaluate again soon without counting a retry, since nothing failed and something is still running."""

    reason: OutcomeReason
    detail: str


@dataclass(frozen=True, slots=True)
class SendToDeadLetters:
    """Verdict: dead-letter without retries; only an operator can remove the obstacle and then redrive the record."""

    reason: OutcomeReason
    detail: str


Verdict = Delete | DeleteOffloaded | Keep | RetryLater | Postpone | SendToDeadLetters

LINKED_AFTER_CLOSING = (SchemaClaim, CompactedClaim, BucketClaim)
"""Kinds of ledgers that exist, closed, for a moment before any node references them (their writers link them last)."""


def decide(facts: Facts, policy: DeletionPolicy) -> Verdict:
    """Judge one record (PIP-186 "The second phase")."""
    own_instance = facts.record.mark.instance_id
    if own_instance is not None and own_instance != facts.instance_id:
        return Keep(
            OutcomeReason.OTHER_CLUSTER,
            f"the record is for BookKeeper instance {own_instance}, this is {facts.instance_id}",
        )
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
        or _undelete_protection(facts)
        or _owner_objects(facts, references)
        or _owner_may_hold_bucket(facts, facts.ledger)
        or _too_young(facts, facts.ledger, policy)
        or _replication(facts.ledger)
        or _may_be_last_copy(facts, references)
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
        or _may_be_last_copy(facts, references)
        or DeleteOffloaded(context, references.read)
    )


def _unreferenced(facts: Facts, policy: DeletionPolicy) -> Unreferenced | Verdict:
    """Return the evidence that nothing references the ledger, or else the verdict."""
    match facts.references:
        case ReferencesUnknown(reason):
            return RetryLater(OutcomeReason.REFERENCES_UNKNOWN, reason)
        case Referenced(by):
            return _decide_in_use(facts, by, policy)
        case Unreferenced() as references:
            return references
        case never:
            assert_never(never)


# --- matching record and ledger -----------------------------------------------------------------------------------


def _mismatch(record: PendingDeleteLedgerInfo, ledger: StoredLedger) -> Keep | None:
    marked = record.mark.birth
    if marked not in (UNKNOWN_BIRTH, ledger.birth):
        return Keep(OutcomeReason.OTHER_LEDGER, f"it was created at {ledger.birth}, the record expects {marked}")
    claim = ledger.claim
    if isinstance(claim, ForeignLedger):
        return Keep(OutcomeReason.NOT_PULSARS, "its metadata does not name Pulsar as its application")
    if isinstance(claim, UnknownClaim):
        return Keep(OutcomeReason.UNKNOWN_COMPONENT, claim.reason)
    if not matches(record, claim):
        return Keep(OutcomeReason.MISMATCH, f"its metadata names {claim}")
    return None


def matches(record: PendingDeleteLedgerInfo, claim: Claim) -> bool:
    """Return True if the ledger's own metadata matches the record (PIP-186 ``checkIsMatch``)."""
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


# --- referenced ledgers -------------------------------------------------------------------------------------------


def _decide_in_use(facts: Facts, by: Guard, policy: DeletionPolicy) -> Verdict:
    """Decide on a referenced ledger without losing it or retrying forever (docs/decisions/0002-in-use-is-final.md)."""
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
    # A broker that got a request before the operation's end, and did not respond, may still be at work.
    return _wait_to_shrink(facts, detail, policy)


def _wait_to_shrink(facts: Facts, detail: str, policy: DeletionPolicy) -> Verdict:
    since = facts.now_ms if facts.in_use_since_ms is None else facts.in_use_since_ms
    left_ms = since + policy.in_use_wait_ms - facts.now_ms
    if left_ms <= 0:
        return Keep(OutcomeReason.IN_USE, f"{detail}, and still did after the waiting time")
    return RetryLater(OutcomeReason.MAY_STILL_SHRINK, detail, min(left_ms, policy.in_use_wait_ms))


# --- unreferenced ledgers -----------------------------------------------------------------------------------------


def _may_be_another_clusters(facts: Facts, policy: DeletionPolicy) -> SendToDeadLetters | None:
    if policy.bookkeeper_exclusive or facts.from_own_list:
        return None
    return SendToDeadLetters(
        OutcomeReason.BOOKKEEPER_MAY_BE_SHARED,
        "nothing in this Pulsar cluster references it, but another cluster on the same BookKeeper may; if this "
        "BookKeeper serves only this cluster, set bookkeeperExclusiveToCluster=true and redrive the record",
    )


def _undelete_protection(facts: Facts) -> RetryLater | None:
    until_ms = facts.protected_until_ms
    if until_ms is None or until_ms <= facts.now_ms:
        return None
    if until_ms >= UNKNOWN_END:
        return RetryLater(
            OutcomeReason.BROUGHT_BACK, "undelete restored it; it is protected until an operator ends the protection"
        )
    end = datetime.fromtimestamp(until_ms / 1000, UTC).isoformat(timespec="seconds")
    detail = f"undelete restored it; it is protected until {end}"
    return RetryLater(OutcomeReason.BROUGHT_BACK, detail, until_ms - facts.now_ms)


def _owner_objects(facts: Facts, references: Unreferenced) -> Verdict | None:
    owner, ledger_id = facts.owner, facts.record.ledger_id
    # The owner lists ids, not copies: it then lists the copy that the list entry means.
    if owner is None or references.other_copy_listed:
        return None
    listed = (owner.ledgers, owner.cursor_ledgers, owner.schema_ledgers)
    if any(ledger_id in ledgers for ledgers in listed) or ledger_id == owner.compacted_ledger:
        return _wait(facts, OutcomeReason.OWNER_STILL_USES, f"{owner.broker} has the topic loaded and lists the ledger")
    if ledger_id in owner.ledgers_being_read:
        return _wait(facts, OutcomeReason.STILL_BEING_READ, f"a cursor on {owner.broker} is reading the ledger")
    return None


def _owner_may_hold_bucket(facts: Facts, ledger: StoredLedger) -> Verdict | None:
    # A tracker keeps using a bucket whose pointer it failed to store, and no call shows its memory.
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
        # The ages are for ledgers that a broker may be about to link; this one was linked, and then removed.
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


def _may_be_last_copy(facts: Facts, references: Unreferenced) -> Postpone | RetryLater | None:
    """Return the verdict unless the copy that the list names as the only one was read and is whole."""
    if references.only_copy is None or facts.only_copy_whole is True:
        return None
    other = f"the list names the copy of offload attempt {references.only_copy.attempt} as the only one, which"
    match facts.only_copy_whole:
        case None:
            return Postpone(OutcomeReason.MAY_BE_LAST_COPY, f"{other} the sidecar has not read yet")
        case Unreadable(reason):
            return RetryLater(OutcomeReason.MAY_BE_LAST_COPY, f"{other} cannot be read: {reason}")
        case _:
            return RetryLater(
                OutcomeReason.MAY_BE_LAST_COPY, f"{other} is missing or incomplete: this one may be the last"
            )
