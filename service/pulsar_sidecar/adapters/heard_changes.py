"""Changes that a watch of any metadata store has received and no caller has taken yet."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.watch.ports import Changes, ChangesLostError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import (
    MANAGED_LEDGERS,
    PARTITIONED_TOPICS,
    REFERRING,
    SCHEMAS,
    is_topic_node,
    ledger_id_of_path,
)
from pulsar_sidecar.reports.formatting import format_count


@dataclass(frozen=True, slots=True)
class Scope:
    """Nodes and ledgers to watch, and how many changes may wait to be taken.

    Attributes:
        roots: the watched nodes, with all below them; they need not exist.
        is_kept: predicate of the nodes whose events are kept until they are taken.
        ledgers_root: root of the watched ledgers, one of ``roots``; None to watch no ledgers.
        most_waiting: most nodes and ledgers that wait to be taken; one more, and all are dropped and
            `ChangesLostError` reports it.
    """

    roots: tuple[str, ...]
    is_kept: Callable[[str], bool]
    most_waiting: int
    ledgers_root: str | None = None


def store_scope(ledgers_root: str, most_waiting: int = 1_000_000) -> Scope:
    """Return the scope of `ledger_deletion.watch.ports.StoreChanges`; the most that waits takes about 200 MB."""
    return Scope(
        (MANAGED_LEDGERS, SCHEMAS, ledgers_root), lambda path: path.startswith(REFERRING), most_waiting, ledgers_root
    )


def topic_scope(most_waiting: int = 100_000) -> Scope:
    """Return the scope of `ledger_deletion.watch.ports.TopicChanges`; the most that waits takes about 20 MB."""
    return Scope((MANAGED_LEDGERS, PARTITIONED_TOPICS), is_topic_node, most_waiting)


class HeardChanges:
    """Queue of changes until the first doubt, and never after it; safe for use by several threads.

    Attributes:
        stirred: notified of the first change, and of a doubt; its lock is reentrant.
        doubt: why changes may have been missed.
    """

    def __init__(self, scope: Scope, store: str) -> None:
        self._scope = scope
        self._store = store
        self.stirred = threading.Condition()
        self.doubt: str | None = None
        self._nodes: dict[str, None] = {}
        self._ledgers: dict[LedgerId, bool] = {}

    def take(self, wait_seconds: float) -> Changes:
        with self.stirred:
            self.stirred.wait_for(lambda: self.doubt or self._nodes or self._ledgers, wait_seconds)
            nodes, self._nodes = self._nodes, {}
            ledgers, self._ledgers = self._ledgers, {}
        self.demand_whole()
        return Changes(tuple(nodes), ledgers)

    def demand_whole(self, cause: Exception | None = None) -> None:
        """Raise `ChangesLostError` if events may have been missed."""
        if self.doubt is not None:
            raise self.lost(self.doubt) from cause

    def lost(self, why: str) -> ChangesLostError:
        """Return the error to raise, from now on in every call."""
        self.lose(why)
        return ChangesLostError(f"changes in {self._store} may have been missed: {self.doubt}")

    def lose(self, why: str) -> None:
        with self.stirred:
            self.doubt = self.doubt or why
            self._nodes, self._ledgers = {}, {}
            self.stirred.notify_all()

    def note(self, path: str, exists: bool | None) -> None:
        """Note an event: a node was created (True), removed (False) or written (None)."""
        if self._scope.is_kept(path):
            with self.stirred:
                self._nodes.setdefault(path)
                self._heard()
        elif exists is not None and self._scope.ledgers_root is not None:
            ledger_id = ledger_id_of_path(path, self._scope.ledgers_root)
            if ledger_id is not None:
                with self.stirred:
                    self._ledgers[ledger_id] = exists
                    self._heard()

    def _heard(self) -> None:
        waiting = len(self._nodes) + len(self._ledgers)
        if self.doubt is not None:
            self._nodes, self._ledgers = {}, {}
        elif waiting == 1:
            self.stirred.notify_all()
        elif waiting > self._scope.most_waiting:
            self.lose(f"more than {format_count(self._scope.most_waiting, 'node')} were waiting to be processed")
