"""The watch: hears of every change of the metadata store, and hands what leaked to the deletion service.

One sidecar watches at a time. It arms its watches, reads everything, and then reads each node that changes. Invariant:
after every interruption (a lost connection, another leader, a defect) it reads everything again before it concludes
anything; nothing is appended that the evaluation of the second phase would not delete at that moment.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar, assert_never
from uuid import UUID

import msgspec
import structlog

from pulsar_sidecar.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Keep,
    Postpone,
    RetryLater,
    SendToDeadLetters,
    Verdict,
)
from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.steps import Steps
from pulsar_sidecar.ledger_deletion.watch.assess import Candidate
from pulsar_sidecar.ledger_deletion.watch.control import LEADER, WatchControlNode
from pulsar_sidecar.ledger_deletion.watch.ports import ChangesLostError, UnwatchableError, WalkedNode
from pulsar_sidecar.ledger_deletion.watch.reference_counts import ReferenceCounts
from pulsar_sidecar.ledger_deletion.watch.service import (
    Leak,
    LedgerExplanation,
    WatchState,
    WatchStatus,
)
from pulsar_sidecar.ledger_deletion.workflow.leak_handling import LeakHandling, chunks
from pulsar_sidecar.ledger_deletion.workflow.leak_tracking import LeakTracker
from pulsar_sidecar.ledger_deletion.workflow.watch_configuration import WatchConfiguration, WatchPorts
from pulsar_sidecar.ledger_ownership.claims import owner_path
from pulsar_sidecar.model.clocks import Pace, StopSignal
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.runtime import Leadership

T = TypeVar("T")

log = structlog.get_logger("ledger-deletion")

_STANDBY_SECONDS = 1.0
_COALESCE_SECONDS = 0.2
_UPKEEP_SECONDS = 1.0
_ECHO_SECONDS = 30.0
_BETWEEN_WALKS_SECONDS = 1.0
_AFTER_FAILURE_SECONDS = 5.0
_WALKS_IN_TURNS_SECONDS = 60.0
NODES_AT_ONCE = 50
"""What is read in one request holds ZooKeeper up for every other client: 500 nodes doubled their 99th percentile."""


class _StoppedError(Exception):
    """The sidecar ends in the middle of a walk, from which nothing may be concluded then."""


class LeakWatch:
    """One sidecar's part in the watch; `run` is a loop for a thread of its own, the rest is for any thread."""

    def __init__(
        self, configuration: WatchConfiguration, ports: WatchPorts, instance: SidecarInstance, steps: Steps
    ) -> None:
        self._configuration = configuration
        self._ports = ports
        self._steps = steps
        self._leadership = Leadership(ports.store, LEADER, msgspec.json.encode(instance))
        self._lock = threading.Lock()
        self._started_anew()

    def _started_anew(self) -> None:
        """Forget everything: after an interruption nothing shows what was missed."""
        self._counts = ReferenceCounts()
        configuration, ports, counts, lock = self._configuration, self._ports, self._counts, self._lock
        node, leaks = WatchControlNode(ports.store), ports.assessor.leaks
        self._tracker = LeakTracker(configuration, node, leaks, counts, lock)
        self._handling = LeakHandling(configuration, ports, counts, self._tracker, self._steps, lock)
        self._state = WatchState.STANDBY
        self._detail: str | None = None
        self._failure: str | None = None
        self._walked_ms: int | None = None
        self._walk_seconds: float | None = None
        self._taken: float | None = None
        self._lag_seconds = 0.0
        self._upkept = self._echoed = 0.0

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self, stop: StopSignal) -> None:
        """Watch until stopped, or stand by."""
        while not stop.is_set():
            if not self._leadership.take():
                self._ports.clock.wait_seconds(_STANDBY_SECONDS, stop)
                continue
            log.info("this sidecar watches for leaked ledgers", mode=self._configuration.mode.value)
            try:
                self._lead(stop)
            finally:
                with self._lock:
                    self._tracker.orders.give_up()
                    self._started_anew()
                self._resign()

    def _resign(self) -> None:
        try:
            self._leadership.resign()
        except SidecarError as error:
            log.warning("the watch is held until this session ends", error=str(error))

    def _lead(self, stop: StopSignal) -> None:
        self._handling.take_over()
        while not stop.is_set():
            self._state, self._detail = WatchState.STARTING, "the sidecar reads the metadata store whole"
            try:
                if not self._leadership.take():
                    log.warning("another sidecar watches for leaked ledgers")
                    return
                hears = self._arm()
                self._walk(stop)
            except _StoppedError:
                return
            except SidecarError as error:
                # What was seen referenced before is not forgotten: the reading after this is compared with it.
                log.warning("the metadata store could not be read whole; the sidecar reads it again", error=str(error))
                self._state, self._detail = WatchState.STARTING, str(error)
                self._ports.clock.wait_seconds(_AFTER_FAILURE_SECONDS, stop)
                continue
            if not self._follow(stop, hears=hears):
                return
            # A store that keeps failing is not read whole without a pause.
            self._ports.clock.wait_seconds(_BETWEEN_WALKS_SECONDS, stop)

    def _arm(self) -> bool:
        """Whether the server will report every change from now on."""
        armed = self._ports.clock.monotonic_seconds()
        try:
            self._ports.changes.arm()
            self._ports.changes.echo_seconds()
        except (UnwatchableError, ChangesLostError) as error:
            # Events that do not come are like a server that has none.
            self._detail, self._taken = str(error), None
            return False
        self._taken = armed
        return True

    def _walk(self, stop: StopSignal) -> None:
        clock = self._ports.clock
        began = clock.monotonic_seconds()
        ended_ms: list[int] = []

        def nodes() -> Iterator[Sequence[WalkedNode]]:
            yield from _until(stop, self._ports.whole.nodes())
            # Before the walk takes effect: what failed afterwards would lose what vanished.
            ended_ms.append(self._ports.store.now_ms())

        vanished_references = self._counts.walk(_until(stop, self._ports.whole.ledger_ids()), nodes())
        (now_ms,) = ended_ms
        with self._lock:
            self._walked_ms, self._walk_seconds = now_ms, clock.monotonic_seconds() - began
            unreferenced = self._tracker.walked(vanished_references, now_ms)
        log.info(
            "the metadata store was read whole",
            ledgers=self._counts.ledgers,
            references=self._counts.references,
            unreferenced=unreferenced,
            seconds=round(self._walk_seconds, 1),
        )

    def _follow(self, stop: StopSignal, *, hears: bool) -> bool:
        """Go on from a walk until the next is due, True; False when another sidecar leads."""
        clock = self._ports.clock
        # ZooKeeper silently withholds events on nodes that may not be read.
        hidden = self._counts.hidden
        if hears and hidden is None:
            self._state, self._detail = WatchState.WATCHING, None
            due = clock.monotonic_seconds() + self._configuration.walk_interval_ms / 1000
        else:
            why = (
                self._detail
                if hidden is None
                else f"the sidecar may not read {hidden}, so ZooKeeper may withhold changes"
            )
            self._state, self._detail = WatchState.WALKING, why
            due = clock.monotonic_seconds() + _WALKS_IN_TURNS_SECONDS
        while not stop.is_set() and clock.monotonic_seconds() < due:
            try:
                if hears:
                    self._hear()
            except SidecarError as error:
                # What was taken and not read is lost as well.
                log.warning("changes may have been missed; the sidecar reads everything again", error=str(error))
                return True
            try:
                if not self._upkeep():
                    return False
            except ChangesLostError as error:
                log.warning("changes may have been missed; the sidecar reads everything again", error=str(error))
                return True
            except SidecarError as error:
                # Such as brokers that do not answer: the watch continues, and asks again.
                self._failure = str(error)
            clock.wait_seconds(_COALESCE_SECONDS, stop)
        return True

    def _hear(self) -> None:
        clock, store = self._ports.clock, self._ports.store
        now = clock.monotonic_seconds()
        before, self._taken = self._taken or now, now
        changes = self._ports.changes.take(0.0)
        pace = Pace(clock, self._configuration.nodes_per_second)
        if changes.ledgers:
            now_ms = store.now_ms()
            with self._lock:
                self._tracker.heard(changes.ledgers, now_ms)
        for paths in chunks(changes.nodes, NODES_AT_ONCE):
            nodes = store.read_many(paths)
            now_ms = store.now_ms()
            with self._lock:
                for path, node in zip(paths, nodes, strict=True):
                    self._tracker.read(path, None if node is None else node.data, now_ms)
            pace.after(len(paths))
        has_changes = changes.nodes or changes.ledgers
        self._lag_seconds = clock.monotonic_seconds() - before if has_changes else 0.0

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> bool:
        """What is done each second; False when another sidecar leads."""
        clock = self._ports.clock
        now = clock.monotonic_seconds()
        if now - self._upkept < _UPKEEP_SECONDS:
            return True
        self._upkept = now
        if not self._leadership.take():
            log.warning("another sidecar watches for leaked ledgers")
            return False
        if self._state is WatchState.WATCHING and now - self._echoed >= _ECHO_SECONDS:
            self._ports.changes.echo_seconds()
            self._echoed = clock.monotonic_seconds()
        self._handling.upkeep(self._ports.store.now_ms())
        self._failure = None
        return True

    # --- what calls ask --------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """Whether this sidecar watches, so that its answers are whole."""
        return self._state is not WatchState.STANDBY

    def readings(self) -> WatchStatus:
        """From memory, so without a leader, and the brake and the holds as they were last read."""
        with self._lock:
            control, detail = self._tracker.control, self._failure or self._detail
            shared = WatchStatus(self._configuration.mode, self._state, None, control.braked, control.holds, detail)
            if self._walked_ms is None:
                return shared
            vanished = self._tracker.brake.vanished()
            since_taken = None if self._taken is None else self._ports.clock.monotonic_seconds() - self._taken
            return replace(
                shared,
                walked_ms=self._walked_ms,
                walk_seconds=self._walk_seconds,
                lag_seconds=None if since_taken is None else max(self._lag_seconds, since_taken),
                ledgers=self._counts.ledgers,
                references=self._counts.references,
                unreadable=len(self._counts.unreadable),
                unreadable_nodes=tuple(sorted(self._counts.unreadable)[:100]),
                vanished=vanished,
                brake_limit=self._tracker.brake.limit(self._counts.references + vanished),
                unlinked=len(self._tracker.unlinked),
                leaks=Counter(each.leak.state for each in self._tracker.tracked.values()),
                leaked=dict(self._tracker.leaked),
                appended=self._tracker.appended,
                unsought_copies=dict(self._tracker.unsought),
            )

    def leaks(self, *, ended: bool) -> list[Leak]:
        with self._lock:
            return self._tracker.leaks(ended=ended)

    def order(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> Future[Leak]:
        """Append a leaked ledger in the next second; raises what `LeakTracker.order` does, and answers as it does."""
        with self._lock:
            return self._tracker.order(ledger_id, offload_attempt)

    def explain(self, ledger_id: LedgerId) -> LedgerExplanation:
        """Everything that is known of one ledger, with the verdict of the evaluation now."""
        with self._lock:
            leak, record = self._tracker.find(ledger_id)
            copies = self._tracker.copies(ledger_id)
            counts, unreadable = self._counts, list(self._counts.unreadable.values())
        named_by = counts.named_by(ledger_id)
        assessor = self._ports.assessor
        (found,) = assessor.candidates([(ledger_id, None)])
        if not isinstance(found, Candidate):
            verdict = "the ledger does not exist" if found is None else found.reason
            return LedgerExplanation(ledger_id, found is not None, named_by, None, None, verdict, leak, copies)
        record = record or found.record
        (judged,) = assessor.verdicts([record], unreadable)
        hold = WatchControlNode(self._ports.store).read().holds_ledger(ledger_id, record.topic)
        owner, in_words = owner_path(found.claim), _in_words(judged)
        return LedgerExplanation(ledger_id, True, named_by, owner, hold, in_words, leak, copies)


def _in_words(verdict: Verdict) -> str:
    match verdict:
        case Delete():
            return "nothing references it, and it may be deleted"
        case DeleteOffloaded():
            return "its copy in tiered storage may be deleted"
        case Keep() | RetryLater() | Postpone() | SendToDeadLetters():
            return f"{verdict.reason.value}: {verdict.detail}"
        case never:
            assert_never(never)


def _until(stop: StopSignal, items: Iterable[T]) -> Iterator[T]:
    for item in items:
        if stop.is_set():
            raise _StoppedError
        yield item
