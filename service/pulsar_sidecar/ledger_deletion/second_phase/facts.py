"""Everything that is known about one pending deletion at the moment it is judged: read, never assumed."""

from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_ownership.claims import ClaimReading
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.metadata import Guard
from pulsar_sidecar.model.topic_stats import TopicInternalStats


@dataclass(frozen=True, slots=True)
class StoredLedger:
    """A ledger's metadata node as it was read.

    Attributes:
        raw: the node's bytes, kept so that the ledger can be brought back.
        claim: what the ledger's custom metadata says it is.
        replication_locked: auto-recovery or a bookie's garbage collector works on it right now.
    """

    path: str
    raw: bytes
    version: NodeVersion
    created_ms: int
    metadata: LedgerMetadata
    claim: ClaimReading
    replication_locked: bool = False


@dataclass(frozen=True, slots=True)
class UndecodableLedger:
    """A ledger's metadata node that exists but cannot be read by this version."""

    path: str
    version: NodeVersion
    reason: str


@dataclass(frozen=True, slots=True)
class Referenced:
    """A node of the claimed owner references the ledger."""

    by: Guard


@dataclass(frozen=True, slots=True)
class Unreferenced:
    """Every node that could reference the ledger was read and does not.

    Attributes:
        read: the nodes that were read, as far as they exist.
        other_copy_listed: the managed ledger lists the id for another copy than the one that is to go: the one in
            tiered storage that has replaced BookKeeper's, or the one of another offload attempt.
    """

    read: tuple[Guard, ...] = ()
    other_copy_listed: bool = False


@dataclass(frozen=True, slots=True)
class ReferencesUnknown:
    """A node that could reference the ledger could not be read or understood."""

    reason: str


References = Referenced | Unreferenced | ReferencesUnknown


@dataclass(frozen=True, slots=True)
class Facts:
    """What `decide.decide` judges by.

    Attributes:
        instance_id: BookKeeper's instance id of this cluster.
        ledger: the ledger's node; None when the store said that there is none.
        references: what the owner that the ledger claims references.
        owner: the live owner's view; None when the topic is loaded nowhere.
        operation_running: the two-phase topic deletion that wrote the record has not ended.
        in_use_since_ms: when the record was first found in use, on the store's clock.
        now_ms: the store's clock.
        from_own_list: the record is signed: a list of this Pulsar cluster named the ledger.
        protected_until_ms: ``undelete`` brought the ledger back and protects it until then; None if it did not.
        under_replication_mark: path of auto-recovery's note about the ledger, None when there is none.
    """

    record: PendingDeleteLedgerInfo
    instance_id: str
    ledger: StoredLedger | UndecodableLedger | None
    references: References
    owner: TopicInternalStats | None
    operation_running: bool
    in_use_since_ms: int | None
    now_ms: int
    from_own_list: bool = False
    protected_until_ms: int | None = None
    under_replication_mark: str | None = None
