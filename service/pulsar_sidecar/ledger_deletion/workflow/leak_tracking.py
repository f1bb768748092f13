"""The leaks of one watch: which ledgers, and which of their copies, nothing references, and since when.

`leak_handling` takes each of them on from there.
"""

import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from operator import itemgetter
from uuid import UUID

import structlog

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, copy_key
from pulsar_sidecar.ledger_deletion.send import is_own_topic
from pulsar_sidecar.ledger_deletion.watch.brake import Brake
from pulsar_sidecar.ledger_deletion.watch.control import WatchControl, WatchControlNode
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.leaks import LeakStore
from pulsar_sidecar.ledger_deletion.watch.reference_counts import ReferenceCounts, Vanished
from pulsar_sidecar.ledger_deletion.watch.service import Leak, LeakState, WatchMode
from pulsar_sidecar.ledger_deletion.watch.tracked import TrackedLedger, context_of, restored, tracked_since
from pulsar_sidecar.ledger_deletion.workflow.leak_orders import LeakOrders
from pulsar_sidecar.ledger_deletion.workflow.watch_configuration import WatchConfiguration
from pulsar_sidecar.model.errors import ConflictError, NotFoundError
from pulsar_sidecar.model.ids import LedgerId

log = structlog.get_logger("ledger-deletion")

GRACE_MS = 5_000
"""A broker deletes a ledger within 50 ms of its last reference; what is there after this time is written down."""
LONGEST_LOOK_MS = 3_600_000
_MOST_TRACKED = 100_000
"""Each takes a kilobyte; see `LeakTracker`."""
_ENDED = 10_000


class LeakTracker:
    """What nothing references; the loop of the watch calls it, and readers hold its lock.

    It tracks 100,000 at a time, or ten times as many as the brake lets vanish: a ``deleteall`` must not fill the
    memory. Whatever vanishes beyond that waits as if it had never been referenced; of copies in tiered storage only
    the number is kept then. Ledgers that never were referenced take at most half of that room, so that old ones never
    hide what vanishes now.

    Attributes:
        tracked: BookKeeper's ledgers and copies in tiered storage, by `TrackedLedger.key`.
        unlinked: ledgers that were never seen referenced, and since when, in the order of these times.
        unsought: copies that were not looked for, by reason.
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
        self.orders = LeakOrders()
        self._strange: set[str] = set()

    # --- what the watch saw ----------------------------------------------------------------------------------------

    def walked(self, vanished: Iterable[Vanished], now_ms: int) -> int:
        """Take over what a walk found; how many ledgers nothing references."""
        self._note(vanished, now_ms)
        unreferenced = {LedgerId(each) for each in self._counts.unreferenced().tolist()}
        tracked = {each.ledger_id for each in self.tracked.values() if each.context is None}
        since = {each: self.unlinked.get(each, now_ms) for each in unreferenced - tracked}
        self.unlinked = dict(sorted(since.items(), key=itemgetter(1)))
        return len(unreferenced)

    def heard(self, ledgers: Mapping[LedgerId, bool], now_ms: int) -> None:
        """Ledgers that were made, or removed."""
        for ledger_id, exists in ledgers.items():
            self._counts.hear(ledger_id, exists=exists)
            if not exists:
                self.unlinked.pop(ledger_id, None)
            elif self._counts.is_unreferenced(ledger_id) and copy_key(ledger_id, None) not in self.tracked:
                self.unlinked.setdefault(ledger_id, now_ms)

    def read(self, path: str, data: bytes | None, now_ms: int) -> None:
        """A node as it is now, None if it is gone."""
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
            tracked = tracked_since(vanished, now_ms, GRACE_MS, None if before is None else before.evidence)
            self.tracked[tracked.key] = tracked

    def restore(self) -> None:
        """Take over what others have seen; one that was frozen writes it down after another has begun to lead."""
        own = {each.key for each in self.tracked.values() if each.evidence or each.vanished}
        kept, unknown = self._leaks.all(own)
        for path in set(unknown) - self._strange:
            log.warning("a node holds no evidence under this cluster's key; it counts for nothing", path=path)
        self._strange = set(unknown)
        with self._lock:
            for evidence in sorted(kept, key=lambda each: each.dereferenced_ms):
                # What vanished before another sidecar's eyes vanished all the same.
                self.brake.note(evidence.dereferenced_ms)
                tracked = restored(evidence, self._configuration.settle_ms)
                if tracked.context is None:
                    self.unlinked.pop(tracked.ledger_id, None)
                self.tracked[tracked.key] = tracked

    # --- what calls ask --------------------------------------------------------------------------------------------

    def leaks(self, *, ended: bool) -> list[Leak]:
        """What is unreferenced now, the oldest first; with what came to an end, if wanted."""
        found = [each.leak for each in self.tracked.values()] + (list(self.ended) if ended else [])
        return sorted(found, key=lambda leak: (leak.since_ms, leak.ledger_id, str(leak.offload_attempt or "")))

    def find(self, ledger_id: LedgerId) -> tuple[Leak | None, PendingDeleteLedgerInfo | None]:
        """A ledger of BookKeeper that is unreferenced now, or was, with its record once it has one."""
        tracked = self.tracked.get(copy_key(ledger_id, None))
        if tracked is not None:
            return tracked.leak, tracked.record
        ended = (leak for leak in reversed(self.ended) if leak.ledger_id == ledger_id and not leak.offload_attempt)
        return next(ended, None), None

    def copies(self, ledger_id: LedgerId) -> tuple[Leak, ...]:
        """The ledger's copies in tiered storage that no list names any more, and those that came to an end."""
        found = self.leaks(ended=True)
        return tuple(leak for leak in found if leak.ledger_id == ledger_id and leak.offload_attempt)

    def order(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> Future[Leak]:
        """Append a leaked ledger although the watch only reports, if its next judgement, at once, finds it deletable.

        The answer comes once it is appended, or is why it was not: nothing else remembers the order. Without an offload
        attempt it is BookKeeper's copy, or the only one.

        Raises:
            NotFoundError: it is not among the ledgers that nothing references.
            ConflictError: it may not be appended now.
        """
        tracked = self._ordered(ledger_id, offload_attempt)
        if tracked.leak.state is not LeakState.LEAKED:
            raise ConflictError(f"{tracked} is {tracked.leak.state.value}, not leaked: {tracked.leak.detail}")
        withheld = self.withheld(tracked, is_ordered=True) or self.control.braked
        if withheld is not None:
            raise ConflictError(f"{tracked} is not appended: {withheld}")
        tracked.look_ms = 0
        tracked.leak = replace(tracked.leak, detail="it is judged again, and appended")
        return self.orders.give(tracked)

    def _ordered(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> TrackedLedger:
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

    def withheld(self, tracked: TrackedLedger, *, is_ordered: bool = False) -> str | None:
        """Why it is not appended, whether the brake holds or not."""
        record = tracked.record
        if record is None or is_own_topic(record.topic):
            return "its topic belongs to the deletion service itself"
        is_wanted = is_ordered or self.orders.has(tracked)
        if self._configuration.mode is not WatchMode.APPEND and not is_wanted:
            return "ledgerDeletionWatch=report appends nothing; set it to append"
        hold = self.control.holds_ledger(tracked.ledger_id, record.topic)
        return None if hold is None else f"{hold} is on the hold list"

    # --- orders and the brake --------------------------------------------------------------------------------------

    def take_orders(self) -> None:
        """Read what operators order; judge again at once what earlier orders kept."""
        before, self.control = self.control, self._control_node.follow(self.control)
        if before != self.control:
            with self._lock:
                if self.control.resumed_ms > before.resumed_ms:
                    self.brake.release(self.control.resumed_ms)
                for tracked in self.tracked.values():
                    if tracked.leak.state is LeakState.LEAKED:
                        tracked.look_ms = 0

    def note_vanished(self, tracked: TrackedLedger, at_ms: int) -> None:
        """Have the brake count it, once."""
        if not tracked.is_noted:
            with self._lock:
                tracked.is_noted = True
                self.brake.note(at_ms)

    def brake_if_needed(self, now_ms: int) -> None:
        with self._lock:
            reason = self.brake.reason(now_ms, self._counts.references)
        if reason is not None and self.control.braked is None:
            log.error("the watch brakes", reason=reason)
            self.control = self._control_node.brake(reason)
        with self._lock:
            self.brake.accept()

    # --- what becomes of one ---------------------------------------------------------------------------------------

    def wait(
        self, tracked: TrackedLedger, state: LeakState, detail: str, now_ms: int, delay_ms: int | None = None
    ) -> None:
        """Look at it again later, each time after twice as long."""
        is_unlinked = tracked.evidence is None and tracked.context is None
        longest_ms = self._configuration.unlinked_window_ms if is_unlinked else LONGEST_LOOK_MS
        with self._lock:
            tracked.leak = replace(tracked.leak, state=state, detail=detail)
            self.orders.answer(tracked, ConflictError(f"{tracked} is not appended: {detail}"))
            tracked.is_found = False
            tracked.look_ms = now_ms + min(tracked.pause_ms if delay_ms is None else delay_ms, longest_ms)
            if delay_ms is None:
                tracked.pause_ms = min(2 * tracked.pause_ms, longest_ms)

    def end(self, tracked: TrackedLedger, state: LeakState, now_ms: int) -> None:
        """It is gone, or referenced again; one that came to nothing leaves no trace."""
        if tracked.evidence is not None:
            self._leaks.forget(tracked.key)
        with self._lock:
            del self.tracked[tracked.key]
            self.orders.answer(tracked, ConflictError(f"{tracked} is {state.value}, not leaked"))
            if tracked.evidence is not None or tracked.record is not None:
                self.ended.append(replace(tracked.leak, state=state, ended_ms=now_ms))

    def leave_unsought(self, tracked: TrackedLedger, kind: str) -> None:
        """Count a copy that the sidecar may not or cannot look for, and follow it no further."""
        with self._lock:
            del self.tracked[tracked.key]
            self.unsought[kind] += 1

    def treat_as_unlinked(self, tracked: TrackedLedger, now_ms: int) -> None:
        """Treat it as a ledger that no node was ever seen to name."""
        if tracked.evidence is not None:
            self._leaks.forget(tracked.key)
        with self._lock:
            del self.tracked[tracked.key]
            self.unlinked[tracked.ledger_id] = now_ms
