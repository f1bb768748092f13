"""Asks the same as the second phase, before anything is appended: whose was the ledger, and may it go?

Nothing is concluded from what could not be read: the calls raise `TemporaryError`, and the caller asks again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    DeletionPolicy,
    Facts,
    Keep,
    OutcomeReason,
    RetryLater,
    StoredLedger,
    Unreferenced,
    Verdict,
    decide,
)
from pulsar_sidecar.ledger_deletion.second_phase.gather import Gatherer, stored_ledger
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause, cause_of, record_of, record_of_copy
from pulsar_sidecar.ledger_deletion.watch.leaks import Evidence, LeakStore
from pulsar_sidecar.ledger_deletion.watch.reference_counts import VanishedCopy, VanishedReference
from pulsar_sidecar.ledger_ownership.claims import Claim, DataClaim, ForeignLedger, UnknownClaim, owner_path
from pulsar_sidecar.ledger_ownership.paths import (
    LOCAL_POLICIES,
    POLICIES,
    identity_paths,
    instance_id_of,
    ledger_path,
    managed_ledger_path,
)
from pulsar_sidecar.ledger_ownership.protections import Protection, UnreadableNode
from pulsar_sidecar.ledger_ownership.references import managed_ledger_references
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName

_RETRY_MS = 60_000

OffloadedWhole = Callable[[LedgerId, OffloadContext, ManagedLedgerName], bool]
"""Whether both objects of an offloaded copy were found, theirs and complete; raises `TemporaryError` when tiered
storage could not be asked, `PermanentError` where it is not configured."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An unreferenced ledger that exists, with its own metadata."""

    ledger: StoredLedger
    claim: Claim
    record: PendingDeleteLedgerInfo


@dataclass(frozen=True, slots=True)
class NotDeletable:
    """A ledger that this version must not judge, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Assessor:
    """Reads ledgers' own metadata, and evaluates records as the second phase will."""

    store: MetadataStore
    gatherer: Gatherer
    policy: DeletionPolicy
    leaks: LeakStore
    offloaded_whole: OffloadedWhole
    root: str

    def candidates(self, since_ms: Sequence[tuple[LedgerId, int | None]]) -> list[Candidate | NotDeletable | None]:
        """Each ledger as it is now, None if it is gone; with its id comes when its last reference vanished."""
        paths = [ledger_path(ledger_id, self.root) for ledger_id, _ in since_ms]
        instance, layout, *nodes = self.store.read_many([*identity_paths(self.root), *paths])
        instance_id = instance_id_of((instance, layout), self.root)
        found: list[Candidate | NotDeletable | None] = []
        for (ledger_id, dereferenced_ms), node in zip(since_ms, nodes, strict=True):
            ledger = stored_ledger(node, locked=False)
            if ledger is None:
                found.append(None)
            elif not isinstance(ledger, StoredLedger):
                found.append(NotDeletable(f"its metadata is not understood: {ledger.reason}"))
            elif isinstance(ledger.claim, ForeignLedger):
                found.append(NotDeletable("its metadata does not show that Pulsar made it"))
            elif isinstance(ledger.claim, UnknownClaim):
                found.append(NotDeletable(f"this version does not know its kind: {ledger.claim.reason}"))
            else:
                record = record_of(ledger_id, ledger, ledger.claim, instance_id, dereferenced_ms)
                found.append(
                    NotDeletable(f"its owner {owner_path(ledger.claim)} is not a topic's")
                    if record is None
                    else Candidate(ledger, ledger.claim, record)
                )
        return found

    def evidence(self, candidate: Candidate, vanished: VanishedReference) -> Evidence | None:
        """What proves that this cluster's own list named the ledger; None if the node was not its claimed owner's.

        A list that named another topic's ledger was a shadow's or was edited by hand.
        """
        if owner_path(candidate.claim) != vanished.path:
            return None
        cause = self._cause(candidate.record, vanished.path, replaced=vanished.replaced)
        return Evidence(self.leaks.signed(candidate.record), cause, vanished.path)

    def evidence_of_copy(self, vanished: VanishedCopy, topic: TopicName, dereferenced_ms: int) -> Evidence:
        """What proves that this topic's list named a copy in tiered storage."""
        instance_id = instance_id_of(self.store.read_many(identity_paths(self.root)), self.root)
        record = record_of_copy(topic, vanished.ledger_id, vanished.context, instance_id, dereferenced_ms)
        cause = LeakCause.FAILED_OFFLOAD
        if not vanished.still_listed:
            cause = self._cause(record, vanished.path, replaced=False)
        unfinished = not vanished.context.complete
        return Evidence(self.leaks.signed(record), cause, vanished.path, unfinished=unfinished)

    def with_cause(self, evidence: Evidence) -> Evidence:
        """The same, with its cause by what is around it now."""
        if evidence.cause is LeakCause.FAILED_OFFLOAD:
            return evidence
        replaced = evidence.cause is LeakCause.OFFLOAD
        return replace(evidence, cause=self._cause(evidence.record, evidence.path, replaced=replaced))

    def verdicts(
        self, records: Sequence[PendingDeleteLedgerInfo], unreadable: Sequence[UnreadableNode]
    ) -> list[Verdict]:
        """The second phase's verdict on each record now; unreadable nodes protect as in an audit."""
        tenants = [each for path in (POLICIES, LOCAL_POLICIES) for each in self.store.children(path) or ()]
        protection = Protection(unreadable, tenants)
        return [self._verdict(facts, protection) for facts in self.gatherer.gather([(each, None) for each in records])]

    def _verdict(self, facts: Facts, protection: Protection) -> Verdict:
        verdict = decide(facts, self.policy)
        if isinstance(verdict, DeleteOffloaded):
            return self._protected(DataClaim(facts.record.topic.managed_ledger_name), protection) or verdict
        if not isinstance(verdict, Delete):
            return verdict
        claim = verdict.ledger.claim
        if isinstance(claim, ForeignLedger | UnknownClaim):
            return Keep(OutcomeReason.UNKNOWN_COMPONENT, "its metadata names no kind of ledger that this version knows")
        if (protected := self._protected(claim, protection)) is not None:
            return protected
        if isinstance(facts.references, Unreferenced) and facts.references.other_copy_listed:
            return self._last_copy(facts.record) or verdict
        return verdict

    @staticmethod
    def _protected(claim: Claim, protection: Protection) -> RetryLater | None:
        reason = protection.reason(claim.kind, owner_path(claim))
        return None if reason is None else RetryLater(OutcomeReason.REFERENCES_UNKNOWN, reason, _RETRY_MS)

    def _last_copy(self, record: PendingDeleteLedgerInfo) -> RetryLater | None:
        """The verdict while BookKeeper's copy may be the last one; None when tiered storage has the ledger whole."""
        name = record.topic.managed_ledger_name
        node = self.store.read(managed_ledger_path(name))
        entry = None if node is None else managed_ledger_references(node.data).ledgers.get(record.ledger_id)
        if entry is None or entry.offload is None:
            raise TemporaryError(f"the list of {record.topic} changed while it was read; the watch reads it again")
        try:
            if self.offloaded_whole(record.ledger_id, entry.offload, name):
                return None
        except SidecarError as error:
            # One storage that does not answer, or is not configured, holds up no other ledger.
            return RetryLater(
                OutcomeReason.IN_USE, f"tiered storage has it instead, but did not answer: {error}", _RETRY_MS
            )
        return RetryLater(
            OutcomeReason.IN_USE,
            "its list names a copy in tiered storage, which is missing or incomplete: BookKeeper's may be the last one",
            _RETRY_MS,
        )

    def _cause(self, record: PendingDeleteLedgerInfo, owner: str, *, replaced: bool) -> LeakCause:
        topic = record.topic
        paths = [owner, managed_ledger_path(topic.managed_ledger_name)]
        paths += [f"{path}/{topic.namespace}" for path in (POLICIES, LOCAL_POLICIES)]
        is_owner, is_topic, *policies = (node is not None for node in self.store.read_many(paths))
        return cause_of(record.component, owner=is_owner, topic=is_topic, namespace=any(policies), replaced=replaced)
