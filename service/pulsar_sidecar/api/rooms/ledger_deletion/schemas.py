"""The JSON that goes in and out, which is also the published REST reference.

Names are Pulsar's camelCase. Requests are strict: no unknown field, no other type, no number out of range. What a
record must be beyond its shape `ledger_deletion.record` checks, so there is one grammar.
"""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from pulsar_sidecar.api.schemas import Answer, Parameters, Payload
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo, record_document
from pulsar_sidecar.ledger_deletion.service import OperationState, ShadowDeletionStage
from pulsar_sidecar.model.ids import MAX_LEDGER_ID

MAX_RECORDS = 50_000
MAX_DEAD_LETTERS = 10_000
_INT64_MAX = 2**63 - 1
LedgerIdNumber = Annotated[int, Field(ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])]
_Int64 = Annotated[int, Field(ge=-(2**63), le=_INT64_MAX)]
_Text = Annotated[str, Field(max_length=8192)]


def _document(record: PendingDeleteLedgerInfo | None) -> dict[str, object] | None:
    return None if record is None else record_document(record)


def _text(name: object) -> str | None:
    return None if name is None else str(name)


class TopicDeletionParameters(Parameters):
    """As Pulsar's own call takes them."""

    force: bool = False
    """Delete the topic even if producers or consumers are connected."""
    authoritative: bool = False
    """Accepted as Pulsar does; any sidecar can take this call."""
    delete_schema: bool = False
    """Accepted as older Pulsar does; the schema is always deleted with the topic."""
    confirm_source_data_loss: str | None = None
    """The topic's full name, to delete the source of a shadow topic although the shadow loses its data too."""


class LedgerDeletionParameters(Parameters):
    """Parameters of ``deleteLedger``."""

    authoritative: bool = False
    """Decide on this sidecar; do not redirect to the sidecar beside the owning broker."""


class DeadLetterParameters(Parameters):
    """Parameters of the list of dead letters."""

    limit: int = Field(default=100, ge=1, le=MAX_DEAD_LETTERS)
    """Maximum number of dead letters, oldest first."""
    after: str | None = Field(default=None, pattern=r"^\d{1,19}:\d{1,19}:-?\d{1,10}(:\d{1,10})?$")
    """``messageId`` of the last dead letter of the page before."""


class OffloadContextPayload(Payload):
    """PIP-186 ``OffloadContext``: where tiered storage keeps the copy."""

    lsb: _Int64
    """Low half of the offload attempt's UUID, signed."""
    msb: _Int64
    """High half of the offload attempt's UUID, signed."""
    driver_name: _Text
    """Offload driver, such as ``aws-s3``."""
    metadata: dict[_Text, _Text] = Field(default={})
    """The driver's own metadata, such as bucket and region."""


class DeleteLedgerPayload(Payload):
    """PIP-186 ``DeleteLedgerPayload``."""

    ledger_id: LedgerIdNumber
    topic_name: Annotated[_Text, Field(examples=["persistent://public/default/orders"])]
    """Full topic name; a ``deleteLedger`` call must name the topic of its path."""
    ledger_type: Annotated[_Text, Field(examples=["LEDGER"])]
    """``LEDGER`` or ``OFFLOAD_LEDGER``."""
    ledger_component: Annotated[_Text, Field(examples=["MANAGED_LEDGER"])]
    """``MANAGED_LEDGER``, ``MANAGED_CURSOR``, ``SCHEMA_STORAGE``, ``COMPACTED_LEDGER`` or ``DELAYED_INDEX_BUCKET``."""
    schema_id: _Text | _Int64 | None = None
    """Schema's id (``tenant/namespace/topic``), for ``SCHEMA_STORAGE``."""
    cursor_name: _Text | None = None
    """Subscription, for ``MANAGED_CURSOR`` and ``DELAYED_INDEX_BUCKET``."""
    offload_context: OffloadContextPayload | None = None
    """For ``OFFLOAD_LEDGER``."""


class MarkPayload(Payload):
    """What the sender knew about the ledger; all optional. The sidecar checks it before it deletes the ledger."""

    marked_version: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Version of the managed ledger's node whose list is about to shrink."""
    unreferenced: bool = False
    """The sender had found no reference, so "in use" is final at once."""
    instance_id: _Text | None = None
    """BookKeeper's instance id of the cluster that is meant."""
    created_ms: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Creation time of the ledger's node, milliseconds since the epoch."""
    length_bytes: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Length of the ledger, for the estimate of waiting bytes."""


class PendingDeleteLedgerPayload(DeleteLedgerPayload):
    """PIP-186 ``PendingDeleteLedgerInfo``."""

    sidecar: MarkPayload | None = None


class AppendRequest(Payload):
    """Records for the first phase."""

    ledgers: Annotated[list[PendingDeleteLedgerPayload], Field(min_length=1, max_length=MAX_RECORDS)]
    """The records, in order."""
    producer_name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[-.:/\w]+$")] | None = None
    """A stable name of the caller's own, so that a repeated call is not a second record (PIP-6)."""
    first_sequence_id: Annotated[int, Field(ge=0, le=_INT64_MAX - MAX_RECORDS)] | None = None
    """Sequence id of the first record; the others count on."""

    @model_validator(mode="after")
    def _sequence_belongs_to_a_producer(self) -> "AppendRequest":
        if (self.first_sequence_id is None) != (self.producer_name is None):
            raise ValueError("producerName and firstSequenceId belong together: give both or neither")
        return self


class PauseRequest(Payload):
    """Why deletion is paused."""

    reason: Annotated[str, Field(max_length=1000)] | None = None
    """Shown by the status."""


class RateRequest(Payload):
    """A rate, or null for none."""

    ledgers_per_second: Annotated[float, Field(gt=0, le=1e9, examples=[500])] | None
    """Maximum number of ledgers that each sidecar deletes a second; null removes the limit."""


class RedriveRequest(Payload):
    """The dead letters to send back; an empty object means the oldest up to the default limit."""

    ledger_ids: Annotated[list[LedgerIdNumber], Field(min_length=1, max_length=MAX_DEAD_LETTERS)] | None = None
    """Only the records of these ledgers; all if absent."""
    limit: int = Field(default=10_000, ge=1, le=1_000_000)
    """Maximum number of dead letters."""


class UndeleteRequest(Payload):
    """The ledger to restore."""

    ledger_id: LedgerIdNumber
    force: bool = False
    """Restore the metadata even if bookies no longer hold the entries."""


class NotSent(Answer):
    """A record that may not have reached the topic."""

    ledger_id: int
    reason: str | None


class AppendAnswer(Answer):
    """PIP-186 ``sendPendingDeleteLedger``: a publish whose outcome is unknown counts as not sent."""

    sent: list[int]
    not_sent: list[NotSent]


class TopicDeletionAnswer(Answer):
    """A two-phase topic deletion."""

    operation_id: str
    topic: Annotated[str | None, BeforeValidator(_text)]
    """Null if this version cannot read the deletion's node."""
    part: str | None
    """The part of the topic that is deleted, a subscription or its schema; null for all of it."""
    state: OperationState
    """``running``; ``stuck`` after ten failures of the same kind; ``unreadable`` if another version wrote its node;
    ``done``, ``refused`` or ``abandoned`` once it has ended."""
    recorded_ledgers: int | None
    attempts: int | None
    """How often a broker was asked."""
    requested_ms: int
    reason: str | None
    """What it waits for, or why it ended."""
    requested_by: str | None
    """Who asked for it, where the sidecar asks for tokens."""
    failures: int
    """How often it has failed the same way, one after another."""
    failing_since_ms: int | None
    """When it failed that way first."""
    next_attempt_ms: int | None
    """A sidecar tries again then or soon after."""
    request_id: str | None
    """The `X-Request-Id` of the call that asked for it, as the log has it."""
    remedy: str | None
    """What to do about one that does not continue by itself."""


class ShadowDeletionAnswer(Answer):
    """The deletion of a shadow topic."""

    operation_id: str
    topic: str
    source: str
    stage: ShadowDeletionStage
    """The next stage; ``done`` after the last one."""
    requested_ms: int
    waits_for: str | None
    """What keeps the stage from being completed; null when the next call can continue."""
    source_ledgers: int
    """Ledgers in the source's list: at the end, once it is done; before the first change, until then."""
    missing_ledgers: list[int]
    """Source ledgers that BookKeeper does not have, and had before the first change."""
    missing_before: list[int]
    """Source ledgers that BookKeeper did not have before the first change either."""
    missing_sources: list[str]
    """Sources that do not exist, whose ledgers could not be checked."""


class InflightAnswer(Answer):
    """The work that waits; at most a second old."""

    count: int
    age_ms: int
    """Age of this estimate in milliseconds."""
    oldest_age_ms: int | None
    """Age of the oldest record that waits in milliseconds."""
    waiting_bytes: int | None
    """Estimated from the lengths of the ledgers that this sidecar judged; null if it judged none yet."""


class ControlAnswer(Answer):
    """Pause and rate, which all sidecars share."""

    paused: bool
    paused_reason: str | None
    rate_per_second: float | None
    paused_by: str | None
    """Role of who paused; null if not paused, or without authentication."""
    paused_since_ms: int | None
    """By the metadata store's clock; null if not paused, or paused by an earlier version."""


class InstanceAnswer(Answer):
    """One registered sidecar."""

    name: str
    advertised_url: str
    broker_url: str | None
    started_ms: int


class AdaptiveLimitAnswer(Answer):
    """The adaptive limit of this sidecar's deletions, and the measurements behind it."""

    level: float
    """Maximum number of deletions in flight, 1 to 50, rounded down."""
    idle_p99_ms: float | None
    """99th percentile of probes of the store while this sidecar is idle, in milliseconds; null if unknown."""
    recent_p99_ms: float | None
    """99th percentile of the last probes during which a deletion was in flight, in milliseconds; null if unknown."""


class ProtectedLedgerAnswer(Answer):
    """A restored ledger, which no sidecar deletes until its protection ends."""

    ledger_id: int
    until_ms: int


class StatusAnswer(Answer):
    """The state of the service."""

    enabled: bool
    control: ControlAnswer
    inflight: InflightAnswer | None
    dead_letters: int | None
    """Records on the dead-letter topic that were not sent again; null if that is not known now."""
    deleted_per_second: float | None
    """Ledgers that this sidecar deleted a second, on average over the last minute or so; null until it has looked
    twice."""
    instances: list[InstanceAnswer]
    running_topic_deletions: int
    stuck_topic_deletions: int
    """Those of them that do not continue by themselves; ``warnings`` has their reasons."""
    running_namespace_deletions: int
    last_error: str | None
    """Of this sidecar; null after a start without one. It stays when the cause is gone."""
    last_error_at_ms: int | None
    """When it was."""
    adaptive_limit: AdaptiveLimitAnswer | None
    """This sidecar's own; null if it is switched off."""
    protected_ledgers: list[ProtectedLedgerAnswer]
    """Restored ledgers that are protected, in the order in which their protections end, at most a hundred."""
    bookkeeper_exclusive_to_cluster: bool
    """This sidecar's setting: whether "nothing references it" is evidence enough to delete a ledger."""
    warnings: list[str]
    """What hinders retries, keeps a topic's deletion, or endangers records or the sources of shadow topics, with the
    remedy."""
    as_of_ms: int
    """When it was read; longer ago than a few seconds only while the cluster does not answer."""


class DeadLetterAnswer(Answer):
    """A record that the sidecars gave up."""

    message_id: str
    record: Annotated[dict[str, object] | None, BeforeValidator(_document)]
    """The record, or null when it cannot be read."""
    raw: str
    reason: str
    tries: int
    dead_since_ms: int
    request_id: str | None
    """The `X-Request-Id` of the call that recorded it, as the log has it; null if no call did."""


class PendingParameters(Parameters):
    """A page of the records that wait."""

    limit: int = Field(default=100, ge=1, le=1_000)
    """Maximum number of records, in order of publishing."""
    offset: int = Field(default=0, ge=0, le=10_000)
    """Number of records to pass over; each of them is read."""


class PendingRecordAnswer(Answer):
    """A record that waits on ``__ledger_deletion`` or its retry topic."""

    message_id: str
    topic: str
    """The topic, or the partition, that it waits on."""
    record: Annotated[dict[str, object] | None, BeforeValidator(_document)]
    """The record, or null when it cannot be read."""
    written_ms: int
    """When it was recorded, or sent back by its last try."""
    tries: int
    next_try_ms: int | None
    """No try before then; null for a record that waits for its first try."""
    reason: str | None
    """Why its last try kept the ledger; null before the first."""
    length_bytes: int | None
    """Size of the ledger when it was recorded; null if the record does not tell."""
    request_id: str | None
    """The `X-Request-Id` of the call that recorded it; null if no call did."""


class TrendPointAnswer(Answer):
    """One minute of this sidecar's last hour."""

    at_ms: int
    pending: int | None
    """Records that waited, on all topics; null if brokers did not tell."""
    deleted_per_second: float | None
    """Ledgers deleted by this sidecar since the point before; null in its first one."""
    leaked: int | None
    """Leaked ledgers; null if this sidecar did not watch."""


class TrendAnswer(Answer):
    """The last hour, the oldest point first; a sidecar that has just started has fewer points."""

    points: list[TrendPointAnswer]
    seconds_left: float | None
    """Until nothing waits, at the pace of the last ten minutes; null while the records that wait do not become
    fewer."""


class RedriveAnswer(Answer):
    """The numbers of dead letters sent back and left."""

    redriven: int
    left: int


class UndeleteAnswer(Answer):
    """A restored ledger."""

    ledger_id: int
    readable: bool
    """Whether bookies still hold its first and last entry."""
    protected_until_ms: int
    """No sidecar deletes it again before then; milliseconds since the epoch by the metadata store's clock."""


class EndProtectionRequest(Payload):
    """The ledger that may be deleted from now on."""

    ledger_id: LedgerIdNumber


class EndProtectionAnswer(Answer):
    """The ledger that may be deleted from now on."""

    ledger_id: int
