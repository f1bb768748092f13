"""Cache of pages' data for a few seconds, so that many viewers cost the cluster as much as one.

Invariants: no credential sees another's data; a refusal evicts cached data; a failed refresh never looks like
missing data: the page shows the previous data with its time, and the reason why there is nothing newer.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.server.answers import parse_answer
from pulsar_sidecar.web.in_process import Answer

_T = TypeVar("_T")
_MOST_BYTES = 64 * 1024 * 1024
_OVERHEAD_BYTES = 1024
_PATIENCE_SECONDS = 20.0
_PATIENCE_WITH_OLDER_SECONDS = 1.0


class RefusedError(SidecarError):
    """Raised when the REST server refuses or fails.

    Attributes:
        status: status code of the response, whose reason is the text.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class Reading:
    """A cached response of a route.

    Attributes:
        value: JSON value; None if it could not be read.
        as_of_ms: time of reading, milliseconds since the epoch.
        problem: reason why it could not be read, or not again since ``as_of_ms``.
        status: status of the last response, 503 if none came.
    """

    value: Any = None
    as_of_ms: int | None = None
    problem: str | None = None
    status: int = 200
    _parsed: dict[object, Any] = field(default_factory=dict, repr=False, compare=False)

    def required(self) -> Any:
        """Return the value; raise `RefusedError` if there is none."""
        if self.as_of_ms is None:
            raise RefusedError(self.status, self.problem or "nothing was read")
        return self.value

    def answer(self, kind: type[_T]) -> _T:
        """Return the value as ``kind``, or a list of it; raise `RefusedError` if there is none."""
        self.required()
        return self._as(kind)

    def parsed(self, kind: type[_T]) -> _T | None:
        """Return the value as ``kind``, or a list of it; None if there is none."""
        return None if self.value is None else self._as(kind)

    def _as(self, kind: type[_T]) -> _T:
        # Once for all viewers of a reading: a long list takes longer to parse than the page that shows a part of it.
        if kind not in self._parsed:
            self._parsed[kind] = parse_answer(kind, self.value)
        parsed: _T = self._parsed[kind]
        return parsed


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: Answer
    read_ms: int
    asked_seconds: float
    read_seconds: float
    parsed: dict[object, Any] = field(default_factory=dict)

    def is_fresh(self, now_seconds: float, keep_seconds: float) -> bool:
        """Return True until ``keep_seconds`` after the request, and for at least as long as it took."""
        took = self.read_seconds - self.asked_seconds
        return now_seconds - self.asked_seconds < max(keep_seconds, 2 * took)

    @property
    def size(self) -> int:
        return self.answer.size + _OVERHEAD_BYTES


class Readings:
    """The cache of one process, at most 64 MiB of JSON; only the event loop calls it."""

    def __init__(self, clock: Clock, patience_seconds: float = _PATIENCE_WITH_OLDER_SECONDS) -> None:
        """Initialise; pages show the older reading if a refresh takes longer than ``patience_seconds``."""
        self._clock, self._patience_seconds = clock, patience_seconds
        self._kept: LRUCache[object, _Kept] = LRUCache(_MOST_BYTES, getsizeof=lambda kept: kept.size)
        self._under_way: dict[object, asyncio.Task[_Kept]] = {}
        self._changed_seconds = -math.inf

    async def read(self, key: object, fetch: Callable[[], Awaitable[Answer]], keep_seconds: float) -> Reading:
        """Return a reading at most ``keep_seconds`` old; concurrent callers share one."""
        kept = self._kept.get(key)
        now_seconds = self._clock.monotonic_seconds()
        if kept and kept.asked_seconds > self._changed_seconds and kept.is_fresh(now_seconds, keep_seconds):
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
        kept = _Kept(answer, self._clock.now_ms(), asked_seconds, self._clock.monotonic_seconds())
        if answer.status < 300 and kept.size <= _MOST_BYTES:
            self._kept[key] = kept
        elif answer.status < 500:
            self._kept.pop(key, None)
        return kept

    def something_changed(self) -> None:
        """Invalidate all readings."""
        self._changed_seconds = self._clock.monotonic_seconds()
        self._under_way.clear()


def _shown(kept: _Kept) -> Reading:
    return Reading(kept.answer.value, kept.read_ms, None, kept.answer.status, kept.parsed)


def _stale(kept: _Kept | None, status: int, problem: str) -> Reading:
    if kept is None:
        return Reading(None, None, problem, status)
    return Reading(kept.answer.value, kept.read_ms, problem, status, kept.parsed)
