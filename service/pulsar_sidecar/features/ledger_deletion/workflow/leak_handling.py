"""Handling of leaks, from a vanished reference to a deleted ledger or copy in tiered storage.

Invariant: the watch appends nothing that the second phase would not delete at that moment, and nothing before the brake
has counted everything that is to be appended.
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar, assert_never

import structlog

from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Keep,
    Postpone,
    RetryLater,
    SendToDeadLetters,
    Verdict,
)
from pulsar_sidecar.features.ledger_deletion.send import send
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.watch.assess import Candidate, NotDeletable
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import (
    ReferenceCounts,
    VanishedCopy,
    VanishedReference,
)
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LeakCause, LeakState
from pulsar_sidecar.features.ledger_deletion.watch.tracked import FIRST_PAUSE_MS, TrackedLedger
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration, WatchPorts
from pulsar_sidecar.features.ledger_deletion.workflow.copy_search import (
    CopyPresence,
    CopySearch,
    NoResponse,
    NotSearched,
    SearchResult,
    topic_at,
)
from pulsar_sidecar.features.ledger_deletion.workflow.leak_tracking import LONGEST_LOOK_MS, LeakTracker
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import CompactedClaim
from pulsar_sidecar.ownership.protections import UnreadableNode

T = TypeVar("T")

log = structlog.get_logger("ledger-deletion")

_LONGEST_UPLOAD_MS = 3_600_000
"""Time for which a broker that lost the topic may still be uploading a copy that no list names now."""
_TAKE_OVER_MS = 10_000
_JUDGED_AT_ONCE = 200
_MOST_UNLINKED = 10_000
_SEND_AGAIN_MS = 10_000


class LeakHandling:
    """Handler of one watch's leaks, for its loop."""

    def __init__(
        self,
        configuration: WatchConfiguration,
        ports: WatchPorts,
        counts: ReferenceCounts,
        tracker: LeakTracker,
        steps: Steps,
        lock: threading.Lock,
    ) -> None:
        self._configuration, self._ports, self._counts = configuration, ports, counts
        self._tracker, self._steps, self._lock = tracker, steps, lock
        self._search = CopySearch(ports.offloaded_exists, ports.clock)
        self._taken_over_ms = 0
        self._unsent: SidecarError | None = None
        self._send_again_ms = 0

    def take_over(self) -> None:
        """Initialise after election."""
        self._tracker.refresh_control()
        self._tracker.restore()

    def upkeep(self, now_ms: int) -> None:
        """Run the periodic maintenance, once a second.

        Raises:
            SidecarError: the store, a broker or a bookie did not respond; the next call does the rest.
        """
        tracker = self._tracker
        tracker.refresh_control()
        if now_ms - self._taken_over_ms >= _TAKE_OVER_MS:
            tracker.restore()
            self._taken_over_ms = now_ms
        self._remove_resolved(now_ms)
        self._take_up_unlinked(now_ms)
        self._look_for_copies(now_ms)
        self._prove(now_ms)
        tracker.brake_if_needed(now_ms)
        self._judge(now_ms)

    def _remove_resolved(self, now_ms: int) -> None:
        tracker = self._tracker
        ledgers = [each for each in tracker.tracked.values() if each.context is None]
        for tracked in [each for each in ledgers if not self._counts.is_unreferenced(each.ledger_id)]:
            exists = self._counts.exists(tracked.ledger_id)
            tracker.end(tracked, LeakState.LINKED if exists else LeakState.DELETED, now_ms)

    def _take_up_unlinked(self, now_ms: int) -> None:
        """Track ledgers that were never seen referenced for as long as an audit would wait, a limited number at a time.

        Those that an old cluster has accumulated are for an audit, which also limits their number.
        """
        tracker = self._tracker
        waited_ms = now_ms - self._configuration.unlinked_window_ms
        never_linked = [each for each in tracker.tracked.values() if each.vanished is None and each.evidence is None]
        kept = [each for each in never_linked if each.leak.state is LeakState.KEPT]
        most = tracker.most_tracked // 2
        room = min(
            min(_MOST_UNLINKED, most) - len(never_linked) + len(kept), tracker.most_tracked - len(tracker.tracked)
        )
        # They are in order of time.
        oldest = islice(tracker.unlinked.items(), max(0, room))
        due = [ledger_id for ledger_id, since_ms in oldest if since_ms <= waited_ms]
        too_many = max(0, len(never_linked) + len(due) - most)
        # Each gets a turn, and the ones kept for longest wait for their next turn.
        for tracked in kept[:too_many]:
            tracker.treat_as_unlinked(tracked, now_ms)
        with self._lock:
            for ledger_id in due:
                since_ms = tracker.unlinked.pop(ledger_id)
                leak = Leak(ledger_id, None, LeakState.SETTLING, LeakCause.NEVER_LINKED, since_ms, "not judged yet")
                tracked = TrackedLedger(leak, now_ms)
                tracker.tracked[tracked.key] = tracked

    # --- copies in tiered storage ----------------------------------------------------------------------------------

    def _look_for_copies(self, now_ms: int) -> None:
        """Search for due copies: existing ones leaked, and missing ones have ended."""
        copies = [each for each in self._tracker.tracked.values() if each.context is not None]
        due = [each for each in copies if each.look_ms <= now_ms and not each.is_found]
        recorded = self._ports.recorded_topics()
        left: list[TrackedLedger] = []
        for tracked, result in self._search.search(due):
            if tracked.record is not None:
                self._handle_result(tracked, result, now_ms)
            elif isinstance(result, NotSearched):
                if result.kind != result.reason or not self._tracker.unsought[result.kind]:
                    event = "skipping a copy in tiered storage"
                    log.warning(event, ledger_id=tracked.ledger_id, reason=result.reason, **_attempt_of(tracked))
                self._tracker.abandon_search(tracked, result.kind)
            elif _is_recorded(tracked, recorded) or (result is CopyPresence.GONE and not tracked.is_unfinished):
                self._tracker.end(tracked, LeakState.DELETED, now_ms)
            else:
                left.append(tracked)
                if result is CopyPresence.THERE:
                    self._tracker.note_vanished(tracked, tracked.leak.since_ms)
        # Before the evidence: if this sidecar dies in between, its successor appends copies with evidence.
        self._tracker.brake_if_needed(now_ms)
        for tracked in left:
            self._prove_copy(tracked)

    def _prove_copy(self, tracked: TrackedLedger) -> None:
        topic, vanished = topic_at(tracked.leak.path), tracked.vanished
        if topic is None or not isinstance(vanished, VanishedCopy):
            return
        evidence = self._ports.assessor.evidence_of_copy(vanished, topic, tracked.leak.since_ms)
        self._ports.assessor.leaks.keep(evidence)
        with self._lock:
            tracked.enter(evidence.record, evidence)
            tracked.look_ms = evidence.dereferenced_ms + self._configuration.settle_ms

    def _handle_result(self, tracked: TrackedLedger, result: SearchResult, now_ms: int) -> None:
        state = tracked.leak.state
        may_come = tracked.is_unfinished and tracked.is_open and now_ms - tracked.leak.since_ms < _LONGEST_UPLOAD_MS
        match result:
            case CopyPresence.GONE if may_come:
                self._tracker.wait(tracked, state, "none of it is stored yet; its upload may still be running", now_ms)
            case CopyPresence.GONE:
                self._tracker.end(tracked, LeakState.DELETED, now_ms)
            case CopyPresence.THERE if state is LeakState.APPENDED:
                self._tracker.wait(tracked, state, tracked.leak.detail, now_ms)
            case CopyPresence.THERE:
                tracked.is_found = True
            case NoResponse(reason) | NotSearched(_, reason):
                is_appended = state is LeakState.APPENDED
                self._tracker.wait(tracked, state if is_appended else LeakState.KEPT, reason, now_ms)
            case never:
                assert_never(never)

    # --- BookKeeper's ledgers --------------------------------------------------------------------------------------

    def _prove(self, now_ms: int) -> None:
        """Read the ledgers that still exist after the brokers had time, and store the evidence."""
        ledgers = [each for each in self._tracker.tracked.values() if each.context is None]
        due = [each for each in ledgers if each.record is None and each.look_ms <= now_ms]
        for some in chunks(due, _JUDGED_AT_ONCE):
            since = [(each.ledger_id, each.leak.since_ms if each.vanished else None) for each in some]
            recorded = self._ports.recorded_topics()
            candidates: list[tuple[TrackedLedger, Candidate]] = []
            for tracked, found in zip(some, self._ports.assessor.candidates(since), strict=True):
                if isinstance(found, NotDeletable):
                    self._tracker.wait(tracked, LeakState.KEPT, found.reason, now_ms, LONGEST_LOOK_MS)
                elif found is not None:
                    if tracked.vanished is not None and found.record.topic.base in recorded:
                        # The topic's own deletion has a record of the ledger.
                        self._tracker.treat_as_unlinked(tracked, now_ms)
                        continue
                    candidates.append((tracked, found))
                    if tracked.vanished is not None and not isinstance(found.claim, CompactedClaim):
                        self._tracker.note_vanished(tracked, tracked.leak.since_ms)
            # Before the evidence, as for copies.
            self._tracker.brake_if_needed(now_ms)
            for tracked, found in candidates:
                self._prove_one(tracked, found, now_ms)

    def _unreadable(self) -> list[UnreadableNode]:
        return list(self._counts.unreadable.values())

    def _prove_one(self, tracked: TrackedLedger, candidate: Candidate, now_ms: int) -> None:
        record, evidence = candidate.record, None
        look_ms = candidate.ledger.created_ms + self._configuration.unlinked_min_age_ms
        if isinstance(tracked.vanished, VanishedReference):
            evidence = self._ports.assessor.evidence(candidate, tracked.vanished)
            if evidence is None:
                self._tracker.treat_as_unlinked(tracked, now_ms)
                return
            record = evidence.record
            if isinstance(candidate.claim, CompactedClaim):
                (verdict,) = self._ports.assessor.verdicts([record], self._unreadable())
                if not self._apply_verdict(tracked, verdict, now_ms):
                    return
                # Only now, since the cursor's own ledger names a loaded topic's compacted ledger.
                self._tracker.note_vanished(tracked, tracked.leak.since_ms)
                self._tracker.brake_if_needed(now_ms)
            self._ports.assessor.leaks.keep(evidence)
            look_ms = evidence.dereferenced_ms + self._configuration.settle_ms
        with self._lock:
            tracked.enter(record, evidence)
            tracked.look_ms = look_ms

    # --- evaluation ------------------------------------------------------------------------------------------------

    def _judge(self, now_ms: int) -> None:
        if self._unsent is not None and now_ms < self._send_again_ms:
            # While nothing can be sent, the sidecar does not evaluate all of them each second.
            raise self._unsent
        self._unsent = None
        leaked: list[TrackedLedger] = []
        for some in chunks(self._due(now_ms), _JUDGED_AT_ONCE):
            records = [each.record for each in some if each.record is not None]
            verdicts = self._ports.assessor.verdicts(records, self._unreadable())
            leaked += [
                each for each, verdict in zip(some, verdicts, strict=True) if self._apply_verdict(each, verdict, now_ms)
            ]
        for tracked in leaked:
            self._count(tracked)
            # Ledgers with evidence were counted with it. Of never-referenced ledgers the brake counts only those that
            # would be appended: old ledgers would engage it again and again.
            if self._tracker.withheld(tracked) is None:
                self._tracker.note_vanished(tracked, now_ms)
        # Before the first is appended: after a `deleteall` that no sidecar saw, no ledger was ever seen referenced.
        self._tracker.brake_if_needed(now_ms)
        try:
            for some in chunks(leaked, _JUDGED_AT_ONCE):
                # The evaluation takes time, and an operator may have added a hold or engaged the brake meanwhile.
                self._tracker.refresh_control()
                self._append(some, now_ms)
        except SidecarError as error:
            self._unsent, self._send_again_ms = error, now_ms + _SEND_AGAIN_MS
            raise

    def _due(self, now_ms: int) -> list[TrackedLedger]:
        due: list[TrackedLedger] = []
        for tracked in list(self._tracker.tracked.values()):
            context = tracked.context
            if tracked.record is None or not tracked.is_open or tracked.look_ms > now_ms:
                continue
            if context is None or (tracked.is_found and not self._is_named(tracked, context, now_ms)):
                due.append(tracked)
        return due

    def _is_named(self, tracked: TrackedLedger, context: OffloadContext, now_ms: int) -> bool:
        """Return True if a list names the offload attempt; if its own list names it again, it did not leak."""
        named_by = self._counts.copy_named_by(tracked.ledger_id, context)
        if tracked.leak.path in named_by:
            self._tracker.end(tracked, LeakState.LINKED, now_ms)
        elif named_by:
            detail = f"{named_by[0]} still names it, as a shadow topic's list does"
            self._tracker.wait(tracked, LeakState.KEPT, detail, now_ms)
        return bool(named_by)

    def _apply_verdict(self, tracked: TrackedLedger, verdict: Verdict, now_ms: int) -> bool:
        """Return True if the ledger leaked; otherwise schedule another check."""
        match verdict:
            case Delete() | DeleteOffloaded():
                if isinstance(verdict, DeleteOffloaded) is not (tracked.context is not None):
                    raise TemporaryError(f"{tracked} was judged as another copy; the watch judges it again")
                return True
            case RetryLater(_, detail, delay_ms):
                self._tracker.wait(tracked, LeakState.KEPT, detail, now_ms, delay_ms)
            case Postpone(_, detail) | SendToDeadLetters(_, detail) | Keep(_, detail):
                self._tracker.wait(tracked, LeakState.KEPT, detail, now_ms)
            case never:
                assert_never(never)
        return False

    def _count(self, tracked: TrackedLedger) -> None:
        """Log the leak once, however often the ledger is kept and found leaked again."""
        with self._lock:
            tracked.leak = replace(tracked.leak, state=LeakState.LEAKED, detail="it is to be appended")
        if tracked.is_counted:
            return
        cause = LeakCause.NEVER_LINKED
        if tracked.evidence is not None:
            tracked.evidence = self._ports.assessor.with_cause(tracked.evidence)
            cause = tracked.evidence.cause
        with self._lock:
            tracked.is_counted = True
            tracked.leak = replace(tracked.leak, cause=cause)
            self._tracker.leaked[cause] += 1
        log.warning("a ledger leaked", ledger_id=tracked.ledger_id, cause=cause.value, **_attempt_of(tracked))

    # --- appending -------------------------------------------------------------------------------------------------

    def _append(self, leaked: Sequence[TrackedLedger], now_ms: int) -> None:
        appendable: list[TrackedLedger] = []
        for tracked in leaked:
            why = self._withholding_reason(tracked)
            if why is None:
                appendable.append(tracked)
            else:
                self._tracker.wait(tracked, LeakState.LEAKED, why, now_ms)
        if not appendable:
            return
        records = [each.record for each in appendable if each.record is not None]
        with self._steps.taking(Step.LEAKS_APPENDED):
            sent = send(self._ports.publisher(), records, None)
        for tracked, answer in zip(appendable, sent, strict=True):
            if answer.sent:
                self._mark_appended(tracked, now_ms)
            else:
                self._tracker.wait(tracked, LeakState.LEAKED, answer.reason or "it was not sent", now_ms)
        # Update memory before the store: a store that accepts no writes must not cause records to be sent each second.
        for tracked in appendable:
            if tracked.evidence is not None and tracked.evidence.appended_ms is not None:
                self._ports.assessor.leaks.keep(tracked.evidence)

    def _withholding_reason(self, tracked: TrackedLedger) -> str | None:
        control = self._tracker.control
        withheld = self._tracker.withheld(tracked)
        if withheld is not None:
            return withheld
        if control.braked is not None:
            return f"the brake is engaged: {control.braked}"
        return None if tracked.is_noted else "its hold was removed a moment ago, and the brake has not counted it yet"

    def _mark_appended(self, tracked: TrackedLedger, now_ms: int) -> None:
        if tracked.evidence is not None:
            tracked.evidence = replace(tracked.evidence, appended_ms=now_ms)
        with self._lock:
            detail = "its record is on __ledger_deletion"
            tracked.leak = replace(tracked.leak, state=LeakState.APPENDED, detail=detail, appended_ms=now_ms)
            tracked.is_found, tracked.pause_ms = False, FIRST_PAUSE_MS
            self._tracker.append_requests.resolve(tracked, tracked.leak)
            self._tracker.appended += 1
        log.info("a leaked ledger was appended", ledger_id=tracked.ledger_id, **_attempt_of(tracked))


def _is_recorded(tracked: TrackedLedger, recorded: frozenset[TopicName]) -> bool:
    """Return True if its topic's deletion has a record of it; a copy that another attempt replaced has none."""
    topic, vanished = topic_at(tracked.leak.path), tracked.vanished
    is_replaced = isinstance(vanished, VanishedCopy) and vanished.still_listed
    return topic is not None and topic.base in recorded and not is_replaced


def _attempt_of(tracked: TrackedLedger) -> dict[str, str]:
    return {} if tracked.context is None else {"offload_attempt": str(tracked.context.attempt)}


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))
