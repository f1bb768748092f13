"""Loops that run as long as a sidecar does, leadership among sidecars, and grouped calls of many threads.

Each loop survives every error of ours: it records the error, waits and restarts, because topics and the metadata store
hold the work, never this process.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

import structlog

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import AlreadyExistsError, OutcomeUnknownError, SidecarError
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.model.names import TopicName

_FIRST_BACKOFF_SECONDS = 0.5


class Leadership:
    """Election of a leader among the sidecars: an ephemeral node names it, and dies with its session.

    Until an old session expires, two sidecars may believe that they lead: a leader's work must be harmless when done
    twice.
    """

    def __init__(self, store: MetadataStore, path: str, own: bytes) -> None:
        self._store, self._path, self._own = store, path, own

    def take(self) -> bool:
        """Lead if no other sidecar does; return True if this sidecar leads now."""
        node = self._store.read(self._path)
        if node is not None:
            return node.data == self._own
        try:
            self._store.create(self._path, self._own, ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def resign(self) -> None:
        """Resign, so that another sidecar can lead at once."""
        node = self._store.read(self._path)
        if node is not None and node.data == self._own:
            self._store.delete(self._path, node.version, node.modified_order)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, Answer]):
    """A caller's item; ``woken`` is set when its result is there, or when it must carry out the next group."""

    item: Item
    woken: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    error: BaseException | None = None
    is_over: bool = False


class GroupedCalls(Generic[Item, Answer]):
    """Group commit of concurrent calls, as of a journal; a single call does not wait for others.

    The thread of a group's first caller carries it out, while the next group gathers. After a group fails, each caller
    retries its own call on its own thread, so that no call fails because of another; if the outcome is unknown, each
    caller gets that error.
    """

    def __init__(
        self, carry_out: Callable[[Sequence[Item]], Sequence[Answer]], weight: Callable[[Item], int], most: int
    ) -> None:
        """Group calls of ``carry_out``, which keeps their order; a group is one item, or weighs at most ``most``."""
        self._carry_out, self._weight, self._most = carry_out, weight, most
        self._lock = threading.Lock()
        self._queue: deque[_Waiting[Item, Answer]] = deque()
        self._is_running = False

    def __call__(self, item: Item) -> Answer:
        mine = _Waiting[Item, Answer](item)
        with self._lock:
            self._queue.append(mine)
            leads, self._is_running = not self._is_running, True
        if not leads:
            mine.woken.wait()
        if not mine.is_over:
            self._lead()
        if mine.error is None:
            return cast(Answer, mine.answer)
        if isinstance(mine.error, OutcomeUnknownError):
            raise OutcomeUnknownError(str(mine.error)) from mine.error
        return self._carry_out([item])[0]

    def _lead(self) -> None:
        group = self._next_group()
        try:
            answers = self._carry_out([each.item for each in group])
            for each, answer in zip(group, answers, strict=True):
                each.answer = answer
        except BaseException as error:
            for each in group:
                each.error = error
            if len(group) == 1 or not isinstance(error, SidecarError):
                raise
        finally:
            with self._lock:
                following = self._queue[0] if self._queue else None
                self._is_running = following is not None
            for each in group:
                each.is_over = True
                each.woken.set()
            if following is not None:
                following.woken.set()

    def _next_group(self) -> list[_Waiting[Item, Answer]]:
        with self._lock:
            group = [self._queue.popleft()]
            weight = self._weight(group[0].item)
            while self._queue and (weight := weight + self._weight(self._queue[0].item)) <= self._most:
                group.append(self._queue.popleft())
            return group


class SupervisedLoops:
    """Threads of one feature's loops."""

    def __init__(
        self,
        feature: str,
        clock: Clock,
        stop: threading.Event,
        note_failure: Callable[[str], None],
        longest_backoff_seconds: float,
    ) -> None:
        self._feature, self._clock, self._stop = feature, clock, stop
        self._note_failure = note_failure
        self._longest_backoff_seconds = longest_backoff_seconds
        self._threads: list[threading.Thread] = []

    def start(self, loops: Mapping[str, Callable[[], None]]) -> None:
        """Start the loops under these names; return at once."""
        for name, loop in loops.items():
            thread = threading.Thread(target=self._keep_running, args=(name, loop), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until each loop has finished its current work."""
        for thread in self._threads:
            thread.join()

    def _keep_running(self, name: str, loop: Callable[[], None]) -> None:
        log = structlog.get_logger(self._feature)
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stop.is_set():
            started = self._clock.monotonic_seconds()
            try:
                loop()
            except SidecarError as error:
                self._note_failure(f"{name}: {error}")
                log.warning("loop restarting", loop=name, error=str(error), backoff_seconds=backoff_seconds)
            except Exception:
                # A defect of ours must not stop the loop permanently; no work is lost with the process's state.
                self._note_failure(f"{name}: unexpected failure, see the log")
                log.exception("loop failed unexpectedly, restarting", loop=name)
            if self._clock.monotonic_seconds() - started > self._longest_backoff_seconds:
                backoff_seconds = _FIRST_BACKOFF_SECONDS
            self._clock.wait_seconds(backoff_seconds, self._stop)
            backoff_seconds = min(backoff_seconds * 2, self._longest_backoff_seconds)


class TopicWatch:
    """Periodic check of topics in one thread; survives every error and continues with the next topic."""

    def __init__(
        self,
        name: str,
        look: Callable[[TopicName], object],
        topics: Sequence[TopicName],
        every_seconds: float,
        clock: Clock,
    ) -> None:
        self._name = name
        self._look = look
        self._topics = topics
        self._every_seconds = every_seconds
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread if there are topics to watch."""
        if self._topics:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for it; idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        log = structlog.get_logger(self._name)
        while not self._stop.is_set():
            for topic in self._topics:
                try:
                    self._look(topic)
                except SidecarError as error:
                    log.warning("topic check failed", topic=str(topic), error=str(error))
                except Exception:
                    # A defect of ours that affects one topic must not leave the others unwatched.
                    log.exception("topic check failed unexpectedly", topic=str(topic))
            self._clock.wait_seconds(self._every_seconds, self._stop)
