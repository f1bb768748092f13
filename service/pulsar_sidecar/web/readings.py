"""What pages show, kept for a few seconds: many who look cost the cluster what one does.

Invariants: what is kept for one credential is shown to no other; an answer that refuses ends what was kept; a failed
refresh never looks like an absence: it shows what was read before, with its time and why there is nothing newer.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.web.in_process import Answer

_MOST_BYTES = 64 * 1024 * 1024
_OVERHEAD_BYTES = 1024
_PATIENCE_SECONDS = 20.0
_PATIENCE_WITH_OLDER_SECONDS = 1.0


class RefusedError(SidecarError):
    """The REST door refused or failed.

    Attributes:
        status: its status code; the text is its reason.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Reading:
    """What a route answered.

    Attributes:
        value: its JSON; None if it could not be read.
        as_of_ms: when it was read.
        problem: why it could not be read, or not again since ``as_of_ms``.
        status: of the last answer, 503 if none came.
    """

    value: Any = None
    as_of_ms: int | None = None
    problem: str | None = None
    status: int = 200

    def required(self) -> Any:
        """The value; `RefusedError` if there is none."""
        if self.as_of_ms is None:
            raise RefusedError(self.status, self.problem or "nothing was read")
        return self.value


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    read_ms: int
    asked_seconds: float

    @property
    def size(self) -> int:
        return self.answer.size + _OVERHEAD_BYTES


class Readings:
    """The cache of one process; only its event loop calls it. 64 MiB of JSON at most."""

    def __init__(self, clock: Clock, patience_seconds: float = _PATIENCE_WITH_OLDER_SECONDS) -> None:
        """``patience_seconds``: how long a refresh may take before the older reading is shown."""
        self._clock, self._patience_seconds = clock, patience_seconds
        self._kept: LRUCache[object, _Kept] = LRUCache(_MOST_BYTES, getsizeof=lambda kept: kept.size)
        self._under_way: dict[object, asyncio.Task[_Kept]] = {}
        self._changed_seconds = -math.inf

    async def read(self, key: object, fetch: Callable[[], Awaitable[Answer]], keep_seconds: float) -> Reading:
        """What was read at most ``keep_seconds`` ago, or is read now; callers at the same time share one reading."""
        kept = self._kept.get(key)
        oldest_seconds = max(self._changed_seconds, self._clock.monotonic_seconds() - keep_seconds)
        if kept is not None and kept.asked_seconds > oldest_seconds:
            return _shown(kept)
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.create_task(self._fetched(key, fetch))
        patience = _PATIENCE_SECONDS if kept is None else self._patience_seconds
        await asyncio.wait({task}, timeout=patience)
        if not task.done():
            return _stale(kept, 503, f"the cluster has not answered within {patience:g} seconds")
        fresh = task.result()
        if fresh.answer.status < 300:
            return _shown(fresh)
        return _stale(kept if fresh.answer.status >= 500 else None, fresh.answer.status, fresh.answer.reason)

    async def _fetched(self, key: object, fetch: Callable[[], Awaitable[Answer]]) -> _Kept:
        asked_seconds = self._clock.monotonic_seconds()
        try:
            answer = await fetch()
        finally:
            if self._under_way.get(key) is asyncio.current_task():
                del self._under_way[key]
        kept = _Kept(answer, self._clock.now_ms(), asked_seconds)
        if answer.status < 300 and kept.size <= _MOST_BYTES:
            self._kept[key] = kept
        elif answer.status < 500:
            self._kept.pop(key, None)
        return kept

    def something_changed(self) -> None:
        """Read everything again when it is asked for next."""
        self._changed_seconds = self._clock.monotonic_seconds()
        self._under_way.clear()


def _shown(kept: _Kept) -> Reading:
    return Reading(kept.answer.value, kept.read_ms, None, kept.answer.status)


def _stale(kept: _Kept | None, status: int, problem: str) -> Reading:
    if kept is None:
        return Reading(None, None, problem, status)
    return Reading(kept.answer.value, kept.read_ms, problem, status)
