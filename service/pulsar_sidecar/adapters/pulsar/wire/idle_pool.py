"""What is kept open for a while in case it is needed again."""

import threading
from collections import defaultdict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from pulsar_sidecar.model.clocks import Clock


class _Closable(Protocol):
    def close(self) -> None: ...


_Key = TypeVar("_Key", bound=Hashable)
_Kept = TypeVar("_Kept", bound=_Closable)


class IdlePool(Generic[_Key, _Kept]):
    """Open and in nobody's hands, by what it is good for; safe for use by several threads.

    Nothing runs in the background: what has been idle for too long is closed when its like is asked for.
    """

    def __init__(self, clock: Clock, *, seconds: float, most: int) -> None:
        """Keep so many of each kind for so long."""
        self._clock = clock
        self._seconds = seconds
        self._most = most
        self._lock = threading.Lock()
        self._idle: defaultdict[_Key, list[tuple[float, _Kept]]] = defaultdict(list)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nothing is kept any more."""
        return self._closed

    def take(self, key: _Key) -> _Kept | None:
        """The one that was used last, None when there is none."""
        youngest = self._clock.monotonic_seconds() - self._seconds
        with self._lock:
            idle = self._idle[key]
            fresh = [(since, kept) for since, kept in idle if since > youngest]
            stale = [kept for since, kept in idle if since <= youngest]
            taken = fresh.pop()[1] if fresh else None
            self._idle[key] = fresh
        for each in stale:
            each.close()
        return taken

    def keep(self, key: _Key, kept: _Kept) -> None:
        """Keep it, or close it when there are enough."""
        with self._lock:
            idle = self._idle[key]
            if not self._closed and len(idle) < self._most:
                idle.append((self._clock.monotonic_seconds(), kept))
                return
        kept.close()

    def close(self) -> None:
        """Close what is idle, and from now on whatever is to be kept; idempotent."""
        with self._lock:
            self._closed = True
            idle = [kept for kind in self._idle.values() for _, kept in kind]
            self._idle.clear()
        for each in idle:
            each.close()
