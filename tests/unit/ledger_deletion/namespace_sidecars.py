"""A sidecar that deletes namespaces, beside a `FakePulsar` with one; and the invariants when everything is at rest."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from pulsar_sidecar.features.ledger_deletion.results import OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import DurableOperations
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import HeldOperation
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_deleter import ShadowDeleter
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_deleter import NamespaceDeleter, Pass
from pulsar_sidecar.features.ledger_deletion.workflow.topic_driving import TopicDeletions
from pulsar_sidecar.model.errors import PermanentError, SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import LOCAL_POLICIES, MANAGED_LEDGERS, PARTITIONED_TOPICS, POLICIES, SCHEMAS

from tests.fakes.namespaces import FakeNamespaceAdmin, change_events, pending_ack
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, accepted_records, check

NAMESPACE = "public/old"


@dataclass
class DeadAt(CrashAt):
    """Kills a process of several threads: after the crash no thread takes another step."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def _pass(self, step: Step) -> None:
        with self._lock:
            if self.number is not None and len(self.seen) > self.number:
                raise Crash(step)
            super()._pass(step)


@dataclass
class StrictPulsar(FakePulsar):
    """Notes every ledger that a broker deletes before it was recorded, and those of the neighbour."""

    unrecorded: list[tuple[LedgerId, str | None]] = field(default_factory=list)
    neighbours: set[LedgerId] = field(default_factory=set)

    def remove_ledger(self, ledger_id: LedgerId) -> None:
        if ledger_id in self.ledgers() and ledger_id not in {each.ledger_id for each in accepted_records(self)}:
            self.unrecorded.append((ledger_id, self.referenced().get(ledger_id)))
        super().remove_ledger(ledger_id)


class NamespaceSidecar(Sidecar):
    """`Sidecar`, with deletions of namespaces that end when it has to `work`."""

    def __init__(
        self,
        fake_pulsar: FakePulsar,
        brokers: FakeNamespaceAdmin,
        *,
        topics_at_once: int = 1,
        should_continue: Callable[[], bool] = lambda: True,
        **options: object,
    ) -> None:
        super().__init__(fake_pulsar, **options)
        self.ended: list[Pass] = []
        shadows = ShadowDeleter(self.store, self.admin, self.owners, "/ledgers")
        self.namespaces = NamespaceDeleter(
            DurableOperations(self.name, self.store, self.steps, of_namespaces=True),
            self.store,
            brokers,
            TopicDeletions(self.deleter, shadows, self._drive_topic),
            self.shadows,
            self.recorder,
            fake_pulsar.clock,
            self.steps,
            should_continue,
            topics_at_once,
        )

    def _drive_topic(self, held: HeldOperation, _wait_ms: int) -> tuple[TopicDeletionStatus, PermanentError | None]:
        try:
            tried = self.deleter.attempt(held)
        except SidecarError:
            self._release(held.operation.operation_id)
            raise
        if tried.state is OperationState.RUNNING:
            self.deleter.operations.release(held.operation.operation_id)
        return tried.held.operation.status(tried.state, tried.held.operation.last_reason), tried.refusal

    def drive_namespace(self) -> Pass | None:
        """Drive one due deletion like the loop."""
        held = self.namespaces.take_due()
        if held is None:
            return None
        try:
            tried = self.namespaces.attempt(held)
            if tried.state is not OperationState.RUNNING:
                self.ended.append(tried)
            return tried
        finally:
            self.namespaces.operations.release(held.deletion.operation_id)

    def delete_namespace(self, *, force: bool = True) -> Pass:
        """Delete it, and do everything else that is to be done; how it ended."""
        self.namespaces.begin(NAMESPACE, force=force, requested_by="me")
        self.work()
        return self.ended[-1]

    def _round(self) -> None:
        try:
            self.drive_namespace()
        except SidecarError as error:
            self.warnings.append(f"namespace-deletions: {error}")
        super()._round()


def filled(topics: int) -> tuple[StrictPulsar, FakeNamespaceAdmin]:
    """A namespace with this many topics, every fifth one partitioned, and a neighbour that stays.

    With schemas, brokers' own topics and pending acknowledgements, and a broker that writes once more at the end.
    """
    fake_pulsar = StrictPulsar()
    brokers = FakeNamespaceAdmin(fake_pulsar)
    brokers.create(NAMESPACE)
    brokers.create("public/kept")
    for number in range(topics):
        name = f"persistent://{NAMESPACE}/topic-{number}"
        plan = TopicPlan(ledgers=1, schema_versions=int(number % 3 == 0), last_open=False)
        if number % 5 == 1:
            fake_pulsar.partitioned_topic(name, 2, plan)
        else:
            topic = fake_pulsar.topic(name, plan)
            if number % 10 == 0:
                pending_ack(fake_pulsar, topic, "sub")
                fake_pulsar.load(topic)
    brokers.late_schema_of = change_events(fake_pulsar, NAMESPACE)
    before = fake_pulsar.ledgers()
    fake_pulsar.topic("persistent://public/kept/topic-0", TopicPlan(ledgers=2, schema_versions=1))
    fake_pulsar.neighbours = fake_pulsar.ledgers() - before
    return fake_pulsar, brokers


def check_gone(fake_pulsar: StrictPulsar) -> None:
    """Nothing is left of the namespace, and everything of its neighbour is."""
    check(fake_pulsar)
    assert fake_pulsar.unrecorded == []
    assert fake_pulsar.ledgers() == fake_pulsar.neighbours
    roots = (POLICIES, LOCAL_POLICIES, MANAGED_LEDGERS, PARTITIONED_TOPICS, SCHEMAS)
    inside = tuple(f"{root}/{NAMESPACE}/" for root in roots)
    # A node without data is only the parent of removed nodes.
    left = [path for path in fake_pulsar.store.paths() if f"{path}/".startswith(inside)]
    assert [path for path in left if (node := fake_pulsar.store.peek(path)) is not None and node.data] == []
