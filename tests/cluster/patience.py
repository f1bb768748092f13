"""Waits for a cluster, by polling and never by sleeps of a fixed time.

Invariant: a failed wait names its condition in an error of its own class: a test gets a second try after a timeout, and
for no other reason (docs/decisions/0009-second-tries.md).
"""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

OPERATION_SECONDS = 120
"""Timeout of tests' clients for a broker: a slow machine must not fail a test that is not about time."""

PATIENCE_SECONDS = 300.0
"""Timeout of tests for conditions that a quiet machine fulfils within seconds.

Longer than a broker blocks itself (`tests.cluster.buckets`)."""

_PAUSE_SECONDS = 0.1
_GROWTH, _LONGEST_PAUSE_SECONDS = 1.2, 0.5
"""Several tests wait in parallel on few cores, and polls cost brokers and sidecars more than waits."""


class NotInTime(AssertionError):  # noqa: N818 - a wait that ended, as `pytest` has Failed and Skipped
    """Raised when a wait times out."""


def until(
    look: Callable[[], Found | None],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    pause_seconds: float | None = None,
) -> Found:
    """Poll until the result is truthy, and return it.

    Pauses between polls grow, unless their length is given.
    """
    deadline = time.monotonic() + seconds
    pause = pause_seconds or _PAUSE_SECONDS
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= deadline:
            raise NotInTime(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)
        if pause_seconds is None:
            pause = min(_GROWTH * pause, _LONGEST_PAUSE_SECONDS)


def holds_soon(look: Callable[[], bool], seconds: float) -> bool:
    """Return True if the condition becomes true in time, for callers that retry."""
    try:
        return until(look, "", seconds)
    except NotInTime:
        return False


def holds_for(look: Callable[[], bool], what: str, seconds: float) -> None:
    """Demand that a condition holds at every poll during a time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), f"it did not stay so: {what}"
        time.sleep(_PAUSE_SECONDS)
