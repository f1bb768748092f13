"""Calls of ledger deletion over a sidecar's loops (PIP-186 ``LedgerDeletionService``, and operators' calls)."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial

import structlog

from pulsar_sidecar.features.ledger_deletion.metrics import GaugeReadings
from pulsar_sidecar.features.ledger_deletion.outcomes import Decision, RecordOutcome
from pulsar_sidecar.features.ledger_deletion.owners import tenant_of, tenants_of
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.results import (
    Control,
    DeadLetter,
    DeletionTrend,
    EndedProtection,
    FollowedDeletion,
    InflightEstimate,
    LedgerDeletionAnswer,
    NamespaceDeletionStatus,
    OperationState,
    PendingRecord,
    Reclaim,
    Redirect,
    RedriveResult,
    SentLedger,
    ServiceStatus,
    ShadowDeletionStatus,
    SidecarInstance,
    TopicDeletionStatus,
    UndeleteResult,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import OutcomeReason
from pulsar_sidecar.features.ledger_deletion.send import (
    check_numbering,
    list_dead_letters,
    list_pending,
    redrive,
    refuse_own_topics,
    send,
)
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import (
    end_of,
    follow,
    remains,
    running_deletion_of,
    status_of,
    warnings_of,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    PartOperation,
    new_operation_id,
)
from pulsar_sidecar.features.ledger_deletion.undelete import end_protection, last_logged, protections, undelete
from pulsar_sidecar.features.ledger_deletion.workflow.runtime import Runtime
from pulsar_sidecar.features.ledger_deletion.workflow.watch_calls import WatchCalls
from pulsar_sidecar.model.clocks import attempts
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.observability.tracing import current_trace

LEDGER_STILL_IN_USE = "ledger still in use"
"""PIP-186's client compares a refusal's reason with these words and treats them as final."""
_SHOWN_PROTECTIONS = 100
_ENDED_LOOKBACK_MS = 600_000
_DELETIONS_AT_ONCE = 128
_FOLLOW_SECONDS = 0.5
_LAST_ATTEMPT_SECONDS = 1.0
"""Grace for an attempt that began in time."""

log = structlog.get_logger("ledger-deletion")


class LedgerDeletion:
    """Deletion service of one sidecar.

    Every call raises one of `model.errors`; `DisabledError` while ``topicTwoPhaseDeletionEnabled`` is off.

    Attributes:
        watch: calls about the watch for leaked ledgers.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._last_status: ServiceStatus | None = None
        self._deletions = ThreadPoolExecutor(_DELETIONS_AT_ONCE, "delete-topic")
        self.watch = WatchCalls(runtime)
        runtime.metrics.bind(self._gauges)

    # --- lifecycle --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loops and return at once; `ready` reports when the service can work."""
        self._runtime.start()

    def close(self) -> None:
        """Finish the current batch, release the rest, and leave the registry; idempotent."""
        self._runtime.stop.set()
        self._deletions.shutdown()
        self._runtime.close()
        try:
            self._runtime.registry.withdraw()
        except SidecarError as error:
            log.warning("removing the registration failed; it stays until the session ends", error=str(error))

    def ready(self) -> str | None:
        """Return None when the service can work, otherwise the missing condition."""
        runtime = self._runtime
        if runtime.stop.is_set():
            return "the sidecar is shutting down"
        if runtime.configuration.enabled and not runtime.ready.is_set():
            return runtime.not_ready_reason()
        return None

    def require_ready(self) -> None:
        """Raise `DisabledError` or `TemporaryError`, with the missing condition, unless records can be accepted."""
        self._runtime.require_enabled()
        if (missing := self.ready()) is not None:
            raise TemporaryError(missing)

    def _require_current_store(self) -> None:
        """Raise as `require_ready` does, also if brokers began to leave the metadata store a moment ago."""
        self.require_ready()
        self._refuse_migration()

    def _require_persistence(self) -> None:
        """Raise unless a topic's deletion can be persisted, which needs the brokers' metadata store but no broker."""
        if not self._runtime.was_ready.is_set() or self._runtime.stop.is_set():
            self.require_ready()
        self._refuse_migration()

    def _refuse_migration(self) -> None:
        try:
            self._runtime.check_migration()
        except ConflictError as error:
            raise TemporaryError(str(error)) from error

    # --- first phase -----------------------------------------------------------------------------------------------

    def send_pending_delete_ledgers(
        self,
        records: Sequence[PendingDeleteLedgerInfo],
        *,
        producer_name: str | None = None,
        first_sequence_id: int | None = None,
    ) -> list[SentLedger]:
        """Send records (PIP-186 ``sendPendingDeleteLedger``) and return one result each, in order.

        With the caller's own producer name and consecutive sequence ids, a repeated call makes no second record.
        """
        self.require_ready()
        check_numbering(producer_name, first_sequence_id, len(records))
        with self._runtime.steps.taking(Step.RECORDS_APPENDED):
            if producer_name is None:
                answers = send(self._runtime.publisher(DeletionTopic.PENDING), records, None, current_trace())
            else:
                with closing(self._runtime.ports.topics.publisher(DeletionTopic.PENDING, producer_name)) as publisher:
                    answers = send(publisher, records, first_sequence_id, current_trace())
        for record, answer in zip(records, answers, strict=True):
            if answer.sent:
                self._runtime.metrics.sent(record.ledger_type, record.component)
        return answers

    def delete_topic(
        self,
        topic: TopicName,
        *,
        partitioned: bool,
        force: bool,
        requested_by: str | None,
        confirm_source_data_loss: str | None = None,
    ) -> TopicDeletionStatus:
        """Record every ledger the topic references, then have the broker delete it.

        Returns DONE, or RUNNING when the broker could not finish in time: the sidecars continue it. A repeated call
        follows the running deletion. A broker's refusal is raised unchanged (`BrokerRefusedError`, `NotFoundError`).

        Raises:
            DataLossError: the topic is a shadow, or the source of one and ``confirm_source_data_loss`` is not given.
            InvalidInputError: ``confirm_source_data_loss`` is not the topic's full name.
        """
        self._require_persistence()
        refuse_own_topics(topic)
        if confirm_source_data_loss not in (None, str(topic)):
            raise InvalidInputError(
                f"confirmSourceDataLoss does not name the topic that is to be deleted; write {topic}, or leave it out"
            )
        begin = partial(
            self._runtime.deleter.begin,
            new_operation_id(topic),
            topic,
            partitioned=partitioned,
            force=force,
            requested_by=requested_by,
            source_data_loss_confirmed=confirm_source_data_loss is not None,
            trace=current_trace(),
        )
        running = partial(running_deletion_of, self._runtime.ports.store, topic, partitioned=partitioned, force=force)
        status, refusal = self._in_time(running, begin)
        if refusal is not None:
            raise refusal
        return status

    def _in_time(
        self, running: Callable[[], OperationId | None], begin: Callable[[], HeldOperation]
    ) -> tuple[TopicDeletionStatus, PermanentError | None]:
        """Follow the running topic deletion, or begin and drive one, in a thread that outlives the caller's wait."""
        begun: list[HeldOperation] = []

        def drive() -> tuple[TopicDeletionStatus, PermanentError | None]:
            earlier = running()
            if earlier is not None:
                return self._follow(earlier), None
            begun.append(begin())
            return self._runtime.driver.drive(begun[0], self._runtime.configuration.topic_deletion_wait_ms)

        driving = self._deletions.submit(copy_context().run, drive)
        try:
            return driving.result(self._runtime.configuration.topic_deletion_wait_ms / 1000 + _LAST_ATTEMPT_SECONDS)
        except TimeoutError as error:
            if driving.cancel():
                raise TemporaryError(
                    "too many topic deletions are waiting for the cluster; nothing was done, try again"
                ) from error
            if not begun:
                raise OutcomeUnknownError(
                    "the metadata store has not answered, so the deletion may still begin; list the running topic "
                    "deletions before you repeat it"
                ) from error
        return self._unfinished(begun[0].operation), None

    def _unfinished(self, operation: Operation) -> TopicDeletionStatus:
        """Return the current status, or the persisted one if the metadata store times out."""
        look = self._deletions.submit(self.topic_deletion, operation.operation_id)
        with suppress(TimeoutError, SidecarError):
            return look.result(_LAST_ATTEMPT_SECONDS)
        return operation.unfinished()

    def _follow(self, operation_id: OperationId) -> TopicDeletionStatus:
        wait_seconds = self._runtime.configuration.topic_deletion_wait_ms / 1000
        status: TopicDeletionStatus = self.topic_deletion(operation_id)
        for _ in attempts(self._runtime.ports.clock, wait_seconds, _FOLLOW_SECONDS, self._runtime.stop):
            if status.state is not OperationState.RUNNING:
                break
            with suppress(NotFoundError):  # the sidecar that ends it logs the end a moment later
                status = self.topic_deletion(operation_id)
        return status

    def record_part(
        self, topic: TopicName, subscription: str | None, *, force: bool, requested_by: str | None
    ) -> PartOperation | None:
        """Record the ledgers of a subscription, or for None of the topic's schema, before a broker deletes it.

        Returns None where two-phase deletion is switched off or there is nothing to delete. Raises what
        `TopicDeleter.record_part` does.
        """
        if not self._runtime.configuration.enabled:
            return None
        self._require_current_store()
        operation = self._runtime.deleter.record_part(
            new_operation_id(topic),
            topic,
            subscription,
            force=force,
            requested_by=requested_by,
            trace=current_trace(),
        )
        return operation if operation.incarnations else None

    def continue_part(self, operation: PartOperation) -> TopicDeletionStatus:
        """Continue a deletion whose broker did not respond, as `delete_topic` does once it is persisted."""
        status, refusal = self._in_time(lambda: None, partial(self._runtime.deleter.persist, operation))
        if refusal is not None:
            raise refusal
        return status

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> ShadowDeletionStatus:
        """Begin or continue deleting a shadow topic, without touching its source's ledgers: one stage per call.

        Any sidecar may take the next call, until one returns DONE. Raises as `ShadowDeleter.advance` does.
        """
        self._require_current_store()
        refuse_own_topics(topic)
        status = self._runtime.shadow_deleter.advance(new_operation_id(topic), topic, requested_by=requested_by)
        log.info("shadow deletion advanced", topic=str(topic), stage=status.stage.value, waits_for=status.waits_for)
        return status

    def delete_namespace(
        self, namespace: str, *, force: bool, requested_by: str | None, wait: bool
    ) -> NamespaceDeletionStatus:
        """Delete a namespace with all its topics; return DONE, or RUNNING if it takes longer than the call waits.

        While it runs, a repeated call follows it. Raises as `NamespaceDeletions.delete` does.
        """
        self._require_current_store()
        wait_ms = self._runtime.configuration.topic_deletion_wait_ms if wait else 0
        return self._runtime.namespaces.delete(namespace, force=force, requested_by=requested_by, wait_ms=wait_ms)

    def namespace_deletion(self, namespace: str, operation_id: OperationId) -> NamespaceDeletionStatus:
        """Return the status of a namespace's deletion, running or ended."""
        self._runtime.require_enabled()
        return self._runtime.namespaces.status(namespace, operation_id)

    def namespace_deletions(self) -> list[NamespaceDeletionStatus]:
        """Return the running namespace deletions."""
        self._runtime.require_enabled()
        return self._runtime.namespaces.running()

    # --- running topic deletions -----------------------------------------------------------------------------------

    def topic_deletions(self) -> list[TopicDeletionStatus]:
        """Return the topic deletions that have not ended."""
        self._runtime.require_enabled()
        return self._runtime.deleter.running()

    def topic_deletion(self, operation_id: OperationId) -> FollowedDeletion:
        """Return a topic deletion with what remains, or its end in the last 10 minutes.

        Raises:
            NotFoundError: it is not running, and the outcome topic does not have its end.
        """
        self._runtime.require_enabled()
        ports = self._runtime.ports
        found = follow(ports.store, operation_id, self._runtime.configuration.ledgers_root)
        return found or end_of(ports.topics, operation_id, ports.clock.now_ms() - _ENDED_LOOKBACK_MS)

    def abandon_topic_deletion(self, operation_id: OperationId, *, asked_by: str | None) -> FollowedDeletion:
        """End a topic deletion in any state; its records are evaluated as usual, so referenced ledgers stay.

        Raises:
            NotFoundError: it is not running.
            TemporaryError: its end could not be stored, so it continues.
        """
        self._runtime.require_enabled()
        runtime, store = self._runtime, self._runtime.ports.store
        node = runtime.deleter.operations.abandon(operation_id)
        if node is None:
            raise NotFoundError(f"no topic deletion {operation_id} is running; it may have ended by itself")
        status = replace(status_of(node), state=OperationState.ABANDONED, next_attempt_ms=None, remedy=None)
        try:
            nodes, left = remains(store, node, runtime.configuration.ledgers_root)
        except SidecarError as error:
            nodes, left = None, None
            log.warning(
                "the leftovers of an abandoned topic deletion are unknown", operation_id=operation_id, error=str(error)
            )
        runtime.notes.end_of_topic(status, asked_by)
        return status.followed(
            left_nodes=nodes, left=left, ended_ms=runtime.ports.clock.now_ms(), abandoned_by=asked_by
        )

    # --- second phase, at once -------------------------------------------------------------------------------------

    def delete_ledger(self, record: PendingDeleteLedgerInfo, *, authoritative: bool) -> LedgerDeletionAnswer | Redirect:
        """Evaluate and delete a ledger now (PIP-186 ``deleteLedger``).

        Raises:
            ConflictError: the ledger is still in use; the text is PIP-186's, and nothing else raises ConflictError.
            InvalidInputError: the ledger is not the one that the record describes.
            PermanentError: only an operator can remove the obstacle.
            TemporaryError: deletion is paused, or the ledger cannot be evaluated yet.
            OutcomeUnknownError: the response to its deletion was lost.
        """
        self._require_current_store()
        control = self._runtime.control
        if control.paused:
            raise TemporaryError(f"deletion is paused ({control.paused_reason or 'no reason given'}); resume it first")
        neighbour = None if authoritative else self._neighbour_of_owner(record.topic)
        if neighbour is not None:
            return Redirect(neighbour.advertised_url)
        # The caller of a direct call is not about to shrink a list, so "in use" is final.
        direct = record.marked(replace(record.mark, unreferenced=True))
        origin = f"deleteLedger on {self._runtime.instance.name}"
        return _answer(self._runtime.processor().process_now(direct, origin, current_trace()))

    def _neighbour_of_owner(self, topic: TopicName) -> SidecarInstance | None:
        own = self._runtime.instance
        owner = self._runtime.ports.owners.owner_url(topic)
        if owner is None or owner == own.broker_url:
            return None
        others = (instance for instance in self._runtime.registry.instances() if instance.broker_url == owner)
        return next((instance for instance in others if instance.name != own.name), None)

    # --- operators' calls ------------------------------------------------------------------------------------------

    def estimated_inflight(self) -> InflightEstimate:
        """Return the estimate of pending records, at most a second old."""
        self._runtime.require_enabled()
        return self._runtime.inflight()

    def cached_inflight(self) -> InflightEstimate | None:
        """Return the estimate from memory, at once; None where only `estimated_inflight` knows it."""
        return self._runtime.cached_inflight() if self._runtime.configuration.enabled else None

    def last_inflight(self) -> InflightEstimate | None:
        """Return the last estimate of any age, at once; None before the first one."""
        return self._runtime.last_inflight() if self._runtime.configuration.enabled else None

    def last_status(self) -> ServiceStatus | None:
        """Return the last result of `status`, at once; None before the first call."""
        return self._last_status

    def status(self) -> ServiceStatus:
        """Return the overall status for operators; works while the feature is off."""
        self._last_status = self._status()
        return self._last_status

    def _status(self) -> ServiceStatus:
        runtime, store = self._runtime, self._runtime.ports.store
        as_of_ms = runtime.ports.clock.now_ms()
        enabled = runtime.configuration.enabled
        found, now_ms = protections(store), store.now_ms()
        running, instances = runtime.deleter.running(), runtime.registry.instances()
        inflight, dead_letters = runtime.inflight_or_last() if enabled else (None, None)
        protected = sorted(
            (each for each in found if each.until_ms > now_ms), key=lambda each: (each.until_ms, each.ledger_id)
        )
        return ServiceStatus(
            enabled=enabled,
            control=runtime.service_control.read(),
            inflight=inflight,
            dead_letters=dead_letters,
            deleted_per_second=runtime.throughput.per_second() if enabled else None,
            instances=instances,
            running_topic_deletions=len(running),
            last_error=runtime.last_error,
            last_error_at_ms=runtime.last_error_at_ms,
            adaptive_limit=runtime.limit_readings(),
            protected_ledgers=tuple(protected[:_SHOWN_PROTECTIONS]),
            bookkeeper_exclusive_to_cluster=runtime.configuration.policy.bookkeeper_exclusive,
            warnings=(
                *_without_consumers(instances),
                *runtime.ports.topics.warnings(),
                *runtime.shadows.warnings(),
                *runtime.shadow_watch.warnings(),
                *warnings_of(running),
            ),
            stuck_topic_deletions=sum(each.remedy is not None for each in running),
            running_namespace_deletions=len(runtime.namespaces.running()),
            as_of_ms=as_of_ms,
            reclaimed=runtime.reclaiming.last,
        )

    def pause(self, reason: str | None, asked_by: str | None = None) -> Control:
        """Pause deletion on all sidecars; the first phase continues to record."""
        return self._changed(self._runtime.service_control.pause(reason, asked_by))

    def resume(self) -> Control:
        """Resume deletion on all sidecars."""
        return self._changed(self._runtime.service_control.resume())

    def limit_rate(self, ledgers_per_second: float | None) -> Control:
        """Limit the rate of each sidecar; None lifts the limit."""
        return self._changed(self._runtime.service_control.limit_rate(ledgers_per_second))

    def dead_letters(self, limit: int, after: str | None = None) -> list[DeadLetter]:
        """Return the dead letters, oldest first, from behind the message ``after`` on."""
        self.require_ready()
        with closing(self._runtime.ports.topics.dead_letters()) as dead_letters:
            return list_dead_letters(dead_letters, limit, after)

    def pending_records(self, limit: int, offset: int = 0) -> list[PendingRecord]:
        """Return pending records in order of publishing, behind the first ``offset``; consumes nothing."""
        self.require_ready()
        with closing(self._runtime.ports.topics.unacknowledged()) as waiting:
            return list_pending(waiting, limit, offset)

    def trend(self) -> DeletionTrend:
        """Return the trend of the last hour, a point a minute."""
        self._runtime.require_enabled()
        return self._runtime.trend.read()

    def reclaimed(self, hours: float) -> Reclaim:
        """Read the space that bookies have reclaimed; raises as `Reclaiming.reclaimed` does."""
        self.require_ready()
        return self._runtime.reclaiming.reclaimed(hours, self._runtime.stop)

    def redrive(self, ledger_ids: Sequence[LedgerId] | None, limit: int) -> RedriveResult:
        """Send dead letters, all of them for None, back to the system topic with a retry count of 0."""
        self.require_ready()
        with closing(self._runtime.ports.topics.dead_letters()) as dead_letters:
            publisher = self._runtime.publisher(DeletionTopic.PENDING)
            return redrive(dead_letters, publisher, ledger_ids, limit, self._runtime.steps)

    def undelete(self, ledger_id: LedgerId, *, force: bool) -> UndeleteResult:
        """Write a deleted ledger's metadata back, as long as bookies hold its entries.

        Raises as `ledger_deletion.undelete.undelete` does.
        """
        self._require_current_store()
        ports, configuration = self._runtime.ports, self._runtime.configuration
        undeleted = undelete(
            ports.store,
            ports.entries,
            ports.topics,
            ledger_id,
            since_ms=self._undelete_since_ms(),
            force=force,
            protection_ms=configuration.undelete_protection_ms,
            root=configuration.ledgers_root,
            steps=self._runtime.steps,
        )
        self._runtime.notes.keep("undeleted", {"ledgerId": ledger_id, "readable": undeleted.readable})
        return undeleted

    def end_protection(self, ledger_id: LedgerId) -> EndedProtection:
        """End a restored ledger's protection early.

        Raises:
            NotFoundError: nothing protects it.
        """
        self._runtime.require_enabled()
        with self._runtime.steps.taking(Step.PROTECTION_ENDED):
            ended = end_protection(self._runtime.ports.store, ledger_id)
        if not ended:
            raise NotFoundError(f"nothing protects ledger {ledger_id}; status lists the ledgers that are protected")
        self._runtime.notes.keep("protection-ended", {"ledgerId": ledger_id})
        return EndedProtection(ledger_id)

    # --- tenants ---------------------------------------------------------------------------------------------------

    def tenants_of(self, ledger_ids: Sequence[LedgerId]) -> list[str | None]:
        """Return the tenants that own the ledgers, in order; raises as `owners.tenants_of` does."""
        return tenants_of(self._runtime.ports.store, ledger_ids, self._runtime.configuration.ledgers_root)

    def tenant_of_deleted(self, ledger_id: LedgerId) -> str | None:
        """Return the tenant that owned a ledger that `undelete` can restore; None if unknown."""
        self.require_ready()
        logged = last_logged(self._runtime.ports.topics, ledger_id, self._undelete_since_ms())
        return None if logged is None else tenant_of(logged.metadata)

    # --- shared ----------------------------------------------------------------------------------------------------

    def _undelete_since_ms(self) -> int:
        return max(0, self._runtime.ports.clock.now_ms() - self._runtime.configuration.undelete_lookback_ms)

    def _changed(self, control: Control) -> Control:
        self._runtime.control = control
        log.info("pause or rate changed", paused=control.paused, rate_per_second=control.rate_per_second)
        return control

    def _gauges(self) -> GaugeReadings:
        runtime = self._runtime
        inflight, dead_letters = runtime.inflight_within_timeout() if runtime.ready.is_set() else (None, None)
        return GaugeReadings(
            inflight=inflight,
            dead_letters=dead_letters,
            paused=runtime.control.paused,
            rate_per_second=runtime.rate_per_second(),
            running_topic_deletions=runtime.running_topic_deletions,
            stuck_topic_deletions=runtime.stuck_topic_deletions,
            oldest_topic_deletion_ms=runtime.oldest_topic_deletion_ms(),
            running_namespace_deletions=runtime.running_namespace_deletions,
            adaptive_limit=runtime.limit_readings(),
            watch=self.watch.readings(),
        )


def _answer(outcome: RecordOutcome) -> LedgerDeletionAnswer:
    """Convert an outcome to the result of a direct call, or raise.

    The error's text gives the reason; all but "still in use" begin with the `OutcomeReason`.
    """
    if outcome.decision is Decision.DELETED:
        return LedgerDeletionAnswer.DELETED
    reason = outcome.reason
    if reason is OutcomeReason.ALREADY_GONE:
        return LedgerDeletionAnswer.GONE
    if reason is OutcomeReason.IN_USE:
        raise ConflictError(LEDGER_STILL_IN_USE)
    text = f"{reason.value}: {outcome.detail}"
    if outcome.decision is Decision.KEPT:
        raise InvalidInputError(text)
    if outcome.decision is Decision.SET_ASIDE:
        raise PermanentError(text)
    if reason is OutcomeReason.OUTCOME_UNKNOWN:
        raise OutcomeUnknownError(f"{text}; repeat the call")
    raise TemporaryError(text)


def _without_consumers(instances: Sequence[SidecarInstance]) -> tuple[str, ...]:
    if not instances or any(each.consumes for each in instances):
        return ()
    return ("no sidecar consumes pending deletions; start one with twoPhaseDeletionConsumerEnabled=true",)
