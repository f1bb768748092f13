"""What a ledger's own metadata says it is: the closed list of Pulsar's kinds of ledgers.

Pulsar stamps custom metadata on every ledger it creates (``org.apache.bookkeeper.mledger.impl.LedgerMetadataUtils``).
A ledger without that stamp, or with a component this list does not know, belongs to somebody we don't know: it is
reported and never deleted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from service.model.names import CursorName, ManagedLedgerName, SchemaId, TopicName


@dataclass(frozen=True, slots=True)
class DataClaim:
    """Entries of a topic (component ``managed-ledger``)."""

    managed_ledger: ManagedLedgerName


@dataclass(frozen=True, slots=True)
class CursorClaim:
    """A cursor's state (component ``managed-ledger`` with ``pulsar/cursor``)."""

    managed_ledger: ManagedLedgerName
    cursor: CursorName


@dataclass(frozen=True, slots=True)
class SchemaClaim:
    """One version of a schema (component ``schema``)."""

    schema_id: SchemaId


@dataclass(frozen=True, slots=True)
class CompactedClaim:
    """The compacted view of a topic (component ``compacted-ledger``)."""

    topic: TopicName


@dataclass(frozen=True, slots=True)
class BucketClaim:
    """A snapshot of the delayed index (component ``delayed-index-bucket``, PIP-195).

    ``subscription`` is the decoded name, ``bucket_key`` the cursor property that points at the ledger.
    """

    topic: TopicName
    subscription: str
    bucket_key: str


@dataclass(frozen=True, slots=True)
class NotPulsars:
    """No stamp of Pulsar: DistributedLog, another application, a bookie's sanity check."""


@dataclass(frozen=True, slots=True)
class Unrecognised:
    """Pulsar's stamp, but a component or a shape this version does not know."""

    reason: str


Claim = DataClaim | CursorClaim | SchemaClaim | CompactedClaim | BucketClaim
"""A kind of ledger this version understands."""

ClaimReading = Claim | NotPulsars | Unrecognised
"""What reading a ledger's custom metadata can say."""

_APPLICATION = "application"
_COMPONENT = "component"


def read_claim(custom_metadata: Mapping[str, bytes]) -> ClaimReading:
    """What the ledger says of itself; total, and never guesses."""
    raise NotImplementedError(_APPLICATION, _COMPONENT)
