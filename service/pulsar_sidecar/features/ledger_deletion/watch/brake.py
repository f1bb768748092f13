"""Brake of the watch when more references vanish at once than brokers usually remove: pure, without a clock.

A restored metadata store, a ``deleteall``, or a migration makes thousands of living ledgers look unreferenced within
minutes. Invariant: a vanished reference counts for the whole window, whatever was deleted or linked again since, unless
an operator resumed after it vanished.
"""

from collections import deque
from dataclasses import dataclass, field

from pulsar_sidecar.reports.formatting import format_count

WINDOW_MS = 600_000
_SHARE = 0.01
_LEAST = 50
"""Number that indicates no disaster, unless it is nearly all references of a small cluster."""
_LEAST_OF_FEW = 9
"""Number that indicates no disaster, however small the cluster is."""


@dataclass(slots=True)
class Brake:
    """Counter of references that vanished while their ledgers stayed, without a recorded deletion that explains it.

    Attributes:
        most: number that may vanish within `WINDOW_MS`. In a small cluster it is 1 % of all references, but at least
            50; below 67 references it is three quarters, but at least 9.
    """

    most: int
    _vanished: deque[int] = field(default_factory=deque)
    _peak: int = 0
    _resumed_ms: int = 0

    def note(self, at_ms: int) -> None:
        """Count a reference that vanished at that time; call it in order of times."""
        if at_ms > self._resumed_ms:
            self._vanished.append(at_ms)
            self._forget(at_ms)
            self._peak = max(self._peak, self.vanished())

    def vanished(self) -> int:
        """Return the number that vanished within the window, as of the last `note` or `reason`."""
        return len(self._vanished)

    def limit(self, references: int) -> int:
        """Return the number that may vanish, given the number of all references."""
        few = max(_LEAST_OF_FEW, references * 3 // 4)
        return min(self.most, max(min(_LEAST, few), int(references * _SHARE)))

    def reason(self, now_ms: int, references: int) -> str | None:
        """Return why the watch must stop; None while it may continue.

        Counts the window since `accept` in which most vanished, even one that ended while no sidecar watched.
        """
        self._forget(now_ms)
        limit = self.limit(references + self._peak)
        if self._peak <= limit:
            return None
        return (
            f"{format_count(self._peak, 'reference')} vanished within {WINDOW_MS // 60_000} minutes while "
            "their ledgers stayed, and "
            f"{limit} is the limit; find out why (a restored metadata store, a migration?), then: "
            "pulsar-sidecar ledger-deletion watch resume"
        )

    def accept(self) -> None:
        """Start a new peak: there was no reason to stop, or it is stored."""
        self._peak = self.vanished()

    def release(self, resumed_ms: int) -> None:
        """Ignore references that vanished until then."""
        self._resumed_ms = resumed_ms
        self._vanished = deque(at_ms for at_ms in self._vanished if at_ms > resumed_ms)
        self.accept()

    def _forget(self, now_ms: int) -> None:
        while self._vanished and self._vanished[0] <= now_ms - WINDOW_MS:
            self._vanished.popleft()
