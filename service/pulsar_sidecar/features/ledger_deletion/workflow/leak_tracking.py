"""Leaks of one watch: unreferenced ledgers and copies, and the times since when.

`leak_handling` handles each of them.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from operator import itemgetter
from uuid import UUID

import structlog

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, copy_key
from pulsar_sidecar.features.ledger_deletion.send import is_own_topic
from pulsar_sidecar.features.ledger_deletion.watch.brake import Brake
from pulsar_sidecar.features.ledger_deletion.watch.control import WatchControl, WatchControlNode
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LeakStore
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import ReferenceCounts, Vanished
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LeakCause, LeakState, WatchMode
from pulsar_sidecar.features.ledger_deletion.watch.tracked import TrackedLedger, context_of, restored, tracked_since
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId

log = structlog.get_logger("ledger-deletion")

LONGEST_LOOK_MS = 3_600_000
_MOST_TRACKED = 100_000
"""Limit for memory, at a kilobyte each; see `LeakTracker`."""
_ENDED = 10_000


class AppendRequests:
    """Operators' pending requests to append one leak, kept only in memory.

    Each gets one result: the leak once appended, or the reason why it was not.
    """

    def __init__(self) -> None:
        self._requests: dict[str, tuple[TrackedLedger, Future[Leak]]] = {}

    def add(self, tracked: TrackedLedger) -> Future[Leak]:
        """Return the future result; that of the earlier request if there is one."""
        if not self.has(tracked):
            self._requests[tracked.key] = (tracked, Future())
        return self._requests[tracked.key][1]

    def has(self, tracked: TrackedLedger) -> bool:
        """Return True if a caller waits for it to be appended."""
        pending = self._requests.get(tracked.key)
        return pending is not None and not pending[1].cancelled()

    def resolve(self, tracked: TrackedLedger, outcome: Leak | SidecarError) -> None:
        """Resolve the request for this leak, if there is one."""
        _, pending = self._requests.pop(tracked.key, (None, None))
        if pending is None or not pending.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Leak):
            pending.set_result(outcome)
        else:
            pending.set_exception(outcome)

    def give_up(self) -> None:
        """Fail all pending requests, since this sidecar no longer watches."""
        for tracked, _ in list(self._requests.values()):
            ended = f"{tracked} was not appended before this sidecar stopped watching; retry the request"
            self.resolve(tracked, TemporaryError(ended))


class LeakTracker:
    """Tracker of unreferenced ledgers and copies; the watch's loop calls it, and readers hold its lock.

    It tracks 100,000 at a time, or ten times as many as the brake lets vanish: a ``deleteall`` must not fill the
    memory. Ledgers that vanish beyond that wait as if they had never been referenced; copies in tiered storage are then
    only counted. Ledgers that were never referenced take at most half of that space, so that old ones never hide new
    leaks.

    Attributes:
        tracked: BookKeeper's ledgers and copies in tiered storage, by `TrackedLedger.key`.
        unlinked: ledgers that were never seen referenced, with the times since when, in order of time.
        unsought: numbers of copies that the sidecar does not search for, by reason.
    """

    def __init__(
        self,
        configuration: WatchConfiguration,
        control_node: WatchControlNode,
        leaks: LeakStore,
        counts: ReferenceCounts,
        lock: threading.Lock,
    ) -> None:
        self._configuration, self._leaks, self._counts, self._lock = configuration, leaks, counts, lock
        self.most_tracked = max(_MOST_TRACKED, 10 * configuration.brake_references)
        self._control_node = control_node
        self.control = WatchControl()
        self.brake = Brake(configuration.brake_references)
        self.tracked: dict[str, TrackedLedger] = {}
        self.unlinked: dict[LedgerId, int] = {}
        self.ended: deque[Leak] = deque(maxlen=_ENDED)
        self.leaked: Counter[LeakCause] = Counter()
        self.unsought: Counter[str] = Counter()
        self.appended = 0
        self.append_requests = AppendRequests()
        self._strange: set[str] = set()

    # --- observations ----------------------------------------------------------------------------------------------

    def walked(self, vanished: Iterable[Vanished], now_ms: int) -> int:
        """Apply the results of a walk; return the number of unreferenced ledgers."""
        self._note(vanished, now_ms)
        unreferenced = {LedgerId(each) for each in self._counts.unreferenced().tolist()}
        tracked = {each.ledger_id for each in self.tracked.values() if each.context is None}
        since = {each: self.unlinked.get(each, now_ms) for each in unreferenced - tracked}
        self.unlinked = dict(sorted(since.items(), key=itemgetter(1)))
        return len(unreferenced)

    def update_existing(self, ledgers: Mapping[LedgerId, bool], now_ms: int) -> None:
        """Apply the creation or removal of ledgers."""
        for ledger_id, exists in ledgers.items():
            self._counts.note_existence(ledger_id, exists=exists)
            if not exists:
                self.unlinked.pop(ledger_id, None)
            elif self._counts.is_unreferenced(ledger_id) and copy_key(ledger_id, None) not in self.tracked:
                self.unlinked.setdefault(ledger_id, now_ms)

    def read(self, path: str, data: bytes | None, now_ms: int) -> None:
        """Apply a node's current data, None if it is gone."""
        self._note(self._counts.read(path, data), now_ms)
        for ledger_id in self._counts.take_linked():
            self.unlinked.pop(ledger_id, None)

    def _note(self, vanished_references: Iterable[Vanished], now_ms: int) -> None:
        for vanished in vanished_references:
            context = context_of(vanished)
            if context is None and not self._counts.is_unreferenced(vanished.ledger_id):
                continue
            before = self.tracked.get(copy_key(vanished.ledger_id, context))
            if before is None and len(self.tracked) >= self.most_tracked:
                if context is None:
                    self.unlinked[vanished.ledger_id] = now_ms
                else:
                    self.unsought["more vanished than the watch follows at a time"] += 1
                continue
            tracked = tracked_since(vanished, now_ms, None if before is None else before.evidence)
            self.tracked[tracked.key] = tracked

    def restore(self) -> None:
        """Restore other sidecars' evidence; a frozen one may still store some after another has been elected."""
        own = {each.key for each in self.tracked.values() if each.evidence or each.vanished}
        kept, unknown = self._leaks.all(own)
        for path in set(unknown) - self._strange:
            log.warning("ignoring evidence node without a valid signature", path=path)
        self._strange = set(unknown)
        with self._lock:
            for evidence in sorted(kept, key=lambda each: each.dereferenced_ms):
                # References that another sidecar saw vanish count as well.
                self.brake.note(evidence.dereferenced_ms)
                tracked = restored(evidence, self._configuration.settle_ms)
                if tracked.context is None:
                    self.unlinked.pop(tracked.ledger_id, None)
                self.tracked[tracked.key] = tracked

    # --- queries ---------------------------------------------------------------------------------------------------

    def leaks(self, *, ended: bool) -> list[Leak]:
        """Return the current leaks, the oldest first, and ended ones if wanted."""
        found = [each.leak for each in self.tracked.values()] + (list(self.ended) if ended else [])
        return sorted(found, key=lambda leak: (leak.since_ms, leak.ledger_id, str(leak.offload_attempt or "")))

    def find(self, ledger_id: LedgerId) -> tuple[Leak | None, PendingDeleteLedgerInfo | None]:
        """Return the leak of BookKeeper's copy, current or ended, and its record once it has one."""
        tracked = self.tracked.get(copy_key(ledger_id, None))
        if tracked is not None:
            return tracked.leak, tracked.record
        ended = (leak for leak in reversed(self.ended) if leak.ledger_id == ledger_id and not leak.offload_attempt)
        return next(ended, None), None

    def copies(self, ledger_id: LedgerId) -> tuple[Leak, ...]:
        """Return the ledger's leaks in tiered storage, current and ended."""
        found = self.leaks(ended=True)
        return tuple(leak for leak in found if leak.ledger_id == ledger_id and leak.offload_attempt)

    def request_append(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> Future[Leak]:
        """Request the append of a leaked ledger, even from a watch that only reports, if an evaluation permits it now.

        The future has the appended leak, or the reason why it was not appended; the request exists only in memory.
        Without an offload attempt it concerns BookKeeper's copy, or the only one.

        Raises:
            NotFoundError: the ledger is not among the unreferenced ones.
            ConflictError: the ledger may not be appended now.
        """
        tracked = self._requested(ledger_id, offload_attempt)
        if tracked.leak.state is not LeakState.LEAKED:
            raise ConflictError(f"{tracked} is {tracked.leak.state.value}, not leaked: {tracked.leak.detail}")
        withheld = self.withheld(tracked, is_requested=True) or self.control.braked
        if withheld is not None:
            raise ConflictError(f"{tracked} is not appended: {withheld}")
        tracked.look_ms = 0
        tracked.leak = replace(tracked.leak, detail="it is evaluated again, then appended")
        return self.append_requests.add(tracked)

    def _requested(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> TrackedLedger:
        found = {each.leak.offload_attempt: each for each in self.tracked.values() if each.ledger_id == ledger_id}
        if offload_attempt in found:
            return found[offload_attempt]
        if offload_attempt is None and len(found) == 1:
            return next(iter(found.values()))
        if offload_attempt is None and found:
            attempts = ", ".join(sorted(map(str, found)))
            raise ConflictError(f"ledger {ledger_id} left several copies: add the offload attempt, one of {attempts}")
        attempt = "" if offload_attempt is None else f" of offload attempt {offload_attempt}"
        raise NotFoundError(f"ledger {ledger_id}{attempt} is not among the ledgers that nothing references")

    def withheld(self, tracked: TrackedLedger, *, is_requested: bool = False) -> str | None:
        """Return why a leak is not appended, regardless of the brake."""
        record = tracked.record
        if record is None or is_own_topic(record.topic):
            return "its topic belongs to the deletion service itself"
        is_wanted = is_requested or self.append_requests.has(tracked)
        if self._configuration.mode is not WatchMode.APPEND and not is_wanted:
            return "ledgerDeletionWatch=report appends nothing; set it to append"
        hold = self.control.holds_ledger(tracked.ledger_id, record.topic)
        return None if hold is None else f"{hold} is on the hold list"

    # --- control and the brake -------------------------------------------------------------------------------------

    def refresh_control(self) -> None:
        """Read the brake and the holds; on a change, schedule leaked ledgers for evaluation at once."""
        before, self.control = self.control, self._control_node.follow(self.control)
        if before != self.control:
            with self._lock:
                if self.control.resumed_ms > before.resumed_ms:
                    self.brake.release(self.control.resumed_ms)
                for tracked in self.tracked.values():
                    if tracked.leak.state is LeakState.LEAKED:
                        tracked.look_ms = 0

    def note_vanished(self, tracked: TrackedLedger, at_ms: int) -> None:
        """Count a leak in the brake, once."""
        if not tracked.is_noted:
            with self._lock:
                tracked.is_noted = True
                self.brake.note(at_ms)

    def brake_if_needed(self, now_ms: int) -> None:
        with self._lock:
            reason = self.brake.reason(now_ms, self._counts.references)
        if reason is not None and self.control.braked is None:
            log.error("the watch engaged its brake", reason=reason)
            self.control = self._control_node.brake(reason)
        with self._lock:
            self.brake.accept()

    # --- ends of leaks ---------------------------------------------------------------------------------------------

    def wait(
        self, tracked: TrackedLedger, state: LeakState, detail: str, now_ms: int, delay_ms: int | None = None
    ) -> None:
        """Schedule another check, with exponential backoff."""
        is_unlinked = tracked.evidence is None and tracked.context is None
        longest_ms = self._configuration.unlinked_window_ms if is_unlinked else LONGEST_LOOK_MS
        with self._lock:
            tracked.leak = replace(tracked.leak, state=state, detail=detail)
            self.append_requests.resolve(tracked, ConflictError(f"{tracked} is not appended: {detail}"))
            tracked.is_found = False
            tracked.look_ms = now_ms + min(tracked.pause_ms if delay_ms is None else delay_ms, longest_ms)
            if delay_ms is None:
                tracked.pause_ms = min(2 * tracked.pause_ms, longest_ms)

    def end(self, tracked: TrackedLedger, state: LeakState, now_ms: int) -> None:
        """End a leak that is gone or referenced again; one without record or evidence leaves no trace."""
        if tracked.evidence is not None:
            self._leaks.forget(tracked.key)
        with self._lock:
            del self.tracked[tracked.key]
            self.append_requests.resolve(tracked, ConflictError(f"{tracked} is {state.value}, not leaked"))
            if tracked.evidence is not None or tracked.record is not None:
                self.ended.append(replace(tracked.leak, state=state, ended_ms=now_ms))

    def abandon_search(self, tracked: TrackedLedger, kind: str) -> None:
        """Count a copy that the sidecar may not or cannot search for, and stop tracking it."""
        with self._lock:
            del self.tracked[tracked.key]
            self.unsought[kind] += 1

    def treat_as_unlinked(self, tracked: TrackedLedger, now_ms: int) -> None:
        """Treat a leak as a ledger that was never seen referenced."""
        if tracked.evidence is not None:
            self._leaks.forget(tracked.key)
        with self._lock:
            del self.tracked[tracked.key]
            self.unlinked[tracked.ledger_id] = now_ms
