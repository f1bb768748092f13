"""The metadata store as every room sees it: nodes with versions, one port, several drivers.

The invariant every driver keeps: an answer is complete or an error. A node that could not be read is never reported
as absent, a listing that could not be finished is never reported short.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pulsar_sidecar.model.ids import NodeVersion


@dataclass(frozen=True, slots=True)
class Node:
    """One node as read at one moment.

    Attributes:
        path: absolute path below the cluster's chroot, as Pulsar writes it.
        version: what a compare-and-set must name to change exactly what was read.
        created_ms: the store's own creation time, milliseconds since the epoch.
        modified_ms: the store's own time of the last write.
        created_order: the store's order of creation (ZooKeeper ``czxid``): a deleted and re-created node differs.
        children_count: direct children (0 where the store does not count).
        ephemeral: whether the node dies with its creator's session.
    """

    path: str
    data: bytes
    version: NodeVersion
    created_ms: int
    modified_ms: int
    created_order: int
    children_count: int = 0
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class NewNode:
    """A node to be created; an ephemeral one dies with its creator's session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A node that must still be at ``version`` for a deletion to happen."""

    path: str
    version: NodeVersion


@dataclass(frozen=True, slots=True)
class GuardedDeletion:
    """Delete ``path`` if it is at ``version`` and every guard still holds, all in one atomic step."""

    path: str
    version: NodeVersion
    guards: tuple[Guard, ...] = ()


class DeletionResult(Enum):
    """What became of one `GuardedDeletion`."""

    DELETED = "deleted"
    GONE = "gone"
    """There was no such node (any more)."""
    CONFLICT = "conflict"
    """The node or a guard has another version, or the node has children: judge again."""
    UNKNOWN = "unknown"
    """The connection broke before the answer: read again."""
    NOT_SENT = "not-sent"
    """The caller did not allow it any more; nothing was changed."""


class DeletionLimit(Protocol):
    """What a driver asks and reports while it carries out deletions in bulk."""

    def most_in_flight(self) -> int:
        """How many deletions may be in flight now, at least one; asked before each transaction."""

    def sending(self) -> AbstractContextManager[None]:
        """Around a transaction with deletions: from sending it to its answer."""


class FixedLimit:
    """As many in flight as keep ZooKeeper busy; more would only wait in its queue, before other clients' requests."""

    def most_in_flight(self) -> int:
        return 50

    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()


def always() -> bool:
    """A caller's ``may_send`` that sets no bound."""
    return True


class NodeReader(Protocol):
    """The nodes of a metadata store, or of a copy; every method raises `TemporaryError` when they cannot be asked."""

    def read(self, path: str) -> Node | None:
        """The node, or None when the store answered that it does not exist."""

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """One result per path, in order; all were read, or the call raises."""

    def children(self, path: str) -> list[str] | None:
        """Names of the direct children, sorted, or None when the node does not exist; complete, or the call raises."""


class MetadataStore(NodeReader, Protocol):
    """Pulsar's metadata store (``org.apache.pulsar.metadata.api.MetadataStore``), for reading and guarded writing.

    Every method raises `TemporaryError` when the store cannot be asked, and `OutcomeUnknownError` when a write's
    answer was lost. Implementations are safe for use by several threads.
    """

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """What `children` answers, of each path, in order."""

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        """Create a node and its missing parents.

        Raises:
            AlreadyExistsError: the node is there already.
        """

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        """Create all of them in order, or none, in one atomic step; missing parents that are not among them first.

        Raises:
            AlreadyExistsError: one of them is there already.
        """

    def delete_together(self, paths: Sequence[str]) -> None:
        """Delete all of them in order, at any version, or none, in one atomic step.

        Raises:
            ConflictError: one of them is gone, or has children.
        """

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        """Compare-and-set; the new version.

        Raises:
            ConflictError: another version is there now.
            NotFoundError: the node is gone.
        """

    def delete(self, path: str, version: NodeVersion | None = None) -> DeletionResult:
        """Delete one node, at any version when ``version`` is None; never reports UNKNOWN silently as success."""

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        """Guarded deletions in bulk, one result each, in order; a failed one never undoes its neighbours' success.

        Args:
            deletions: what is to be deleted.
            may_send: asked before each transaction; what is left when it answers False is NOT_SENT.
        """

    def now_ms(self) -> int:
        """The store's own clock, for the age of nodes; within a second of its truth."""
