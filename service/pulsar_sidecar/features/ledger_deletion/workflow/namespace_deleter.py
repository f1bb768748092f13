"""Two-phase deletion of a namespace: its topics by deletions of their own, then the rest by the brokers.

A pass deletes the namespace's topics, records what is left, has a broker delete the namespace, and reads again. Passes
repeat until nothing is left in the metadata store, or until a broker refuses permanently. So topics created meanwhile,
brokers that died and bundles that moved (apache/pulsar 10263, 11866, 13793, 16676, 17588, 19083) cost another pass.
Every ledger is recorded before a broker deletes anything that references it.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.durable_operations import (
    END_TRIES,
    HEAD_START_MS,
    DurableOperations,
    backoff_ms,
    operation_nodes,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_contents import NamespaceContents
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import (
    HeldNamespaceDeletion,
    NamespaceDeletion,
    Presence,
    deletion_id,
    policies_node,
    presence,
    write_deletion,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import NamespaceAdmin
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_refusals import NamespaceRefusals
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    OperationEndedError,
    decode_node,
    encode_node,
    operation_path,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.features.ledger_deletion.topic_deletion.shadow_refusals import Shadows, refuse_namespace_data_loss
from pulsar_sidecar.features.ledger_deletion.workflow.namespace_leftovers import Leftovers
from pulsar_sidecar.features.ledger_deletion.workflow.topic_driving import TopicDeletions
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    DataLossError,
    InvalidInputError,
    NotAuthenticatedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace

TOPICS_AT_ONCE = 50
_LATECOMERS_SECONDS = 2.0
"""Wait for brokers' late writes: deleting a topic's policies leaves a schema of a deleted topic."""

_KEPT_EVERY_SECONDS = 1.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pass:
    """Result of one pass; unless it is RUNNING, the deletion's node is gone."""

    deletion: NamespaceDeletion
    state: OperationState
    refusal: PermanentError | None = None


@dataclass(slots=True)
class Progress:
    """Counts of one pass, stored in the deletion's node about once a second; thread-safe."""

    held: HeldNamespaceDeletion
    store: MetadataStore
    clock: Clock
    steps: Steps
    reason: str | None = None
    failed_in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _kept_at: float = 0.0

    def found(self, topics_left: int) -> None:
        deletion = self.held.deletion
        self._keep(replace(deletion, topics_found=deletion.topics_deleted + topics_left))

    def keep(self) -> None:
        """Store the counts; raises `OperationEndedError` if the deletion has ended."""
        with self._lock:
            self._keep(self.held.deletion)

    def deleted(self, recorded_ledgers: int) -> None:
        """Count a deleted topic."""
        with self._lock:
            self.failed_in_a_row = 0
            deletion = self.held.deletion
            counted = replace(
                deletion,
                topics_found=max(deletion.topics_found, deletion.topics_deleted + 1),
                topics_deleted=deletion.topics_deleted + 1,
                recorded_ledgers=deletion.recorded_ledgers + recorded_ledgers,
            )
            self.held = HeldNamespaceDeletion(counted, self.held.version)
            if self.clock.monotonic_seconds() - self._kept_at >= _KEPT_EVERY_SECONDS:
                self._keep(counted)

    def not_deleted(self, reason: str | None) -> None:
        """Count a topic that is not deleted yet."""
        with self._lock:
            self.failed_in_a_row += 1
            self.reason = reason or self.reason

    def _keep(self, deletion: NamespaceDeletion) -> None:
        self._kept_at = self.clock.monotonic_seconds()
        now = replace(deletion, updated_ms=self.store.now_ms())
        with self.steps.taking(Step.NAMESPACE_PROGRESS_KEPT):
            self.held = write_deletion(self.store, now, self.held.version)


@dataclass(frozen=True, slots=True)
class NamespaceDeleter:
    """Service that begins, drives and ends deletions of namespaces.

    Attributes:
        should_continue: check before each topic; a pass stops when it returns False.
    """

    operations: DurableOperations
    store: MetadataStore
    admin: NamespaceAdmin
    topics: TopicDeletions
    shadows: Shadows
    recorder: Recorder
    clock: Clock
    steps: Steps
    should_continue: Callable[[], bool] = lambda: True
    topics_at_once: int = TOPICS_AT_ONCE
    _begun: set[OperationId] = field(default_factory=set)

    # --- persisting the operation ------------------------------------------------------------------------------------

    def begin(
        self, namespace: str, *, force: bool, requested_by: str | None, trace: RequestTrace = NO_REQUEST
    ) -> NamespaceDeletion:
        """Return the running deletion of the namespace's current incarnation, or begin one.

        Raises:
            InvalidInputError: the namespace is the service's own.
            DataLossError: a shadow topic in it has its source elsewhere, or vice versa.
            PermanentError: brokers would refuse it (`NamespaceRefusals`).
        """
        if namespace == SYSTEM_NAMESPACE:
            raise InvalidInputError(
                f"{namespace} has the topics of the deletion service itself and the brokers' transaction logs; it stays"
            )
        policies = policies_node(self.store, namespace)
        if policies is not None:
            node = self.store.read(operation_path(deletion_id(namespace, policies.created_order)))
            if node is not None and node.data:
                return decode_node(node.data, NamespaceDeletion)
        self.refusals.check(namespace, force=force)
        if policies is None:
            raise ConflictError(
                f"the policies of {namespace} are in another metadata store, and no broker of this cluster has ever "
                f"loaded it, so it has no ledgers here: delete it with pulsar-admin namespaces delete {namespace}"
            )
        refuse_namespace_data_loss(self.shadows, namespace)
        operation_id = deletion_id(namespace, policies.created_order)
        now_ms = self.store.now_ms()
        deletion = NamespaceDeletion(
            operation_id=operation_id,
            namespace=namespace,
            policies_path=policies.path,
            created_order=policies.created_order,
            force=force,
            requested_by=requested_by,
            requested_ms=now_ms,
            not_before_ms=now_ms + HEAD_START_MS,
            updated_ms=now_ms,
            topics_found=sum(1 for _ in NamespaceContents(self.store, namespace).topics()),
            request_id=trace.request_id,
            trace_parent=trace.parent,
        )
        self._begun.add(operation_id)
        try:
            with self.steps.taking(Step.OPERATION_CREATED):
                self.store.create(operation_path(operation_id), encode_node(deletion))
        except AlreadyExistsError as error:
            raise TemporaryError(f"another sidecar is starting to delete {namespace}; try again") from error
        return deletion

    def running(self) -> list[NamespaceDeletion]:
        """Return the deletions that have not ended and that this version can decode."""
        decoded = (_decoded(node.data) for node in operation_nodes(self.store, of_namespaces=True))
        return [deletion for deletion in decoded if deletion is not None]

    def find(self, operation_id: OperationId) -> NamespaceDeletion | None:
        """Return a running deletion; None if it is not running."""
        node = self.store.read(operation_path(operation_id))
        return None if node is None or not node.data else decode_node(node.data, NamespaceDeletion)

    @property
    def refusals(self) -> NamespaceRefusals:
        return NamespaceRefusals(self.store, self.admin)

    # --- taking over, and ending -------------------------------------------------------------------------------------

    def take_due(self) -> HeldNamespaceDeletion | None:
        """Take over one deletion that no sidecar drives and whose next pass is due; None without one."""
        now_ms = self.store.now_ms()

        def due(node: Node) -> HeldNamespaceDeletion | None:
            deletion = _decoded(node.data)
            if deletion is None or (deletion.operation_id not in self._begun and deletion.not_before_ms > now_ms):
                return None
            return HeldNamespaceDeletion(deletion, node.version)

        held = self.operations.take_due(due)
        if held is not None:
            self._begun.discard(held.deletion.operation_id)
        return held

    def _end(self, deletion: NamespaceDeletion) -> None:
        """End the deletion, unless another sidecar considered this one dead and drives it."""
        for _ in range(END_TRIES):
            self.operations.release(deletion.operation_id)
            with self.steps.taking(Step.OPERATION_ENDED):
                result = self.store.delete(operation_path(deletion.operation_id))
            if result in (DeletionResult.DELETED, DeletionResult.GONE):
                return
        raise TemporaryError(f"the end of the deletion of {deletion.namespace} could not be stored; try again")

    # --- one pass ----------------------------------------------------------------------------------------------------

    def attempt(self, held: HeldNamespaceDeletion) -> Pass:
        """Run one pass over the namespace; the caller releases the deletion afterwards, whatever the result."""
        progress = Progress(held, self.store, self.clock, self.steps)
        leftovers = Leftovers(held.deletion, self.store, self.recorder, self.steps)
        try:
            return self._pass(progress, leftovers)
        except OperationEndedError as error:
            # Another sidecar considered this one dead and has ended the deletion.
            done = presence(self.store, held.deletion) is not Presence.THERE
            return Pass(
                progress.held.deletion,
                OperationState.DONE if done else OperationState.REFUSED,
                None if done else ConflictError(str(error)),
            )
        except DataLossError as error:
            return self._ended(progress, leftovers, error)
        except (TemporaryError, OutcomeUnknownError, ConflictError) as error:
            return self._postpone(progress, leftovers, str(error))
        except PermanentError as error:
            return self._ended(progress, leftovers, error)

    def _pass(self, progress: Progress, leftovers: Leftovers) -> Pass:
        deletion = progress.held.deletion
        if presence(self.store, deletion) is Presence.THERE:
            self._delete_contents(progress, leftovers)
        now = presence(self.store, deletion)
        if now is Presence.THERE:
            return self._postpone(progress, leftovers, progress.reason or f"{deletion.namespace} still exists")
        if now is Presence.GONE:
            if self.admin.namespace_exists(deletion.namespace):
                return self._postpone(progress, leftovers, f"brokers still know {deletion.namespace}")
            kept = leftovers.remove()
            if kept is not None:
                raise PermanentError(f"{deletion.namespace} is deleted, but part of it remains: {kept}")
        return self._ended(progress, leftovers)

    def _delete_contents(self, progress: Progress, leftovers: Leftovers) -> None:
        deletion, contents = progress.held.deletion, leftovers.contents
        try:
            # Since the last pass the namespace may have got another cluster, or forced deletion may have been
            # forbidden.
            self.refusals.check(deletion.namespace, force=deletion.force)
        except NotFoundError:
            return
        shadows = refuse_namespace_data_loss(self.shadows, deletion.namespace)
        # A broker deletes the pending acknowledgements of transactions together with their topic.
        own = (found.topic for found in contents.managed_ledgers())
        self._for_each((topic for topic in own if topic is not None and topic.is_system_topic), leftovers.record_topic)
        if deletion.force:
            for shadow in shadows:
                waits_for = self.topics.delete_shadow(shadow, requested_by=deletion.requested_by)
                if waits_for is not None:
                    raise TemporaryError(f"the shadow topic {shadow}: {waits_for}")
            self._delete_topics(progress, contents)
        self._for_each((each.topic for each in contents.managed_ledgers() if each.topic), leftovers.record_topic)
        self._for_each((each.topic for each in contents.schemas() if each.topic), leftovers.record_schema)
        self._check_continuing(progress)
        # Send no request for a deletion that an operator has abandoned.
        progress.keep()
        if presence(self.store, deletion) is not Presence.THERE:
            return
        with self.steps.taking(Step.NAMESPACE_ASKED):
            try:
                self.admin.delete_namespace(deletion.namespace, force=deletion.force)
            except NotFoundError:
                return
        self.clock.wait_seconds(_LATECOMERS_SECONDS)

    def _delete_topics(self, progress: Progress, contents: NamespaceContents) -> None:
        deletion = progress.held.deletion
        running = {
            topic: status.reason
            for status in self.topics.deleter.running()
            if (topic := status.topic_name) is not None
            and status.part is None
            and topic.namespace == deletion.namespace
        }
        if len(running) >= self.topics_at_once:
            reason = next((reason for reason in running.values() if reason is not None), "the brokers")
            raise TemporaryError(f"deletions of its topics wait ({len(running)}): {reason}")
        progress.found(sum(1 for _ in contents.topics()))

        def delete(item: tuple[TopicName, bool]) -> None:
            topic, partitioned = item
            if topic in running:
                progress.not_deleted(running[topic])
            else:
                self._delete_topic(progress, topic, partitioned=partitioned)

        self._for_each(
            contents.topics(),
            delete,
            lambda: self.should_continue() and progress.failed_in_a_row < self.topics_at_once,
        )
        self._check_continuing(progress)

    def _delete_topic(self, progress: Progress, topic: TopicName, *, partitioned: bool) -> None:
        deletion = progress.held.deletion
        if presence(self.store, deletion) is not Presence.THERE:
            # Topics of that name now belong to another namespace.
            progress.not_deleted(f"{deletion.namespace} was deleted meanwhile")
            return
        try:
            status, refusal = self.topics.delete(topic, partitioned=partitioned, requested_by=deletion.requested_by)
        except NotFoundError:
            progress.deleted(0)
            return
        except (TemporaryError, OutcomeUnknownError) as error:
            progress.not_deleted(f"{topic}: {error}")
            return
        if isinstance(refusal, DataLossError | NotAuthorizedError | NotAuthenticatedError):
            raise refusal
        if status.state is OperationState.DONE or isinstance(refusal, NotFoundError):
            progress.deleted(status.recorded_ledgers or 0)
        else:
            # Brokers also refuse a topic that is fenced, or whose bundle moves.
            progress.not_deleted(f"{topic}: {refusal or status.reason}")

    def _check_continuing(self, progress: Progress) -> None:
        if not self.should_continue():
            raise TemporaryError("this sidecar is paused or stopping")
        if progress.failed_in_a_row >= self.topics_at_once:
            raise TemporaryError(progress.reason or "no topic could be deleted")

    def _for_each(
        self, items: Iterable[T], work: Callable[[T], None], should_continue: Callable[[], bool] | None = None
    ) -> None:
        """Work on ``topics_at_once`` items in parallel; raise the first error once those in progress have ended."""
        should_continue = should_continue or self.should_continue
        errors: list[BaseException] = []
        places = threading.Semaphore(self.topics_at_once)

        def run(item: T) -> None:
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001  raised again below
                errors.append(error)
            finally:
                places.release()

        with ThreadPoolExecutor(self.topics_at_once, "namespace-deletion") as threads:
            for item in items:
                places.acquire()
                if errors or not should_continue():
                    break
                threads.submit(copy_context().run, run, item)  # keeps the request's id for log lines and records
        if errors:
            raise errors[0]

    # --- end of a pass ----------------------------------------------------------------------------------------------

    def _ended(self, progress: Progress, leftovers: Leftovers, refusal: PermanentError | None = None) -> Pass:
        deletion = self._counted(progress, leftovers)
        self._end(deletion)
        return Pass(deletion, OperationState.DONE if refusal is None else OperationState.REFUSED, refusal)

    def _postpone(self, progress: Progress, leftovers: Leftovers, reason: str) -> Pass:
        """Store the reason and time of the next pass, if possible; another driver's newer node wins."""
        counted = self._counted(progress, leftovers)
        try:
            node = self.store.read(operation_path(counted.operation_id))
            if node is not None and node.version == progress.held.version:
                not_before_ms = counted.updated_ms + backoff_ms(counted.fruitless_passes)
                later = replace(counted, last_reason=reason, not_before_ms=not_before_ms)
                with self.steps.taking(Step.ATTEMPT_PUT_OFF):
                    write_deletion(self.store, later, node.version)
        except (TemporaryError, OutcomeUnknownError, ConflictError):
            pass
        return Pass(counted, OperationState.RUNNING)

    def _counted(self, progress: Progress, leftovers: Leftovers) -> NamespaceDeletion:
        deletion, before = progress.held.deletion, leftovers.deletion
        is_fruitless = deletion.topics_deleted == before.topics_deleted
        return replace(
            deletion,
            passes=deletion.passes + 1,
            fruitless_passes=deletion.fruitless_passes + 1 if is_fruitless else 0,
            recorded_besides=max(deletion.recorded_besides, leftovers.recorded),
            updated_ms=max(deletion.updated_ms, self.store.now_ms()),
        )


def _decoded(data: bytes) -> NamespaceDeletion | None:
    try:
        return decode_node(data, NamespaceDeletion)
    except UndecodableError:
        return None
