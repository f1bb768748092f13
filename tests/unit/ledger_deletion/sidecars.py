"""One sidecar beside a `FakePulsar`, driven by hand, and the invariants when everything is at rest.

It does what the running service's loops do, without their threads: a test decides when time passes, which step is the
last before a crash, and which call of a port fails.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pulsar_sidecar.features.ledger_deletion.grouping import GroupedPublisher, GroupedStore
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, PendingDeletions, Publisher
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo, encode_record, parse_record
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.second_phase.batch import BatchReport
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import DeletionPolicy
from pulsar_sidecar.features.ledger_deletion.second_phase.gather import Gatherer
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import RateLimiter
from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies
from pulsar_sidecar.features.ledger_deletion.second_phase.processor import PendingDeletionProcessor
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.driver import TopicDeleter
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import DurableOperations
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS, HeldOperation, PartOperation
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.ledgers import LedgerType
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar
from tests.model.traces import Line

POLICY = DeletionPolicy(
    open_min_age_ms=3_600_000, unlinked_min_age_ms=3_600_000, in_use_wait_ms=600_000, bookkeeper_exclusive=True
)
RETRY_POLICY = RetryPolicy(reconsume_later_ms=600_000, max_redeliver_count=10)
METRICS = DeletionMetrics("local")
NAME = "sidecar-1"

_parsed = lru_cache(10_000)(parse_record)


class Crash(BaseException):
    """The process is killed; nothing of ours catches it."""


class NotStopped:
    """A stop signal that is never set."""

    def wait(self, timeout: float | None = None) -> bool:
        return False

    def is_set(self) -> bool:
        return False


@dataclass
class CrashAt(Steps):
    """Kills the process at the given point; points lie before and after each step, counted together from 0."""

    number: int | None = None
    seen: list[Step] = field(default_factory=list)

    def about_to(self, step: Step) -> None:
        self._pass(step)

    def reached(self, step: Step) -> None:
        self._pass(step)

    def _pass(self, step: Step) -> None:
        self.seen.append(step)
        if self.number is not None and len(self.seen) - 1 == self.number:
            raise Crash(step)


class Sidecar:
    """The objects of one sidecar's process; `FakePulsar` is everything around it.

    ``wrap`` is put around every port, to let calls fail.
    """

    def __init__(
        self,
        fake_pulsar: FakePulsar,
        *,
        name: str = NAME,
        steps: Steps | None = None,
        wrap: Callable[[object], object] = lambda port: port,
        policy: DeletionPolicy = POLICY,
        retry_policy: RetryPolicy = RETRY_POLICY,
        store: object | None = None,
        rate_per_second: float | None = None,
        stop: StopSignal | None = None,
        operation_ids: Sequence[str] = ("op-1",),
    ) -> None:
        self.fake_pulsar = fake_pulsar
        self.name = name
        self.steps = steps or Steps()
        self.warnings: list[str] = []
        self.policy = policy
        self.retry_policy = retry_policy
        self.rate_per_second = rate_per_second
        self.paused = False
        self.stop = stop or NotStopped()
        self.store = wrap(store or fake_pulsar.store)
        self.entries = wrap(fake_pulsar.entries)
        self.topics = wrap(fake_pulsar.topics)
        self.owners = wrap(fake_pulsar.owners)
        self.admin = wrap(fake_pulsar.admin)
        self.shadows = wrap(fake_pulsar.shadows)
        self.offloaded = wrap(fake_pulsar.offloaded)
        shared = GroupedStore(self.store)
        records = GroupedPublisher(lambda: self._publisher(DeletionTopic.PENDING))
        self.recorder = Recorder(
            shared, self.entries, self.owners, self.admin, records, "/ledgers", METRICS, self.steps
        )
        self.deleter = TopicDeleter(
            DurableOperations(name, shared, self.steps), shared, self.recorder, self.admin, self.shadows, self.steps
        )
        self.gatherer = Gatherer(
            self.store, self.entries, self.owners, OnlyCopies(self.offloaded.is_whole, fake_pulsar.clock), "/ledgers"
        )
        self._operation_ids = list(operation_ids)
        self._pending: PendingDeletions | None = None
        self._publishers: dict[DeletionTopic, Publisher] = {}
        self._processor: PendingDeletionProcessor | None = None

    # --- first phase -------------------------------------------------------------------------------------------------

    def delete_topic(
        self, topic: TopicName, *, partitioned: bool = False, force: bool = False, confirmed: bool = False
    ) -> OperationState:
        """Act like the REST call: begin, one attempt, release; a broker's refusal is raised."""
        held = self.deleter.begin(
            OperationId(self._operation_ids.pop(0)),
            topic,
            partitioned=partitioned,
            force=force,
            requested_by="me",
            source_data_loss_confirmed=confirmed,
        )
        return self._drive(held)

    def _drive(self, held: HeldOperation) -> OperationState:
        try:
            tried = self.deleter.attempt(held)
        except (TemporaryError, OutcomeUnknownError):
            self._release(held.operation.operation_id)
            raise
        if tried.refusal is not None:
            raise tried.refusal
        if tried.state is OperationState.RUNNING:
            self._release(held.operation.operation_id)
        return tried.state

    def delete_part(
        self, topic: TopicName, subscription: str | None, *, force: bool = False
    ) -> OperationState | PartOperation:
        """Act like the REST call with one request to a broker, which may not respond; a refusal is raised.

        The operation where the broker answered, with what was recorded.
        """
        operation = self.deleter.record_part(
            OperationId(self._operation_ids.pop(0)), topic, subscription, force=force, requested_by="me"
        )
        try:
            if subscription is None:
                self.admin.delete_schema(topic)
            else:
                self.admin.delete_subscription(topic, subscription, force=force)
        except OutcomeUnknownError:
            return self._drive(self.deleter.persist(operation))
        return operation

    def drive(self) -> OperationState | None:
        """Drive one due operation like the loop."""
        held = self.deleter.take_due()
        if held is None:
            return None
        tried = self.deleter.attempt(held)
        if tried.state is OperationState.RUNNING:
            self.deleter.operations.release(tried.held.operation.operation_id)
        return tried.state

    def _release(self, operation_id: OperationId) -> None:
        try:
            self.deleter.operations.release(operation_id)
        except SidecarError as error:
            self.warnings.append(str(error))

    # --- second phase ------------------------------------------------------------------------------------------------

    def processor(self) -> PendingDeletionProcessor:
        if self._processor is None:
            self._processor = PendingDeletionProcessor(
                sidecar=self.name,
                clock=self.fake_pulsar.clock,
                store=self.store,
                offloaded=self.offloaded,
                gatherer=self.gatherer,
                publishers={
                    topic: self._publisher(topic)
                    for topic in (DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER, DeletionTopic.OUTCOME)
                },
                policy=self.policy,
                retry_policy=self.retry_policy,
                metrics=METRICS,
                steps=self.steps,
                rate_limiter=RateLimiter(
                    self.fake_pulsar.clock, self.stop, lambda: self.rate_per_second, lambda: self.paused
                ),
                warn=self.warnings.append,
            )
        return self._processor

    def _publisher(self, topic: DeletionTopic) -> Publisher:
        if topic not in self._publishers:
            self._publishers[topic] = self.topics.publisher(topic, f"{self.name}-{topic.name}")
        return self._publishers[topic]

    def pending(self) -> PendingDeletions:
        if self._pending is None:
            self._pending = self.topics.pending()
        return self._pending

    def process(self) -> BatchReport | None:
        """One batch, if there is one now."""
        processor, pending = self.processor(), self.pending()
        deliveries = pending.receive()
        return processor.process(pending, deliveries) if deliveries else None

    def reopen(self) -> None:
        """Act like the worker loop after an error: open a new consumer."""
        if self._pending is not None:
            self._pending.close()
            self._pending = None

    def forget_connections(self) -> None:
        """After they broke: new ones are made when they are needed."""
        self._pending = None
        self._publishers = {}
        self._processor = None

    # --- both, until there is nothing left to do ---------------------------------------------------------------------

    def work(self, most_rounds: int = 400) -> None:
        """Go on until the topics are drained and no operation runs, letting time pass between the looks."""
        for _ in range(most_rounds):
            self._round()
            if at_rest(self.fake_pulsar):
                return
            self.fake_pulsar.clock.advance_ms(until_next_ms(self.fake_pulsar))
        raise AssertionError(f"never comes to rest: {waiting_records(self.fake_pulsar)}, {self.warnings[-5:]}")

    def work_and_check(self) -> None:
        self.work()
        check(self.fake_pulsar)

    def _round(self) -> None:
        try:
            self.drive()
        except SidecarError as error:
            self.warnings.append(f"topic-deletions: {error}")
        try:
            self.process()
        except SidecarError as error:
            self.warnings.append(f"worker: {error}")
            self.reopen()


def restarted(fake_pulsar: FakePulsar, **options: object) -> Sidecar:
    """A new process after the former sidecar's is gone."""
    fake_pulsar.store.end_session()
    fake_pulsar.topics.drop_connections()
    return Sidecar(fake_pulsar, **options)


def send(fake_pulsar: FakePulsar, *records: PendingDeleteLedgerInfo) -> None:
    """Records as another cluster's broker would send them."""
    for record in records:
        fake_pulsar.topics.put(DeletionTopic.PENDING, encode_record(record), key=str(record.topic))


# --- pending work ----------------------------------------------------------------------------------------------------


def waiting_records(fake_pulsar: FakePulsar) -> list[str]:
    """The records that are still to be settled, as text."""
    messages = fake_pulsar.topics.waiting(DeletionTopic.PENDING) + fake_pulsar.topics.waiting(DeletionTopic.RETRY)
    return [f"{message.payload!r} {message.properties}" for message in messages]


def at_rest(fake_pulsar: FakePulsar) -> bool:
    """True if nothing waits and no topic deletion runs."""
    running = fake_pulsar.store.peek(OPERATIONS)
    return not waiting_records(fake_pulsar) and (running is None or running.children_count == 0)


def until_next_ms(fake_pulsar: FakePulsar) -> int:
    """Return the time until the next waiting message or operation is due, at least a second."""
    now_ms = fake_pulsar.clock.now_ms()
    messages = fake_pulsar.topics.waiting(DeletionTopic.PENDING) + fake_pulsar.topics.waiting(DeletionTopic.RETRY)
    due = [max(message.deliver_at_ms or 0, message.not_before_ms) - now_ms for message in messages]
    for path in fake_pulsar.store.paths():
        node = fake_pulsar.store.peek(path)
        if path.startswith(f"{OPERATIONS}/") and path.count("/") == OPERATIONS.count("/") + 1 and node and node.data:
            due.append(json.loads(node.data)["notBeforeMs"] - now_ms)
    return max(1_000, min(due, default=1_000))


# --- outcomes --------------------------------------------------------------------------------------------------------


def outcome_lines(fake_pulsar: FakePulsar) -> list[Line]:
    """Every line of the outcome topic, in order, as the replay in the model takes them."""
    documents = [json.loads(message.payload) for message in fake_pulsar.topics.messages(DeletionTopic.OUTCOME)]
    return [(document["step"], document["sidecar"], entry) for document in documents for entry in document["entries"]]


def processed_entries(fake_pulsar: FakePulsar) -> list[Mapping[str, object]]:
    """Every line of every ``settled`` message of the outcome topic, in order."""
    return [entry for step, _, entry in outcome_lines(fake_pulsar) if step == "settled"]


def judged(fake_pulsar: FakePulsar) -> list[Mapping[str, object]]:
    """Every line of every ``judged`` message."""
    return [entry for step, _, entry in outcome_lines(fake_pulsar) if step == "judged"]


def endings(fake_pulsar: FakePulsar) -> dict[tuple[int, str], list[tuple[str, str]]]:
    """Return the ends of each ledger's records by storage: decisions and reasons, without retries."""
    found: dict[tuple[int, str], list[tuple[str, str]]] = {}
    for entry in processed_entries(fake_pulsar):
        if entry["decision"] != "retry" and "ledgerId" in entry:
            key = (int(str(entry["ledgerId"])), str(entry["ledgerType"]))
            found.setdefault(key, []).append((str(entry["decision"]), str(entry["reason"])))
    return found


def accepted_records(fake_pulsar: FakePulsar) -> list[PendingDeleteLedgerInfo]:
    """Every record that the system topic ever accepted."""
    return [_parsed(message.payload) for message in fake_pulsar.topics.messages(DeletionTopic.PENDING)]


def dead(fake_pulsar: FakePulsar) -> set[tuple[int, str]]:
    """The records on the dead-letter topic."""
    records = [_parsed(message.payload) for message in fake_pulsar.topics.messages(DeletionTopic.DEAD_LETTER)]
    return {(record.ledger_id, record.ledger_type.value) for record in records}


def check(fake_pulsar: FakePulsar, *, foreign_ok: bool = False) -> None:
    """The oracles, once faults have stopped and everything has come to rest."""
    assert fake_pulsar.violations == []
    assert fake_pulsar.dangling() == set()
    assert fake_pulsar.leftover_schemas() == []
    assert at_rest(fake_pulsar), waiting_records(fake_pulsar)
    ended, in_dlq = endings(fake_pulsar), dead(fake_pulsar)
    referenced, present = fake_pulsar.referenced(), fake_pulsar.ledgers()
    for record in accepted_records(fake_pulsar):
        key = (record.ledger_id, record.ledger_type.value)
        assert key in ended or key in in_dlq, f"{record} was accepted and never ended"
        if record.ledger_type is LedgerType.LEDGER and not foreign_ok:
            left = record.ledger_id in present and record.ledger_id not in referenced
            assert not left or key in in_dlq, f"{record} left an orphan: {ended.get(key)}"
    deleted = Counter(key for key, ends in ended.items() for decision, _ in ends if decision == "deleted")
    assert all(count == 1 for count in deleted.values()), f"more than one deletion: {deleted}"
