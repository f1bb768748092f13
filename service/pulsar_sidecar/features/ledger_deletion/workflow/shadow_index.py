"""Index of every shadow topic (PIP-180) of the cluster, so that no deletion has to search for a source's shadows.

One thread (`ShadowIndex.run`) makes all refreshes, one by one. A refresh gets the topics' nodes that changed and
reads only these, so its cost does not depend on the number of topics. At the start, whenever changes may have been
missed, and every six hours, a refresh sets the watches and reads the nodes of all topics: at the start and after a
loss as fast as the store responds, since the next deletion waits for it. If changes cannot be watched, each refresh
reads all of them.

Invariant: a caller gets the result of a refresh that began after the call, and all waiting callers share it. A
failed refresh is an error for all of them, never an absence.
"""

import threading
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field

import structlog

from pulsar_sidecar.features.ledger_deletion.topic_deletion.known_shadows import KnownShadows, UnreadNode
from pulsar_sidecar.features.ledger_deletion.watch.ports import (
    ChangesLostError,
    TopicChanges,
    UnwatchableError,
    WholeStore,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import is_topic_node
from pulsar_sidecar.ownership.shadows import Shadow

log = structlog.get_logger("ledger-deletion")

_PATIENCE_SECONDS = 10.0
_CATCH_UP_SECONDS = 1.0
_READ_ALL_AGAIN_SECONDS = 6 * 3600.0
"""Maximum time for which a change without an event, which ZooKeeper should never cause, is missed."""
_NODES_AT_ONCE = 500
_SLOWEST_NODES_PER_SECOND = 2_000
_STOPPING = "the sidecar is shutting down"


@dataclass(slots=True)
class ShadowIndex:
    """`topic_deletion.shadow_refusals.Shadows` from an index; thread-safe, with `run` as a loop for its own thread.

    Attributes:
        store: metadata store of the topics, for those that changed.
        whole: the same store, for all topics.
        changes: change feed; None where nothing is watched.
        clock: clock between two reads of the changes.
        stop: signal that ends `run` and, with an error, the waits of all callers.
        patience_seconds: time that `shadows_of` waits; longer where each refresh reads all topics.
    """

    store: MetadataStore
    whole: WholeStore
    changes: TopicChanges | None
    clock: Clock
    stop: threading.Event
    _: KW_ONLY
    patience_seconds: float = _PATIENCE_SECONDS
    _turn: threading.Condition = field(default_factory=threading.Condition)
    _asked: int = 0
    _begun: int = 0
    _ended: int = 0
    _failure: SidecarError | None = None
    _deletions_waiting: int = 0
    _hurry: threading.Event = field(default_factory=threading.Event)
    _is_urgent: bool = True
    _known: KnownShadows = field(default_factory=KnownShadows)
    _is_complete: bool = False
    _nodes_per_refresh: int = 0
    _warnings: tuple[str, ...] = ()
    _read_all_at: float = 0.0
    _changed: dict[str, None] = field(default_factory=dict)

    # --- queries -----------------------------------------------------------------------------------------------------

    def shadows_of(self, sources: Collection[TopicName]) -> Sequence[Shadow]:
        """See `Shadows.shadows_of`; while a call waits, the index reads topics as fast as the store responds."""
        with self._turn:
            self._wait_urgently()
            return self._known.of(sources)

    def all_shadows(self, *, for_deletion: bool = False) -> tuple[Sequence[Shadow], Sequence[UnreadNode]]:
        """Return every shadow, and every unreadable node that may be one's, by path.

        Waits as long as necessary; with ``for_deletion``, as long as `shadows_of` does.

        Raises:
            TemporaryError: the refresh failed, the sidecar stops, or the wait timed out.
        """
        with self._turn:
            if for_deletion:
                self._wait_urgently()
            else:
                self._wait_for_refresh(None)
            shadows, unread = self._known.shadows, self._known.unread
            return [shadows[path] for path in sorted(shadows)], [unread[path] for path in sorted(unread)]

    def warnings(self) -> tuple[str, ...]:
        """Return, from memory, why each refresh reads all topics instead of watching changes."""
        return self._warnings

    def holds_up_deletions(self) -> bool:
        """Return True while all topics are read as fast as possible; never where each deletion reads them."""
        return self._hurry.is_set() and not self._is_complete and self.changes is not None

    def wake(self) -> None:
        """Make `run` and all waiting callers notice that ``stop`` is set."""
        self._hurry.set()
        with self._turn:
            self._turn.notify_all()

    def _wait_urgently(self) -> None:
        self._deletions_waiting += 1
        self._hurry.set()
        try:
            # The current refresh, and the next one.
            self._wait_for_refresh(self.patience_seconds + 2 * self._nodes_per_refresh / _SLOWEST_NODES_PER_SECOND)
        finally:
            self._deletions_waiting -= 1
            if not self._is_urgent:
                self._slow_down()

    def _slow_down(self) -> None:
        if not self._deletions_waiting and not self.stop.is_set():
            self._hurry.clear()

    def _wait_for_refresh(self, seconds: float | None) -> None:
        number = self._asked = self._begun + 1
        self._turn.notify_all()

        def is_over() -> bool:
            return self._ended >= number or self.stop.is_set()

        while not self._turn.wait_for(is_over, _CATCH_UP_SECONDS if seconds is None else seconds):
            if seconds is not None:
                raise TemporaryError("shadow topics are not known yet: all topics are being searched for them")
        if self._ended < number:
            raise TemporaryError(_STOPPING)
        if self._failure is not None:
            raise TemporaryError(f"shadow topics are not known now: {self._failure}") from self._failure

    # --- loop --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Refresh until stopped: at once while a call waits, and each second where changes are watched."""
        while not self.stop.is_set():
            self._refresh_once()
            with self._turn:
                self._turn.wait_for(lambda: self._asked > self._begun or self.stop.is_set(), _CATCH_UP_SECONDS)
        self.wake()

    def _refresh_once(self) -> None:
        with self._turn:
            is_asked = self._asked > self._begun
            if self.changes is None and not is_asked:
                return
            self._begun += 1
        failure: SidecarError | None = TemporaryError("an unexpected failure; see the log")
        try:
            self._refresh(is_asked)
            failure = None
        except SidecarError as error:
            failure = error
        finally:
            with self._turn:
                before, self._failure = self._failure, failure
                self._ended = self._begun
                self._turn.notify_all()
            if failure is not None and str(failure) != str(before) and not self.stop.is_set():
                log.warning("shadow topics could not be read", error=str(failure))

    def _refresh(self, is_asked: bool) -> None:
        is_old = self.clock.monotonic_seconds() - self._read_all_at >= _READ_ALL_AGAIN_SECONDS
        if self._is_complete and (is_asked or not is_old):
            try:
                self._catch_up(self._known)
            except ChangesLostError as error:
                self._is_urgent = True
                log.info("searching all topics for shadow topics again", error=str(error))
            else:
                return
        self._is_complete = False
        is_watched = self._listen(is_asked)
        if not (is_watched or is_asked):
            return
        if self._is_urgent and is_watched:
            self._hurry.set()
        try:
            self._read_all(is_watched)
        finally:
            with self._turn:
                # If it fails repeatedly, it loads the servers no more than the setting allows.
                self._is_urgent = False
                self._slow_down()

    def _listen(self, is_asked: bool) -> bool:
        """Watch changes, if possible; return True if they are watched from now on."""
        if self.changes is None:
            return False
        try:
            self.changes.arm()
        except UnwatchableError as error:
            self._warnings = (f"each deletion of a topic searches all topics for its shadow topics: {error}",)
            log.warning("topic changes cannot be watched", warning=self._warnings[0])
            self.changes = None
            return False
        except TemporaryError:
            if not is_asked:
                raise
            return False
        return True

    def _read_all(self, is_watched: bool) -> None:
        known, count = KnownShadows(), 0
        self._changed.clear()
        caught_up = self.clock.monotonic_seconds()
        for read, nodes in self.whole.possible_shadows(self._hurry):
            for path, data in nodes:
                if is_topic_node(path):
                    known.note(path, data)
            count += read
            now = self.clock.monotonic_seconds()
            if self.changes is not None and is_watched and now - caught_up >= _CATCH_UP_SECONDS:
                # Keeps the feed's queue short. These are read at the end: the next piece may hold older data of them.
                self._changed.update(dict.fromkeys(self.changes.catch_up()))
                caught_up = now
            if self.stop.is_set():
                raise TemporaryError(_STOPPING)
        if is_watched:
            self._catch_up(known)
        with self._turn:
            self._known, self._is_complete = known, is_watched
            self._nodes_per_refresh = 0 if is_watched else count
            self._read_all_at = self.clock.monotonic_seconds()
        log.info("shadow topics read", shadows=len(known.shadows), unread=len(known.unread), kept_up=is_watched)

    def _catch_up(self, known: KnownShadows) -> None:
        assert self.changes is not None
        # A changed path stays here until its node was read.
        self._changed.update(dict.fromkeys(self.changes.catch_up()))
        self._read(known, list(self._changed))
        self._changed.clear()

    def _read(self, known: KnownShadows, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _NODES_AT_ONCE):
            some = paths[start : start + _NODES_AT_ONCE]
            nodes = self.store.read_many(some)
            with self._turn:
                for path, node in zip(some, nodes, strict=True):
                    known.note(path, None if node is None else node.data)
