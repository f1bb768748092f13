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
    STUCK = "stuck"
    """It runs, and has failed the same way ten times."""
    UNREADABLE = "unreadable"
    """Another version wrote its node; this sidecar leaves it alone."""
    DONE = "done"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    """An operator ended it."""


@dataclass(frozen=True, slots=True)
class TopicDeletionStatus:
    """One two-phase deletion of a topic, or of a part of it; None stands for what an unreadable node does not show.

    Attributes:
        reason: what it waits for, or why it was refused or abandoned; of one that is done, what brokers left behind.
        failures: how often it has now failed the same way, one after another.
        failing_since_ms: when it failed that way first; None while it has not.
        next_attempt_ms: a sidecar tries again at this time or later; None once it has ended.
        request_id: of the call that asked for it, as the log has it.
        part: the part of the topic that is deleted, a subscription or its schema; None for all of it.
    """

    operation_id: OperationId
    topic: TopicName | None
    state: OperationState
    recorded_ledgers: int | None
    attempts: int | None
    requested_ms: int
    reason: str | None = None
    requested_by: str | None = None
    failures: int = 0
    failing_since_ms: int | None = None
    next_attempt_ms: int | None = None
    request_id: str | None = None
    part: str | None = None

    @property
    def subject(self) -> str:
        """The topic, and which part of it, for readers."""
        topic = str(self.topic or "a topic")
        return topic if self.part is None else f"{self.part} on {topic}"

    @property
    def remedy(self) -> str | None:
        """What to do about one that does not continue by itself."""
        end = f"end it with: pulsar-sidecar ledger-deletion abandon {self.operation_id}"
        match self.state:
            case OperationState.STUCK:
                return f"remove the cause, and a sidecar continues the deletion within a minute; or {end}"
            case OperationState.UNREADABLE:
                return f"continue with the version of pulsar-sidecar that began it; or {end}"
            case _:
                return None


@dataclass(frozen=True, slots=True)
class Remains:
    """What a topic's deletion has left so far, of what it marked and recorded.

    Attributes:
        nodes: the marked nodes that still exist.
        ledgers: how many of the recorded ledgers BookKeeper still has.
        ledger_ids: the first thousand of them, ascending.
    """

    nodes: tuple[str, ...]
    ledgers: int
    ledger_ids: tuple[LedgerId, ...]


@dataclass(frozen=True, slots=True)
class FollowedDeletion:
    """One topic deletion as one follows it.

    Attributes:
        driver: the sidecar that works on it now.
        remains: None where it was not read, or is not known: the node is unreadable, or the deletion has ended.
        ended_ms: when it ended; None while it runs.
        abandoned_by: who abandoned it, where the service asks for tokens.
    """

    status: TopicDeletionStatus
    driver: str | None = None
    remains: Remains | None = None
    ended_ms: int | None = None
    abandoned_by: str | None = None


@dataclass(frozen=True, slots=True)
class NamespaceDeletionStatus:
    """One two-phase deletion of a namespace.

    Attributes:
        topics_found: its topics, those deleted included; brokers' own are not counted.
        running_ms: from the request to the last count.
        reason: what it waits for, or why it was refused.
    """

    operation_id: OperationId
    namespace: str
    state: OperationState
    topics_found: int
    topics_deleted: int
    recorded_ledgers: int
    passes: int
    requested_ms: int
    running_ms: int
    reason: str | None = None

    @property
    def topics_left(self) -> int:
        return self.topics_found - self.topics_deleted

    @property
    def topics_per_second(self) -> float | None:
        """On average since the request; None while that is not known."""
        return 1000 * self.topics_deleted / self.running_ms if self.running_ms > 0 and self.topics_deleted else None

    @property
    def seconds_left(self) -> float | None:
        """By that average; None while that is not known."""
        rate = self.topics_per_second
        return None if rate is None else self.topics_left / rate


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

    ``oldest_age_ms`` is the age of the oldest record that waits, None when none does. ``waiting_bytes`` is
    None while this sidecar has judged no ledger, whose length would be the measure.
    """

    count: int
    age_ms: int
    oldest_age_ms: int | None
    waiting_bytes: int | None


@decodable
class Control(msgspec.Struct, frozen=True, rename="camel"):
    """Pause and rate, which all sidecars of a cluster share; ``rate_per_second`` None means no limit."""

    paused: bool = False
    paused_reason: str | None = None
    rate_per_second: float | None = None
    paused_by: str | None = None
    paused_since_ms: int | None = None


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
    last_error_at_ms: int | None
    adaptive_limit: LimitReadings | None = None
    """This sidecar's own limit; None when it is switched off."""
    protected_ledgers: tuple[ProtectedLedger, ...] = ()
    """The restored ledgers that are still protected, the first to end first, a hundred at most."""
    bookkeeper_exclusive_to_cluster: bool = False
    """This sidecar's setting: whether "nothing references it" is evidence enough to delete a ledger."""
    warnings: tuple[str, ...] = ()
    """What hinders retries, keeps a topic's deletion, or endangers records or the sources of shadow topics, and what to
    do about it."""
    stuck_topic_deletions: int = 0
    """Those of the running topic deletions that do not continue by themselves."""
    running_namespace_deletions: int = 0
    dead_letters: int | None = None
    """None if it is not known now."""
    deleted_per_second: float | None = None
    """By this sidecar, on average over the last minute or so; None until there are two samples."""
    as_of_ms: int = 0
    """When it was read, by this machine's clock."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that was given up: why, after how many tries, and when."""

    message_id: str
    record: PendingDeleteLedgerInfo | None
    raw: str
    reason: str
    tries: int
    dead_since_ms: int
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """One record that waits.

    Attributes:
        record: None if it cannot be read; then it goes to the dead letters.
        written_ms: when the first phase wrote it, or its last try sent it back.
        next_try_ms: not before; None for a record that waits for its first try.
        reason: why its last try kept it.
    """

    message_id: str
    topic: str
    record: PendingDeleteLedgerInfo | None
    written_ms: int
    tries: int
    next_try_ms: int | None
    reason: str | None
    length_bytes: int | None
    request_id: str | None = None


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
