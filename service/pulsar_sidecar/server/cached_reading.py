"""Cache of the last reading of the cluster, so that a route responds soon even if the cluster hangs."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

_TIMEOUT_SECONDS = 2.0
_TIMES_WITHOUT_ANY = 15
"""Factor by which the very first reading may take longer."""

T = TypeVar("T")


class CachedReading(Generic[T]):
    """A reading that all callers share, in its own thread.

    Invariants: a caller gets a reading that began after its call or, if that takes longer than 2 seconds or fails, the
    last one, which has its time. No caller waits for a reading that hangs. Only the event loop calls this.
    """

    def __init__(
        self, read: Callable[[], object], known: Callable[[], T | None], timeout_seconds: float = _TIMEOUT_SECONDS
    ) -> None:
        """Initialise with ``read``, which may be slow or fail; ``known`` returns its last value from memory."""
        self._read, self._known, self._timeout_seconds = read, known, timeout_seconds
        self._thread = CapacityLimiter(1)
        self._reading: asyncio.Task[object] | None = None
        self._began = 0.0

    async def within_timeout(self) -> T:
        """Return a value within the time limit; if there is none yet, raise `TemporaryError` or the read's error."""
        loop, failure = asyncio.get_running_loop(), None
        asked = loop.time()
        gives_up = asked + self._timeout_seconds * (1 if self._known() is not None else _TIMES_WITHOUT_ANY)
        while (now := loop.time()) < gives_up:
            if self._reading is None or self._reading.done():
                self._began = now
                self._reading = asyncio.create_task(self._in_thread())
            reading, began = self._reading, self._began
            if self._known() is not None and now - began > self._timeout_seconds:
                break
            await asyncio.wait({reading}, timeout=gives_up - now)
            if reading.done() and began >= asked:
                failure = reading.exception()
                break
        if failure is not None and not isinstance(failure, TemporaryError | OutcomeUnknownError):
            raise failure
        if (known := self._known()) is not None:
            return known
        raise failure or TemporaryError(f"the cluster has not answered within {gives_up - asked:g} s; try again")

    async def _in_thread(self) -> object:
        return await to_thread.run_sync(self._read, limiter=self._thread, abandon_on_cancel=True)
