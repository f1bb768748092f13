"""Reading of copies in tiered storage that lists name as the only ones, before another copy of the ledger is deleted.

A copy may take longer to read than facts stay fresh, and a batch may have many. So each call reads for some seconds,
and a copy that was whole counts as whole for some minutes: nothing writes to it again.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import ManagedLedgerName

OffloadedWhole = Callable[[LedgerId, OffloadContext, ManagedLedgerName], bool]
"""See `ledger_deletion.ports.OffloadedLedgers.is_whole`."""

_READING_SECONDS = 5.0
_WHOLE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class OnlyCopy:
    """Copy that a managed ledger's list names as the ledger's only one."""

    ledger_id: LedgerId
    context: OffloadContext
    managed_ledger: ManagedLedgerName

    @property
    def key(self) -> Hashable:
        return self.ledger_id, self.context.attempt, self.context.place, self.managed_ledger


class OnlyCopies:
    """Reader of only copies. Thread-safe: the dictionary is replaced and never changed."""

    def __init__(self, is_whole: OffloadedWhole, clock: Clock) -> None:
        self._is_whole, self._clock = is_whole, clock
        self._whole_until: dict[Hashable, float] = {}

    def whole(self, copies: Sequence[OnlyCopy | None]) -> list[bool | Unreadable | None]:
        """Return whether each copy is whole; None for those whose turn is in a later call. The first one always is."""
        until: float | None = None
        found: list[bool | Unreadable | None] = []
        for copy in copies:
            now = self._clock.monotonic_seconds()
            if copy is None:
                found.append(None)
            elif now < self._whole_until.get(copy.key, now):
                found.append(True)
            elif until is None or now < until:
                until = now + _READING_SECONDS if until is None else until
                found.append(self._read(copy))
            else:
                found.append(None)
        return found

    def _read(self, copy: OnlyCopy) -> bool | Unreadable:
        try:
            is_whole = self._is_whole(copy.ledger_id, copy.context, copy.managed_ledger)
        except SidecarError as error:
            # A storage that does not respond, or is not configured, blocks no other ledger.
            return Unreadable(str(error))
        if is_whole:
            now = self._clock.monotonic_seconds()
            known = {key: until for key, until in self._whole_until.items() if now < until}
            self._whole_until = {**known, copy.key: now + _WHOLE_SECONDS}
        return is_whole
