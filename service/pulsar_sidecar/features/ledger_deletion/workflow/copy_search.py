"""Search in tiered storage for copies of ledgers that lists no longer name, without blocking the watch for long.

Invariant: a failed read is never treated as an absence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pulsar_sidecar.features.ledger_deletion.watch.tracked import TrackedLedger
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import DisabledError, OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName, topic_of_managed_ledger
from pulsar_sidecar.ownership.paths import MANAGED_LEDGERS, managed_ledger_path

OffloadedExists = Callable[[LedgerId, OffloadContext, ManagedLedgerName], bool]
"""See `ledger_deletion.ports.OffloadedLedgers.exists`."""

_SECONDS_AT_ONCE = 2.0
_SILENT_SECONDS = 60.0


class CopyPresence(Enum):
    """Presence of a copy in tiered storage."""

    THERE = "there"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class NoResponse:
    """Result when tiered storage could not be reached, and may respond later."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotSearched:
    """Result when the sidecar may not or can never search for the copy; many share a ``kind``."""

    kind: str
    reason: str


SearchResult = CopyPresence | NoResponse | NotSearched


@dataclass(slots=True)
class CopySearch:
    """Search of tiered storage, for some seconds at a time; retries a silent storage once a minute."""

    exists: OffloadedExists
    clock: Clock
    _silent: dict[object, tuple[float, str]] = field(default_factory=dict)

    def search(self, copies: Sequence[TrackedLedger]) -> Iterator[tuple[TrackedLedger, SearchResult]]:
        """Yield the results for as many of these as time allows, in their order."""
        end = self.clock.monotonic_seconds() + _SECONDS_AT_ONCE
        for tracked in copies:
            if self.clock.monotonic_seconds() > end:
                return
            if tracked.context is not None:
                yield tracked, self._search(tracked, tracked.context)

    def _search(self, tracked: TrackedLedger, context: OffloadContext) -> SearchResult:
        topic = topic_at(tracked.leak.path)
        if topic is None:
            return NotSearched("not a topic's", f"{tracked.leak.path} is not a topic's")
        now = self.clock.monotonic_seconds()
        silent_until, reason = self._silent.get(context.place, (0.0, ""))
        if now < silent_until:
            return NoResponse(reason)
        try:
            is_there = self.exists(tracked.ledger_id, context, topic.managed_ledger_name)
        except DisabledError as error:
            return NotSearched(str(error), str(error))
        except PermanentError as error:
            return NotSearched("see the sidecar's log", str(error))
        except (TemporaryError, OutcomeUnknownError) as error:
            self._silent[context.place] = (self.clock.monotonic_seconds() + _SILENT_SECONDS, str(error))
            return NoResponse(str(error))
        return CopyPresence.THERE if is_there else CopyPresence.GONE


def topic_at(path: str | None) -> TopicName | None:
    """Return the topic whose managed ledger has its node at this path; None for any other path."""
    topic = topic_of_managed_ledger((path or "").removeprefix(f"{MANAGED_LEDGERS}/"))
    return topic if topic is not None and managed_ledger_path(topic.managed_ledger_name) == path else None
