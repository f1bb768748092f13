"""`ledger_deletion.watch.ports` over the store in memory: observed changes, and full reads.

Invariant: the semantics are those of the ZooKeeper adapters; ``tests/contract/test_store_changes.py`` runs one suite on
both. A test requests every fault by name: a lost connection, a server without watches or without events, unreadable
nodes, a walk that breaks, a change between two pieces of a walk.
"""

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from pulsar_sidecar.features.ledger_deletion.watch.ports import (
    Changes,
    ChangesLostError,
    LedgerIds,
    UnwatchableError,
    WalkedNode,
)
from pulsar_sidecar.model.clocks import Clock, StopSignal
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import (
    DEFAULT_LEDGERS_ROOT,
    MANAGED_LEDGERS,
    SCHEMAS,
    is_topic_node,
    ledger_id_of_path,
)
from pulsar_sidecar.ownership.shadows import may_be_shadow

from tests.fakes.metadata import FakeMetadataStore, NodeChange

_CANARY = "/pulsar-sidecar/ledger-deletion/watch/canaries/canary"
UNREADABLE = "NoAuth: no credential that may read it"
_REFERRING = (f"{MANAGED_LEDGERS}/", f"{SCHEMAS}/")


class FakeStoreChanges:
    """`StoreChanges` of all sessions of a `FakeMetadataStore`.

    Attributes:
        forbidden: unreadable nodes, whose changes stay unobserved.
        is_watchable: True if the server supports the request.
        is_deaf: True if no events arrive although the connection stands.
        echo_after_seconds: delay of events.
        times_armed: number of successful calls of `arm`.
    """

    def __init__(self, store: FakeMetadataStore, clock: Clock, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self.forbidden: set[str] = set()
        self.is_watchable = True
        self.is_deaf = False
        self.echo_after_seconds = 0.0
        self.times_armed = 0
        self._store = store
        self._clock = clock
        self._root = ledgers_root
        self._errors: list[SidecarError] = []
        self._lock = threading.Lock()
        self._stirred = threading.Event()
        self._is_armed = False
        self._nodes: dict[str, None] = {}
        self._ledgers: dict[LedgerId, bool] = {}
        store.observe(self._hear)

    # Setup by tests ----------------------------------------------------------------------------------------------

    def lose_connection(self) -> None:
        """Lose all events until armed again."""
        with self._lock:
            self._is_armed = False
            self._stirred.set()

    def fail_next_arm(self, error: SidecarError) -> None:
        """Make the next call of `arm` raise ``error``."""
        self._errors.append(error)

    # The port ----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        if not self.is_watchable:
            raise UnwatchableError("this server has no persistent recursive watches")
        with self._lock:
            self._is_armed = True
            self._nodes, self._ledgers = {}, {}
            self._stirred.clear()
            self.times_armed += 1

    def take(self, wait_seconds: float) -> Changes:
        """See `StoreChanges.take`; without changes a fake clock advances by the whole wait."""
        if not self._stirred.is_set():
            self._clock.wait_seconds(wait_seconds, self._stirred)
        with self._lock:
            self._demand_armed()
            changes = Changes(tuple(self._nodes), self._ledgers)
            self._nodes, self._ledgers = {}, {}
            self._stirred.clear()
            return changes

    def echo_seconds(self) -> float:
        with self._lock:
            self._demand_armed()
        self._store.put(_CANARY)
        self._store.remove(_CANARY)
        with self._lock:
            if self.is_deaf:
                self._is_armed = False
                self._stirred.set()
            self._demand_armed()
        return self.echo_after_seconds

    def close(self) -> None:
        self.lose_connection()

    # Inside ------------------------------------------------------------------------------------------------------

    def _keeps(self, path: str) -> bool:
        return path.startswith(_REFERRING)

    def _demand_armed(self) -> None:
        if not self._is_armed:
            raise ChangesLostError("the connection was lost; arm again")

    def _hear(self, path: str, change: NodeChange) -> None:
        with self._lock:
            if not self._is_armed or self.is_deaf or path in self.forbidden:
                return
            if self._keeps(path):
                self._nodes[path] = None
            elif (ledger_id := ledger_id_of_path(path, self._root)) is None:
                return
            elif change is not NodeChange.WRITTEN:
                self._ledgers[ledger_id] = change is NodeChange.CREATED
            else:
                return
            self._stirred.set()


class FakeTopicChanges(FakeStoreChanges):
    """`TopicChanges` of a `FakeMetadataStore`.

    Attributes:
        times_caught_up: number of successful calls of `catch_up`.
    """

    def __init__(self, store: FakeMetadataStore, clock: Clock) -> None:
        super().__init__(store, clock, ledgers_root="/not-watched")
        self.times_caught_up = 0
        self._failures: list[SidecarError] = []

    def fail_next_catch_up(self, error: SidecarError) -> None:
        """Make the next call of `catch_up` raise ``error``; observed changes stay."""
        self._failures.append(error)

    def catch_up(self) -> Sequence[str]:
        if self._failures:
            raise self._failures.pop(0)
        changed = self.take(0).nodes
        self.times_caught_up += 1
        return changed

    def _keeps(self, path: str) -> bool:
        return is_topic_node(path)


class FakeWholeStore:
    """`WholeStore` over a `FakeMetadataStore`, piece by piece.

    Attributes:
        forbidden: unreadable nodes.
        pieces_of: number of nodes or ledgers in a piece.
        between: function called after each piece, while the iteration waits.
        hurried: number of pieces of topics that were read in a hurry.
    """

    def __init__(self, store: FakeMetadataStore, ledgers_root: str = DEFAULT_LEDGERS_ROOT) -> None:
        self.forbidden: set[str] = set()
        self.pieces_of = 100
        self.between: Callable[[], object] = lambda: None
        self._store = store
        self._root = ledgers_root
        self.hurried = 0
        self._errors: list[SidecarError] = []

    def fail_next(self, error: SidecarError) -> None:
        """Make the next iteration raise ``error`` after its first piece, if any."""
        self._errors.append(error)

    def ledger_ids(self) -> Iterator[LedgerIds]:
        if self._store.peek(self._root) is None:
            raise TemporaryError(f"there is no {self._root} in the metadata store")
        for paths in self._pieces(f"{self._root}/"):
            found = (ledger_id_of_path(path, self._root) for path in paths)
            yield np.array([ledger_id for ledger_id in found if ledger_id is not None], np.int64)

    def nodes(self) -> Iterator[Sequence[WalkedNode]]:
        for paths in self._pieces(*_REFERRING):
            yield [walked for path in paths if (walked := self._walked(path)) is not None]

    def possible_shadows(self, hurry: StopSignal) -> Iterator[tuple[int, Sequence[tuple[str, bytes]]]]:
        # As a walk: everything is listed first, and the next piece is requested before the last one is handed over.
        self._store.children(MANAGED_LEDGERS)
        paths = [path for path in self._store.paths() if is_topic_node(path)]
        ahead: list[tuple[str, bytes]] = []
        for start in range(0, len(paths), self.pieces_of):
            nodes = self._store.read_many(paths[start : start + self.pieces_of])
            self.hurried += hurry.is_set()
            self.between()
            yield len(nodes), ahead
            ahead = [(node.path, node.data) for node in nodes if node is not None and may_be_shadow(node.data)]
            self._fail()
        yield 0, ahead
        self._fail()

    def _pieces(self, *below: str) -> Iterator[Sequence[str]]:
        paths = [path for path in self._store.paths() if path.startswith(below)]
        for start in range(0, len(paths), self.pieces_of):
            yield paths[start : start + self.pieces_of]
            self.between()
            self._fail()
        self._fail()

    def _walked(self, path: str) -> WalkedNode | None:
        if path in self.forbidden:
            return WalkedNode(path, b"", UNREADABLE)
        node = self._store.peek(path)
        return None if node is None else WalkedNode(path, node.data)

    def _fail(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
