"""Loops that run as long as a sidecar does, which sidecar of all does a thing, and calls of many threads as one.

Each loop survives every error of ours: it notes it, waits and starts afresh, because topics and the metadata store
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
    """One sidecar of all: an ephemeral node names it, and dies with its session.

    For as long as a session takes to expire, two sidecars may believe that they lead: what a leader does must be
    harmless when it is done twice.
    """

    def __init__(self, store: MetadataStore, path: str, own: bytes) -> None:
        self._store, self._path, self._own = store, path, own

    def take(self) -> bool:
        """Whether this sidecar leads now; it does if no other one does."""
        node = self._store.read(self._path)
        if node is not None:
            return node.data == self._own
        try:
            self._store.create(self._path, self._own, ephemeral=True)
        except AlreadyExistsError:
            return False
        return True

    def resign(self) -> None:
        """Let another sidecar lead at once."""
        node = self._store.read(self._path)
        if node is not None and node.data == self._own:
            self._store.delete(self._path, node.version)


Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class _Waiting(Generic[Item, Answer]):
    """One caller's item; ``woken`` is set when its answer is there, or when it is to carry out the next group."""

    item: Item
    woken: threading.Event = field(default_factory=threading.Event)
    answer: Answer | None = None
    error: BaseException | None = None
    is_over: bool = False


class GroupedCalls(Generic[Item, Answer]):
    """Calls that wait at the same time are carried out together, as a journal commits; one alone waits for no other.

    Each group is carried out on the thread of its first caller, while the next one gathers. A group that fails is
    carried out again call by call, each on its own thread, so that no call fails because of another; only where the
    outcome is unknown does each caller get that error.
    """

    def __init__(
        self, carry_out: Callable[[Sequence[Item]], Sequence[Answer]], weight: Callable[[Item], int], most: int
    ) -> None:
        """``carry_out`` answers each item in order. A group weighs at most ``most``, or is one item."""
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
    """The threads of one room."""

    def __init__(
        self,
        room: str,
        clock: Clock,
        stop: threading.Event,
        note_failure: Callable[[str], None],
        longest_backoff_seconds: float,
    ) -> None:
        self._room, self._clock, self._stop = room, clock, stop
        self._note_failure = note_failure
        self._longest_backoff_seconds = longest_backoff_seconds
        self._threads: list[threading.Thread] = []

    def start(self, loops: Mapping[str, Callable[[], None]]) -> None:
        """Start them under these names; returns at once."""
        for name, loop in loops.items():
            thread = threading.Thread(target=self._keep_running, args=(name, loop), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until each has finished what it had in hand."""
        for thread in self._threads:
            thread.join()

    def _keep_running(self, name: str, loop: Callable[[], None]) -> None:
        log = structlog.get_logger(self._room)
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stop.is_set():
            started = self._clock.monotonic_seconds()
            try:
                loop()
            except SidecarError as error:
                self._note_failure(f"{name}: {error}")
                log.warning("loop starts afresh", loop=name, error=str(error), backoff_seconds=backoff_seconds)
            except Exception:
                # A defect of ours must not silence the loop for good; nothing is lost with the process's state.
                self._note_failure(f"{name}: unexpected failure, see the log")
                log.exception("loop failed unexpectedly and starts afresh", loop=name)
            if self._clock.monotonic_seconds() - started > self._longest_backoff_seconds:
                backoff_seconds = _FIRST_BACKOFF_SECONDS
            self._clock.wait_seconds(backoff_seconds, self._stop)
            backoff_seconds = min(backoff_seconds * 2, self._longest_backoff_seconds)


class TopicWatch:
    """Looks at topics again and again in one thread; survives every error and goes on with the next topic."""

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
        """Begin, if there is anything to watch."""
        if self._topics:
            self._thread.start()

    def close(self) -> None:
        """Stop and wait for the end; idempotent."""
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
                    log.warning("a watched topic could not be read", topic=str(topic), error=str(error))
                except Exception:
                    # A defect of ours that meets one topic must not leave the others unwatched.
                    log.exception("looking at a watched topic failed unexpectedly", topic=str(topic))
            self._clock.wait_seconds(self._every_seconds, self._stop)
