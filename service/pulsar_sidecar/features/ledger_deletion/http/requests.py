"""Requests of ledger deletion, which are also the published REST reference.

`ledger_deletion.record` checks what a record must be beyond its shape, so there is one grammar.
"""

from typing import Annotated

from pydantic import Field, model_validator

from pulsar_sidecar.model.ids import MAX_LEDGER_ID
from pulsar_sidecar.server.schemas import Parameters, Payload

MAX_RECORDS = 50_000
MAX_DEAD_LETTERS = 10_000
_INT64_MAX = 2**63 - 1
LedgerIdNumber = Annotated[int, Field(ge=0, le=MAX_LEDGER_ID, description="BookKeeper's ledger id.", examples=[4711])]
_Int64 = Annotated[int, Field(ge=-(2**63), le=_INT64_MAX)]
_Text = Annotated[str, Field(max_length=8192)]


class TopicDeletionParameters(Parameters):
    """Parameters of Pulsar's own call."""

    force: bool = False
    """Delete the topic even if producers or consumers are connected."""
    authoritative: bool = False
    """Accepted for compatibility; any sidecar can serve this call."""
    delete_schema: bool = False
    """Accepted for compatibility with older versions; the schema is always deleted with the topic."""
    confirm_source_data_loss: str | None = None
    """The topic's full name, to delete the source of a shadow topic even though the shadow loses its data."""


class ReclaimParameters(Parameters):
    """Age of the deletions."""

    hours: float = Field(default=24, gt=0, le=24 * 365)
    """Only deletions within this many hours, as far back as the outcome topic reaches."""


class NamespaceDeletionParameters(Parameters):
    """Parameters of Pulsar's own call."""

    force: bool = False
    """Delete the namespace even if it has topics."""
    authoritative: bool = False
    """Accepted for compatibility; any sidecar can serve this call."""
    wait: bool = True
    """Wait for the end, up to ``twoPhaseDeletionTopicDeletionWaitInSeconds``; false returns at once."""


class LedgerDeletionParameters(Parameters):
    """Parameters of ``deleteLedger``."""

    authoritative: bool = False
    """Decide on this sidecar instead of redirecting to the one beside the owning broker."""


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
    """Knowledge of the sender about the ledger; the sidecar checks it before it deletes the ledger."""

    marked_version: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Version of the managed ledger's node before its list shrinks."""
    unreferenced: bool = False
    """True if the sender found no reference, so that "in use" is final at once."""
    instance_id: _Text | None = None
    """BookKeeper's instance id of the cluster."""
    created_ms: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Creation time of the ledger's node, milliseconds since the epoch."""
    created_order: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Revision that created the ledger's key in etcd, which keeps no times."""
    length_bytes: Annotated[int, Field(ge=0, le=_INT64_MAX)] | None = None
    """Size of the ledger, for the estimate of waiting bytes."""


class PendingDeleteLedgerPayload(DeleteLedgerPayload):
    """PIP-186 ``PendingDeleteLedgerInfo``."""

    sidecar: MarkPayload | None = None


class AppendRequest(Payload):
    """Records for the first phase."""

    ledgers: Annotated[list[PendingDeleteLedgerPayload], Field(min_length=1, max_length=MAX_RECORDS)]
    """The records, in order."""
    producer_name: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[-.:/\w]+$")] | None = None
    """A stable name of the caller, so that the broker drops the records of a repeated call (PIP-6)."""
    first_sequence_id: Annotated[int, Field(ge=0, le=_INT64_MAX - MAX_RECORDS)] | None = None
    """Sequence id of the first record; the others follow."""

    @model_validator(mode="after")
    def _sequence_belongs_to_a_producer(self) -> "AppendRequest":
        if (self.first_sequence_id is None) != (self.producer_name is None):
            raise ValueError("producerName and firstSequenceId require each other: specify both or neither")
        return self


class PauseRequest(Payload):
    """Pause of deletion."""

    reason: Annotated[str, Field(max_length=1000)] | None = None
    """Reason, which the status shows."""


class RateRequest(Payload):
    """Rate limit."""

    ledgers_per_second: Annotated[float, Field(gt=0, le=1e9, examples=[500])] | None
    """Maximum number of ledgers that each sidecar deletes per second; null removes the limit."""


class RedriveRequest(Payload):
    """Dead letters to send back; by default the oldest."""

    ledger_ids: Annotated[list[LedgerIdNumber], Field(min_length=1, max_length=MAX_DEAD_LETTERS)] | None = None
    """Only the records of these ledgers; by default of all."""
    limit: int = Field(default=10_000, ge=1, le=1_000_000)
    """Maximum number of dead letters."""


class UndeleteRequest(Payload):
    """Ledger to restore."""

    ledger_id: LedgerIdNumber
    force: bool = False
    """Restore the metadata even if bookies no longer hold the entries."""


class PendingParameters(Parameters):
    """Page of the pending records."""

    limit: int = Field(default=100, ge=1, le=1_000)
    """Maximum number of records, in order of publishing."""
    offset: int = Field(default=0, ge=0, le=10_000)
    """Number of records to skip; the sidecar reads each of them."""


class EndProtectionRequest(Payload):
    """Ledger whose protection to end."""

    ledger_id: LedgerIdNumber
