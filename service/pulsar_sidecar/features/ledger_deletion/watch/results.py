"""Results of the watch for leaked ledgers (`workflow.watch_calls.WatchCalls`).

Times are milliseconds on the metadata store's clock.
"""

from collections.abc import Mapping
from enum import StrEnum
from uuid import UUID

from pulsar_sidecar.features.ledger_deletion.results import SidecarInstance
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.results import result


class WatchMode(StrEnum):
    """The setting ``ledgerDeletionWatch``."""

    OFF = "off"
    REPORT = "report"
    """Count and show leaks; append nothing."""
    APPEND = "append"
    """Append leaked ledgers to ``__ledger_deletion``."""


class WatchState(StrEnum):
    """State of the watch."""

    OFF = "off"
    STANDBY = "standby"
    """Idle while another sidecar watches."""
    STARTING = "starting"
    """Reading the whole metadata store; the watch concludes nothing before it ends."""
    WATCHING = "watching"
    """Receiving every change."""
    WALKING = "walking"
    """Reading everything periodically, since the server withholds changes or has no watches."""


class LeakState(StrEnum):
    """State of a ledger that nothing references."""

    SETTLING = "settling"
    """May still be deleted by a broker."""
    KEPT = "kept"
    """Must not be deleted, or not yet; ``detail`` has the reason."""
    LEAKED = "leaked"
    """May be deleted, but was not appended; ``detail`` has the reason."""
    APPENDED = "appended"
    """Record is on ``__ledger_deletion``."""
    DELETED = "deleted"
    """Deleted."""
    LINKED = "linked"
    """Named by a node again."""


class LeakCause(StrEnum):
    """Cause of the loss of a ledger's last reference."""

    TRIM = "trim"
    """Removed from its managed ledger's list: retention, truncation."""
    CURSOR_SWITCH = "cursor-switch"
    """Cursor moved to another ledger, or stored its position in its node."""
    SUBSCRIPTION = "subscription"
    """Subscription deleted."""
    SCHEMA = "schema"
    TOPIC_DELETION = "topic-deletion"
    NAMESPACE_DELETION = "namespace-deletion"
    COMPACTION = "compaction"
    """Replaced by a newer compacted view."""
    DELAYED_INDEX = "delayed-index"
    """Bucket of the delayed index merged or used up."""
    OFFLOAD = "offload"
    """BookKeeper's copy replaced by the one in tiered storage."""
    FAILED_OFFLOAD = "failed-offload"
    """Offload attempt of this copy in tiered storage replaced by another attempt."""
    NEVER_LINKED = "never-linked"
    """Never seen referenced by any node."""


@result
class Leak:
    """Ledger, or its copy in tiered storage, that nothing references, or that ended as a leak."""

    ledger_id: LedgerId
    offload_attempt: UUID | None
    """UUID of the offload attempt whose copy in tiered storage leaked; null for BookKeeper's copy."""
    state: LeakState
    cause: LeakCause | None
    """Cause of the leak; null until the sidecar has read the ledger's own metadata."""
    since_ms: int
    """Time at which the watch saw it unreferenced."""
    detail: str
    """Reason for its state."""
    topic: str | None = None
    path: str | None = None
    """The node that referenced it last; null if none ever did."""
    length_bytes: int | None = None
    appended_ms: int | None = None
    ended_ms: int | None = None


@result
class LedgerExplanation:
    """Knowledge of the watch about one ledger."""

    ledger_id: LedgerId
    exists: bool
    named_by: tuple[str, ...]
    """The nodes that reference it, as last read."""
    owner: str | None
    """The node that its own metadata names as its owner; null if this version does not know the kind."""
    hold: str | None
    """The hold that covers it."""
    verdict: str
    """Current decision of the second phase, and the reason."""
    leak: Leak | None
    """The ledger's entry in the list of leaks."""
    copies: tuple[Leak, ...] = ()
    """Leaks of its copies in tiered storage, the oldest first."""


@result
class LeakPeriod:
    """Number of matching ledgers that lost their last reference between a time and the next period's."""

    from_ms: int
    leaks: int


@result
class ListedLeaks:
    """Part of the list of leaks, and the total."""

    total: int
    """Number of matching ledgers, including those beyond the limit."""
    by_cause: Mapping[str, int]
    """Matching ledgers by cause; ``unknown`` until the sidecar has read the ledger's own metadata."""
    trend: tuple[LeakPeriod, ...]
    """Matching ledgers by time, in at most 48 periods of equal length."""
    leaks: tuple[Leak, ...]
    """The oldest first."""


@result
class WatchOrders:
    """Brake and hold list, which all sidecars share."""

    braked: str | None
    """Reason why nothing is appended until an operator resumes; null while the brake is released."""
    holds: tuple[str, ...]
    """Ledgers, tenants, namespaces and topics that are never appended."""


@result
class WatchStatus:
    """State of the watch. Figures are null where this sidecar does not watch, or has not read everything yet."""

    mode: WatchMode
    """The setting ``ledgerDeletionWatch``; ``off`` where two-phase deletion is off."""
    state: WatchState
    """State of this sidecar's watch."""
    leader: SidecarInstance | None
    """The sidecar that watches; only it knows the figures."""
    braked: str | None
    """Reason why nothing is appended until an operator resumes; null while the brake is released."""
    holds: tuple[str, ...]
    """Ledgers, tenants, namespaces and topics that are never appended."""
    detail: str | None = None
    """Reason for its wait, or for walking."""
    walked_ms: int | None = None
    """End of the last full read."""
    walk_seconds: float | None = None
    """Duration of the last full read."""
    lag_seconds: float | None = None
    """Maximum age of the oldest unread change; null while the watch receives no changes."""
    ledgers: int | None = None
    """Number of ledgers that exist."""
    references: int | None = None
    """Number of references to ledgers in nodes."""
    unreadable: int | None = None
    """Number of nodes that could not be read or decoded."""
    unreadable_nodes: tuple[str, ...] = ()
    """At most a hundred unreadable nodes."""
    vanished: int | None = None
    """Number of references that vanished within the last 10 minutes while their ledgers stayed."""
    brake_limit: int | None = None
    """Number of vanished references above which the brake engages."""
    unlinked: int | None = None
    """Number of ledgers that no node was ever seen to reference, including compacted ledgers of loaded topics."""
    leaks: Mapping[LeakState, int] | None = None
    """Unreferenced ledgers that still exist, by state."""
    leaked: Mapping[LeakCause, int] | None = None
    """Ledgers found leaked since this sidecar began to watch, by cause."""
    appended: int | None = None
    """Number of ledgers appended to the pending-deletion topic since this sidecar began to watch."""
    unsought_copies: Mapping[str, int] | None = None
    """Copies in tiered storage that lists no longer name and that the sidecar does not search for, by reason."""
