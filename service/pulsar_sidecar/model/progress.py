"""How long work reports its progress to the person who waits for it: to a callable that nothing depends on."""

from collections.abc import Callable
from typing import Final

from pulsar_sidecar.model.clocks import Clock

Report = Callable[[str], None]
"""Shows a line of text."""

ReportCount = Callable[[int, int], None]
"""Shows how many rows are done, and how many there are."""

ReportWork = Callable[[str, int, int], None]
"""Shows what is being done, in which unit, how much of it is done, and how much there is."""

_SILENT_SECONDS: Final = 2.0
_EVERY_SECONDS: Final = 0.5


class LongWork:
    """Reports how far work has come, once it has taken two seconds."""

    def __init__(self, doing: str, total: int, report: ReportWork, clock: Clock) -> None:
        """``doing`` ends with the unit, as in ``reading, entries``; ``total`` may be an estimate."""
        self._doing = doing
        self._total = total
        self._report = report
        self._clock = clock
        self._next_at = clock.monotonic_seconds() + _SILENT_SECONDS

    def has_done(self, done: int) -> None:
        """So much is done by now."""
        now = self._clock.monotonic_seconds()
        if now >= self._next_at:
            self._next_at = now + _EVERY_SECONDS
            self._report(self._doing, done, max(done, self._total))
