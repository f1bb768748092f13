"""The states that were asked for lately, for the metrics: a bounded number, each for a bounded time."""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from pulsar_sidecar.ack_state.judging import AckState
from pulsar_sidecar.model.clocks import Clock

MOST_SUBSCRIPTIONS: Final = 1_000
REMEMBERED_SECONDS: Final = 300.0


class Remembered:
    """The last state of each subscription that somebody asked for; those asked for longest ago go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: OrderedDict[tuple[str, str], tuple[float, AckState]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, states: Iterable[AckState]) -> None:
        """Take these instead of what was known of the same subscriptions."""
        now = self._clock.monotonic_seconds()
        with self._lock:
            for state in states:
                key = (str(state.topic), state.subscription.name)
                self._states[key] = (now, state)
                self._states.move_to_end(key)
            while len(self._states) > MOST_SUBSCRIPTIONS:
                self._states.popitem(last=False)

    def recent(self) -> list[AckState]:
        """Those of the last `REMEMBERED_SECONDS`."""
        since = self._clock.monotonic_seconds() - REMEMBERED_SECONDS
        with self._lock:
            return [state for asked, state in self._states.values() if asked >= since]
