"""Looks in tiered storage for copies of ledgers that lists no longer name, without holding up the watch for long.

Invariant: a failed look is not an absence.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pulsar_sidecar.ledger_deletion.watch.tracked import TrackedLedger
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, managed_ledger_path
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import DisabledError, OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName, topic_of_managed_ledger

OffloadedExists = Callable[[LedgerId, OffloadContext, ManagedLedgerName], bool]
"""See `ledger_deletion.ports.OffloadedLedgers.exists`."""

_SECONDS_AT_ONCE = 2.0
_SILENT_SECONDS = 60.0


class Sight(Enum):
    """The answer of tiered storage."""

    THERE = "there"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Tiered storage could not be asked, and may answer later."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsought:
    """The sidecar may not or cannot look for the copy, and no time changes that; ``kind`` is the same for many."""

    kind: str
    reason: str


Look = Sight | Unanswered | Unsought


@dataclass(slots=True)
class CopySearch:
    """Asks tiered storage for some seconds at a time, and a place that does not answer once a minute."""

    exists: OffloadedExists
    clock: Clock
    _silent: dict[object, tuple[float, str]] = field(default_factory=dict)

    def look(self, copies: Sequence[TrackedLedger]) -> Iterator[tuple[TrackedLedger, Look]]:
        """The answers about as many of these as there is time for, in their order."""
        end = self.clock.monotonic_seconds() + _SECONDS_AT_ONCE
        for tracked in copies:
            if self.clock.monotonic_seconds() > end:
                return
            if tracked.context is not None:
                yield tracked, self._look(tracked, tracked.context)

    def _look(self, tracked: TrackedLedger, context: OffloadContext) -> Look:
        topic = topic_at(tracked.leak.path)
        if topic is None:
            return Unsought("not a topic's", f"{tracked.leak.path} is not a topic's")
        now = self.clock.monotonic_seconds()
        silent_until, reason = self._silent.get(context.place, (0.0, ""))
        if now < silent_until:
            return Unanswered(reason)
        try:
            is_there = self.exists(tracked.ledger_id, context, topic.managed_ledger_name)
        except DisabledError as error:
            return Unsought(str(error), str(error))
        except PermanentError as error:
            return Unsought("see the sidecar's log", str(error))
        except (TemporaryError, OutcomeUnknownError) as error:
            self._silent[context.place] = (self.clock.monotonic_seconds() + _SILENT_SECONDS, str(error))
            return Unanswered(str(error))
        return Sight.THERE if is_there else Sight.GONE


def topic_at(path: str | None) -> TopicName | None:
    """The topic whose managed ledger has its node at this path; None for any other path."""
    topic = topic_of_managed_ledger((path or "").removeprefix(f"{MANAGED_LEDGERS}/"))
    return topic if topic is not None and managed_ledger_path(topic.managed_ledger_name) == path else None
