"""A metadata store in memory, for tests that stop a workflow between any two steps.

Invariant: the semantics are those of the ZooKeeper driver; ``tests/contract/test_metadata_store.py`` runs one suite on
both. A test requests every fault by name: a failing call, a lost response, a rival's step just before a call, the end
of a session, the passing of time.
"""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from types import TracebackType
from typing import Literal, Self

from pulsar_sidecar.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, Guard, GuardedDeletion, NewNode, Node, always

Method = Literal[
    "read",
    "read_many",
    "children",
    "children_many",
    "create",
    "create_together",
    "write",
    "delete",
    "delete_together",
    "delete_many",
    "now_ms",
]
Change = Literal["create", "create_together", "write", "delete", "delete_together", "delete_many"]
START_MS = 1_700_000_000_000
_UNCONDITIONAL = -1
_REFUSED_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\U0010ffff]")


class NodeChange(Enum):
    """Kind of change of a node."""

    CREATED = "created"
    WRITTEN = "written"
    REMOVED = "removed"


Observer = Callable[[str, NodeChange], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """A call with all its paths, in the order of arrival."""

    method: Method
    paths: tuple[str, ...] = ()


@dataclass(slots=True)
class _Hook:
    method: Method
    path: str | None
    action: Callable[[], object]
    times: int

    def meets(self, method: Method, paths: Sequence[str]) -> bool:
        return self.method == method and self.times != 0 and (self.path is None or self.path in paths)


@dataclass(slots=True)
class _Tree:
    """State that all sessions of a store share."""

    now_ms: int = START_MS
    order: int = 0
    nodes: dict[str, Node] = field(default_factory=dict)
    children: dict[str, set[str]] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    observers: list[Observer] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)


class FakeMetadataStore:
    """A session with a store in memory; `other_session` returns a second one with the same nodes.

    Attributes:
        journal: all calls of port methods in order, including failed ones.
    """

    def __init__(self, tree: _Tree | None = None) -> None:
        self.journal: list[Operation] = []
        self._tree = tree or _Tree()
        self._session = object()
        self._epoch = 1
        self._hooks: list[_Hook] = []
        if "/" not in self._tree.nodes:
            self._add("/", b"", ephemeral=False)

    # Setup by tests ----------------------------------------------------------------------------------------------

    def put(self, path: str, data: bytes = b"", *, created_ms: int | None = None) -> Node:
        """Set a node's data and create its parents, without hooks or a journal entry."""
        with self._tree.lock:
            if path in self._tree.nodes:
                node = self._replace_data(path, data)
            else:
                self._add_parents(path)
                node = self._add(path, data, ephemeral=False)
            if created_ms is not None:
                self.set_created_ms(path, created_ms)
                node = self._tree.nodes[path]
            return node

    def remove(self, path: str) -> None:
        """Remove a node and everything below it, like another client."""
        with self._tree.lock:
            for name in tuple(self._tree.children.get(path, ())):
                self.remove(_join(path, name))
            self._drop(path)

    def peek(self, path: str) -> Node | None:
        """Return the node without a hook or a journal entry."""
        with self._tree.lock:
            return self._node(path)

    def paths(self) -> list[str]:
        with self._tree.lock:
            return sorted(self._tree.nodes)

    def set_created_ms(self, path: str, created_ms: int) -> None:
        with self._tree.lock:
            self._tree.nodes[path] = replace(self._tree.nodes[path], created_ms=created_ms)

    def advance_ms(self, milliseconds: int) -> None:
        with self._tree.lock:
            self._tree.now_ms += milliseconds

    def before(self, method: Method, action: Callable[[], object], *, path: str | None = None, times: int = 1) -> None:
        """Run ``action`` before the next calls of ``method`` take effect; ``times=-1`` means all of them.

        With ``path``, only before calls that name it; in ``delete_many``, immediately before that one deletion.
        """
        self._hooks.append(_Hook(method, path, action, times))

    def fail_next(self, method: Method, error: SidecarError, *, path: str | None = None, times: int = 1) -> None:
        """Make the next calls of ``method`` raise ``error`` without any effect."""

        def raise_error() -> None:
            raise error

        self.before(method, raise_error, path=path, times=times)

    def lose_answer_next(self, method: Change, *, applied: bool) -> None:
        """Lose the response of the next write, with or without its effect."""

        def lose() -> None:
            raise _AnswerLostError(applied=applied)

        self.before(method, lose)

    def end_session(self) -> None:
        """Expire the session: remove its ephemeral nodes and start a new one."""
        with self._tree.lock:
            for path in [path for path, owner in self._tree.owners.items() if owner is self._session]:
                self._drop(path)
            self._session = object()
            self._epoch += 1

    def other_session(self) -> "FakeMetadataStore":
        """Return another client of the same store, with its own hooks, journal and ephemeral nodes."""
        return FakeMetadataStore(self._tree)

    @property
    def epoch(self) -> int:
        """Number of this client's session; ephemeral nodes of earlier ones are gone."""
        return self._epoch

    def observe(self, observer: Observer) -> None:
        """Report changes of nodes by any session, just after each and in order, while the store is locked."""
        self._tree.observers.append(observer)

    # The port ----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> Node | None:
        _check_path(path)
        self._arrive("read", path)
        with self._tree.lock:
            return self._node(path)

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        for path in paths:
            _check_path(path)
        self._arrive("read_many", *paths)
        with self._tree.lock:
            return [self._node(path) for path in paths]

    def children(self, path: str) -> list[str] | None:
        _check_path(path)
        self._arrive("children", path)
        with self._tree.lock:
            return sorted(self._tree.children[path]) if path in self._tree.nodes else None

    def children_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        for path in paths:
            _check_path(path)
        self._arrive("children_many", *paths)
        with self._tree.lock:
            return [sorted(self._tree.children[path]) if path in self._tree.nodes else None for path in paths]

    def create_together(self, nodes: Sequence[NewNode]) -> None:
        paths = [node.path for node in nodes]
        for path in paths:
            _check_path(path)
        lost = self._arrive_writing("create_together", *paths)
        if lost is not None and not lost.applied:
            raise OutcomeUnknownError(f"the answer to the creation of {paths} was lost; read them again") from lost
        with self._tree.lock:
            if set(paths) & self._tree.nodes.keys() or len(set(paths)) < len(paths):
                raise AlreadyExistsError(f"one of {paths} already exists")
            for node in nodes:
                self._add_parents(node.path)
                self._add(node.path, node.data, ephemeral=node.ephemeral)
        if lost is not None:
            raise OutcomeUnknownError(f"the answer to the creation of {paths} was lost; read them again") from lost

    def delete_together(self, paths: Sequence[str]) -> None:
        for path in paths:
            _check_path(path)
        lost = self._arrive_writing("delete_together", *paths)
        if lost is not None and not lost.applied:
            raise OutcomeUnknownError(f"the answer to the deletion of {paths} was lost; read them again") from lost
        with self._tree.lock:
            left = set(paths)
            for path in paths:
                if path not in left or path not in self._tree.nodes:
                    raise ConflictError(f"{path} is gone")
                left.discard(path)
                below = {_join(path, name) for name in self._tree.children[path]}
                if below - (set(paths) - left):
                    raise ConflictError(f"{path} has children")
            for path in paths:
                self._drop(path)
        if lost is not None:
            raise OutcomeUnknownError(f"the answer to the deletion of {paths} was lost; read them again") from lost

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> Node:
        _check_path(path)
        lost = self._arrive_writing("create", path)
        if lost is not None and not lost.applied:
            raise OutcomeUnknownError(f"the answer to the creation of {path} was lost; read it again") from lost
        with self._tree.lock:
            if path in self._tree.nodes:
                raise AlreadyExistsError(f"{path} already exists")
            self._add_parents(path)
            node = self._add(path, data, ephemeral=ephemeral)
        if lost is not None:
            raise OutcomeUnknownError(f"the answer to the creation of {path} was lost; read it again") from lost
        return node

    def write(self, path: str, data: bytes, version: NodeVersion) -> NodeVersion:
        _check_path(path)
        _check_version(version)
        lost = self._arrive_writing("write", path)
        if lost is not None and not lost.applied:
            raise OutcomeUnknownError(f"the answer to the write of {path} was lost; read it again") from lost
        with self._tree.lock:
            node = self._tree.nodes.get(path)
            if node is None:
                raise NotFoundError(f"{path} is gone")
            if node.version != version:
                raise ConflictError(f"{path} is at version {node.version}, not {version}; read it again")
            written = self._replace_data(path, data).version
        if lost is not None:
            raise OutcomeUnknownError(f"the answer to the write of {path} was lost; read it again") from lost
        return written

    def delete(
        self, path: str, version: NodeVersion | None = None, modified_order: int | None = None
    ) -> DeletionResult:
        _check_path(path)
        if path == "/":
            raise InvalidInputError("the root cannot be deleted")
        if version is not None:
            _check_version(version)
        lost = self._arrive_writing("delete", path)
        if lost is not None and not lost.applied:
            return DeletionResult.UNKNOWN
        with self._tree.lock:
            node = self._tree.nodes.get(path)
            at = version if version is not None or node is None else node.version
            result = self._delete(path, at)
        return result if lost is None else DeletionResult.UNKNOWN

    def delete_many(
        self, deletions: Sequence[GuardedDeletion], may_send: Callable[[], bool] = always
    ) -> list[DeletionResult]:
        for deletion in deletions:
            _check_deletion(deletion)
        lost = self._arrive_writing("delete_many", *(deletion.path for deletion in deletions))
        if lost is not None and not lost.applied:
            return [DeletionResult.UNKNOWN] * len(deletions)
        results = [self._delete_guarded(deletion) if may_send() else DeletionResult.NOT_SENT for deletion in deletions]
        return results if lost is None else [DeletionResult.UNKNOWN] * len(deletions)

    def now_ms(self) -> int:
        self._arrive("now_ms")
        with self._tree.lock:
            return self._tree.now_ms

    def close(self) -> None:
        self.end_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside ------------------------------------------------------------------------------------------------------

    def _arrive(self, method: Method, *paths: str) -> None:
        with self._tree.lock:
            self.journal.append(Operation(method, paths))
        per_item = method == "delete_many"
        for hook in list(self._hooks):
            if hook.meets(method, paths) and not (per_item and hook.path is not None):
                self._run(hook)

    def _arrive_writing(self, method: Method, *paths: str) -> "_AnswerLostError | None":
        try:
            self._arrive(method, *paths)
        except _AnswerLostError as lost:
            return lost
        return None

    def _run(self, hook: _Hook) -> None:
        hook.times -= 1
        if hook.times == 0:
            self._hooks.remove(hook)
        hook.action()

    def _delete_guarded(self, deletion: GuardedDeletion) -> DeletionResult:
        for hook in list(self._hooks):
            if hook.path is not None and hook.meets("delete_many", [deletion.path]):
                self._run(hook)
        with self._tree.lock:
            if not all(self._holds(guard) for guard in deletion.guards):
                return DeletionResult.CONFLICT
            return self._delete(deletion.path, deletion.version)

    def _holds(self, guard: Guard) -> bool:
        node = self._tree.nodes.get(guard.path)
        return node is not None and node.version == guard.version

    def _delete(self, path: str, version: NodeVersion | None) -> DeletionResult:
        node = self._tree.nodes.get(path)
        if node is None:
            return DeletionResult.GONE
        if node.version != version or self._tree.children[path]:
            return DeletionResult.CONFLICT
        self._drop(path)
        return DeletionResult.DELETED

    def _node(self, path: str) -> Node | None:
        node = self._tree.nodes.get(path)
        if node is None:
            return None
        count = len(self._tree.children[path])
        if node.children_count != count:
            node = self._tree.nodes[path] = replace(node, children_count=count)
        return node

    def _add_parents(self, path: str) -> None:
        parts = path.split("/")[1:-1]
        for depth in range(1, len(parts) + 1):
            parent = "/" + "/".join(parts[:depth])
            if parent not in self._tree.nodes:
                self._add(parent, b"", ephemeral=False)

    def _add(self, path: str, data: bytes, *, ephemeral: bool) -> Node:
        tree = self._tree
        parent, _, name = path.rpartition("/")
        above = tree.nodes.get(parent or "/")
        if above is not None and above.ephemeral:
            raise ConflictError(f"{parent} is ephemeral and cannot have children")
        tree.order += 1
        node = Node(path, data, NodeVersion(0), tree.now_ms, tree.now_ms, tree.order, ephemeral=ephemeral)
        tree.nodes[path] = node
        tree.children[path] = set()
        if name:
            tree.children[parent or "/"].add(name)
        if ephemeral:
            tree.owners[path] = self._session
        self._notify(path, NodeChange.CREATED)
        return node

    def _replace_data(self, path: str, data: bytes) -> Node:
        tree = self._tree
        node = tree.nodes[path]
        tree.nodes[path] = replace(node, data=data, version=NodeVersion(node.version + 1), modified_ms=tree.now_ms)
        tree.order += 1
        self._notify(path, NodeChange.WRITTEN)
        return tree.nodes[path]

    def _drop(self, path: str) -> None:
        tree = self._tree
        del tree.nodes[path]
        del tree.children[path]
        tree.owners.pop(path, None)
        parent, _, name = path.rpartition("/")
        tree.children[parent or "/"].discard(name)
        self._notify(path, NodeChange.REMOVED)

    def _notify(self, path: str, change: NodeChange) -> None:
        for observer in self._tree.observers:
            observer(path, change)


class _AnswerLostError(Exception):
    def __init__(self, *, applied: bool) -> None:
        super().__init__("the answer was lost")
        self.applied = applied


def _join(path: str, name: str) -> str:
    return f"/{name}" if path == "/" else f"{path}/{name}"


def _check_path(path: str) -> None:
    parts = path.split("/")
    names = parts[1:]
    well_formed = path == "/" or (parts[0] == "" and names != [] and not {"", ".", ".."} & set(names))
    if not well_formed or _REFUSED_CHARACTERS.search(path):
        raise InvalidInputError(f"{path[:100]!r} is not a path of the metadata store")


def _check_version(version: NodeVersion) -> None:
    if version == _UNCONDITIONAL or not -(2**31) <= version < 2**31:
        raise InvalidInputError(f"{version} is not a version that a node can have")


def _check_deletion(deletion: GuardedDeletion) -> None:
    _check_path(deletion.path)
    _check_version(deletion.version)
    for guard in deletion.guards:
        _check_path(guard.path)
        _check_version(guard.version)
