"""What the calls of the watch answer (`workflow.watching.LeakWatch`)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from pulsar_sidecar.ledger_deletion.service import SidecarInstance
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.model.ids import LedgerId

MOST_PERIODS: Final = 48
_HOUR_MS: Final = 3_600_000
_STEPS_MS: Final = (_HOUR_MS, 6 * _HOUR_MS, 24 * _HOUR_MS)
_WEEK_MS: Final = 7 * 24 * _HOUR_MS


class WatchMode(StrEnum):
    """The setting ``ledgerDeletionWatch``."""

    OFF = "off"
    REPORT = "report"
    """Count and show what leaked; append nothing."""
    APPEND = "append"
    """Append what leaked to ``__ledger_deletion``."""


class WatchState(StrEnum):
    """What the watch does now."""

    OFF = "off"
    STANDBY = "standby"
    """Another sidecar watches."""
    STARTING = "starting"
    """It reads the metadata store whole; nothing is concluded before the end of that."""
    WATCHING = "watching"
    """It hears of every change."""
    WALKING = "walking"
    """The server withholds changes or has no watches, so the sidecar reads everything in turns."""


class LeakState(StrEnum):
    """How far a ledger that nothing references has come."""

    SETTLING = "settling"
    """A broker may still delete it."""
    KEPT = "kept"
    """It must not be deleted, or not yet; ``detail`` has the reason."""
    LEAKED = "leaked"
    """It may be deleted, but was not appended; ``detail`` has the reason."""
    APPENDED = "appended"
    """Its record is on ``__ledger_deletion``."""
    DELETED = "deleted"
    """It is gone."""
    LINKED = "linked"
    """A node names it again."""


@dataclass(frozen=True, slots=True)
class Leak:
    """One copy of a ledger that nothing references, or that nothing did.

    Times are milliseconds on the metadata store's clock.

    Attributes:
        cause: None until the ledger's own metadata was read.
        path: the node that named it last; None if none ever did.
        since_ms: when the watch saw that it was not referenced (any more).
        offload_attempt: the offload attempt whose copy in tiered storage leaked; None for BookKeeper's copy.
    """

    ledger_id: LedgerId
    state: LeakState
    cause: LeakCause | None
    since_ms: int
    detail: str
    topic: str | None = None
    path: str | None = None
    length_bytes: int | None = None
    appended_ms: int | None = None
    ended_ms: int | None = None
    offload_attempt: UUID | None = None


@dataclass(frozen=True, slots=True)
class LedgerExplanation:
    """What the watch knows of one ledger.

    Attributes:
        exists: whether it has a node.
        named_by: the nodes that name it, as they were last read.
        owner: the node that its own metadata names as its owner; None if this version does not know the kind.
        hold: the hold that it falls under.
        verdict: the decision of the evaluation now, and the reason.
        leak: as in the list of leaks; None if it is not among them.
        copies: leaks of its copies in tiered storage, the oldest first.
    """

    ledger_id: LedgerId
    exists: bool
    named_by: tuple[str, ...]
    owner: str | None
    hold: str | None
    verdict: str
    leak: Leak | None
    copies: tuple[Leak, ...] = ()


@dataclass(frozen=True, slots=True)
class LeakPeriod:
    """How many ledgers lost their last reference from a time until the next period's."""

    from_ms: int
    leaks: int


@dataclass(frozen=True, slots=True)
class ListedLeaks:
    """Some leaks, and how many there are.

    Attributes:
        leaks: as many as were wanted, the oldest first.
        total: how many match what was asked for.
        by_cause: these by cause; None stands for ledgers whose own metadata was not read yet.
        trend: these by time, as `trend_of` has it.
    """

    leaks: tuple[Leak, ...]
    total: int
    by_cause: Mapping[LeakCause | None, int]
    trend: tuple[LeakPeriod, ...] = ()


def trend_of(since_ms: Sequence[int]) -> tuple[LeakPeriod, ...]:
    """Leaks by the time since when nothing references them, in at most `MOST_PERIODS` periods of equal length.

    A period is 1, 6 or 24 hours, or whole weeks; the first and the last have leaks, those between may have none.
    """
    if not since_ms:
        return ()
    span_ms = max(since_ms) - min(since_ms)
    weeks = span_ms // (_WEEK_MS * (MOST_PERIODS - 1)) + 1
    step_ms = next((step for step in _STEPS_MS if span_ms // step < MOST_PERIODS - 1), weeks * _WEEK_MS)
    first, last = min(since_ms) // step_ms, max(since_ms) // step_ms
    found = Counter(each // step_ms for each in since_ms)
    return tuple(LeakPeriod(period * step_ms, found[period]) for period in range(first, last + 1))


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """The state of the watch, as the sidecar that watches knows it; of another sidecar only what all share.

    Everything that is None by default is known only after the first whole reading by the sidecar that watches.

    Attributes:
        leader: the sidecar that watches.
        detail: what it waits for, or why it walks; None otherwise.
        braked: why nothing is appended until an operator resumes.
        walked_ms: when the last whole reading ended; None before the first.
        walk_seconds: how long it took.
        lag_seconds: how old the oldest change may be that the watch has not read; None while it hears of none.
        unreadable: how many nodes could not be read or understood; ``unreadable_nodes`` are a hundred of them.
        vanished: references that vanished within the brake's window while their ledgers stayed.
        brake_limit: how many may.
        unlinked: ledgers that no node was ever seen to name; compacted ledgers of loaded topics are among them.
        leaks: ledgers that lost their last reference and are still there, by state.
        leaked: ledgers that were found leaked since the watch began here, by cause.
        unsought_copies: offload attempts that lists no longer name, and whose objects the sidecar may not or cannot
            look for, by reason.
    """

    mode: WatchMode
    state: WatchState
    leader: SidecarInstance | None
    braked: str | None
    holds: tuple[str, ...]
    detail: str | None = None
    walked_ms: int | None = None
    walk_seconds: float | None = None
    lag_seconds: float | None = None
    ledgers: int | None = None
    references: int | None = None
    unreadable: int | None = None
    unreadable_nodes: tuple[str, ...] = ()
    vanished: int | None = None
    brake_limit: int | None = None
    unlinked: int | None = None
    leaks: Mapping[LeakState, int] | None = None
    leaked: Mapping[LeakCause, int] | None = None
    appended: int | None = None
    unsought_copies: Mapping[str, int] | None = None
