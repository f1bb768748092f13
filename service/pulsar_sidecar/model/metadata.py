"""The metadata store as every feature sees it: nodes with versions, one port, several drivers.

The invariant every driver keeps: a result is complete or an error. A node that could not be read is never reported
as absent, a listing that could not be finished is never reported short.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pulsar_sidecar.model.ids import NodeVersion


@dataclass(frozen=True, slots=True)
class Node:
    """Data, version and times of a node as read at one moment.

    Attributes:
        path: absolute path below the cluster's chroot, as Pulsar writes it.
        version: the version for a compare-and-set that changes exactly what was read.
        created_ms: the store's own creation time, milliseconds since the epoch; a later time where the store keeps
            none, so that an age is never overestimated.
        modified_ms: the store's own time of the last write, likewise.
        created_order: the store's order of creation (ZooKeeper ``czxid``): a deleted and re-created node differs.
        children_count: direct children; None where the store does not count.
        ephemeral: True if the node dies with its creator's session.
        times_known: False where the store keeps no times, and another read may give later ones.
        modified_order: the order of the last write, where the store can compare it (etcd's mod revision). A version
            begins again in a re-created node, and may be that of the old one.
    """

    path: str
    data: bytes
    version: NodeVersion
    created_ms: int
    modified_ms: int
    created_order: int
    children_count: int | None = 0
    ephemeral: bool = False
    times_known: bool = True
    modified_order: int | None = None

    @property
    def birth(self) -> "Birth":
        """Identity that distinguishes the node from a later one at its path."""
        return Birth(self.created_ms, None) if self.times_known else Birth(None, self.created_order)


@dataclass(frozen=True, slots=True)
class Birth:
    """Identity of a node among those of its path: its creation time, or its order where the store keeps no times."""

    created_ms: int | None
    created_order: int | None

    @property
    def number(self) -> int | None:
        """The one of both that is known."""
        return self.created_ms if self.created_order is None else self.created_order

    def __str__(self) -> str:
        return f"{self.created_ms} ms" if self.created_order is None else f"revision {self.created_order}"


UNKNOWN_BIRTH = Birth(None, None)


@dataclass(frozen=True, slots=True)
class NewNode:
    """Path and data of a node to create; an ephemeral one dies with its creator's session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A node that must still be as it was read for a deletion to happen.

    Attributes:
        modified_order: the node's; None for any, so that only the version is compared.
    """

    path: str
    version: NodeVersion
    modified_order: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GuardedDeletion:
    """Deletion of ``path`` if it and every guard are still as they were read (see `Guard`), in one atomic step."""

    path: str
    version: NodeVersion
    guards: tuple[Guard, ...] = ()
    modified_order: int | None = None


class DeletionResult(Enum):
    """Outcome for one `GuardedDeletion`: certain, or to be read again."""

    DELETED = "deleted"
    GONE = "gone"
    """The node did not exist, or was deleted before."""
    CONFLICT = "conflict"
    """The node or a guard has another version, or the node has children: judge again."""
    UNKNOWN = "unknown"
    """The connection broke before the response: read again."""
    NOT_SENT = "not-sent"
    """The caller no longer allowed it; nothing was changed."""


class DeletionLimit(Protocol):
    """Bounds the deletions in flight; a driver consults it before each transaction and reports each response."""

    def most_in_flight(self) -> int:
        """Return the number of deletions that may be in flight now, at least one; consulted before each transaction."""

    def sending(self) -> AbstractContextManager[None]:
        """Return a context for a transaction with deletions, from sending it to its response."""


class FixedLimit:
    """Constant limit that keeps ZooKeeper busy; more would only wait in its queue, before other clients' requests."""

    def most_in_flight(self) -> int:
        return 50

    def sending(self) -> AbstractContextManager[None]:
        return nullcontext()


def always() -> bool:
    """Return True: the ``may_send`` of a caller that sets no bound."""
    return True


class NodeReader(Protocol):
    """Nodes of a metadata store, or of a copy; every method raises `TemporaryError` when it cannot read them."""

    def read(self, path: str) -> Node | None:
        """Return the node, or None if the store reported that it does not exist."""

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return one result per path, in order; all were read, or the call raises."""

    def children(self, path: str) -> list[str] | None:
        """Return the sorted names of all direct children, or None if the node does not exist; complete, or raises."""


class MetadataStore(NodeReader, Protocol):
    """Pulsar's metadata store (``org.apache.pulsar.metadata.api.MetadataStore``), for reading and guarded writing.

    Every method raises `TemporaryError` when the store cannot be reached, and `OutcomeUnknownError` when a write's
    response was lost. Implementations are safe for use by several threads.
    """

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """Return the result of `children` for each path, in order."""

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        """Create a node and its missing parents.

        Raises:
            AlreadyExistsError: the node already exists.
        """

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        """Create all of them in order, or none, in one atomic step; missing parents that are not among them first.

        Raises:
            AlreadyExistsError: one of them already exists.
        """

    def delete_together(self, paths: Sequence[str]) -> None:
        """Delete all of them in order, at any version, or none, in one atomic step.

        Raises:
            ConflictError: one of them is gone, or has children.
        """

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        """Compare and set; return the new version.

        Raises:
            ConflictError: another version is there now.
            NotFoundError: the node is gone.
        """

    def delete(
        self, path: str, version: NodeVersion | None = None, modified_order: int | None = None
    ) -> DeletionResult:
        """Delete one node if it is still as it was read (see `Guard`), or at any version when ``version`` is None."""

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        """Carry out guarded deletions, one result each, in order; a failed one never undoes its neighbours' success.

        Args:
            deletions: the deletions to carry out.
            may_send: called before each transaction; once it returns False, the remaining deletions are NOT_SENT.
        """

    def now_ms(self) -> int:
        """Return the store's own time, for the age of nodes; accurate to a second."""


Nodes = Mapping[str, Node | None]
"""Nodes by path from one read; None for one that does not exist."""


def read_nodes(store: NodeReader, paths: Iterable[str]) -> Nodes:
    """Return these nodes, from one read."""
    distinct = list(dict.fromkeys(paths))
    return dict(zip(distinct, store.read_many(distinct), strict=True))
