"""The leaks of one watch, each on its way from a vanished reference to a deleted ledger.

Invariant: nothing is appended that the evaluation of the second phase would not delete at that moment, nor before the
brake has seen everything that is to be appended.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from typing import TypeVar, assert_never

import structlog

from pulsar_sidecar.ledger_deletion.ports import Publisher
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Keep,
    Postpone,
    RetryLater,
    SendToDeadLetters,
    Verdict,
)
from pulsar_sidecar.ledger_deletion.send import is_own_topic, send
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.watch.assess import Assessor, Candidate, NotDeletable
from pulsar_sidecar.ledger_deletion.watch.brake import Brake
from pulsar_sidecar.ledger_deletion.watch.control import WatchControl, WatchControlNode
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.ports import StoreChanges, WholeStore
from pulsar_sidecar.ledger_deletion.watch.reference_counts import ReferenceCounts, VanishedReference
from pulsar_sidecar.ledger_deletion.watch.service import Leak, LeakState, WatchMode
from pulsar_sidecar.ledger_deletion.watch.tracked import TrackedLedger, restored
from pulsar_sidecar.ledger_ownership.claims import CompactedClaim
from pulsar_sidecar.ledger_ownership.protections import UnreadableNode
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

T = TypeVar("T")

log = structlog.get_logger("ledger-deletion")

GRACE_MS = 5_000
"""A broker deletes a ledger within 50 ms of its last reference; what is there after this time is written down."""
_LONGEST_LOOK_MS = 3_600_000
_TAKE_OVER_MS = 10_000
_JUDGED_AT_ONCE = 200
_MOST_UNLINKED = 10_000
_MOST_TRACKED = 100_000
"""Each takes a kilobyte; see `LeakTracker`."""
_ENDED = 10_000
_SEND_AGAIN_MS = 10_000


@dataclass(frozen=True, slots=True)
class WatchConfiguration:
    """The settings of the watch, in its own words; times on the store's clock.

    Attributes:
        settle_ms: how long a ledger must have been unreferenced; by then a broker has used up its own retries.
        brake_references: see `Brake`.
        walk_interval_ms: how often everything is read again, even if nothing was missed.
        unlinked_min_age_ms: how old a ledger must be that was never seen referenced, as for an audit.
        unlinked_window_ms: how long this watch must have seen that, in one reading after the other.
    """

    mode: WatchMode = WatchMode.REPORT
    settle_ms: int = 200_000
    brake_references: int = 1_000
    walk_interval_ms: int = 21_600_000
    nodes_per_second: float | None = 20_000.0
    unlinked_min_age_ms: int = 72 * 3_600_000
    unlinked_window_ms: int = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class WatchPorts:
    """What the watch works with.

    Attributes:
        publisher: this sidecar's producer on ``__ledger_deletion``; raises `TemporaryError` while the topics are not
            ready.
        recorded_topics: the topics that the sidecars are deleting, whose references vanish on purpose.
    """

    clock: Clock
    store: MetadataStore
    changes: StoreChanges
    whole: WholeStore
    assessor: Assessor
    publisher: Callable[[], Publisher]
    recorded_topics: Callable[[], frozenset[TopicName]]


class LeakTracker:
    """The ledgers that nothing references; the loop of the watch calls it, and readers hold its lock.

    It tracks 100,000 at a time, or ten times as many as the brake lets vanish: a ``deleteall`` must not fill the
    memory. Whatever vanishes beyond that waits as if it had never been referenced. Ledgers that never were referenced
    take at most half of that room, so that old ones never hide what vanishes now.

    Attributes:
        unlinked: ledgers that were never seen referenced, and since when, in the order of these times.
    """

    def __init__(
        self,
        configuration: WatchConfiguration,
        ports: WatchPorts,
        counts: ReferenceCounts,
        steps: Steps,
        lock: threading.Lock,
    ) -> None:
        self._configuration, self._ports, self._counts, self._steps = configuration, ports, counts, steps
        self._lock = lock
        self._most_tracked = max(_MOST_TRACKED, 10 * configuration.brake_references)
        self._control_node = WatchControlNode(ports.store)
        self.control = WatchControl()
        self.brake = Brake(configuration.brake_references)
        self.tracked: dict[LedgerId, TrackedLedger] = {}
        self.unlinked: dict[LedgerId, int] = {}
        self.ended: deque[Leak] = deque(maxlen=_ENDED)
        self.leaked: Counter[LeakCause] = Counter()
        self.appended = 0
        self._orders: dict[LedgerId, Future[Leak]] = {}
        self._taken_over_ms = 0
        self._unsent: SidecarError | None = None
        self._send_again_ms = 0
        self._strange: set[str] = set()

    def walked(self, vanished_references: Iterable[VanishedReference], now_ms: int) -> int:
        """Take over what a walk found; how many ledgers nothing references."""
        self._note(vanished_references, now_ms)
        unreferenced = {LedgerId(each) for each in self._counts.unreferenced().tolist()}
        since = {each: self.unlinked.get(each, now_ms) for each in unreferenced - self.tracked.keys()}
        self.unlinked = dict(sorted(since.items(), key=itemgetter(1)))
        return len(unreferenced)

    def heard(self, ledgers: Mapping[LedgerId, bool], now_ms: int) -> None:
        """Ledgers that were made, or removed."""
        for ledger_id, exists in ledgers.items():
            self._counts.hear(ledger_id, exists=exists)
            if not exists:
                self.unlinked.pop(ledger_id, None)
            elif self._counts.is_unreferenced(ledger_id) and ledger_id not in self.tracked:
                self.unlinked.setdefault(ledger_id, now_ms)

    def read(self, path: str, data: bytes | None, now_ms: int) -> None:
        """A node as it is now, None if it is gone."""
        self._note(self._counts.read(path, data), now_ms)
        for ledger_id in self._counts.take_linked():
            self.unlinked.pop(ledger_id, None)

    def leaks(self, *, ended: bool) -> list[Leak]:
        """The ledgers that are unreferenced now, the oldest first; with those that came to an end, if wanted."""
        found = [each.leak for each in self.tracked.values()] + (list(self.ended) if ended else [])
        return sorted(found, key=lambda leak: (leak.since_ms, leak.ledger_id))

    def find(self, ledger_id: LedgerId) -> tuple[Leak | None, PendingDeleteLedgerInfo | None]:
        """A ledger that is unreferenced now, or was, with its record once it has one."""
        tracked = self.tracked.get(ledger_id)
        if tracked is not None:
            return tracked.leak, tracked.record
        return next((leak for leak in reversed(self.ended) if leak.ledger_id == ledger_id), None), None

    def order(self, ledger_id: LedgerId) -> Future[Leak]:
        """Append a leaked ledger although the watch only reports, if its next judgement, at once, finds it deletable.

        The answer comes once it is appended, or is why it was not: nothing else remembers the order.

        Raises:
            NotFoundError: it is not among the ledgers that nothing references.
            ConflictError: it may not be appended now.
        """
        tracked = self.tracked.get(ledger_id)
        if tracked is None:
            raise NotFoundError(f"ledger {ledger_id} is not among the ledgers that nothing references")
        if tracked.leak.state is not LeakState.LEAKED:
            raise ConflictError(f"ledger {ledger_id} is {tracked.leak.state.value}, not leaked: {tracked.leak.detail}")
        withheld = self._withheld(tracked, is_ordered=True) or self.control.braked
        if withheld is not None:
            raise ConflictError(f"ledger {ledger_id} is not appended: {withheld}")
        tracked.look_ms = 0
        tracked.leak = replace(tracked.leak, detail="it is judged again, and appended")
        if not self._is_ordered(ledger_id):
            self._orders[ledger_id] = Future()
        return self._orders[ledger_id]

    def give_up(self) -> None:
        """Tell all who wait for an order that this sidecar no longer watches."""
        for ledger_id in list(self._orders):
            ended = f"ledger {ledger_id} was not appended before this sidecar ceased to watch; order it again"
            self._answer_order(ledger_id, TemporaryError(ended))

    def _is_ordered(self, ledger_id: LedgerId) -> bool:
        order = self._orders.get(ledger_id)
        return order is not None and not order.cancelled()

    def _answer_order(self, ledger_id: LedgerId, outcome: Leak | SidecarError) -> None:
        order = self._orders.pop(ledger_id, None)
        if order is None or not order.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Leak):
            order.set_result(outcome)
        else:
            order.set_exception(outcome)

    def _note(self, vanished_references: Iterable[VanishedReference], now_ms: int) -> None:
        for vanished in vanished_references:
            ledger_id = vanished.ledger_id
            if self._counts.is_unreferenced(ledger_id):
                if len(self.tracked) >= self._most_tracked and ledger_id not in self.tracked:
                    self.unlinked[ledger_id] = now_ms
                    continue
                detail = "a broker may still delete it"
                leak = Leak(ledger_id, LeakState.SETTLING, None, now_ms, detail, path=vanished.path)
                before = self.tracked.get(ledger_id)
                evidence = None if before is None else before.evidence
                self.tracked[ledger_id] = TrackedLedger(leak, now_ms + GRACE_MS, vanished, evidence)

    def take_over(self) -> None:
        """What a new leader does first."""
        self._take_orders()
        self.restore()

    def upkeep(self, now_ms: int) -> None:
        """What is done each second.

        Raises:
            SidecarError: the store, a broker or a bookie did not answer; the next call does what is left.
        """
        self._take_orders()
        if now_ms - self._taken_over_ms >= _TAKE_OVER_MS:
            self.restore()
            self._taken_over_ms = now_ms
        self._end_those_that_ended(now_ms)
        self._take_up_unlinked(now_ms)
        self._prove(now_ms)
        self._brake_if_needed(now_ms)
        self._judge(now_ms)

    def _take_orders(self) -> None:
        """Read what operators order; judge again at once what earlier orders kept."""
        before, self.control = self.control, self._control_node.follow(self.control)
        if before != self.control:
            with self._lock:
                if self.control.resumed_ms > before.resumed_ms:
                    self.brake.release(self.control.resumed_ms)
                for tracked in self.tracked.values():
                    if tracked.leak.state is LeakState.LEAKED:
                        tracked.look_ms = 0

    def _end_those_that_ended(self, now_ms: int) -> None:
        ended = [each for each in self.tracked.values() if not self._counts.is_unreferenced(each.ledger_id)]
        for tracked in ended:
            if tracked.evidence is not None:
                self._ports.assessor.leaks.forget(tracked.ledger_id)
            state = LeakState.LINKED if self._counts.exists(tracked.ledger_id) else LeakState.DELETED
            with self._lock:
                del self.tracked[tracked.ledger_id]
                ended_so = ConflictError(f"ledger {tracked.ledger_id} is {state.value}, not leaked")
                self._answer_order(tracked.ledger_id, ended_so)
                if tracked.evidence is not None or tracked.record is not None:
                    self.ended.append(replace(tracked.leak, state=state, ended_ms=now_ms))

    def _take_up_unlinked(self, now_ms: int) -> None:
        """Ledgers that were never seen referenced, for as long as an audit would wait; so many at a time.

        What an old cluster has gathered is for an audit, which also knows how much of it is too much.
        """
        waited_ms = now_ms - self._configuration.unlinked_window_ms
        never_linked = [each for each in self.tracked.values() if each.vanished is None and each.evidence is None]
        kept = [each for each in never_linked if each.leak.state is LeakState.KEPT]
        most = self._most_tracked // 2
        room = min(min(_MOST_UNLINKED, most) - len(never_linked) + len(kept), self._most_tracked - len(self.tracked))
        # They are in the order of their times.
        oldest = islice(self.unlinked.items(), max(0, room))
        due = [ledger_id for ledger_id, since_ms in oldest if since_ms <= waited_ms]
        too_many = max(0, len(never_linked) + len(due) - most)
        # Each has its turn, and those that were kept for longest wait for their next one.
        for tracked in kept[:too_many]:
            self._treat_as_unlinked(tracked, now_ms)
        with self._lock:
            for ledger_id in due:
                leak = Leak(
                    ledger_id,
                    LeakState.SETTLING,
                    LeakCause.NEVER_LINKED,
                    self.unlinked.pop(ledger_id),
                    "not judged yet",
                )
                self.tracked[ledger_id] = TrackedLedger(leak, now_ms)

    def _prove(self, now_ms: int) -> None:
        """Read what is still there after the brokers had time, and write the evidence down."""
        due = [each for each in self.tracked.values() if each.record is None and each.look_ms <= now_ms]
        for some in chunks(due, _JUDGED_AT_ONCE):
            since = [(each.ledger_id, each.leak.since_ms if each.vanished else None) for each in some]
            recorded = self._ports.recorded_topics()
            candidates: list[tuple[TrackedLedger, Candidate]] = []
            for tracked, found in zip(some, self._ports.assessor.candidates(since), strict=True):
                if isinstance(found, NotDeletable):
                    self._wait(tracked, LeakState.KEPT, found.reason, now_ms, _LONGEST_LOOK_MS)
                elif found is not None:
                    if tracked.vanished is not None and found.record.topic.base in recorded:
                        # The topic's own deletion has a record of it.
                        self._treat_as_unlinked(tracked, now_ms)
                        continue
                    candidates.append((tracked, found))
                    if tracked.vanished is not None and not isinstance(found.claim, CompactedClaim):
                        self._note_vanished(tracked, tracked.leak.since_ms)
            # Before the evidence: where this sidecar dies in between, its successor appends what has evidence.
            self._brake_if_needed(now_ms)
            for tracked, found in candidates:
                self._prove_one(tracked, found, now_ms)

    def _unreadable(self) -> list[UnreadableNode]:
        return list(self._counts.unreadable.values())

    def _prove_one(self, tracked: TrackedLedger, candidate: Candidate, now_ms: int) -> None:
        evidence = None
        look_ms = candidate.ledger.created_ms + self._configuration.unlinked_min_age_ms
        if tracked.vanished is not None:
            evidence = self._ports.assessor.evidence(candidate, tracked.vanished)
            if evidence is None:
                self._treat_as_unlinked(tracked, now_ms)
                return
            if isinstance(candidate.claim, CompactedClaim):
                (verdict,) = self._ports.assessor.verdicts([evidence.record], self._unreadable())
                if not self._obey(tracked, verdict, now_ms):
                    return
                # Only now: a loaded topic's is named by the cursor's own ledger.
                self._note_vanished(tracked, tracked.leak.since_ms)
                self._brake_if_needed(now_ms)
            self._ports.assessor.leaks.keep(evidence)
            look_ms = evidence.dereferenced_ms + self._configuration.settle_ms
        with self._lock:
            tracked.enter(candidate, evidence)
            tracked.look_ms = look_ms

    def _treat_as_unlinked(self, tracked: TrackedLedger, now_ms: int) -> None:
        """Treat it as a ledger that no node was ever seen to name."""
        if tracked.evidence is not None:
            self._ports.assessor.leaks.forget(tracked.ledger_id)
        with self._lock:
            del self.tracked[tracked.ledger_id]
            self.unlinked[tracked.ledger_id] = now_ms

    def _note_vanished(self, tracked: TrackedLedger, at_ms: int) -> None:
        if not tracked.is_noted:
            with self._lock:
                tracked.is_noted = True
                self.brake.note(at_ms)

    def _brake_if_needed(self, now_ms: int) -> None:
        with self._lock:
            reason = self.brake.reason(now_ms, self._counts.references)
        if reason is not None and self.control.braked is None:
            log.error("the watch brakes", reason=reason)
            self.control = self._control_node.brake(reason)
        with self._lock:
            self.brake.accept()

    # --- judgement -------------------------------------------------------------------------------------------------

    def _judge(self, now_ms: int) -> None:
        if self._unsent is not None and now_ms < self._send_again_ms:
            # The cluster is not asked about all of them each second while nothing can be sent.
            raise self._unsent
        self._unsent = None
        due = [
            each
            for each in self.tracked.values()
            if each.record is not None and each.is_open and each.look_ms <= now_ms
        ]
        leaked: list[TrackedLedger] = []
        for some in chunks(due, _JUDGED_AT_ONCE):
            records = [each.record for each in some if each.record is not None]
            verdicts = self._ports.assessor.verdicts(records, self._unreadable())
            leaked += [each for each, verdict in zip(some, verdicts, strict=True) if self._obey(each, verdict, now_ms)]
        for tracked in leaked:
            self._count(tracked)
            # What has evidence was noted with it. Of what never was referenced only what would be appended is: old
            # ledgers would brake again and again.
            if self._withheld(tracked) is None:
                self._note_vanished(tracked, now_ms)
        # Before the first is appended: after a `deleteall` that no sidecar saw, all of them were never seen referenced.
        self._brake_if_needed(now_ms)
        try:
            for some in chunks(leaked, _JUDGED_AT_ONCE):
                # The judgement takes its time, and a hold or a brake may have been ordered meanwhile.
                self._take_orders()
                self._append(some, now_ms)
        except SidecarError as error:
            self._unsent, self._send_again_ms = error, now_ms + _SEND_AGAIN_MS
            raise

    def _obey(self, tracked: TrackedLedger, verdict: Verdict, now_ms: int) -> bool:
        """Whether the ledger leaked; otherwise it is looked at again."""
        match verdict:
            case Delete():
                return True
            case RetryLater(_, detail, delay_ms):
                self._wait(tracked, LeakState.KEPT, detail, now_ms, delay_ms)
            case Postpone(_, detail) | SendToDeadLetters(_, detail) | Keep(_, detail):
                self._wait(tracked, LeakState.KEPT, detail, now_ms)
            case DeleteOffloaded():
                raise TemporaryError(
                    f"ledger {tracked.ledger_id} was judged as an offloaded copy; the watch judges it again"
                )
            case never:
                assert_never(never)
        return False

    def _wait(
        self, tracked: TrackedLedger, state: LeakState, detail: str, now_ms: int, delay_ms: int | None = None
    ) -> None:
        longest_ms = _LONGEST_LOOK_MS if tracked.evidence else self._configuration.unlinked_window_ms
        with self._lock:
            tracked.leak = replace(tracked.leak, state=state, detail=detail)
            not_now = ConflictError(f"ledger {tracked.ledger_id} is not appended: {detail}")
            self._answer_order(tracked.ledger_id, not_now)
            tracked.look_ms = now_ms + min(tracked.pause_ms if delay_ms is None else delay_ms, longest_ms)
            if delay_ms is None:
                tracked.pause_ms = min(2 * tracked.pause_ms, longest_ms)

    def _append(self, leaked: Sequence[TrackedLedger], now_ms: int) -> None:
        appendable: list[TrackedLedger] = []
        for tracked in leaked:
            why = self._why_not(tracked)
            if why is None:
                appendable.append(tracked)
            else:
                self._wait(tracked, LeakState.LEAKED, why, now_ms)
        if not appendable:
            return
        records = [each.record for each in appendable if each.record is not None]
        with self._steps.taking(Step.LEAKS_APPENDED):
            sent = send(self._ports.publisher(), records, None)
        for tracked, answer in zip(appendable, sent, strict=True):
            if answer.sent:
                self._mark_appended(tracked, now_ms)
            else:
                self._wait(tracked, LeakState.LEAKED, answer.reason or "it was not sent", now_ms)
        # Known first and written down then: a store that takes no writes must not have records sent each second.
        for tracked in appendable:
            if tracked.evidence is not None and tracked.evidence.appended_ms is not None:
                self._ports.assessor.leaks.keep(tracked.evidence)

    def _count(self, tracked: TrackedLedger) -> None:
        """Log that it leaked; once for each leak, however often it is kept and found leaked again."""
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
            self.leaked[cause] += 1
        log.warning("a ledger leaked", ledger_id=tracked.ledger_id, cause=cause.value)

    def _why_not(self, tracked: TrackedLedger) -> str | None:
        withheld = self._withheld(tracked)
        if withheld is not None:
            return withheld
        if self.control.braked is not None:
            return f"the brake holds: {self.control.braked}"
        return None if tracked.is_noted else "its hold was removed a moment ago, and the brake has not counted it yet"

    def _withheld(self, tracked: TrackedLedger, *, is_ordered: bool = False) -> str | None:
        """Why it is not appended, whether the brake holds or not."""
        record = tracked.record
        if record is None or is_own_topic(record.topic):
            return "its topic belongs to the deletion service itself"
        is_wanted = is_ordered or self._is_ordered(tracked.ledger_id)
        if self._configuration.mode is not WatchMode.APPEND and not is_wanted:
            return "ledgerDeletionWatch=report appends nothing; set it to append"
        hold = self.control.holds_ledger(tracked.ledger_id, record.topic)
        return None if hold is None else f"{hold} is on the hold list"

    def _mark_appended(self, tracked: TrackedLedger, now_ms: int) -> None:
        if tracked.evidence is not None:
            tracked.evidence = replace(tracked.evidence, appended_ms=now_ms)
        with self._lock:
            detail = "its record is on __ledger_deletion"
            tracked.leak = replace(tracked.leak, state=LeakState.APPENDED, detail=detail, appended_ms=now_ms)
            self._answer_order(tracked.ledger_id, tracked.leak)
            self.appended += 1
        log.info("a leaked ledger was appended", ledger_id=tracked.ledger_id)

    # --- what an earlier leader left -------------------------------------------------------------------------------

    def restore(self) -> None:
        """Take over what others have seen; one that was frozen writes it down after another has begun to lead."""
        own = {each.ledger_id for each in self.tracked.values() if each.evidence or each.vanished}
        kept, unknown = self._ports.assessor.leaks.all(own)
        for path in set(unknown) - self._strange:
            log.warning("a node holds no evidence under this cluster's key; it counts for nothing", path=path)
        self._strange = set(unknown)
        with self._lock:
            for evidence in sorted(kept, key=lambda each: each.dereferenced_ms):
                # What vanished before another sidecar's eyes vanished all the same.
                self.brake.note(evidence.dereferenced_ms)
                self.unlinked.pop(evidence.record.ledger_id, None)
                self.tracked[evidence.record.ledger_id] = restored(evidence, self._configuration.settle_ms)


def chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))
