"""What a route last read of the cluster, so that it answers soon whatever hangs."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError

_PATIENCE_SECONDS = 2.0
_TIMES_WITHOUT_ANY = 15
"""So many times longer the first reading of all may take."""

T = TypeVar("T")


class LastReading(Generic[T]):
    """A reading that all callers share, in one thread of its own.

    Invariants: a caller gets what was read after it asked; or, where that takes longer than 2 seconds or fails, what
    was read last, which has its time. Once a reading hangs nobody waits for it. Only the event loop calls this.
    """

    def __init__(
        self, read: Callable[[], object], known: Callable[[], T | None], patience_seconds: float = _PATIENCE_SECONDS
    ) -> None:
        """``read`` may take its time or fail; ``known`` is what it read last, from memory."""
        self._read, self._known, self._patience_seconds = read, known, patience_seconds
        self._thread = CapacityLimiter(1)
        self._reading: asyncio.Task[object] | None = None
        self._began = 0.0

    async def soon(self) -> T:
        """`TemporaryError`, or what the reading raised, only where nothing has been read yet."""
        loop, failure = asyncio.get_running_loop(), None
        asked = loop.time()
        gives_up = asked + self._patience_seconds * (1 if self._known() is not None else _TIMES_WITHOUT_ANY)
        while (now := loop.time()) < gives_up:
            if self._reading is None or self._reading.done():
                self._began = now
                self._reading = asyncio.create_task(self._in_thread())
            reading, began = self._reading, self._began
            if self._known() is not None and now - began > self._patience_seconds:
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
