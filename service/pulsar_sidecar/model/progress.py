"""Progress of long work, reported to the person who waits for it: to a callable that nothing depends on."""

from collections.abc import Callable
from typing import Final

from pulsar_sidecar.model.clocks import Clock

Report = Callable[[str], None]
"""Shows a line of text."""

ReportCount = Callable[[int, int], None]
"""Shows the number of rows done, and the total."""

ReportWork = Callable[[str, int, int], None]
"""Shows the work with its unit, the amount done, and the total."""

_SILENT_SECONDS: Final = 2.0
_EVERY_SECONDS: Final = 0.5


class LongWork:
    """Reporter of the progress of work that takes more than two seconds."""

    def __init__(self, doing: str, total: int, report: ReportWork, clock: Clock) -> None:
        """Begin; ``doing`` ends with the unit, as in ``reading, entries``; ``total`` may be an estimate."""
        self._doing = doing
        self._total = total
        self._report = report
        self._clock = clock
        self._next_at = clock.monotonic_seconds() + _SILENT_SECONDS

    def has_done(self, done: int) -> None:
        """Record that ``done`` units are done by now."""
        now = self._clock.monotonic_seconds()
        if now >= self._next_at:
            self._next_at = now + _EVERY_SECONDS
            self._report(self._doing, done, max(done, self._total))
