"""Claims in ledgers' own metadata: the closed list of Pulsar's kinds of ledgers, and the node that owns each.

Pulsar stamps custom metadata on every ledger it creates (``org.apache.bookkeeper.mledger.impl.LedgerMetadataUtils``).
A ledger without that stamp, or with a component this list does not know, has no known owner: it is
reported and never deleted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, assert_never

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import (
    CursorName,
    ManagedLedgerName,
    SchemaId,
    TopicName,
    encode_cursor,
    parse_topic_name,
)
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path, schema_path
from pulsar_sidecar.ownership.references import DELAYED_BUCKET_KEY_PREFIX


class LedgerKind(StrEnum):
    """Purpose of a ledger."""

    DATA = "data"
    CURSOR = "cursor"
    SCHEMA = "schema"
    COMPACTED = "compacted"
    DELAYED_INDEX_BUCKET = "delayed-index-bucket"
    LOG_SEGMENT = "log-segment"
    """DistributedLog's: function packages and state."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class DataClaim:
    """Entries of a topic (component ``managed-ledger``)."""

    kind: ClassVar = LedgerKind.DATA
    managed_ledger: ManagedLedgerName


@dataclass(frozen=True, slots=True)
class CursorClaim:
    """A cursor's state (component ``managed-ledger`` with ``pulsar/cursor``)."""

    kind: ClassVar = LedgerKind.CURSOR
    managed_ledger: ManagedLedgerName
    cursor: CursorName


@dataclass(frozen=True, slots=True)
class SchemaClaim:
    """A version of a schema (component ``schema``)."""

    kind: ClassVar = LedgerKind.SCHEMA
    schema_id: SchemaId


@dataclass(frozen=True, slots=True)
class CompactedClaim:
    """The compacted view of a topic (component ``compacted-ledger``)."""

    kind: ClassVar = LedgerKind.COMPACTED
    topic: TopicName


@dataclass(frozen=True, slots=True)
class BucketClaim:
    """A snapshot of the delayed index (component ``delayed-index-bucket``, PIP-195).

    ``subscription`` is the decoded name, ``bucket_key`` the cursor property that points at the ledger.
    """

    kind: ClassVar = LedgerKind.DELAYED_INDEX_BUCKET
    topic: TopicName
    subscription: str
    bucket_key: str


@dataclass(frozen=True, slots=True)
class ForeignLedger:
    """A ledger without Pulsar's stamp: DistributedLog's, another application's, or a bookie's sanity check."""


@dataclass(frozen=True, slots=True)
class UnknownClaim:
    """Pulsar's stamp, but a component or a shape this version does not know."""

    reason: str


Claim = DataClaim | CursorClaim | SchemaClaim | CompactedClaim | BucketClaim
"""A kind of ledger this version understands."""

ClaimReading = Claim | ForeignLedger | UnknownClaim
"""Every result of reading a ledger's custom metadata."""

_APPLICATION = "application"
_COMPONENT = "component"
_PULSAR = b"pulsar"
_BUCKET_COMPONENT = b"delayed-index-bucket"
_OF_PULSAR = "pulsar/"
_MANAGED_LEDGER = "pulsar/managed-ledger"
_CURSOR = "pulsar/cursor"
_SCHEMA_ID = "pulsar/schemaId"
_COMPACTED_TOPIC = "pulsar/compactedTopic"
_COMPACTED_TO = "pulsar/compactedTo"
_BUCKET_KEY = "pulsar/delayedIndexBucketKey"
_BUCKET_TOPIC = "pulsar/delayedIndexTopic"
_BUCKET_CURSOR = "pulsar/delayedIndexCursor"

# ZooKeeper's PathUtils refuses these characters, so no node of Pulsar's has them in its name.
_UNUSABLE_IN_A_PATH = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]")


def read_claim(custom_metadata: Mapping[str, bytes]) -> ClaimReading:
    """Return the claim in the ledger's own metadata; total, and never a guess.

    Keys that are not Pulsar's (``EnsemblePlacementPolicyConfig``) do not belong to the claim; a key of Pulsar's that
    does not belong to the component makes the claim unknown.
    """
    if custom_metadata.get(_APPLICATION) != _PULSAR:
        return ForeignLedger()
    stamp = {key: value for key, value in custom_metadata.items() if key.startswith(_OF_PULSAR)}
    try:
        return _claim_of(custom_metadata.get(_COMPONENT), stamp)
    except _UnexpectedStampError as error:
        return UnknownClaim(str(error))


def bucket_custom_metadata(claim: BucketClaim) -> dict[str, bytes]:
    """Return the stamp of a bucket's ledger (``LedgerMetadataUtils.buildMetadataForDelayedIndexBucket``)."""
    return {
        _APPLICATION: _PULSAR,
        _COMPONENT: _BUCKET_COMPONENT,
        _BUCKET_KEY: claim.bucket_key.encode(),
        _BUCKET_TOPIC: str(claim.topic).encode(),
        _BUCKET_CURSOR: claim.subscription.encode(),
    }


def owner_path(claim: Claim) -> str:
    """Return the path of the only node that references such a ledger, directly or through its cursor's ledger."""
    match claim:
        case DataClaim(managed_ledger):
            return managed_ledger_path(managed_ledger)
        case CursorClaim(managed_ledger, cursor):
            return cursor_path(managed_ledger, cursor)
        case SchemaClaim(schema_id):
            return schema_path(schema_id)
        case CompactedClaim(topic):
            return cursor_path(topic.managed_ledger_name, COMPACTION_CURSOR)
        case BucketClaim(topic, subscription, _):
            # The properties of the subscription's cursor point at the buckets of its delayed index.
            return cursor_path(topic.managed_ledger_name, encode_cursor(subscription))
        case never:
            assert_never(never)


class _UnexpectedStampError(Exception):
    """Raised by the decoders of a stamp; `read_claim` answers it with an `UnknownClaim`."""


def _claim_of(component: bytes | None, stamp: Mapping[str, bytes]) -> Claim:
    match component:
        case b"managed-ledger" if _CURSOR in stamp:
            _demand_keys(stamp, _MANAGED_LEDGER, _CURSOR)
            return CursorClaim(ManagedLedgerName(_path(stamp, _MANAGED_LEDGER)), _cursor_name(stamp))
        case b"managed-ledger":
            _demand_keys(stamp, _MANAGED_LEDGER)
            return DataClaim(ManagedLedgerName(_path(stamp, _MANAGED_LEDGER)))
        case b"schema":
            _demand_keys(stamp, _SCHEMA_ID)
            return SchemaClaim(SchemaId(_path(stamp, _SCHEMA_ID)))
        case b"compacted-ledger":
            _demand_keys(stamp, _COMPACTED_TOPIC, _COMPACTED_TO)
            return CompactedClaim(_topic(stamp, _COMPACTED_TOPIC))
        case b"delayed-index-bucket":
            _demand_keys(stamp, _BUCKET_KEY, _BUCKET_TOPIC, _BUCKET_CURSOR)
            return BucketClaim(_topic(stamp, _BUCKET_TOPIC), _text(stamp, _BUCKET_CURSOR), _bucket_key(stamp))
        case _:
            raise _UnexpectedStampError(f"component {component!r:.80} is not known")


def _demand_keys(stamp: Mapping[str, bytes], *keys: str) -> None:
    wanted = set(keys)
    if stamp.keys() != wanted:
        odd = ", ".join(sorted(stamp.keys() ^ wanted))
        raise _UnexpectedStampError(f"custom metadata of this component has other keys than expected: {odd:.200}")


def _text(stamp: Mapping[str, bytes], key: str) -> str:
    try:
        text = stamp[key].decode("utf-8")
    except UnicodeDecodeError:
        raise _UnexpectedStampError(f"{key} is not UTF-8") from None
    if not text:
        raise _UnexpectedStampError(f"{key} is empty")
    return text


def _path(stamp: Mapping[str, bytes], key: str) -> str:
    path = _text(stamp, key)
    if _UNUSABLE_IN_A_PATH.search(path) or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise _UnexpectedStampError(f"{key} {path!r:.80} cannot name a node of the metadata store")
    return path


def _cursor_name(stamp: Mapping[str, bytes]) -> CursorName:
    name = _path(stamp, _CURSOR)
    if "/" in name:
        raise _UnexpectedStampError(f"{_CURSOR} {name!r:.80} is not encoded as a cursor's name")
    return CursorName(name)


def _topic(stamp: Mapping[str, bytes], key: str) -> TopicName:
    text = _text(stamp, key)
    if "://" not in text:
        raise _UnexpectedStampError(f"{key} {text!r:.80} is not a full topic name")
    try:
        return parse_topic_name(text)
    except InvalidInputError as error:
        raise _UnexpectedStampError(f"{key}: {error}") from None


def _bucket_key(stamp: Mapping[str, bytes]) -> str:
    key = _text(stamp, _BUCKET_KEY)
    if not key.startswith(DELAYED_BUCKET_KEY_PREFIX):
        raise _UnexpectedStampError(f"{_BUCKET_KEY} {key!r:.80} is not a key of a delayed index")
    return key
