"""Watch of every change in the metadata store, which hands leaked ledgers over to the deletion service.

One sidecar watches at a time. It arms its watches, reads everything, and then reads each node that changes. Invariants:
after every interruption (a lost connection, another leader, a defect) it reads everything again before it concludes
anything; it appends nothing that the second phase would not delete at that moment.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TypeVar, assert_never
from uuid import UUID

import structlog

from pulsar_sidecar.features.ledger_deletion.control import encoded
from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Delete,
    DeleteOffloaded,
    Keep,
    Postpone,
    RetryLater,
    SendToDeadLetters,
    Verdict,
)
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.watch.assess import Candidate
from pulsar_sidecar.features.ledger_deletion.watch.control import LEADER, WatchControlNode
from pulsar_sidecar.features.ledger_deletion.watch.ports import ChangesLostError, UnwatchableError, WalkedNode
from pulsar_sidecar.features.ledger_deletion.watch.reference_counts import ReferenceCounts
from pulsar_sidecar.features.ledger_deletion.watch.results import Leak, LedgerExplanation, WatchState, WatchStatus
from pulsar_sidecar.features.ledger_deletion.workflow.configuration import WatchConfiguration, WatchPorts
from pulsar_sidecar.features.ledger_deletion.workflow.leak_handling import LeakHandling, chunks
from pulsar_sidecar.features.ledger_deletion.workflow.leak_tracking import LeakTracker
from pulsar_sidecar.model.clocks import Pace, StopSignal
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.claims import owner_path
from pulsar_sidecar.runtime import Leadership

T = TypeVar("T")

log = structlog.get_logger("ledger-deletion")

_STANDBY_SECONDS = 1.0
_COALESCE_SECONDS = 0.2
_UPKEEP_SECONDS = 1.0
_ECHO_SECONDS = 30.0
_BETWEEN_WALKS_SECONDS = 1.0
_AFTER_FAILURE_SECONDS = 5.0
_YIELD_SECONDS = 0.1
_YIELDING_SECONDS = 60.0
"""A reading that never succeeds must not keep the watch from its own."""
_WALKS_IN_TURNS_SECONDS = 60.0
NODES_AT_ONCE = 50
"""Nodes per request, which delays ZooKeeper's other clients: 500 nodes doubled their 99th percentile."""


class _StoppedError(Exception):
    """Raised when the sidecar stops during a walk, from which nothing may be concluded then."""


class LeakWatch:
    """Watch on one sidecar; `run` is a loop for its own thread, the rest is thread-safe."""

    def __init__(
        self, configuration: WatchConfiguration, ports: WatchPorts, instance: SidecarInstance, steps: Steps
    ) -> None:
        self._configuration = configuration
        self._ports = ports
        self._steps = steps
        self._leadership = Leadership(ports.store, LEADER, encoded(instance))
        self._lock = threading.Lock()
        self._reset_watch()

    def _reset_watch(self) -> None:
        """Reset all state, since nothing shows which changes an interruption missed."""
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

    # --- loop ------------------------------------------------------------------------------------------------------

    def run(self, stop: StopSignal) -> None:
        """Watch or stand by until stopped."""
        while not stop.is_set():
            if not self._leadership.take():
                self._ports.clock.wait_seconds(_STANDBY_SECONDS, stop)
                continue
            log.info("this sidecar is watching for leaked ledgers", mode=self._configuration.mode.value)
            try:
                self._lead(stop)
            finally:
                with self._lock:
                    self._tracker.append_requests.give_up()
                    self._reset_watch()
                self._resign()

    def _resign(self) -> None:
        try:
            self._leadership.resign()
        except SidecarError as error:
            log.warning(
                "resigning as the watch's leader failed; this sidecar leads until its session ends", error=str(error)
            )

    def _lead(self, stop: StopSignal) -> None:
        self._handling.take_over()
        while not stop.is_set():
            self._state, self._detail = WatchState.STARTING, "the sidecar is reading the whole metadata store"
            try:
                if not self._leadership.take():
                    log.warning("another sidecar is watching for leaked ledgers")
                    return
                has_events = self._arm()
                self._walk(stop)
            except _StoppedError:
                return
            except SidecarError as error:
                # Earlier references are kept: the next reading is compared with them.
                log.warning("the whole metadata store could not be read; the sidecar reads it again", error=str(error))
                self._state, self._detail = WatchState.STARTING, str(error)
                self._ports.clock.wait_seconds(_AFTER_FAILURE_SECONDS, stop)
                continue
            if not self._follow(stop, has_events=has_events):
                return
            # Pause, so that a store that keeps failing is not read without end.
            self._ports.clock.wait_seconds(_BETWEEN_WALKS_SECONDS, stop)

    def _arm(self) -> bool:
        """Arm the watches; return True if the server will report every change from now on."""
        armed = self._ports.clock.monotonic_seconds()
        try:
            self._ports.changes.arm()
            self._ports.changes.echo_seconds()
        except (UnwatchableError, ChangesLostError) as error:
            # A server whose events do not arrive counts as one without watches.
            self._detail, self._taken = str(error), None
            return False
        self._taken = armed
        return True

    def _walk(self, stop: StopSignal) -> None:
        clock = self._ports.clock
        began = clock.monotonic_seconds()
        ended_ms: list[int] = []

        def nodes() -> Iterator[Sequence[WalkedNode]]:
            yield from self._in_turn(stop, self._ports.whole.nodes())
            # Before the walk takes effect: a later failure would lose the vanished references.
            ended_ms.append(self._ports.store.now_ms())

        vanished_references = self._counts.walk(self._in_turn(stop, self._ports.whole.ledger_ids()), nodes())
        (now_ms,) = ended_ms
        with self._lock:
            self._walked_ms, self._walk_seconds = now_ms, clock.monotonic_seconds() - began
            unreferenced = self._tracker.walked(vanished_references, now_ms)
        log.info(
            "the whole metadata store was read",
            ledgers=self._counts.ledgers,
            references=self._counts.references,
            unreferenced=unreferenced,
            seconds=round(self._walk_seconds, 1),
        )

    def _in_turn(self, stop: StopSignal, items: Iterable[T]) -> Iterator[T]:
        clock, ports = self._ports.clock, self._ports
        due = clock.monotonic_seconds() + _YIELDING_SECONDS
        for item in items:
            while ports.yields() and clock.monotonic_seconds() < due and not stop.is_set():
                clock.wait_seconds(_YIELD_SECONDS, stop)
            if stop.is_set():
                raise _StoppedError
            yield item

    def _follow(self, stop: StopSignal, *, has_events: bool) -> bool:
        """Follow changes from a walk until the next is due; return False when another sidecar leads."""
        clock = self._ports.clock
        # ZooKeeper silently withholds events on nodes that the sidecar may not read.
        hidden = self._counts.hidden
        if has_events and hidden is None:
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
                if has_events:
                    self._read_changes()
            except SidecarError as error:
                # Changes that were taken but not read are lost as well.
                log.warning("changes may have been missed; the sidecar reads everything again", error=str(error))
                return True
            try:
                if not self._upkeep():
                    return False
            except ChangesLostError as error:
                log.warning("changes may have been missed; the sidecar reads everything again", error=str(error))
                return True
            except SidecarError as error:
                # For example, brokers do not respond: the watch continues, and tries again.
                self._failure = str(error)
            clock.wait_seconds(_COALESCE_SECONDS, stop)
        return True

    def _read_changes(self) -> None:
        clock, store = self._ports.clock, self._ports.store
        now = clock.monotonic_seconds()
        before, self._taken = self._taken or now, now
        changes = self._ports.changes.take(0.0)
        pace = Pace(clock, self._configuration.nodes_per_second)
        if changes.ledgers:
            now_ms = store.now_ms()
            with self._lock:
                self._tracker.update_existing(changes.ledgers, now_ms)
        for paths in chunks(changes.nodes, NODES_AT_ONCE):
            nodes = store.read_many(paths)
            now_ms = store.now_ms()
            with self._lock:
                for path, node in zip(paths, nodes, strict=True):
                    self._tracker.read(path, None if node is None else node.data, now_ms)
            pace.wait_after(len(paths))
        has_changes = changes.nodes or changes.ledgers
        self._lag_seconds = clock.monotonic_seconds() - before if has_changes else 0.0

    # --- upkeep ----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> bool:
        """Run the periodic maintenance, once a second; return False when another sidecar leads."""
        clock = self._ports.clock
        now = clock.monotonic_seconds()
        if now - self._upkept < _UPKEEP_SECONDS:
            return True
        self._upkept = now
        if not self._leadership.take():
            log.warning("another sidecar is watching for leaked ledgers")
            return False
        if self._state is WatchState.WATCHING and now - self._echoed >= _ECHO_SECONDS:
            self._ports.changes.echo_seconds()
            self._echoed = clock.monotonic_seconds()
        self._handling.upkeep(self._ports.store.now_ms())
        self._failure = None
        return True

    # --- queries ---------------------------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        """True if this sidecar watches, so that its responses are complete."""
        return self._state is not WatchState.STANDBY

    def readings(self) -> WatchStatus:
        """Return the status from memory: without a leader, and with brake and holds as last read."""
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

    def request_append(self, ledger_id: LedgerId, offload_attempt: UUID | None) -> Future[Leak]:
        """Request the append of a leaked ledger within a second, like `LeakTracker.request_append`."""
        with self._lock:
            return self._tracker.request_append(ledger_id, offload_attempt)

    def explain(self, ledger_id: LedgerId) -> LedgerExplanation:
        """Return all known facts about one ledger, with the current verdict of the evaluation."""
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
