"""The service as its doors see it: the calls an operator makes and what they answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.adaptive_limit import LimitReadings
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class SentLedger:
    """Whether one record reached the system topic; ``reason`` says why not."""

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

    ``reason`` is set unless it is done: what it waits for, or why it was refused or given up.
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
    """Every ledger of the source is to be looked for."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class SourceCheck:
    """What was found when the ledgers of a shadow's sources were looked for in BookKeeper's metadata.

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
        waits_for: what keeps the stage from being completed; None when it can go on at once.
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


@dataclass(frozen=True, slots=True)
class Control:
    """Pause and rate, which all sidecars of a cluster share; ``rate_per_second`` None means no limit."""

    paused: bool = False
    paused_reason: str | None = None
    rate_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class SidecarInstance:
    """One registered sidecar: its name, where it listens and which broker it stands beside."""

    name: str
    advertised_url: str
    broker_url: str | None
    started_ms: int


@dataclass(frozen=True, slots=True)
class ProtectedLedger:
    """A ledger that was brought back, and until when (store's clock) nothing deletes it."""

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
    """The ledgers that were brought back and are still protected, the first to end first, a hundred at most."""
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
class Redriven:
    """How many dead letters went back to the system topic, and how many stayed."""

    redriven: int
    left: int


@dataclass(frozen=True, slots=True)
class Undeleted:
    """A ledger brought back.

    ``readable`` tells whether bookies still held its first and last entry, ``protected_until_ms`` until when nothing
    deletes it again.
    """

    ledger_id: LedgerId
    readable: bool
    protected_until_ms: int


class LedgerDeletionService(Protocol):
    """PIP-186 ``LedgerDeletionService`` with the verbs an operator needs around it.

    Every method raises one of `model.errors`; `DisabledError` while ``topicTwoPhaseDeletionEnabled`` is off.
    """

    def send_pending_delete_ledgers(
        self,
        records: Sequence[PendingDeleteLedgerInfo],
        *,
        producer_name: str | None = None,
        first_sequence_id: int | None = None,
    ) -> list[SentLedger]:
        """First phase: one answer per record, in order (PIP-186 ``sendPendingDeleteLedger``).

        With a producer name of the caller's own and consecutive sequence ids, a repeated call is not a second record.
        """
        ...

    def delete_topic(
        self,
        topic: TopicName,
        *,
        partitioned: bool,
        force: bool,
        requested_by: str | None,
        confirm_source_data_loss: str | None = None,
    ) -> TopicDeletionStatus:
        """Record every ledger the topic references, then have the broker delete it.

        Answers DONE, or RUNNING when the broker could not finish in time: the sidecars go on by themselves. A
        broker's refusal is raised as it came (`BrokerRefusedError`, `NotFoundError`).

        Raises:
            DataLossError: the topic is a shadow, or the source of one and ``confirm_source_data_loss`` is not given.
            InvalidInputError: ``confirm_source_data_loss`` is not the topic's full name.
        """
        ...

    def delete_shadow(self, topic: TopicName, *, requested_by: str | None) -> ShadowDeletionStatus:
        """Begin to delete a shadow topic without touching its source's ledgers, or go on with it: one stage a call.

        It is DONE when a call says so; any sidecar may take the next call.

        Raises:
            ConflictError: it is not a shadow topic, or clients are connected to it.
        """
        ...

    def topic_deletions(self) -> list[TopicDeletionStatus]:
        """The deletions that are running now."""
        ...

    def delete_ledger(self, record: PendingDeleteLedgerInfo, *, authoritative: bool) -> LedgerDeletionAnswer | Redirect:
        """PIP-186 ``deleteLedger``: judge and delete now.

        Raises:
            ConflictError: the ledger is still in use, or is too young to be judged.
            InvalidInputError: it is not what the record says.
        """
        ...

    def estimated_inflight(self) -> InflightEstimate:
        """The work that is waiting, at most a second old."""
        ...

    def cached_inflight(self) -> InflightEstimate | None:
        """The same from memory, at once; None when it has to be asked for (`estimated_inflight`)."""
        ...

    def status(self) -> ServiceStatus:
        """What an operator wants to see first; works while the feature is off."""
        ...

    def pause(self, reason: str | None) -> Control:
        """Stop deleting on all sidecars; the first phase goes on recording."""
        ...

    def resume(self) -> Control:
        """Go on deleting."""
        ...

    def limit_rate(self, ledgers_per_second: float | None) -> Control:
        """Delete at most so many ledgers a second on each sidecar; None lifts the limit."""
        ...

    def dead_letters(self, limit: int) -> list[DeadLetter]:
        """The records that were given up, oldest first."""
        ...

    def redrive(self, ledger_ids: Sequence[LedgerId] | None, limit: int) -> Redriven:
        """Send dead letters back to the system topic with a fresh count of tries; all of them for None."""
        ...

    def undelete(self, ledger_id: LedgerId, *, force: bool) -> Undeleted:
        """Write a deleted ledger's metadata back, as long as bookies hold its entries.

        Raises:
            NotFoundError: the outcome log has no deletion of it.
            ConflictError: the ledger exists, or its entries are gone (unless ``force``).
        """
        ...

    def end_protection(self, ledger_id: LedgerId) -> None:
        """Let a ledger that was brought back be deleted before its protection ends.

        Raises:
            NotFoundError: nothing protects it.
        """
        ...

    def ready(self) -> str | None:
        """None when work can be done, otherwise what is missing."""
        ...
