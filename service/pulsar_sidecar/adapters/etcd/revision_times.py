"""The store's time, and times before which etcd's revisions were made; etcd itself keeps no times of keys.

Each response has the member's clock, to a second, and the store's revision: everything up to that revision was made
before that time. Such marks, one per minute, fewer from long ago, are kept in a node of the store, so that they
outlive a sidecar. The time of a revision is that of the first mark that is not older: never too early, so an age is
never overestimated. A revision after the last mark counts as made just now.

Invariant: this machine's wall clock is never used.
"""

import json
import threading
from bisect import bisect_left
from collections.abc import Iterable
from email.utils import parsedate_to_datetime
from typing import Final

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError

REFRESH_SECONDS: Final = 30.0
_MEMORY_INTERVAL_MS: Final = 1_000
STORED_INTERVAL_MS: Final = 60_000
_MOST_STORED: Final = 512
_MOST_IN_MEMORY: Final = 4_096
_SECOND_MS: Final = 1_000

Mark = tuple[int, int]
"""A revision, and a time before which it was made."""


class RevisionTimes:
    """Marks from responses and from the store's node; safe for use by several threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._marks: list[Mark] = []
        self._earliest_offset_ms: float | None = None
        self._latest_offset_ms = 0.0
        self._measured_at = float("-inf")
        self._latest: Mark | None = None

    def observe(self, revision: int, date: str | None, sent: float, received: float) -> None:
        """Record a response's store revision and ``Date`` header, and the times of the request and the response."""
        if date is None or revision <= 0:
            return
        try:
            date_ms = int(parsedate_to_datetime(date).timestamp()) * 1000
        except (TypeError, ValueError):
            return
        with self._lock:
            earliest = date_ms - received * 1000
            latest = date_ms + _SECOND_MS - sent * 1000
            if self._earliest_offset_ms is None or received - self._measured_at >= REFRESH_SECONDS:
                # Discard a clock's readings from before it was set.
                self._earliest_offset_ms, self._latest_offset_ms = earliest, latest
                self._measured_at = received
            else:
                self._earliest_offset_ms = max(self._earliest_offset_ms, earliest)
                self._latest_offset_ms = max(self._latest_offset_ms, latest)
            before_ms = int(self._latest_offset_ms + received * 1000) + 1
            self._latest = (revision, before_ms)
            last = self._marks[-1] if self._marks else (0, 0)
            if revision > last[0] and before_ms - last[1] >= _MEMORY_INTERVAL_MS:
                self._marks.append((revision, before_ms))
                self._marks = thinned(self._marks, _MOST_IN_MEMORY)

    def now_ms(self) -> int:
        """Return the store's time, at most a second late; raise `TemporaryError` if no response had it."""
        with self._lock:
            if self._earliest_offset_ms is None:
                raise TemporaryError("etcd's responses have no Date header, so its time is not known")
            return int(self._earliest_offset_ms + self._clock.monotonic_seconds() * 1000)

    def made_before_ms(self, revision: int) -> int:
        """Return a time before which the revision was made."""
        with self._lock:
            place = bisect_left(self._marks, (revision, 0))
            if place < len(self._marks):
                return self._marks[place][1]
            return int(self._latest_offset_ms + self._clock.monotonic_seconds() * 1000) + 1

    def learn(self, data: bytes) -> None:
        """Add the marks that the node holds; raise `UndecodableError` if it holds others."""
        marks = _marks_in(data)
        with self._lock:
            self._marks = thinned(_ascending([*self._marks, *marks]), _MOST_IN_MEMORY)

    def to_store(self, stored: bytes) -> bytes | None:
        """Return the node's next content; None while its last mark is young; raise as `learn`."""
        marks = _marks_in(stored)
        newest = self._latest
        if newest is None or (marks and newest[1] - marks[-1][1] < STORED_INTERVAL_MS):
            return None
        return json.dumps(thinned(_ascending([*marks, newest]), _MOST_STORED), separators=(",", ":")).encode()


def _marks_in(data: bytes) -> list[Mark]:
    try:
        return [(int(revision), int(before_ms)) for revision, before_ms in json.loads(data)] if data else []
    except (ValueError, TypeError) as error:
        raise UndecodableError(f"the times of revisions cannot be read ({error}); delete the node") from error


def _ascending(marks: Iterable[Mark]) -> list[Mark]:
    """Return the marks in order, without those that an earlier time of a later revision makes useless."""
    kept: list[Mark] = []
    for mark in sorted(set(marks)):
        while kept and kept[-1][1] >= mark[1]:
            kept.pop()
        kept.append(mark)
    return kept


def thinned(marks: list[Mark], most: int) -> list[Mark]:
    """Return at most this many marks: of the older half every second one, until they are few enough."""
    while len(marks) > most:
        half = len(marks) // 2
        marks = [*marks[1:half:2], *marks[half:]]
    return marks
