"""Loops that run as long as a sidecar does, each in a thread of its own, and which sidecar of all does a thing.

Each loop survives every error of ours: it notes it, waits and starts afresh, because topics and the metadata store
hold the work, never this process.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

import structlog

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import AlreadyExistsError, SidecarError
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
