"""What an unreferenced ledger says of itself: who claims it, where that owner's node is, what state it is in.

Invariant: a ledger whose metadata this version does not understand whole, or whose owner is nobody that it knows, is
`Unattributed` and can never be condemned.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from pulsar_sidecar.audit.engine.places import Owner, owner_of_schema, owner_of_topic
from pulsar_sidecar.audit.results.tables import LedgerKind
from pulsar_sidecar.ledger_ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    NotPulsars,
    SchemaClaim,
    Unrecognised,
    read_claim,
)
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata, length_bytes
from pulsar_sidecar.ledger_ownership.paths import cursor_path, managed_ledger_path, schema_path
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import (
    ManagedLedgerName,
    TopicName,
    encode_cursor,
    java_url_decode,
    topic_of_managed_ledger,
)
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a ledger was written, as its metadata tells; ``length_bytes`` is None while that is not known."""

    state: LedgerState
    length_bytes: int | None
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """A ledger of a kind that this version understands.

    Attributes:
        owner_path: the one node that would reference it.
        topic_path: the managed ledger's node above that; None for a schema.
    """

    extent: Extent
    kind: LedgerKind
    owner: Owner
    owner_path: str
    topic_path: str | None = None
    managed_ledger: str | None = None
    cursor_name: str | None = None
    schema_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unattributed:
    """A ledger of somebody we do not know; ``extent`` is None if its metadata could not be read."""

    reason: str
    extent: Extent | None = None


def read_candidate(row: Mapping[str, Any]) -> Claimed | Unattributed:
    """Read a ledger's node (a row with ``metadata`` and ``unreadable``)."""
    if row["metadata"] is None:
        return Unattributed(f"its metadata was not read: {row['unreadable'] or 'no input holds it'}")
    try:
        metadata = decode_ledger_metadata(row["metadata"])
    except UndecodableError as error:
        return Unattributed(f"its metadata is not understood: {error}")
    extent = Extent(metadata.state, length_bytes(metadata), metadata.last_entry_id)
    claim = read_claim(metadata.custom_metadata)
    if isinstance(claim, NotPulsars):
        return Unattributed("its metadata does not say that Pulsar made it", extent)
    if isinstance(claim, Unrecognised):
        return Unattributed(f"it is of no kind that this version knows: {claim.reason}", extent)
    claimed = _claimed(extent, claim)
    if claimed.owner.topic is None:
        return Unattributed(f"its owner {claimed.managed_ledger or claimed.schema_id} is no topic", extent)
    return claimed


def _claimed(extent: Extent, claim: Claim) -> Claimed:
    match claim:
        case DataClaim(name):
            path = managed_ledger_path(name)
            return _below_topic(extent, LedgerKind.DATA, topic_of_managed_ledger(name), name, path)
        case CursorClaim(name, cursor):
            topic, path = topic_of_managed_ledger(name), cursor_path(name, cursor)
            decoded = _decoded_cursor(cursor)
            # A cursor's name that Pulsar does not write belongs to nobody we know.
            topic = topic if decoded is not None else None
            return _below_topic(extent, LedgerKind.CURSOR, topic, name, path, decoded)
        case SchemaClaim(schema_id):
            owner, path = owner_of_schema(schema_id), schema_path(schema_id)
            return Claimed(extent, LedgerKind.SCHEMA, owner, path, schema_id=schema_id)
        case CompactedClaim(topic):
            name = topic.managed_ledger_name
            path = cursor_path(name, COMPACTION_CURSOR)
            return _below_topic(extent, LedgerKind.COMPACTED, topic, name, path)
        case BucketClaim(topic, subscription, _):
            name = topic.managed_ledger_name
            path = cursor_path(name, encode_cursor(subscription))
            return _below_topic(extent, LedgerKind.DELAYED_INDEX_BUCKET, topic, name, path, subscription)
        case never:
            assert_never(never)


def _below_topic(
    extent: Extent,
    kind: LedgerKind,
    topic: TopicName | None,
    name: ManagedLedgerName,
    path: str,
    cursor_name: str | None = None,
) -> Claimed:
    topic_path = managed_ledger_path(name)
    return Claimed(extent, kind, owner_of_topic(topic), path, topic_path, name, cursor_name)


def _decoded_cursor(cursor: str) -> str | None:
    try:
        decoded = java_url_decode(cursor)
        return decoded if encode_cursor(decoded) == cursor else None
    except UnicodeError:
        return None
