"""Results of ledger deletion (`workflow.serving.LedgerDeletion`). Times are milliseconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum, StrEnum

from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.results import result

# --- first phase -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SentLedger:
    """Result of sending one record; ``reason`` is why the system topic did not get it."""

    ledger_id: LedgerId
    sent: bool
    reason: str | None = None


@result
class NotSent:
    """A record that may not have reached the topic."""

    ledger_id: LedgerId | None
    reason: str | None


@result
class Appended:
    """PIP-186 ``sendPendingDeleteLedger``: a publish whose outcome is unknown counts as not sent."""

    sent: tuple[LedgerId, ...]
    not_sent: tuple[NotSent, ...]


# --- deletions of topics, namespaces and shadows ---------------------------------------------------------------------


class OperationState(StrEnum):
    """State of a two-phase deletion."""

    RUNNING = "running"
    STUCK = "stuck"
    """Running, and failed the same way ten times."""
    UNREADABLE = "unreadable"
    """Written by another version; this sidecar does not touch it."""
    DONE = "done"
    REFUSED = "refused"
    ABANDONED = "abandoned"
    """Ended by an operator."""


@result
class TopicDeletionStatus:
    """Two-phase deletion of a topic, or of a part of it."""

    operation_id: OperationId
    topic: str | None
    """Null if this version cannot read the deletion's node."""
    part: str | None
    """The part of the topic that is deleted, a subscription or its schema; null for the whole topic."""
    state: OperationState
    """``running``; ``stuck`` after ten failures of the same kind; ``unreadable`` if another version wrote its node;
    ``done``, ``refused`` or ``abandoned`` once it has ended."""
    recorded_ledgers: int | None
    attempts: int | None
    """Number of requests to brokers."""
    requested_ms: int
    reason: str | None = None
    """Reason for its wait or its end; of a deletion that is done, what brokers left behind."""
    requested_by: str | None = None
    """Role of the caller that requested it, where the sidecar requires tokens."""
    failures: int = 0
    """Number of consecutive failures of the same kind."""
    failing_since_ms: int | None = None
    """Time of the first of these failures."""
    next_attempt_ms: int | None = None
    """Earliest time of the next attempt."""
    request_id: str | None = None
    """The `X-Request-Id` of the call that requested it, as the log has it."""
    remedy: str | None = None
    """Remedy for a deletion that does not continue on its own."""

    @property
    def topic_name(self) -> TopicName | None:
        return None if self.topic is None else parse_topic_name(self.topic)

    @property
    def subject(self) -> str:
        """Readable name of the topic and its part."""
        topic = self.topic or "a topic"
        return topic if self.part is None else f"{self.part} on {topic}"

    def followed(
        self,
        *,
        driver: str | None = None,
        left_nodes: tuple[str, ...] | None = None,
        left: tuple[LedgerId, ...] | None = None,
        ended_ms: int | None = None,
        abandoned_by: str | None = None,
    ) -> "FollowedDeletion":
        """Return the deletion with its driver and what remains, or with its end."""
        return FollowedDeletion(
            **{each.name: getattr(self, each.name) for each in fields(self)},
            driver=driver,
            left_nodes=left_nodes,
            left_ledgers=None if left is None else len(left),
            left_ledger_ids=None if left is None else left[:_MOST_NAMED],
            ended_ms=ended_ms,
            abandoned_by=abandoned_by,
        )


_MOST_NAMED = 1_000


@result
class FollowedDeletion(TopicDeletionStatus):
    """Topic deletion with its remaining nodes and ledgers."""

    driver: str | None = None
    """The sidecar that works on it now."""
    left_nodes: tuple[str, ...] | None = None
    """Nodes of the topic that still exist; null if that is not known, or it has ended."""
    left_ledgers: int | None = None
    """Number of recorded ledgers that BookKeeper still has; null as for the nodes."""
    left_ledger_ids: tuple[LedgerId, ...] | None = None
    """The first thousand recorded ledgers that BookKeeper still has."""
    ended_ms: int | None = None
    """Time of its end; null while it runs."""
    abandoned_by: str | None = None
    """Role of the caller that abandoned it, where the sidecar requires tokens."""


@result
class NamespaceDeletionStatus:
    """Two-phase deletion of a namespace."""

    operation_id: OperationId
    namespace: str
    state: OperationState
    topics_found: int
    """Number of its topics, including deleted ones but not the brokers' own."""
    topics_deleted: int
    topics_left: int
    recorded_ledgers: int
    passes: int
    """Number of passes of the sidecars through the whole namespace."""
    topics_per_second: float | None
    """Average rate since the request; null while it is not known."""
    seconds_left: float | None
    """Estimated time left at that rate; null while it is not known."""
    requested_ms: int
    running_ms: int
    """Time from the request to the last count."""
    reason: str | None
    """Reason for its wait or refusal."""


class ShadowDeletionStage(StrEnum):
    """Next stage of the deletion of a shadow topic, in order."""

    PROTECTING = "protecting"
    """Set infinite retention, so that brokers trim nothing of it."""
    DISCONNECTING = "disconnecting"
    """Stop replication from its source."""
    DETACHING = "detaching"
    """Make its nodes list no ledger and name a source that does not exist."""
    REMOVING = "removing"
    """Make the broker delete it."""
    VERIFYING = "verifying"
    """Check that every ledger of the source exists."""
    DONE = "done"


@result
class ShadowDeletionStatus:
    """Deletion of a shadow topic."""

    operation_id: OperationId
    topic: str
    source: str
    """Name of the source as the shadow's property spelled it."""
    stage: ShadowDeletionStage
    """Next stage; ``done`` after the last one."""
    requested_ms: int
    waits_for: str | None
    """Obstacle to completing the stage; null when the next call can continue."""
    source_ledgers: int
    """Number of ledgers in the source's list: at the end, once it is done; until then, before the first change."""
    missing_ledgers: tuple[LedgerId, ...]
    """Ledgers of the source that BookKeeper does not have, and had before the first change."""
    missing_before: tuple[LedgerId, ...]
    """Ledgers of the source that BookKeeper did not have before the first change either."""
    missing_sources: tuple[str, ...]
    """Sources that do not exist, so that their ledgers could not be checked."""


# --- second phase at once --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect to the sidecar beside the owning broker, or to the one that watches."""

    base_url: str


class LedgerDeletionAnswer(Enum):
    """Result of a direct ``deleteLedger`` call."""

    DELETED = "deleted"
    GONE = "already gone"


# --- operators' calls ------------------------------------------------------------------------------------------------


@result
class InflightEstimate:
    """PIP-186 ``estimatedInflightDeletionLedgerCount``; at most a second old."""

    count: int
    """Number of pending records. Brokers count entries, so records that were appended together may count once."""
    age_ms: int
    """Age of this estimate in milliseconds."""
    oldest_age_ms: int | None
    """Age of the oldest pending record in milliseconds."""
    waiting_bytes: int | None
    """Estimated from the lengths of the ledgers that this sidecar evaluated; null if it has not evaluated any."""


@result
class Control:
    """Pause and rate, which all sidecars share."""

    paused: bool = False
    paused_reason: str | None = None
    rate_per_second: float | None = None
    """Maximum number of ledgers that each sidecar deletes per second; null for no limit."""
    paused_by: str | None = None
    """Role of the caller that paused; null if not paused, or without authentication."""
    paused_since_ms: int | None = None
    """By the metadata store's clock; null if not paused, or paused by an earlier version."""


@result
class SidecarInstance:
    """Registered sidecar."""

    name: str
    advertised_url: str
    broker_url: str | None
    """URL of the broker that it runs beside."""
    started_ms: int
    consumes: bool = True
    """True if it consumes pending deletions (``twoPhaseDeletionConsumerEnabled``)."""


@result
class LimitReadings:
    """Adaptive limit of this sidecar's deletions, and the measurements behind it."""

    level: float
    """Maximum number of deletions in flight, 1 to 50, rounded down."""
    idle_p99_ms: float | None
    """99th percentile of probes of the store while this sidecar is idle, in milliseconds; null if unknown."""
    recent_p99_ms: float | None
    """99th percentile of the last probes during which a deletion was in flight, in milliseconds; null if unknown."""


@result
class ProtectedLedger:
    """Restored ledger, which no sidecar deletes until its protection ends."""

    ledger_id: LedgerId
    until_ms: int
    """End of its protection, by the metadata store's clock."""


@result
class BookieReclaim:
    """Space that one bookie has reclaimed."""

    bookie: str
    waiting_ledgers: int | None
    """Number of the requested ledgers of which it still has entries; null if it did not respond."""
    waiting_bytes: int | None
    """Bytes of its copies of these; null if it did not respond."""
    reclaimed_bytes: int | None
    """Bytes by which its entry-log files have shrunk since its start, for whatever deleted ledgers; null if unknown."""
    reclaimed_since_ms: int | None
    """Time of its start; null if unknown."""
    problems: tuple[str, ...]
    """Reasons for unknown values."""


@result
class Reclaim:
    """Space that bookies have reclaimed from recorded ledgers that were deleted."""

    since_ms: int
    """Deletions before this time are not counted; later than requested if there were more than 100,000 since then."""
    ledgers: int
    """Number of recorded ledgers that sidecars, or brokers before them, deleted from BookKeeper since then."""
    unmeasured_ledgers: int
    """Number of these whose record did not have the length."""
    deleted_bytes: int
    """Bytes of the others, one copy."""
    last_deleted_ms: int | None
    """Time at which a sidecar deleted the last one, or found it deleted; null if there is none."""
    asked_ledgers: int
    """Number of the last of these ledgers, at most a hundred, that each bookie was queried for."""
    collected_bookies: int
    """Number of bookies that no longer have any entry of these."""
    bookies: tuple[BookieReclaim, ...]
    """Bookies that are registered or have a cookie."""
    as_of_ms: int
    """Time of reading."""


@result
class ServiceStatus:
    """State of the service and of this sidecar."""

    enabled: bool
    control: Control
    inflight: InflightEstimate | None
    dead_letters: int | None
    """Number of dead letters that were not sent again; null if it is not known now."""
    deleted_per_second: float | None
    """Average rate of this sidecar over the last minute or so; null until it has two samples."""
    instances: tuple[SidecarInstance, ...]
    running_topic_deletions: int
    stuck_topic_deletions: int
    """Number of running topic deletions that need an operator; ``warnings`` has their reasons."""
    running_namespace_deletions: int
    last_error: str | None
    """Last error of this sidecar since its start; it stays when the cause is gone."""
    last_error_at_ms: int | None
    """Time of the last error."""
    adaptive_limit: LimitReadings | None
    """Adaptive limit of this sidecar; null if it is switched off."""
    protected_ledgers: tuple[ProtectedLedger, ...]
    """Restored ledgers that are protected, the first to expire first, at most a hundred."""
    bookkeeper_exclusive_to_cluster: bool
    """Setting of this sidecar; true if a ledger may be deleted because nothing references it."""
    warnings: tuple[str, ...]
    """Warnings about retries, topic deletions, records or the sources of shadow topics, with remedies."""
    as_of_ms: int
    """Time of reading; older than a few seconds only while the cluster does not respond."""
    reclaimed: Reclaim | None = None
    """Last reading of the space that bookies have reclaimed from the last day's deletions, as ``reclaimed`` returns it;
    the sidecar reads it every 15 minutes; null before the first."""


@result
class DeadLetter:
    """Record that the sidecars no longer retry."""

    message_id: str
    record: Mapping[str, object] | None
    """The record as PIP-186's JSON; null if it cannot be read."""
    raw: str
    """The message as text, at most 2,000 bytes of it."""
    reason: str
    tries: int
    dead_since_ms: int
    request_id: str | None = None
    """The `X-Request-Id` of the call that recorded it, as the log has it; null if no call did."""


@result
class PendingRecord:
    """Pending record on ``__ledger_deletion`` or its retry topic."""

    message_id: str
    topic: str
    """The topic, or the partition, that holds it."""
    record: Mapping[str, object] | None
    """The record as PIP-186's JSON; null if it cannot be read and will go to the dead-letter topic."""
    written_ms: int
    """Time at which the first phase wrote it, or its last try sent it back."""
    tries: int
    next_try_ms: int | None
    """Earliest time of the next try; null before the first try."""
    reason: str | None
    """Reason of the last try for keeping the ledger; null before the first try."""
    length_bytes: int | None
    """Size of the ledger when it was recorded; null if the record does not have it."""
    request_id: str | None = None
    """The `X-Request-Id` of the call that recorded it; null if no call did."""


@result
class TrendPoint:
    """One minute of this sidecar's last hour."""

    at_ms: int
    pending: int | None
    """Number of pending records on all topics; null if brokers did not report it."""
    deleted_per_second: float | None
    """Rate of this sidecar since the point before; null in its first one."""
    leaked: int | None
    """Number of leaked ledgers; null if this sidecar did not watch."""


@result
class DeletionTrend:
    """The last hour; a sidecar that has just started has fewer points."""

    points: tuple[TrendPoint, ...]
    """One point per minute, oldest first."""
    seconds_left: float | None
    """Estimated time until nothing is pending, at the rate of the last ten minutes; null while pending records do not
    become fewer."""


@result
class RedriveResult:
    """Numbers of dead letters sent back and left."""

    redriven: int
    left: int


@result
class UndeleteResult:
    """Restored ledger."""

    ledger_id: LedgerId
    readable: bool
    """True if bookies still hold its first and last entry."""
    protected_until_ms: int
    """No sidecar deletes it again before this time of the metadata store's clock."""


@result
class EndedProtection:
    """Ledger that may be deleted from now on."""

    ledger_id: LedgerId
