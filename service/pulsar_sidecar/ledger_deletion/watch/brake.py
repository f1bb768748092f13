"""Stops the watch when more references vanish at once than brokers take away: pure, and told the time.

A restored metadata store, a ``deleteall``, or a migration makes thousands of living ledgers look unreferenced within
minutes. Invariant: what vanished counts for the whole window, whatever was deleted or linked again since.
"""

from collections import deque
from dataclasses import dataclass, field

WINDOW_MS = 600_000
_SHARE = 0.01
_LEAST = 50
"""So many are no sign of anything, however small the cluster is."""


@dataclass(slots=True)
class Brake:
    """Counts references that vanished while their ledgers stayed and no recorded deletion explains it.

    Attributes:
        most: how many may vanish within `WINDOW_MS`; in a small cluster 1 % of all references, but at least 50.
    """

    most: int
    _vanished: deque[tuple[int, int]] = field(default_factory=deque)

    def note(self, now_ms: int, count: int) -> None:
        """So many vanished now."""
        if count:
            self._vanished.append((now_ms, count))
        while self._vanished and self._vanished[0][0] <= now_ms - WINDOW_MS:
            self._vanished.popleft()

    def vanished(self) -> int:
        """How many vanished within the window, as of the last `note`."""
        return sum(count for _, count in self._vanished)

    def limit(self, references: int) -> int:
        """How many may, of so many references in all."""
        return min(self.most, max(_LEAST, int(references * _SHARE)))

    def reason(self, references: int) -> str | None:
        """Why the watch must stop; None while it may go on."""
        vanished, limit = self.vanished(), self.limit(references + self.vanished())
        if vanished <= limit:
            return None
        return (
            f"{vanished} references vanished within {WINDOW_MS // 60_000} minutes while their ledgers stayed, and "
            f"{limit} is the limit; find out why (a restored metadata store, a migration?), then: "
            "pulsar-sidecar ledger-deletion watch resume"
        )

    def release(self) -> None:
        """Count from nothing."""
        self._vanished.clear()
