"""Second-phase evaluation of leaked ledgers before anything is appended: their owners, and whether to delete them.

A failed read is never evidence: the calls raise `TemporaryError`, and the caller tries again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    DeletionPolicy,
    Facts,
    Keep,
    OutcomeReason,
    RetryLater,
    StoredLedger,
    Verdict,
    decide,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer, stored_ledger
from pulsar_sidecar.features.ledger_deletion.watch.evidence import cause_of, record_of, record_of_copy
from pulsar_sidecar.features.ledger_deletion.watch.leaks import Evidence, LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import VanishedCopy, VanishedReference
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import Claim, DataClaim, ForeignLedger, UnknownClaim, owner_path
from pulsar_sidecar.ownership.paths import (
    LOCAL_POLICIES,
    POLICIES,
    identity_paths,
    instance_id_of,
    ledger_path,
    managed_ledger_path,
)
from pulsar_sidecar.ownership.protections import Protection, UnreadableNode

_RETRY_MS = 60_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """Existing unreferenced ledger with its own metadata."""

    ledger: StoredLedger
    claim: Claim
    record: PendingDeleteLedgerInfo


@dataclass(frozen=True, slots=True)
class NotDeletable:
    """Ledger that this version must not evaluate, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Assessor:
    """Reader of ledgers' own metadata that evaluates records as the second phase will."""

    store: MetadataStore
    gatherer: Gatherer
    policy: DeletionPolicy
    leaks: LeakStore
    root: str

    def candidates(self, since_ms: Sequence[tuple[LedgerId, int | None]]) -> list[Candidate | NotDeletable | None]:
        """Return each ledger's current state, None if gone; ``since_ms`` has ids and times of vanished references."""
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
        """Return proof that this cluster's own list named the ledger; None if the node was not its owner's.

        A list that named another topic's ledger was a shadow's or edited by hand.
        """
        if owner_path(candidate.claim) != vanished.path:
            return None
        cause = self._cause(candidate.record, vanished.path, replaced=vanished.replaced)
        return Evidence(self.leaks.signed(candidate.record), cause, vanished.path)

    def evidence_of_copy(self, vanished: VanishedCopy, topic: TopicName, dereferenced_ms: int) -> Evidence:
        """Return proof that this topic's list named a copy in tiered storage."""
        instance_id = instance_id_of(self.store.read_many(identity_paths(self.root)), self.root)
        record = record_of_copy(topic, vanished.ledger_id, vanished.context, instance_id, dereferenced_ms)
        cause = LeakCause.FAILED_OFFLOAD
        if not vanished.still_listed:
            cause = self._cause(record, vanished.path, replaced=False)
        unfinished = not vanished.context.complete
        return Evidence(self.leaks.signed(record), cause, vanished.path, unfinished=unfinished)

    def with_cause(self, evidence: Evidence) -> Evidence:
        """Return the evidence with its cause derived from the nodes that exist now."""
        if evidence.cause is LeakCause.FAILED_OFFLOAD:
            return evidence
        replaced = evidence.cause is LeakCause.OFFLOAD
        return replace(evidence, cause=self._cause(evidence.record, evidence.path, replaced=replaced))

    def verdicts(
        self, records: Sequence[PendingDeleteLedgerInfo], unreadable: Sequence[UnreadableNode]
    ) -> list[Verdict]:
        """Return the second phase's current verdict on each record; unreadable nodes protect as in an audit."""
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
        return self._protected(claim, protection) or verdict

    @staticmethod
    def _protected(claim: Claim, protection: Protection) -> RetryLater | None:
        reason = protection.reason(claim.kind, owner_path(claim))
        return None if reason is None else RetryLater(OutcomeReason.REFERENCES_UNKNOWN, reason, _RETRY_MS)

    def _cause(self, record: PendingDeleteLedgerInfo, owner: str, *, replaced: bool) -> LeakCause:
        topic = record.topic
        paths = [owner, managed_ledger_path(topic.managed_ledger_name)]
        paths += [f"{path}/{topic.namespace}" for path in (POLICIES, LOCAL_POLICIES)]
        is_owner, is_topic, *policies = (node is not None for node in self.store.read_many(paths))
        return cause_of(record.component, owner=is_owner, topic=is_topic, namespace=any(policies), replaced=replaced)
