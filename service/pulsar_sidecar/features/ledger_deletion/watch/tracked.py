"""Tracking of one copy of a ledger, from its vanished reference, or without any reference, to its end."""

from dataclasses import dataclass, replace

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, copy_key
from pulsar_sidecar.features.ledger_deletion.watch.leaks import Evidence
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import Vanished, VanishedCopy
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LeakCause, LeakState
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext

FIRST_PAUSE_MS = 10_000
_GRACE_MS = 5_000
"""Time after which a leak is stored; a broker deletes a ledger within 50 ms of its last reference."""


@dataclass(slots=True)
class TrackedLedger:
    """Copy of a ledger that lost its last reference, or never had one.

    Attributes:
        look_ms: due time of the next check, on the store's clock.
        vanished: last reference, if this watch saw it vanish.
        context: offload attempt that made the copy in tiered storage; None for BookKeeper's.
        is_noted: True once the brake has counted it.
        is_counted: True once it was reported as leaked.
        is_found: True if the copy in tiered storage was found since `look_ms`; then it is evaluated.
    """

    leak: Leak
    look_ms: int
    vanished: Vanished | None = None
    evidence: Evidence | None = None
    record: PendingDeleteLedgerInfo | None = None
    context: OffloadContext | None = None
    pause_ms: int = FIRST_PAUSE_MS
    is_noted: bool = False
    is_counted: bool = False
    is_found: bool = False

    @property
    def ledger_id(self) -> LedgerId:
        return self.leak.ledger_id

    @property
    def key(self) -> str:
        """Key that distinguishes it from other copies of the same ledger."""
        return copy_key(self.ledger_id, self.context)

    @property
    def is_open(self) -> bool:
        return self.leak.state in (LeakState.SETTLING, LeakState.KEPT, LeakState.LEAKED)

    @property
    def is_unfinished(self) -> bool:
        """True if a broker may still be uploading the copy."""
        if self.evidence is not None:
            return self.evidence.unfinished
        return self.context is not None and not self.context.complete

    def enter(self, record: PendingDeleteLedgerInfo, evidence: Evidence | None) -> None:
        """Set the owner, and the cause of the leak."""
        cause = LeakCause.NEVER_LINKED if evidence is None else evidence.cause
        self.record, self.evidence = record, evidence
        self.leak = replace(self.leak, cause=cause, topic=str(record.topic), length_bytes=record.mark.length_bytes)

    def __str__(self) -> str:
        if self.context is None:
            return f"ledger {self.ledger_id}"
        return f"the copy of ledger {self.ledger_id} that offload attempt {self.context.attempt} made"


def tracked_since(vanished: Vanished, now_ms: int, evidence: Evidence | None) -> TrackedLedger:
    """Return a copy that has just lost its last reference, with any earlier evidence."""
    context = context_of(vanished)
    detail, attempt = "a broker may still delete it", None if context is None else context.attempt
    leak = Leak(vanished.ledger_id, attempt, LeakState.SETTLING, None, now_ms, detail, path=vanished.path)
    return TrackedLedger(leak, now_ms + _GRACE_MS, vanished, evidence, context=context)


def context_of(vanished: Vanished) -> OffloadContext | None:
    """Return the offload attempt that made a copy in tiered storage; None for BookKeeper's."""
    return vanished.context if isinstance(vanished, VanishedCopy) else None


def restored(evidence: Evidence, settle_ms: int) -> TrackedLedger:
    """Return a copy from stored evidence of an earlier watch, which the brake has counted."""
    record, context = evidence.record, evidence.record.offload_context
    leak = Leak(
        record.ledger_id,
        None if context is None else context.attempt,
        LeakState.SETTLING if evidence.appended_ms is None else LeakState.APPENDED,
        evidence.cause,
        evidence.dereferenced_ms,
        "an earlier watch saw its last reference vanish",
        str(record.topic),
        evidence.path,
        record.mark.length_bytes,
        evidence.appended_ms,
    )
    look_ms = evidence.dereferenced_ms + settle_ms
    return TrackedLedger(leak, look_ms, evidence=evidence, record=record, context=context, is_noted=True)
