"""Knows every shadow topic (PIP-180) of the cluster, so that no deletion has to search for those of its source.

One thread (`ShadowIndex.run`) makes all looks, one after the other. A look hears which topics' nodes changed and reads
these alone, so it costs the same whatever the number of topics. At the start, and whenever changes may have been
missed, a look sets the watches and reads the nodes of all topics; so it does every six hours, unasked. Where changes
cannot be heard each look reads all of them.

Invariant: a caller gets the outcome of a look that began after the call, and all who wait share one look. A look that
failed is an error for all of them, never an absence.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain, islice

import structlog

from pulsar_sidecar.ledger_deletion.topic_deletion.known_shadows import KnownShadows, UnreadNode
from pulsar_sidecar.ledger_deletion.watch.ports import ChangesLostError, TopicChanges, UnwatchableError
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, PARTITIONED_TOPICS
from pulsar_sidecar.ledger_ownership.shadows import Shadow
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicDomain, TopicName

log = structlog.get_logger("ledger-deletion")

_PATIENCE_SECONDS = 10.0
_CATCH_UP_SECONDS = 1.0
_READ_ALL_AGAIN_SECONDS = 6 * 3600.0
"""A change that no event named, against all that is known of ZooKeeper, is missed for so long at most."""
_NODES_AT_ONCE = 500
_NODES_PER_SECOND = 2_000
_NAMESPACES_AT_ONCE = 50
_PERSISTENT = TopicDomain.PERSISTENT.value
_STOPPING = "the sidecar is shutting down"


class ShadowIndex:
    """`topic_deletion.shadow_refusals.Shadows`, for any number of threads; `run` is a loop for a thread of its own."""

    def __init__(
        self,
        store: MetadataStore,
        changes: TopicChanges | None,
        clock: Clock,
        stop: threading.Event,
        sidecars: Callable[[], int] = lambda: 1,
        *,
        patience_seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Reads nothing yet.

        Args:
            store: where the topics are.
            changes: None where nothing is watched.
            clock: paces the reading of all topics.
            stop: ends `run` and, with an error, the waiting of all callers.
            sidecars: how many there are; they share the rate, because each reads for itself.
            patience_seconds: how long `shadows_of` waits; longer where each look reads all topics.
        """
        self._store = store
        self._changes = changes
        self._clock = clock
        self._stop = stop
        self._sidecars = sidecars
        self._patience_seconds = patience_seconds
        self._turn = threading.Condition()
        self._asked = self._begun = self._ended = 0
        self._failure: SidecarError | None = None
        self._deletions_waiting = 0
        self._hurry = threading.Event()
        self._known = KnownShadows()
        self._is_complete = False
        self._nodes_a_look = 0
        self._warnings: tuple[str, ...] = ()
        self._read_all_at = 0.0
        self._changed: dict[str, None] = {}

    # --- for those who ask -------------------------------------------------------------------------------------------

    def shadows_of(self, sources: Collection[TopicName]) -> Sequence[Shadow]:
        """See `Shadows.shadows_of`; while a call waits, topics are read as fast as the store answers."""
        with self._turn:
            self._wait_in_a_hurry()
            return self._known.of(sources)

    def all_shadows(self, *, for_deletion: bool = False) -> tuple[Sequence[Shadow], Sequence[UnreadNode]]:
        """Every shadow, and every node that cannot be read and may be one's, by path.

        Waits as long as it takes, but ``for_deletion`` as `shadows_of` does.

        Raises:
            TemporaryError: the look failed, the sidecar stops, or they are not known in time.
        """
        with self._turn:
            if for_deletion:
                self._wait_in_a_hurry()
            else:
                self._wait_for_a_look(None)
            shadows, unread = self._known.shadows, self._known.unread
            return [shadows[path] for path in sorted(shadows)], [unread[path] for path in sorted(unread)]

    def warnings(self) -> tuple[str, ...]:
        """Why each look reads all topics although changes were to be heard; from memory."""
        return self._warnings

    def wake(self) -> None:
        """Have `run` and all who wait notice that ``stop`` is set."""
        with self._turn:
            self._turn.notify_all()

    def _wait_in_a_hurry(self) -> None:
        self._deletions_waiting += 1
        self._hurry.set()
        try:
            # One that is under way, and the next one.
            self._wait_for_a_look(self._patience_seconds + 2 * self._nodes_a_look / _NODES_PER_SECOND)
        finally:
            self._deletions_waiting -= 1
            if not self._deletions_waiting:
                self._hurry.clear()

    def _wait_for_a_look(self, seconds: float | None) -> None:
        number = self._asked = self._begun + 1
        self._turn.notify_all()

        def is_over() -> bool:
            return self._ended >= number or self._stop.is_set()

        while not self._turn.wait_for(is_over, _CATCH_UP_SECONDS if seconds is None else seconds):
            if seconds is not None:
                raise TemporaryError("shadow topics are not known yet: all topics are being searched for them")
        if self._ended < number:
            raise TemporaryError(_STOPPING)
        if self._failure is not None:
            raise TemporaryError(f"shadow topics are not known now: {self._failure}") from self._failure

    # --- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Look until stopped: at once where a call waits, and each second where changes are heard."""
        while not self._stop.is_set():
            self._look()
            with self._turn:
                self._turn.wait_for(lambda: self._asked > self._begun or self._stop.is_set(), _CATCH_UP_SECONDS)
        self.wake()

    def _look(self) -> None:
        with self._turn:
            is_asked = self._asked > self._begun
            if self._changes is None and not is_asked:
                return
            self._begun += 1
        failure: SidecarError | None = TemporaryError("an unexpected failure, which the log shows")
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
            if failure is not None and str(failure) != str(before) and not self._stop.is_set():
                log.warning("shadow topics could not be read", error=str(failure))

    def _refresh(self, is_asked: bool) -> None:
        is_old = self._clock.monotonic_seconds() - self._read_all_at >= _READ_ALL_AGAIN_SECONDS
        if self._is_complete and (is_asked or not is_old):
            try:
                self._catch_up(self._known)
            except ChangesLostError as error:
                log.info("all topics are searched for shadow topics again", error=str(error))
            else:
                return
        self._is_complete = False
        is_heard = self._listen(is_asked)
        if is_heard or is_asked:
            self._read_all(is_heard)

    def _listen(self, is_asked: bool) -> bool:
        """Whether changes are heard from now on."""
        if self._changes is None:
            return False
        try:
            self._changes.arm()
        except UnwatchableError as error:
            self._warnings = (f"each deletion of a topic searches all topics for its shadow topics: {error}",)
            log.warning("shadow topics", warning=self._warnings[0])
            self._changes = None
            return False
        except TemporaryError:
            if not is_asked:
                raise
            return False
        return True

    def _read_all(self, is_heard: bool) -> None:
        known = KnownShadows()
        self._changed.clear()
        per_second = _NODES_PER_SECOND / max(1, self._sidecars())
        paths, count = self._paths(), 0
        while some := list(islice(paths, _NODES_AT_ONCE)):
            self._read(known, some)
            count += len(some)
            if is_heard:
                # Few changes wait at any time, however long this takes.
                self._catch_up(known)
            self._clock.wait_seconds(len(some) / per_second, self._hurry)
            if self._stop.is_set():
                raise TemporaryError(_STOPPING)
        if is_heard:
            self._catch_up(known)
        with self._turn:
            self._known, self._is_complete = known, is_heard
            self._nodes_a_look = 0 if is_heard else count
            self._read_all_at = self._clock.monotonic_seconds()
        log.info("shadow topics are known", shadows=len(known.shadows), unread=len(known.unread), kept_up=is_heard)

    def _catch_up(self, known: KnownShadows) -> None:
        assert self._changes is not None
        # What was heard stays there until it was read.
        self._changed.update(dict.fromkeys(self._changes.catch_up()))
        self._read(known, list(self._changed))
        self._changed.clear()

    def _read(self, known: KnownShadows, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _NODES_AT_ONCE):
            some = paths[start : start + _NODES_AT_ONCE]
            nodes = self._store.read_many(some)
            with self._turn:
                for path, node in zip(some, nodes, strict=True):
                    known.note(path, node)

    # --- all topics --------------------------------------------------------------------------------------------------

    def _paths(self) -> Iterator[str]:
        """The nodes of all persistent topics, and those of directories, so that empty ones count for the rate."""
        for root in (PARTITIONED_TOPICS, MANAGED_LEDGERS):
            tenants = [f"{root}/{tenant}" for tenant in self._store.children(root) or ()]
            namespaces = chain.from_iterable(self._below(tenants))
            while some := list(islice(namespaces, _NAMESPACES_AT_ONCE)):
                yield from some
                yield from self._topics(some)

    def _topics(self, namespaces: Sequence[str]) -> Iterator[str]:
        """Also those of the namespaces below the clusters that V1 names have in the namespaces' place."""
        named = chain.from_iterable(self._below(namespaces))
        folders = [path if path.endswith(f"/{_PERSISTENT}") else f"{path}/{_PERSISTENT}" for path in named]
        topics = list(chain.from_iterable(self._below(folders)))
        yield from topics
        # A topic of this name, or a V1 namespace.
        named_so = [path for path in topics if path.endswith(f"/{_PERSISTENT}/{_PERSISTENT}")]
        yield from chain.from_iterable(self._below(named_so))

    def _below(self, paths: Sequence[str]) -> Iterator[list[str]]:
        for path, names in zip(paths, self._store.children_many(paths), strict=True):
            yield [f"{path}/{name}" for name in names or ()]
