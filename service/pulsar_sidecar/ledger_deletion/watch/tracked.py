"""One ledger on its way from a vanished reference, or from never having had one, to its end."""

from dataclasses import dataclass, replace

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.watch.assess import Candidate
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.leaks import Evidence
from pulsar_sidecar.ledger_deletion.watch.reference_counts import VanishedReference
from pulsar_sidecar.ledger_deletion.watch.service import Leak, LeakState
from pulsar_sidecar.model.ids import LedgerId

_KEPT_LOOK_MS = 10_000


@dataclass(slots=True)
class TrackedLedger:
    """A ledger that lost its last reference, or never had one.

    Attributes:
        look_ms: when it is looked at next, on the store's clock.
        vanished: its last reference, if this watch saw it vanish.
        is_noted: the brake has counted it.
        is_counted: it was reported as leaked.
    """

    leak: Leak
    look_ms: int
    vanished: VanishedReference | None = None
    evidence: Evidence | None = None
    record: PendingDeleteLedgerInfo | None = None
    pause_ms: int = _KEPT_LOOK_MS
    is_noted: bool = False
    is_counted: bool = False

    @property
    def ledger_id(self) -> LedgerId:
        return self.leak.ledger_id

    @property
    def is_open(self) -> bool:
        return self.leak.state in (LeakState.SETTLING, LeakState.KEPT, LeakState.LEAKED)

    def enter(self, candidate: Candidate, evidence: Evidence | None) -> None:
        """Its own metadata was read: whose it is, and why it is not referenced."""
        record = candidate.record if evidence is None else evidence.record
        cause = LeakCause.NEVER_LINKED if evidence is None else evidence.cause
        self.record, self.evidence = record, evidence
        self.leak = replace(self.leak, cause=cause, topic=str(record.topic), length_bytes=record.mark.length_bytes)


def restored(evidence: Evidence, settle_ms: int) -> TrackedLedger:
    """What an earlier watch has seen, and the brake has noted."""
    record = evidence.record
    leak = Leak(
        record.ledger_id,
        LeakState.SETTLING if evidence.appended_ms is None else LeakState.APPENDED,
        evidence.cause,
        evidence.dereferenced_ms,
        "an earlier watch saw its last reference vanish",
        str(record.topic),
        evidence.path,
        record.mark.length_bytes,
        evidence.appended_ms,
    )
    return TrackedLedger(leak, evidence.dereferenced_ms + settle_ms, evidence=evidence, record=record, is_noted=True)
