"""Durable operations: deletions of topics, their parts and namespaces, each driven by one sidecar at a time.

An operation's node guarantees that some sidecar finishes it, and an ephemeral child names its driver. When the
driver has released it or died, any sidecar may take over an operation that is due. Until an old session expires, two
sidecars may consider themselves the driver: both replace the node by compare-and-set only.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_operation import PREFIX
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS, driver_path, operation_path
from pulsar_sidecar.model.errors import ConflictError, OutcomeUnknownError, TemporaryError
from pulsar_sidecar.model.ids import NodeVersion, OperationId
from pulsar_sidecar.model.metadata import DeletionResult, MetadataStore, NewNode, Node
from pulsar_sidecar.runtime import Leadership

HEAD_START_MS = 10_000
"""Time for which only the sidecar that began an operation may drive it."""
END_TRIES = 3
_FIRST_BACKOFF_MS = 1_000
_LONGEST_BACKOFF_MS = 60_000
_MOST_DOUBLINGS = 6
_FIRST_VERSION = NodeVersion(0)
_NODES_AT_ONCE = 200

Held = TypeVar("Held")


def backoff_ms(failures: int) -> int:
    """Return the pause before the next attempt, which doubles with each failure."""
    return min(_FIRST_BACKOFF_MS << min(failures, _MOST_DOUBLINGS), _LONGEST_BACKOFF_MS)


def _operation_ids(store: MetadataStore, *, of_namespaces: bool) -> list[OperationId]:
    names = store.children(OPERATIONS) or []
    return [OperationId(name) for name in names if name.startswith(PREFIX) is of_namespaces]


def operation_nodes(
    store: MetadataStore, *, of_namespaces: bool, wanted: Callable[[OperationId], bool] = lambda _: True
) -> list[Node]:
    """Return the nodes of the operations that have not ended, readable or not, and whose ids are wanted."""
    ids = filter(wanted, _operation_ids(store, of_namespaces=of_namespaces))
    nodes = store.read_many([operation_path(each) for each in ids])
    return [node for node in nodes if node is not None and node.data]


@dataclass(slots=True)
class DurableOperations:
    """Operations of topics or of namespaces that one sidecar drives or may take over; thread-safe."""

    sidecar: str
    store: MetadataStore
    steps: Steps
    of_namespaces: bool = False
    _driving: dict[OperationId, object] = field(default_factory=dict)
    _last_taken: str = ""

    def create_held(self, operation_id: OperationId, data: bytes) -> NodeVersion:
        """Create an operation, driven by this sidecar, and return its node's version."""
        with self.steps.taking(Step.OPERATION_CREATED):
            self.store.create_together(
                [
                    NewNode(operation_path(operation_id), data),
                    NewNode(driver_path(operation_id), self.sidecar.encode(), ephemeral=True),
                ]
            )
        self._driving[operation_id] = object()
        return _FIRST_VERSION

    # --- taking over -------------------------------------------------------------------------------------------------

    def take_due(self, due: Callable[[Node], Held | None]) -> Held | None:
        """Become the driver of one operation that is due and that no sidecar drives; None without one.

        ``due`` returns the operation of a node; None where it is not due, or this version cannot read it.
        """
        for operation_id, node in self._nodes_in_turn():
            if not node.data:
                with self.steps.taking(Step.OPERATION_ENDED):
                    self.store.delete(node.path, node.version, node.modified_order)
            elif due(node) is not None and (held := self._take_over(operation_id, due)) is not None:
                self._last_taken = operation_id
                return held
        return None

    def _nodes_in_turn(self) -> Iterator[tuple[OperationId, Node]]:
        """Yield the nodes that follow the one taken last, then the others: most that precede it were just postponed."""
        ids = _operation_ids(self.store, of_namespaces=self.of_namespaces)
        after = bisect_right(ids, self._last_taken)
        ids = ids[after:] + ids[:after]
        for start in range(0, len(ids), _NODES_AT_ONCE):
            some = ids[start : start + _NODES_AT_ONCE]
            nodes = self.store.read_many([operation_path(each) for each in some])
            yield from ((each, node) for each, node in zip(some, nodes, strict=True) if node is not None)

    def _take_over(self, operation_id: OperationId, due: Callable[[Node], Held | None]) -> Held | None:
        """Become the driver; None where another sidecar or thread drives the operation, or it is no longer due."""
        claim, held = object(), None
        # Atomic: of several threads, one claims the operation.
        if self._driving.setdefault(operation_id, claim) is not claim:
            return None
        try:
            held = self._due_once_driven(operation_id, due)
        finally:
            if held is None:
                self.forget(operation_id)
        return held

    def _due_once_driven(self, operation_id: OperationId, due: Callable[[Node], Held | None]) -> Held | None:
        # A driver's node with this sidecar's name stems from a lost response, or from an earlier process's session.
        self._resign(operation_id)
        with self.steps.taking(Step.OPERATION_HELD):
            is_driver = self._leadership(operation_id).take()
        if not is_driver:
            return None
        current = self.store.read(operation_path(operation_id))
        if current is None or not current.data:
            # Creating the driver's node re-created a parent that had just ended.
            self.end(operation_id)
            return None
        held = due(current)
        if held is None:
            self._resign(operation_id)
        return held

    def release(self, operation_id: OperationId) -> None:
        """Release the operation, so that any sidecar can continue it."""
        try:
            self._resign(operation_id)
        finally:
            self.forget(operation_id)

    def forget(self, operation_id: OperationId) -> None:
        """Stop being the driver without a call to the store, so that this sidecar too may take the operation over."""
        self._driving.pop(operation_id, None)

    def _resign(self, operation_id: OperationId) -> None:
        with self.steps.taking(Step.OPERATION_RELEASED):
            self._leadership(operation_id).resign()

    def _leadership(self, operation_id: OperationId) -> Leadership:
        return Leadership(self.store, driver_path(operation_id), self.sidecar.encode())

    # --- ending ------------------------------------------------------------------------------------------------------

    def abandon(self, operation_id: OperationId) -> Node | None:
        """End an operation, whichever sidecar drives it; return its last node, readable or not, None if it had ended.

        A driver notices at its next read; a request already sent to a broker is not cancelled.

        Raises:
            TemporaryError: the node could not be removed, so the operation continues.
        """
        node = self.store.read(operation_path(operation_id))
        return node if node is not None and self.end(operation_id) and node.data else None

    def end(self, operation_id: OperationId) -> bool:
        """Remove the operation's nodes: from now on "in use" is final for its records.

        Returns False if another sidecar had removed them.

        Raises:
            TemporaryError: the node could not be removed, so the operation continues.
        """
        may_have_removed = False
        try:
            with self.steps.taking(Step.OPERATION_ENDED):
                self.store.delete_together([driver_path(operation_id), operation_path(operation_id)])
        except OutcomeUnknownError:
            may_have_removed = True
        except ConflictError:
            pass
        else:
            self.forget(operation_id)
            return True
        for _ in range(END_TRIES):
            with self.steps.taking(Step.OPERATION_RELEASED):
                self.store.delete(driver_path(operation_id))
            with self.steps.taking(Step.OPERATION_ENDED):
                result = self.store.delete(operation_path(operation_id))
            if result in (DeletionResult.DELETED, DeletionResult.GONE):
                self.forget(operation_id)
                # Gone after a lost response: presumably this call removed it.
                return result is DeletionResult.DELETED or may_have_removed
            may_have_removed = True
        raise TemporaryError(f"the end of the deletion {operation_id} could not be stored; a sidecar continues it")
