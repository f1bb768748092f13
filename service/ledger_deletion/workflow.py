"""The running service: threads, waiting and logs around the two phases, and the operator's verbs.

Three loops run while two-phase deletion is enabled: one consumes and settles batches, one drives topic deletions
(this sidecar's and those a dead sidecar left), one keeps the registration alive and the switches fresh. Each survives
every error of ours: it notes it, waits and starts afresh, because the topics hold the work.
"""

import threading
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import structlog

from service.ledger_deletion.controlling import ControlPanel, Register
from service.ledger_deletion.deciding import Policy, Reason
from service.ledger_deletion.gathering import Gatherer
from service.ledger_deletion.limiting import Pacer
from service.ledger_deletion.operating import (
    Control,
    DeadLetter,
    InflightEstimate,
    LedgerDeletionAnswer,
    OperationState,
    Redirect,
    Redriven,
    SentLedger,
    ServiceStatus,
    SidecarInstance,
    TopicDeletionStatus,
    Undeleted,
)
from service.ledger_deletion.outcomes import Settlement, note_message
from service.ledger_deletion.pending import PendingDeleteLedgerInfo
from service.ledger_deletion.ports import (
    Backlog,
    DeletionTopic,
    DeletionTopics,
    Delivery,
    LedgerEntries,
    LiveOwners,
    OffloadedLedgers,
    OutgoingMessage,
    PendingDeletions,
    Publisher,
    TopicAdmin,
)
from service.ledger_deletion.recording import HeldOperation, Recorder
from service.ledger_deletion.redriving import list_dead, redrive
from service.ledger_deletion.restoring import undelete
from service.ledger_deletion.retrying import RetryPolicy
from service.ledger_deletion.sending import refuse_own_topics, send
from service.ledger_deletion.settling import Publishers, Settler
from service.ledger_deletion.steps import GoOn, Steps
from service.ledger_deletion.topic_deleting import TopicDeleter
from service.model.clocks import Clock
from service.model.errors import (
    ConflictError,
    DisabledError,
    InvalidInputError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from service.model.ids import LedgerId, OperationId
from service.model.metadata import MetadataStore
from service.model.names import TopicName
from service.observability.metrics import DeletionMetrics, GaugeReadings

log = structlog.get_logger("ledger-deletion")

_BACKLOG_MAX_AGE_MS = 1_000
_PAUSED_LOOK_SECONDS = 0.2
_UPKEEP_SECONDS = 1.0
_DRIVER_LOOK_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of the room, in its own words.

    Attributes:
        undelete_lookback_ms: how far back `undelete` searches the outcome topic.
        watchdog_late_ms: how late a retry must be before it is read beside the delayed tracker.
        topic_deletion_wait_ms: how long a call waits for a topic deletion before it answers RUNNING.
    """

    enabled: bool
    ledgers_root: str
    policy: Policy
    retry_policy: RetryPolicy
    rate_per_second: float | None
    watchdog_late_ms: int
    topic_deletion_wait_ms: int
    undelete_lookback_ms: int
    batch_size: int


@dataclass(frozen=True, slots=True)
class World:
    """The adapters the room works with."""

    clock: Clock
    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    admin: TopicAdmin
    topics: DeletionTopics
    offloaded: OffloadedLedgers


class LedgerDeletion:
    """`operating.LedgerDeletionService`, running."""

    def __init__(
        self,
        configuration: Configuration,
        world: World,
        instance: SidecarInstance,
        metrics: DeletionMetrics,
        steps: Steps | None = None,
    ) -> None:
        self._configuration = configuration
        self._world = world
        self._instance = instance
        self._metrics = metrics
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._threads: list[threading.Thread] = []
        self._publishers: dict[DeletionTopic, Publisher] = {}
        self._publishers_lock = threading.Lock()
        self._backlog_lock = threading.Lock()
        self._backlog: Backlog | None = None
        self._mean_length_bytes = 0.0
        self._last_error: str | None = None
        self._control = Control()
        self._running_deletions = 0
        self._panel = ControlPanel(world.store)
        self._register = Register(world.store, instance)
        self._pacer = Pacer(world.clock, self._stop, self._rate)
        listener = steps or GoOn()
        self._steps = listener
        self._gatherer = Gatherer(world.store, world.entries, world.owners, configuration.ledgers_root)
        recorder = Recorder(world.store, world.entries, world.topics, configuration.ledgers_root, metrics, listener)
        self._deleter = TopicDeleter(instance.name, world.store, recorder, world.admin, listener)
        metrics.bind(self._gauges)

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loops; returns at once, `ready` tells when work can be done."""
        loops: list[tuple[str, Callable[[], None]]] = [("upkeep", self._upkeep)]
        if self._configuration.enabled:
            loops += [("worker", self._work), ("topic-deletions", self._drive_topic_deletions)]
        for name, loop in loops:
            thread = threading.Thread(target=self._keep_running, args=(name, loop), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Finish the batch in hand, give the rest back, leave the register; idempotent."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        with self._publishers_lock:
            for publisher in self._publishers.values():
                publisher.close()
            self._publishers.clear()
        try:
            self._register.withdraw()
        except SidecarError as error:
            log.warning("registration stays until the session ends", error=str(error))

    def ready(self) -> str | None:
        """None when work can be done, otherwise what is missing."""
        if self._stop.is_set():
            return "the sidecar is shutting down"
        if self._configuration.enabled and not self._ready.is_set():
            return self._last_error or "the system topics are not ready yet"
        return None

    def _keep_running(self, name: str, loop: Callable[[], None]) -> None:
        backoff_seconds = 0.5
        while not self._stop.is_set():
            started = self._world.clock.monotonic_seconds()
            try:
                loop()
            except SidecarError as error:
                self._last_error = f"{name}: {error}"
                log.warning("loop starts afresh", loop=name, error=str(error), backoff_seconds=backoff_seconds)
            except Exception:
                # A defect of ours must not silence the loop for good; the topics still hold the work.
                self._last_error = f"{name}: unexpected failure, see the log"
                log.exception("loop failed unexpectedly and starts afresh", loop=name)
            if self._world.clock.monotonic_seconds() - started > _LONGEST_BACKOFF_SECONDS:
                backoff_seconds = 0.5
            self._world.clock.wait_seconds(backoff_seconds, self._stop)
            backoff_seconds = min(backoff_seconds * 2, _LONGEST_BACKOFF_SECONDS)

    # --- loops -----------------------------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        while not self._stop.is_set():
            self._control = self._panel.read()
            self._register.keep()
            self._running_deletions = len(self._deleter.running())
            self._world.clock.wait_seconds(_UPKEEP_SECONDS, self._stop)

    def _work(self) -> None:
        self._world.topics.ensure()
        settler = self._settler()
        pending = self._world.topics.pending()
        self._control = self._panel.read()
        self._ready.set()
        self._last_error = None
        log.info("consuming pending deletions", sidecar=self._instance.name)
        try:
            self._consume(settler, pending)
        finally:
            self._ready.clear()
            pending.close()

    def _consume(self, settler: Settler, pending: PendingDeletions) -> None:
        late_ms = self._configuration.watchdog_late_ms
        next_watch = self._world.clock.monotonic_seconds() + late_ms / 1000
        while not self._stop.is_set():
            if self._control.paused:
                self._world.clock.wait_seconds(_PAUSED_LOOK_SECONDS, self._stop)
                continue
            deliveries = pending.receive()
            if deliveries:
                self._settle(settler, pending, deliveries)
            if self._world.clock.monotonic_seconds() >= next_watch:
                self._watch(settler, pending)
                next_watch = self._world.clock.monotonic_seconds() + late_ms / 1000

    def _settle(self, settler: Settler, pending: PendingDeletions, deliveries: Sequence[Delivery]) -> None:
        started = self._world.clock.monotonic_seconds()
        report = settler.settle(pending, deliveries)
        self._metrics.batch_seconds(self._world.clock.monotonic_seconds() - started)
        if report.mean_length_bytes is not None:
            self._mean_length_bytes += 0.2 * (report.mean_length_bytes - self._mean_length_bytes)
        log.info("batch settled", received=report.received, deleted=report.deleted, postponed=report.postponed)

    def _watch(self, settler: Settler, pending: PendingDeletions) -> None:
        """Retries that the delayed tracker should have delivered long ago are settled without it."""
        overdue = pending.overdue(self._configuration.watchdog_late_ms, self._configuration.batch_size)
        if overdue:
            log.warning("retries are overdue; the broker's delayed delivery stalls", overdue=len(overdue))
            self._settle(settler, pending, overdue)

    def _drive_topic_deletions(self) -> None:
        while not self._stop.is_set():
            held = None if self._control.paused else self._deleter.take_due()
            if held is None:
                self._world.clock.wait_seconds(_DRIVER_LOOK_SECONDS, self._stop)
            else:
                self._go_on(held)

    def _go_on(self, held: HeldOperation) -> None:
        operation = held.operation
        log.info("going on with a topic deletion", topic=str(operation.topic), operation=operation.operation_id)
        try:
            held, state = self._deleter.attempt(held)
        except PermanentError as error:
            self._note_end(operation.status(OperationState.REFUSED, str(error)))
            return
        if state is OperationState.DONE:
            self._note_end(held.operation.status(OperationState.DONE))
        else:
            self._deleter.release(held.operation)

    # --- first phase -----------------------------------------------------------------------------------------------

    def send_pending_delete_ledgers(
        self,
        records: Sequence[PendingDeleteLedgerInfo],
        *,
        producer_name: str | None = None,
        first_sequence_id: int | None = None,
    ) -> list[SentLedger]:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        if (producer_name is None) != (first_sequence_id is None):
            raise InvalidInputError("producerName and firstSequenceId belong together: give both or neither")
        if producer_name is None:
            answers = send(self._publisher(DeletionTopic.PENDING), records, None)
        else:
            publisher = self._world.topics.publisher(DeletionTopic.PENDING, producer_name)
            try:
                answers = send(publisher, records, first_sequence_id)
            finally:
                publisher.close()
        for record, answer in zip(records, answers, strict=True):
            if answer.sent:
                self._metrics.sent(record.ledger_type, record.component)
        return answers

    def delete_topic(
        self, topic: TopicName, *, partitioned: bool, force: bool, requested_by: str | None
    ) -> TopicDeletionStatus:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        refuse_own_topics(topic)
        operation_id = OperationId(uuid.uuid4().hex)
        held = self._deleter.begin(operation_id, topic, partitioned=partitioned, force=force, requested_by=requested_by)
        clock = self._world.clock
        give_up = clock.monotonic_seconds() + self._configuration.topic_deletion_wait_ms / 1000
        try:
            held, state = self._deleter.attempt(held)
            while state is OperationState.RUNNING and clock.monotonic_seconds() < give_up and not self._stop.is_set():
                clock.wait_seconds(min(1.0, max(0.0, give_up - clock.monotonic_seconds())), self._stop)
                held, state = self._deleter.attempt(held)
        except (TemporaryError, OutcomeUnknownError):
            self._release_quietly(held)
            raise
        status = held.operation.status(state, None if state is OperationState.DONE else held.operation.last_reason)
        if state is OperationState.RUNNING:
            self._deleter.release(held.operation)
        else:
            self._note_end(status)
        return status

    def topic_deletions(self) -> list[TopicDeletionStatus]:
        """See `operating.LedgerDeletionService`."""
        self._require_enabled()
        return self._deleter.running()

    def _release_quietly(self, held: HeldOperation) -> None:
        try:
            self._deleter.release(held.operation)
        except SidecarError as error:
            log.warning("a topic deletion stays held until this session ends", error=str(error))

    # --- second phase, directly ------------------------------------------------------------------------------------

    def delete_ledger(self, record: PendingDeleteLedgerInfo, *, authoritative: bool) -> LedgerDeletionAnswer | Redirect:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        if self._control.paused:
            raise ConflictError(
                f"deletion is paused ({self._control.paused_reason or 'no reason given'}); resume it first"
            )
        neighbour = None if authoritative else self._neighbour_of_owner(record.topic)
        if neighbour is not None:
            return Redirect(neighbour.advertised_url)
        # A direct call has nobody behind it who is about to shrink a list.
        direct = record.marked(replace(record.mark, unreferenced=True))
        return _answer(self._settler().settle_now(direct, f"deleteLedger on {self._instance.name}"))

    def _neighbour_of_owner(self, topic: TopicName) -> SidecarInstance | None:
        owner = self._world.owners.owner_url(topic)
        if owner is None or owner == self._instance.broker_url:
            return None
        others = (instance for instance in self._register.instances() if instance.broker_url == owner)
        return next((instance for instance in others if instance.name != self._instance.name), None)

    # --- operator's verbs ------------------------------------------------------------------------------------------

    def estimated_inflight(self) -> InflightEstimate:
        """See `operating.LedgerDeletionService`."""
        self._require_enabled()
        backlog = self._fresh_backlog()
        now_ms = self._world.clock.now_ms()
        oldest = backlog.oldest_publish_ms
        return InflightEstimate(
            count=backlog.total,
            age_ms=max(0, now_ms - backlog.measured_ms),
            oldest_age_ms=None if oldest is None else max(0, now_ms - oldest),
            waiting_bytes=round(backlog.total * self._mean_length_bytes),
        )

    def status(self) -> ServiceStatus:
        """See `operating.LedgerDeletionService`."""
        enabled = self._configuration.enabled
        return ServiceStatus(
            enabled=enabled,
            control=self._panel.read(),
            inflight=self._inflight_or_none() if enabled else None,
            instances=self._register.instances(),
            running_topic_deletions=len(self._deleter.running()),
            last_error=self._last_error,
        )

    def pause(self, reason: str | None) -> Control:
        """See `operating.LedgerDeletionService`."""
        return self._changed(self._panel.pause(reason))

    def resume(self) -> Control:
        """See `operating.LedgerDeletionService`."""
        return self._changed(self._panel.resume())

    def limit_rate(self, ledgers_per_second: float | None) -> Control:
        """See `operating.LedgerDeletionService`."""
        return self._changed(self._panel.limit_rate(ledgers_per_second))

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        dead_letters = self._world.topics.dead_letters()
        try:
            return list_dead(dead_letters, limit)
        finally:
            dead_letters.close()

    def redrive(self, ledger_ids: Sequence[LedgerId] | None, limit: int) -> Redriven:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        dead_letters = self._world.topics.dead_letters()
        try:
            return redrive(dead_letters, self._publisher(DeletionTopic.PENDING), ledger_ids, limit)
        finally:
            dead_letters.close()

    def undelete(self, ledger_id: LedgerId, *, force: bool) -> Undeleted:
        """See `operating.LedgerDeletionService`."""
        self._require_ready()
        world = self._world
        since_ms = max(0, world.clock.now_ms() - self._configuration.undelete_lookback_ms)
        undeleted = undelete(world.store, world.entries, world.topics, ledger_id, since_ms=since_ms, force=force)
        self._note("undeleted", {"ledgerId": ledger_id, "readable": undeleted.readable})
        return undeleted

    # --- shared ----------------------------------------------------------------------------------------------------

    def _settler(self) -> Settler:
        configuration, world = self._configuration, self._world
        return Settler(
            sidecar=self._instance.name,
            clock=world.clock,
            store=world.store,
            gatherer=self._gatherer,
            offloaded=world.offloaded,
            publishers=Publishers(
                retry=self._publisher(DeletionTopic.RETRY),
                dead_letter=self._publisher(DeletionTopic.DEAD_LETTER),
                outcome=self._publisher(DeletionTopic.OUTCOME),
            ),
            policy=configuration.policy,
            retry_policy=configuration.retry_policy,
            metrics=self._metrics,
            steps=self._steps,
            pacer=self._pacer,
            warn=self._warn,
        )

    def _publisher(self, topic: DeletionTopic) -> Publisher:
        with self._publishers_lock:
            if topic not in self._publishers:
                name = f"pulsar-sidecar-{self._instance.name}-{topic.name.lower().replace('_', '-')}"
                self._publishers[topic] = self._world.topics.publisher(topic, name)
            return self._publishers[topic]

    def _rate(self) -> float | None:
        shared = self._control.rate_per_second
        return self._configuration.rate_per_second if shared is None else shared

    def _changed(self, control: Control) -> Control:
        self._control = control
        log.info("switches changed", paused=control.paused, rate_per_second=control.rate_per_second)
        return control

    def _warn(self, text: str) -> None:
        self._last_error = text
        log.warning(text)

    def _require_enabled(self) -> None:
        if not self._configuration.enabled:
            raise DisabledError("two-phase deletion is switched off: set topicTwoPhaseDeletionEnabled=true")

    def _require_ready(self) -> None:
        self._require_enabled()
        missing = self.ready()
        if missing is not None:
            raise TemporaryError(missing)

    def _fresh_backlog(self) -> Backlog:
        with self._backlog_lock:
            now_ms = self._world.clock.now_ms()
            if self._backlog is None or not 0 <= now_ms - self._backlog.measured_ms <= _BACKLOG_MAX_AGE_MS:
                self._backlog = self._world.topics.backlog()
            return self._backlog

    def _inflight_or_none(self) -> InflightEstimate | None:
        try:
            return self.estimated_inflight()
        except SidecarError as error:
            self._last_error = str(error)
            return None

    def _gauges(self) -> GaugeReadings:
        inflight = self._inflight_or_none() if self._ready.is_set() else None
        oldest_ms = inflight.oldest_age_ms if inflight else None
        return GaugeReadings(
            inflight=inflight.count if inflight else None,
            oldest_pending_age_seconds=None if oldest_ms is None else oldest_ms / 1000,
            waiting_bytes=inflight.waiting_bytes if inflight else None,
            paused=self._control.paused,
            rate_per_second=self._rate(),
            running_topic_deletions=self._running_deletions,
        )

    def _note_end(self, status: TopicDeletionStatus) -> None:
        log.info(
            "topic deletion ended", topic=str(status.topic), state=status.state.value, ledgers=status.recorded_ledgers
        )
        self._note(
            "topic-deletion",
            {
                "operationId": status.operation_id,
                "topicName": str(status.topic),
                "state": status.state.value,
                "recordedLedgers": status.recorded_ledgers,
                "attempts": status.attempts,
                "reason": status.reason,
            },
        )

    def _note(self, step: str, document: dict[str, object]) -> None:
        message = OutgoingMessage(note_message(self._instance.name, self._world.clock.now_ms(), step, document))
        try:
            stored = all(result.stored for result in self._publisher(DeletionTopic.OUTCOME).publish([message]))
        except SidecarError:
            stored = False
        if not stored:
            self._warn(f"a note about {step} could not be kept on the outcome topic")


def _answer(settlement: Settlement) -> LedgerDeletionAnswer:
    """A settlement as the answer of a direct call, or as the error that says what is in the way."""
    if settlement.decision == "deleted":
        return LedgerDeletionAnswer.DELETED
    reason = Reason(settlement.reason)
    if reason is Reason.ALREADY_GONE:
        return LedgerDeletionAnswer.GONE
    if reason is Reason.IN_USE:
        raise ConflictError(f"ledger still in use: {settlement.detail}")
    if settlement.decision == "kept":
        raise InvalidInputError(f"{reason.value}: {settlement.detail}")
    if reason in (Reason.REFERENCES_UNKNOWN, Reason.METADATA_UNREADABLE, Reason.TEMPORARY_FAILURE):
        raise TemporaryError(f"{reason.value}: {settlement.detail}")
    raise ConflictError(f"{reason.value}: {settlement.detail}")
