"""The only place that reads the machine's clock, so that every rule about time can be tested."""

import time
from typing import Protocol


class StopSignal(Protocol):
    """What a waiting loop can be woken by (``threading.Event`` is one)."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most ``timeout`` seconds; True when the signal is set."""
        ...

    def is_set(self) -> bool:
        """Whether the signal is set."""
        ...


class Clock(Protocol):
    """Wall time, monotonic time and waiting."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic_seconds(self) -> float:
        """Seconds from an arbitrary start, never running backwards."""
        ...

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        """Wait until ``stop`` is set (if one is given) or ``seconds`` have passed; True when stopped."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_seconds(self) -> float:
        return time.monotonic()

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        if stop is None:
            time.sleep(max(0.0, seconds))
            return False
        return stop.wait(seconds)
