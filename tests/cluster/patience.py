"""Waiting for a cluster: by looking until it is so, never by sleeping for long enough.

Invariant: a wait that ends without success names what did not come true, by an error of its own kind: a test
gets a second try when a wait ran out, and for nothing else (docs/decisions/0009-second-tries.md).
"""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

OPERATION_SECONDS = 120
"""How long a client of a test waits for a broker: where a test is not about time, a slow machine must not fail it."""

PATIENCE_SECONDS = 300.0
"""How long a test waits for what is sure to come on a quiet machine within seconds.

Longer than a broker that blocks itself stands still (`tests.cluster.buckets`)."""

_PAUSE_SECONDS = 0.1
_GROWTH, _LONGEST_PAUSE_SECONDS = 1.2, 0.5
"""Several tests wait side by side on few cores, and looking costs brokers and sidecars more than waiting."""


class NotInTime(AssertionError):  # noqa: N818 - a wait that ended, as `pytest` has Failed and Skipped
    """A wait ran out."""


def until(
    look: Callable[[], Found | None],
    what: str,
    seconds: float = PATIENCE_SECONDS,
    *,
    pause_seconds: float | None = None,
) -> Found:
    """Look until the answer is true (or anything that counts as true); that answer.

    Pauses between looks grow, unless their length is given.
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
    """Whether it comes true in that time: for what is tried again if not."""
    try:
        return until(look, "", seconds)
    except NotInTime:
        return False


def holds_for(look: Callable[[], bool], what: str, seconds: float) -> None:
    """Look again and again for so long; it must be so every time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), f"it did not stay so: {what}"
        time.sleep(_PAUSE_SECONDS)
