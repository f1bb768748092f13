"""What the calls of ledger deletion answer (`workflow.serving.LedgerDeletion`)."""

from dataclasses import dataclass
from enum import Enum

import msgspec

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.limits import LimitReadings
from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class SentLedger:
    """Whether one record reached the system topic; if not, ``reason`` is why."""

    ledger_id: LedgerId
    sent: bool
    reason: str | None = None


class OperationState(Enum):
    """How far a two-phase topic deletion has come."""

    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class TopicDeletionStatus:
    """One two-phase topic deletion.

    ``reason``: what it waits for, or why it was refused or given up; of one that is done, what brokers left behind.
    """

    operation_id: OperationId
    topic: TopicName
    state: OperationState
    recorded_ledgers: int
    attempts: int
    requested_ms: int
    reason: str | None = None


class ShadowDeletionStage(Enum):
    """What the deletion of a shadow topic does next, in order."""

    PROTECTING = "protecting"
    """Brokers are to trim nothing of it: infinite retention."""
    DISCONNECTING = "disconnecting"
    """Its source is to replicate nothing to it."""
    DETACHING = "detaching"
    """Its nodes are to list no ledger, and to name a source that does not exist."""
    REMOVING = "removing"
    """The broker is to delete it."""
    VERIFYING = "verifying"
    """The sidecar is to check that every ledger of the source exists."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """The check of the ledgers of a shadow's sources in BookKeeper's metadata.

    Attributes:
        ledgers: how many the sources' lists name.
        missing: those of them that BookKeeper does not have.
        missing_sources: sources that do not exist, so that no list could be read.
    """

    ledgers: int
    missing: tuple[LedgerId, ...] = ()
    missing_sources: tuple[TopicName, ...] = ()


@dataclass(frozen=True, slots=True)
class ShadowDeletionStatus:
    """One deletion of a shadow topic.

    Attributes:
        source: the source, as the shadow's property spelled it.
        source_check: at the end, once it is done; before the first change, until then.
        missing_before: the source's ledgers that were missing before the first change.
        waits_for: what keeps the stage from being completed; None when it can continue at once.
    """

    operation_id: OperationId
    topic: TopicName
    source: str
    stage: ShadowDeletionStage
    requested_ms: int
    source_check: SourceCheck
    missing_before: tuple[LedgerId, ...] = ()
    waits_for: str | None = None


@dataclass(frozen=True, slots=True)
class Redirect:
    """Another sidecar should take the call: the one beside the owning broker."""

    base_url: str


class LedgerDeletionAnswer(Enum):
    """What a direct ``deleteLedger`` call did."""

    DELETED = "deleted"
    GONE = "already gone"


@dataclass(frozen=True, slots=True)
class InflightEstimate:
    """PIP-186 ``estimatedInflightDeletionLedgerCount`` with its age.

    ``oldest_age_ms`` is the age of the oldest record that waits, None when none does.
    """

    count: int
    age_ms: int
    oldest_age_ms: int | None
    waiting_bytes: int


@decodable
class Control(msgspec.Struct, frozen=True, rename="camel"):
    """Pause and rate, which all sidecars of a cluster share; ``rate_per_second`` None means no limit."""

    paused: bool = False
    paused_reason: str | None = None
    rate_per_second: float | None = None


@decodable
class SidecarInstance(msgspec.Struct, frozen=True, rename="camel"):
    """One registered sidecar: its name, where it listens and which broker it stands beside."""

    name: str
    advertised_url: str
    broker_url: str | None
    started_ms: int


@dataclass(frozen=True, slots=True)
class ProtectedLedger:
    """A restored ledger, and until when (store's clock) nothing deletes it."""

    ledger_id: LedgerId
    until_ms: int


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of the service as a whole, and of this sidecar's part in it."""

    enabled: bool
    control: Control
    inflight: InflightEstimate | None
    instances: tuple[SidecarInstance, ...]
    running_topic_deletions: int
    last_error: str | None
    adaptive_limit: LimitReadings | None = None
    """This sidecar's own limit; None when it is switched off."""
    protected_ledgers: tuple[ProtectedLedger, ...] = ()
    """The restored ledgers that are still protected, the first to end first, a hundred at most."""
    bookkeeper_exclusive_to_cluster: bool = False
    """This sidecar's setting: whether "nothing references it" is evidence enough to delete a ledger."""
    warnings: tuple[str, ...] = ()
    """What hinders retries, or endangers records or the sources of shadow topics, and what to do about it."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that was given up: why, after how many tries, and when."""

    message_id: str
    record: PendingDeleteLedgerInfo | None
    raw: str
    reason: str
    tries: int
    dead_since_ms: int


@dataclass(frozen=True, slots=True)
class RedriveResult:
    """How many dead letters went back to the system topic, and how many stayed."""

    redriven: int
    left: int


@dataclass(frozen=True, slots=True)
class UndeleteResult:
    """A restored ledger.

    ``readable``: whether bookies still held its first and last entry, ``protected_until_ms``: until when nothing
    deletes it again.
    """

    ledger_id: LedgerId
    readable: bool
    protected_until_ms: int
