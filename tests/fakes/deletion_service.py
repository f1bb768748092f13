"""`LedgerDeletion` in memory, for tests of the server, the CLI and the pages.

It returns a test's results, records its requests, and raises a test's errors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from uuid import UUID

from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.results import (
    BookieReclaim,
    Control,
    DeadLetter,
    DeletionTrend,
    EndedProtection,
    FollowedDeletion,
    InflightEstimate,
    LedgerDeletionAnswer,
    LimitReadings,
    NamespaceDeletionStatus,
    OperationState,
    PendingRecord,
    ProtectedLedger,
    Reclaim,
    Redirect,
    RedriveResult,
    SentLedger,
    ServiceStatus,
    ShadowDeletionStage,
    ShadowDeletionStatus,
    SidecarInstance,
    TopicDeletionStatus,
    TrendPoint,
    UndeleteResult,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import PartOperation
from pulsar_sidecar.features.ledger_deletion.watch.results import (
    Leak,
    LeakCause,
    LeakState,
    LedgerExplanation,
    ListedLeaks,
    WatchMode,
    WatchOrders,
    WatchState,
    WatchStatus,
)
from pulsar_sidecar.features.ledger_deletion.workflow.watch_calls import listed_leaks
from pulsar_sidecar.model.errors import NotFoundError, SidecarError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName

IDLE = ServiceStatus(
    enabled=True,
    control=Control(),
    inflight=InflightEstimate(7, 120, 5_000, 900),
    dead_letters=0,
    deleted_per_second=None,
    instances=(),
    running_topic_deletions=0,
    stuck_topic_deletions=0,
    running_namespace_deletions=0,
    last_error=None,
    last_error_at_ms=None,
    adaptive_limit=LimitReadings(25.0, 1.5, None),
    protected_ledgers=(),
    bookkeeper_exclusive_to_cluster=False,
    warnings=(),
    as_of_ms=0,
)
RECLAIM = Reclaim(
    since_ms=1_700_000_000_000,
    ledgers=2,
    unmeasured_ledgers=1,
    deleted_bytes=1_000,
    last_deleted_ms=1_700_000_000_000,
    asked_ledgers=2,
    collected_bookies=1,
    bookies=(
        BookieReclaim("bookie-1:3181", 0, 0, 5_000, 1_700_000_000_000, ()),
        BookieReclaim("bookie-2:3181", 2, 600, None, None, ("no HTTP service",)),
        BookieReclaim("bookie-3:3181", None, None, None, None, ("no answer",)),
    ),
    as_of_ms=1_700_014_400_000,
)
"""Deletions of four hours."""


@dataclass(slots=True)
class FakeWatchCalls:
    """`WatchCalls` in memory, with ``asked`` and ``failure`` of the service."""

    asked: Callable[[str, object], None]
    answer: WatchStatus = field(default_factory=lambda: WatchStatus(WatchMode.OFF, WatchState.OFF, None, None, ()))
    found: list[Leak] = field(default_factory=list)
    explained: dict[int, LedgerExplanation] = field(default_factory=dict)
    redirect: Redirect | None = None
    shared: WatchOrders = field(default_factory=lambda: WatchOrders(None, ()))

    def status(self) -> WatchStatus:
        self.asked("watch_status", None)
        return self.answer

    def leaks(
        self, *, state: LeakState | None, cause: LeakCause | None, ended: bool, limit: int, offset: int = 0
    ) -> ListedLeaks | Redirect:
        self.asked("leaks", (state, cause, ended, limit, offset))
        if self.redirect is not None:
            return self.redirect
        found = [leak for leak in self.found if state in (None, leak.state)]
        return listed_leaks(found, limit, offset)

    def append(self, ledger_id: LedgerId, offload_attempt: UUID | None = None) -> Leak | Redirect:
        self.asked("append_leak", ledger_id if offload_attempt is None else (ledger_id, offload_attempt))
        if self.redirect is not None:
            return self.redirect
        for leak in self.found:
            if leak.ledger_id == ledger_id:
                return leak
        raise NotFoundError(f"ledger {ledger_id} is not among the leaks")

    def brake(self, reason: str) -> WatchOrders:
        self.asked("brake", reason)
        self.shared = replace(self.shared, braked=reason)
        return self.shared

    def explain(self, ledger_id: LedgerId) -> LedgerExplanation | Redirect:
        self.asked("explain", ledger_id)
        return self.redirect or self.explained.get(
            ledger_id, LedgerExplanation(ledger_id, False, (), None, None, "the ledger does not exist", None)
        )

    def control(self) -> WatchOrders:
        self.asked("control", None)
        return self.shared

    def resume(self) -> WatchOrders:
        self.asked("resume_watch", None)
        self.shared = replace(self.shared, braked=None)
        return self.shared

    def hold(self, item: str) -> WatchOrders:
        self.asked("hold", item)
        self.shared = replace(self.shared, holds=(*self.shared.holds, item))
        return self.shared

    def release_hold(self, item: str) -> WatchOrders:
        self.asked("release_hold", item)
        if item not in self.shared.holds:
            raise NotFoundError(f"{item} is not on the hold list")
        self.shared = replace(self.shared, holds=tuple(each for each in self.shared.holds if each != item))
        return self.shared


@dataclass(slots=True)
class FakeDeletionService:
    """Fake service: set the public fields, call the server, the CLI or a page, check ``asked``."""

    failure: SidecarError | RuntimeError | None = None
    not_sent: dict[int, str] = field(default_factory=dict)
    control: Control = field(default_factory=Control)
    inflight: InflightEstimate = field(default_factory=lambda: IDLE.inflight)
    adaptive_limit: LimitReadings | None = field(default_factory=lambda: IDLE.adaptive_limit)
    instances: tuple[SidecarInstance, ...] = ()
    deletion_state: OperationState = OperationState.DONE
    deletion_reason: str | None = None
    running: list[TopicDeletionStatus] = field(default_factory=list)
    followed: list[FollowedDeletion] = field(default_factory=list)
    """Successive states of a followed deletion; the last one stays."""
    topic_failures: dict[str, SidecarError] = field(default_factory=dict)
    """Errors by the topic's full name."""
    namespace_statuses: list[Any] = field(default_factory=list)
    """Successive statuses of a namespace's deletion: an error, or state, topics deleted of 10, and reason.

    The last one stays.
    """
    ledger_answer: LedgerDeletionAnswer | Redirect = LedgerDeletionAnswer.DELETED
    dead: list[DeadLetter] = field(default_factory=list)
    waiting: list[PendingRecord] = field(default_factory=list)
    deleted: set[int] = field(default_factory=set)
    protected: dict[int, int] = field(default_factory=dict)
    known_status: ServiceStatus | None = None
    last_reclaim: Reclaim | None = None
    shadow_answers: list[Any] = field(default_factory=list)
    """Results of calls of `delete_shadow`: an error, or the stage, the reason of its wait, and lost ledgers."""
    missing_sources: tuple[str, ...] = ()
    missing: str | None = None
    remembers: bool = False
    enabled: bool = True
    part_is_there: bool = True
    asked: list[tuple[str, object]] = field(default_factory=list)
    judged: list[tuple[PendingDeleteLedgerInfo, bool]] = field(default_factory=list)
    recorded: list[PendingDeleteLedgerInfo] = field(default_factory=list)
    confirmed: list[str | None] = field(default_factory=list)
    producers: list[tuple[str | None, int | None]] = field(default_factory=list)
    watch: FakeWatchCalls = field(init=False)

    def __post_init__(self) -> None:
        self.watch = FakeWatchCalls(self._asked)

    def send_pending_delete_ledgers(
        self,
        records: Sequence[PendingDeleteLedgerInfo],
        *,
        producer_name: str | None = None,
        first_sequence_id: int | None = None,
    ) -> list[SentLedger]:
        self._asked("send", (list(records), producer_name, first_sequence_id))
        self.producers.append((producer_name, first_sequence_id))
        self.recorded += [record for record in records if record.ledger_id not in self.not_sent]
        return [
            SentLedger(record.ledger_id, record.ledger_id not in self.not_sent, self.not_sent.get(record.ledger_id))
            for record in records
        ]

    def delete_topic(
        self,
        topic: TopicName,
        *,
        partitioned: bool,
        force: bool,
        requested_by: str | None,
        confirm_source_data_loss: str | None = None,
    ) -> TopicDeletionStatus:
        self._asked("delete_topic", (topic, partitioned, force, requested_by))
        self.confirmed.append(confirm_source_data_loss)
        if str(topic) in self.topic_failures:
            raise self.topic_failures[str(topic)]
        return TopicDeletionStatus(
            OperationId("op-1"), str(topic), None, self.deletion_state, 3, 1, 1_700_000_000_000, self.deletion_reason
        )

    def record_part(
        self, topic: TopicName, subscription: str | None, *, force: bool, requested_by: str | None
    ) -> PartOperation | None:
        self._asked("record_part", (topic, subscription, force, requested_by))
        if not self.part_is_there:
            return None
        return PartOperation(
            operation_id=OperationId("op-1"),
            topic_name=str(topic),
            subscription=subscription,
            partitions=None,
            force=force,
            requested_by=requested_by,
            requested_ms=1_700_000_000_000,
            incarnations={},
            recorded=(),
            attempts=0,
            last_reason=None,
            not_before_ms=0,
        )

    def continue_part(self, operation: PartOperation) -> TopicDeletionStatus:
        self._asked("continue_part", (operation.topic, operation.subscription))
        if str(operation.topic) in self.topic_failures:
            raise self.topic_failures[str(operation.topic)]
        return operation.status(self.deletion_state, self.deletion_reason)

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> ShadowDeletionStatus:
        self._asked("delete_shadow", (topic, requested_by))
        answer = self.shadow_answers.pop(0) if self.shadow_answers else (ShadowDeletionStage.DONE, None)
        if isinstance(answer, SidecarError):
            raise answer
        stage, waits_for, *lost = answer
        return ShadowDeletionStatus(
            OperationId("op-1"),
            str(topic),
            "persistent://public/default/source",
            stage,
            1_700_000_000_000,
            waits_for,
            source_ledgers=5,
            missing_ledgers=tuple(lost),
            missing_before=(LedgerId(3),),
            missing_sources=self.missing_sources,
        )

    def delete_namespace(
        self, namespace: str, *, force: bool, requested_by: str | None, wait: bool
    ) -> NamespaceDeletionStatus:
        self._asked("delete_namespace", (namespace, force, requested_by, wait))
        return self._namespace(namespace)

    def namespace_deletion(self, namespace: str, operation_id: OperationId) -> NamespaceDeletionStatus:
        self._asked("namespace_deletion", (namespace, operation_id))
        return self._namespace(namespace)

    def namespace_deletions(self) -> list[NamespaceDeletionStatus]:
        self._asked("namespace_deletions", None)
        return [self._namespace("public/old")]

    def _namespace(self, namespace: str) -> NamespaceDeletionStatus:
        answers = self.namespace_statuses or [(OperationState.DONE, 10, None)]
        answer = answers[0] if len(answers) == 1 else answers.pop(0)
        if isinstance(answer, SidecarError):
            raise answer
        state, deleted, reason = answer
        return NamespaceDeletionStatus(
            operation_id=OperationId("namespace-1"),
            namespace=namespace,
            state=state,
            topics_found=10,
            topics_deleted=deleted,
            topics_left=10 - deleted,
            recorded_ledgers=30,
            passes=1,
            topics_per_second=deleted / 2,
            seconds_left=2 * (10 - deleted) / deleted if deleted else None,
            requested_ms=1_700_000_000_000,
            running_ms=2_000,
            reason=reason,
        )

    def topic_deletions(self) -> list[TopicDeletionStatus]:
        self._asked("topic_deletions", None)
        return self.running

    def topic_deletion(self, operation_id: OperationId) -> FollowedDeletion:
        self._asked("topic_deletion", operation_id)
        return self._next_look(operation_id)

    def abandon_topic_deletion(self, operation_id: OperationId, *, asked_by: str | None) -> FollowedDeletion:
        self._asked("abandon_topic_deletion", (operation_id, asked_by))
        return self._next_look(operation_id)

    def _next_look(self, operation_id: OperationId) -> FollowedDeletion:
        if not self.followed:
            raise NotFoundError(f"no topic deletion {operation_id} is running")
        return self.followed.pop(0) if len(self.followed) > 1 else self.followed[0]

    def delete_ledger(self, record: PendingDeleteLedgerInfo, *, authoritative: bool) -> LedgerDeletionAnswer | Redirect:
        self._asked("delete_ledger", (record, authoritative))
        self.judged.append((record, authoritative))
        if authoritative and isinstance(self.ledger_answer, Redirect):
            return LedgerDeletionAnswer.DELETED
        return self.ledger_answer

    def estimated_inflight(self) -> InflightEstimate:
        self._asked("estimated_inflight", None)
        return self.inflight

    def cached_inflight(self) -> InflightEstimate | None:
        return self.inflight if self.remembers and self.failure is None else None

    def last_inflight(self) -> InflightEstimate | None:
        return self.inflight if self.failure is None else None

    def last_status(self) -> ServiceStatus | None:
        return self.known_status

    def status(self) -> ServiceStatus:
        self._asked("status", None)
        self.known_status = self._status()
        return self.known_status

    def _status(self) -> ServiceStatus:
        running = len(self.running)
        protected = tuple(ProtectedLedger(LedgerId(each), until_ms) for each, until_ms in self.protected.items())
        return replace(
            IDLE,
            reclaimed=self.last_reclaim,
            enabled=self.enabled,
            control=self.control,
            inflight=self.inflight,
            dead_letters=len(self.dead) if self.enabled else None,
            instances=self.instances,
            running_topic_deletions=running,
            adaptive_limit=self.adaptive_limit,
            protected_ledgers=protected,
        )

    def pause(self, reason: str | None, asked_by: str | None = None) -> Control:
        self._asked("pause", reason)
        self.control = replace(self.control, paused=True, paused_reason=reason, paused_by=asked_by, paused_since_ms=9)
        return self.control

    def resume(self) -> Control:
        self._asked("resume", None)
        self.control = replace(self.control, paused=False, paused_reason=None, paused_by=None, paused_since_ms=None)
        return self.control

    def limit_rate(self, ledgers_per_second: float | None) -> Control:
        self._asked("limit_rate", ledgers_per_second)
        self.control = replace(self.control, rate_per_second=ledgers_per_second)
        return self.control

    def pending_records(self, limit: int, offset: int = 0) -> list[PendingRecord]:
        self._asked("pending_records", (limit, offset))
        return self.waiting[offset : offset + limit]

    def trend(self) -> DeletionTrend:
        self._asked("trend", None)
        return DeletionTrend((TrendPoint(1, 7, None, None), TrendPoint(60_001, 5, 0.5, 2)), 150.0)

    def reclaimed(self, hours: float) -> Reclaim:
        self._asked("reclaimed", hours)
        return RECLAIM if hours >= 4 else Reclaim(0, 0, 0, 0, None, 0, 0, (), round(hours * 3_600_000))

    def dead_letters(self, limit: int, after: str | None = None) -> list[DeadLetter]:
        self._asked("dead_letters", limit)
        return [letter for letter in self.dead if after is None or letter.message_id > after][:limit]

    def redrive(self, ledger_ids: Sequence[LedgerId] | None, limit: int) -> RedriveResult:
        self._asked("redrive", (ledger_ids, limit))
        chosen = [letter for letter in self.dead if ledger_ids is None or self._id(letter) in ledger_ids][:limit]
        self.dead = [letter for letter in self.dead if letter not in chosen]
        return RedriveResult(len(chosen), len(self.dead))

    def undelete(self, ledger_id: LedgerId, *, force: bool) -> UndeleteResult:
        self._asked("undelete", (ledger_id, force))
        if ledger_id not in self.deleted:
            raise NotFoundError(f"no outcome says that ledger {ledger_id} was deleted")
        self.deleted.discard(ledger_id)
        until_ms = 1_700_086_400_000
        self.protected[ledger_id] = until_ms
        return UndeleteResult(ledger_id, readable=True, protected_until_ms=until_ms)

    def end_protection(self, ledger_id: LedgerId) -> EndedProtection:
        self._asked("end_protection", ledger_id)
        if self.protected.pop(ledger_id, None) is None:
            raise NotFoundError(f"nothing protects ledger {ledger_id}")
        return EndedProtection(ledger_id)

    def ready(self) -> str | None:
        return self.missing

    def reset(self) -> None:
        fresh = FakeDeletionService()
        for attribute in fields(self):
            setattr(self, attribute.name, getattr(fresh, attribute.name))
        self.watch.asked = self._asked

    def calls(self, name: str) -> list[object]:
        return [arguments for called, arguments in self.asked if called == name]

    def _asked(self, name: str, arguments: object) -> None:
        self.asked.append((name, arguments))
        if self.failure is not None:
            raise self.failure

    @staticmethod
    def _id(letter: DeadLetter) -> object:
        return None if letter.record is None else letter.record["ledgerId"]
