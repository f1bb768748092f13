"""Two-phase deletion of a namespace: its topics, each by its own deletion, then what is left, by the brokers.

A pass goes through the namespace: it deletes the topics, records what is left, asks a broker to delete the namespace,
and looks. Passes follow each other until nothing is left in the metadata store, or until a broker refuses for good. So
topics that came meanwhile, brokers that died and bundles that moved (apache/pulsar 10263, 11866, 13793, 16676, 17588,
19083) cost another pass. Before a broker is asked for anything, every ledger of it is recorded.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from pulsar_sidecar.ledger_deletion.ports import SYSTEM_NAMESPACE
from pulsar_sidecar.ledger_deletion.service import OperationState
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_contents import NamespaceContents
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_operation import (
    PREFIX,
    HeldNamespaceDeletion,
    NamespaceDeletion,
    Presence,
    decode_deletion,
    deletion_id,
    encode_deletion,
    incarnation_of,
    presence,
    write_deletion,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_ports import NamespaceAdmin, TopicDeletions
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_refusals import NamespaceRefusals
from pulsar_sidecar.ledger_deletion.topic_deletion.namespace_shadows import AllShadows, refuse_data_loss
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    OperationEndedError,
    driver_path,
    operation_path,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.recorder import Recorder
from pulsar_sidecar.ledger_deletion.workflow.namespace_leftovers import Leftovers
from pulsar_sidecar.ledger_deletion.workflow.namespace_progress import Progress
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
    SidecarError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace
from pulsar_sidecar.runtime import Leadership

TOPICS_AT_ONCE = 50
_HEAD_START_MS = 10_000
"""For this long a new deletion is left to the sidecar that began it."""
_FIRST_PAUSE_MS = 1_000
_LONGEST_PAUSE_MS = 60_000
_MOST_DOUBLINGS = 6
_LATECOMERS_SECONDS = 2.0
"""Brokers still write once they have answered: deleting a topic's policies leaves a schema of a topic that is gone."""
_END_TRIES = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass came to; unless it is RUNNING, the deletion's node is gone."""

    deletion: NamespaceDeletion
    state: OperationState
    refusal: PermanentError | None = None


@dataclass(frozen=True, slots=True)
class NamespaceDeleter:
    """Begins, drives and ends deletions of namespaces.

    Attributes:
        may_go_on: asked before each topic; a pass breaks off when it answers False.
    """

    sidecar: str
    store: MetadataStore
    admin: NamespaceAdmin
    topics: TopicDeletions
    shadows: AllShadows
    recorder: Recorder
    clock: Clock
    steps: Steps
    may_go_on: Callable[[], bool] = lambda: True
    topics_at_once: int = TOPICS_AT_ONCE
    _driving: set[OperationId] = field(default_factory=set)
    _begun: set[OperationId] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- making the promise ------------------------------------------------------------------------------------------

    def begin(
        self, namespace: str, *, force: bool, requested_by: str | None, trace: RequestTrace = NO_REQUEST
    ) -> NamespaceDeletion:
        """The deletion of the namespace as it is now: the one that runs already, or else a new one.

        Raises:
            InvalidInputError: it is the service's own.
            DataLossError: a shadow topic in it has its source elsewhere, or the other way round.
            PermanentError: brokers would refuse it (`NamespaceRefusals`).
        """
        if namespace == SYSTEM_NAMESPACE:
            raise InvalidInputError(
                f"{namespace} has the topics of the deletion service itself and the brokers' transaction logs; it stays"
            )
        incarnation = incarnation_of(self.store, namespace)
        if incarnation is not None:
            node = self.store.read(operation_path(deletion_id(namespace, incarnation)))
            if node is not None and node.data:
                return decode_deletion(node.data)
        self.refusals.check(namespace, force=force)
        if incarnation is None:
            raise ConflictError(
                f"the policies of {namespace} are in another metadata store, and no broker of this cluster has ever "
                f"loaded it, so it has no ledgers here: delete it with pulsar-admin namespaces delete {namespace}"
            )
        refuse_data_loss(self.shadows, namespace)
        operation_id = deletion_id(namespace, incarnation)
        now_ms = self.store.now_ms()
        deletion = NamespaceDeletion(
            operation_id=operation_id,
            namespace=namespace,
            policies_path=incarnation.policies_path,
            created_order=incarnation.created_order,
            force=force,
            requested_by=requested_by,
            requested_ms=now_ms,
            not_before_ms=now_ms + _HEAD_START_MS,
            updated_ms=now_ms,
            topics_found=sum(1 for _ in NamespaceContents(self.store, namespace).topics()),
            request_id=trace.request_id,
            trace_parent=trace.parent,
        )
        self._begun.add(operation_id)
        try:
            with self.steps.taking(Step.OPERATION_CREATED):
                self.store.create(operation_path(operation_id), encode_deletion(deletion))
        except AlreadyExistsError as error:
            raise TemporaryError(f"another sidecar begins to delete {namespace} at this moment; try again") from error
        return deletion

    def running(self) -> list[NamespaceDeletion]:
        """The deletions that have not ended, as far as this version can read them."""
        names = [name for name in self.store.children(OPERATIONS) or [] if name.startswith(PREFIX)]
        nodes = self.store.read_many([operation_path(OperationId(name)) for name in names])
        decoded = (_decoded(node.data) for node in nodes if node is not None)
        return [deletion for deletion in decoded if deletion is not None]

    def find(self, operation_id: OperationId) -> NamespaceDeletion | None:
        """A running deletion."""
        node = self.store.read(operation_path(operation_id))
        return None if node is None or not node.data else decode_deletion(node.data)

    @property
    def refusals(self) -> NamespaceRefusals:
        return NamespaceRefusals(self.store, self.admin)

    # --- taking over, and ending -------------------------------------------------------------------------------------

    def take_due(self) -> HeldNamespaceDeletion | None:
        """Take over one deletion that no sidecar drives and whose next pass is due; None when there is none."""
        now_ms = self.store.now_ms()
        for name in self.store.children(OPERATIONS) or []:
            if name.startswith(PREFIX) and (held := self._take(OperationId(name), now_ms)) is not None:
                return held
        return None

    def _take(self, operation_id: OperationId, now_ms: int) -> HeldNamespaceDeletion | None:
        path = operation_path(operation_id)
        node = self.store.read(path)
        deletion = None if node is None else _decoded(node.data)
        own = operation_id in self._begun
        if deletion is None or not (own or deletion.not_before_ms <= now_ms) or not self._became_driver(operation_id):
            return None
        try:
            current = self.store.read(path)
            if current is not None and current.data:
                self._begun.discard(operation_id)
                return HeldNamespaceDeletion(decode_deletion(current.data), current.version)
        except SidecarError:
            self._driving.discard(operation_id)
            raise
        # Creating the driver's node created a parent again that had just ended.
        self.release(operation_id)
        self.store.delete(path)
        return None

    def _became_driver(self, operation_id: OperationId) -> bool:
        leadership = self._leadership(operation_id)
        with self._lock:
            if operation_id in self._driving:
                return False
            # A node of this sidecar's name is then a lost answer's, or an earlier process's whose session may end soon.
            leadership.resign()
            with self.steps.taking(Step.OPERATION_HELD):
                taken = leadership.take()
            if taken:
                self._driving.add(operation_id)
            return taken

    def release(self, operation_id: OperationId) -> None:
        """Let any sidecar continue it."""
        try:
            with self.steps.taking(Step.OPERATION_RELEASED):
                self._leadership(operation_id).resign()
        finally:
            self._driving.discard(operation_id)

    def _leadership(self, operation_id: OperationId) -> Leadership:
        return Leadership(self.store, driver_path(operation_id), self.sidecar.encode())

    def _end(self, deletion: NamespaceDeletion) -> None:
        for _ in range(_END_TRIES):
            self.release(deletion.operation_id)
            with self.steps.taking(Step.OPERATION_ENDED):
                result = self.store.delete(operation_path(deletion.operation_id))
            if result in (DeletionResult.DELETED, DeletionResult.GONE):
                return
        raise TemporaryError(f"the end of the deletion of {deletion.namespace} could not be stored; try again")

    # --- one pass ----------------------------------------------------------------------------------------------------

    def attempt(self, held: HeldNamespaceDeletion) -> Pass:
        """Go through the namespace once. Whatever comes of it, the caller releases it."""
        progress = Progress(held, self.store, self.clock, self.steps)
        leftovers = Leftovers(held.deletion, self.store, self.recorder, self.steps)
        try:
            return self._pass(progress, leftovers)
        except OperationEndedError as error:
            # Another sidecar took it for dead and has ended it.
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
            self._delete_what_is_there(progress, leftovers)
        now = presence(self.store, deletion)
        if now is Presence.THERE:
            return self._postpone(progress, leftovers, progress.reason or f"{deletion.namespace} still exists")
        if now is Presence.GONE:
            if self.admin.namespace_exists(deletion.namespace):
                return self._postpone(progress, leftovers, f"brokers still know {deletion.namespace}")
            kept = leftovers.remove()
            if kept is not None:
                raise PermanentError(f"{deletion.namespace} is deleted, and something of it stays: {kept}")
        return self._ended(progress, leftovers)

    def _delete_what_is_there(self, progress: Progress, leftovers: Leftovers) -> None:
        deletion, contents = progress.held.deletion, leftovers.contents
        try:
            # The namespace may have got another cluster since the last pass, or lost the right to be deleted by force.
            self.refusals.check(deletion.namespace, force=deletion.force)
        except NotFoundError:
            return
        shadows = refuse_data_loss(self.shadows, deletion.namespace)
        # With its topic a broker deletes the pending acknowledgements of its transactions.
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
        self._check_going_on(progress)
        # Nothing is asked for a deletion that an operator has abandoned.
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
            status.topic: status.reason
            for status in self.topics.running()
            if status.topic is not None and status.part is None and status.topic.namespace == deletion.namespace
        }
        if len(running) >= self.topics_at_once:
            reason = next((reason for reason in running.values() if reason is not None), "the brokers")
            raise TemporaryError(f"deletions of its topics wait ({len(running)}): {reason}")
        progress.found(sum(1 for _ in contents.topics()))

        def delete(item: tuple[TopicName, bool]) -> None:
            topic, partitioned = item
            if topic in running:
                progress.left(running[topic])
            else:
                self._delete_topic(progress, topic, partitioned=partitioned)

        self._for_each(
            contents.topics(),
            delete,
            lambda: self.may_go_on() and progress.failed_in_a_row < self.topics_at_once,
        )
        self._check_going_on(progress)

    def _delete_topic(self, progress: Progress, topic: TopicName, *, partitioned: bool) -> None:
        deletion = progress.held.deletion
        if presence(self.store, deletion) is not Presence.THERE:
            # The topics of that name are another namespace's.
            progress.left(f"{deletion.namespace} was deleted meanwhile")
            return
        try:
            status, refusal = self.topics.delete(topic, partitioned=partitioned, requested_by=deletion.requested_by)
        except NotFoundError:
            progress.deleted(0)
            return
        except (TemporaryError, OutcomeUnknownError) as error:
            progress.left(f"{topic}: {error}")
            return
        if isinstance(refusal, DataLossError | NotAuthorizedError | NotAuthenticatedError):
            raise refusal
        if status.state is OperationState.DONE or isinstance(refusal, NotFoundError):
            progress.deleted(status.recorded_ledgers or 0)
        else:
            # A topic that is fenced, or whose bundle moves, is refused too.
            progress.left(f"{topic}: {refusal or status.reason}")

    def _check_going_on(self, progress: Progress) -> None:
        if not self.may_go_on():
            raise TemporaryError("this sidecar is paused or stops")
        if progress.failed_in_a_row >= self.topics_at_once:
            raise TemporaryError(progress.reason or "no topic could be deleted")

    def _for_each(
        self, items: Iterable[T], work: Callable[[T], None], may_go_on: Callable[[], bool] | None = None
    ) -> None:
        """Work on at most so many items at once; the first error, once those under way have ended."""
        may_go_on = may_go_on or self.may_go_on
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
                if errors or not may_go_on():
                    break
                threads.submit(copy_context().run, run, item)  # for the request, which its lines and records name
        if errors:
            raise errors[0]

    # --- how it ends -------------------------------------------------------------------------------------------------

    def _ended(self, progress: Progress, leftovers: Leftovers, refusal: PermanentError | None = None) -> Pass:
        deletion = self._counted(progress, leftovers)
        self._end(deletion)
        return Pass(deletion, OperationState.DONE if refusal is None else OperationState.REFUSED, refusal)

    def _postpone(self, progress: Progress, leftovers: Leftovers, reason: str) -> Pass:
        """Store why the deletion continues and when, if that is possible; another driver's newer node wins."""
        counted = self._counted(progress, leftovers)
        pause_ms = min(_FIRST_PAUSE_MS * 2 ** min(counted.fruitless_passes, _MOST_DOUBLINGS), _LONGEST_PAUSE_MS)
        try:
            node = self.store.read(operation_path(counted.operation_id))
            if node is not None and node.version == progress.held.version:
                later = replace(counted, last_reason=reason, not_before_ms=counted.updated_ms + pause_ms)
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
        return decode_deletion(data)
    except UndecodableError:
        return None
