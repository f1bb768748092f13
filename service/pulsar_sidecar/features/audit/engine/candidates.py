"""Claims, states and likely causes of unreferenced ledgers, from their metadata and their owners' nodes.

Invariants: a ledger whose metadata this version does not understand whole, or whose owner it does not know, is an
`UnattributedLedger` and is never deletable. A cause explains and never decides.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
import pyarrow as pa

from pulsar_sidecar.features.audit.arrays import NO_LEDGER, Numbers
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.features.audit.results.tables import OrphanCause
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    ForeignLedger,
    LedgerKind,
    SchemaClaim,
    UnknownClaim,
    owner_path,
    read_claim,
)
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata, length_bytes
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.places import Owner, Place, locate, owner_of_schema, owner_of_topic
from pulsar_sidecar.ownership.references import cursor_references, managed_ledger_references, schema_references

_MARK = 2**26 - 1
OWNER_COLUMNS = ("path", "value", "version", "mzxid")
"""Columns that `owner_nodes` reads."""


@dataclass(frozen=True, slots=True)
class LedgerSize:
    """Written size of a ledger, by its metadata; ``length_bytes`` is None while it is unknown."""

    state: LedgerState
    length_bytes: int | None
    last_entry_id: int


@dataclass(frozen=True, slots=True)
class ClaimedLedger:
    """Ledger of a kind that this version understands.

    Attributes:
        owner_path: path of the only node that would reference it.
        topic_path: path of the managed ledger's node above that; None for a schema.
    """

    size: LedgerSize
    kind: LedgerKind
    owner: Owner
    owner_path: str
    topic_path: str | None = None
    managed_ledger: str | None = None
    cursor_name: str | None = None
    schema_id: str | None = None


@dataclass(frozen=True, slots=True)
class UnattributedLedger:
    """Ledger whose owner is unknown; ``size`` is None if its metadata could not be read."""

    reason: str
    size: LedgerSize | None = None


def read_candidate(row: Mapping[str, Any]) -> ClaimedLedger | UnattributedLedger:
    """Read a ledger's node (a row with ``metadata`` and ``unreadable``)."""
    if row["metadata"] is None:
        return UnattributedLedger(f"its metadata was not read: {row['unreadable'] or 'no input holds it'}")
    try:
        metadata = decode_ledger_metadata(row["metadata"])
    except UndecodableError as error:
        return UnattributedLedger(f"its metadata cannot be decoded: {error}")
    size = LedgerSize(metadata.state, length_bytes(metadata), metadata.last_entry_id)
    claim = read_claim(metadata.custom_metadata)
    if isinstance(claim, ForeignLedger):
        return UnattributedLedger("its metadata does not name Pulsar as its creator", size)
    if isinstance(claim, UnknownClaim):
        return UnattributedLedger(f"this version does not know its kind: {claim.reason}", size)
    claimed = _claimed(size, claim)
    if claimed.owner.topic is None:
        return UnattributedLedger(f"its owner {claimed.managed_ledger or claimed.schema_id} is not a topic", size)
    return claimed


def _claimed(size: LedgerSize, claim: Claim) -> ClaimedLedger:
    path = owner_path(claim)
    cursor: str | None = None
    match claim:
        case SchemaClaim(schema_id):
            return ClaimedLedger(size, LedgerKind.SCHEMA, owner_of_schema(schema_id), path, schema_id=schema_id)
        case DataClaim(name):
            kind, topic = LedgerKind.DATA, topic_of_managed_ledger(name)
        case CursorClaim(name, encoded):
            kind, cursor = LedgerKind.CURSOR, decode_cursor(encoded)
            # A cursor name that Pulsar does not write has no known owner.
            topic = None if cursor is None else topic_of_managed_ledger(name)
        case CompactedClaim(topic):
            kind, name = LedgerKind.COMPACTED, topic.managed_ledger_name
        case BucketClaim(topic, cursor, _):
            kind, name = LedgerKind.DELAYED_INDEX_BUCKET, topic.managed_ledger_name
        case never:
            assert_never(never)
    return ClaimedLedger(size, kind, owner_of_topic(topic), path, managed_ledger_path(name), name, cursor)


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """Content of an owner's node.

    Attributes:
        ledgers: number of ledgers it names, from ``first_ledger`` to ``last_ledger``; None if it was not understood.
        offloaded: the ledgers among them whose BookKeeper copy tiered storage has replaced.
    """

    path: str
    version: int | None
    mzxid: int | None
    ledgers: int | None = None
    first_ledger: int | None = None
    last_ledger: int | None = None
    offloaded: tuple[int, ...] = ()


def owner_node(node: Mapping[str, Any]) -> OwnerNode:
    named = _named(node)
    about = (node["path"], node["version"], node["mzxid"])
    if not named:
        return OwnerNode(*about, None if named is None else 0)
    offloaded = tuple(sorted(ledger_id for ledger_id, is_offloaded in named.items() if is_offloaded))
    return OwnerNode(*about, len(named), min(named), max(named), offloaded)


def _named(node: Mapping[str, Any]) -> dict[int, bool] | None:
    """Return the ledgers, with True for those that tiered storage has replaced."""
    if node["value"] is None:
        return None
    try:
        match locate(node["path"]).place:
            case Place.SCHEMA:
                return dict.fromkeys(schema_references(node["value"]) if node["value"] else (), False)
            case Place.CURSOR:
                cursor = cursor_references(node["value"])
                found = {cursor.cursor_ledger, cursor.compacted_ledger, *cursor.buckets.values()}
                return {ledger_id: False for ledger_id in found if ledger_id is not None}
            case Place.MANAGED_LEDGER | Place.EITHER | Place.ODD:
                listed = managed_ledger_references(node["value"]).ledgers.items()
                return {id_: not entry.in_bookkeeper for id_, entry in listed}
    except UndecodableError:
        return None


def cause_of(ledger_id: int, claimed: ClaimedLedger, owner: OwnerNode | None, topic: OwnerNode | None) -> OrphanCause:
    """Return the likely cause, from the owner's node and its managed ledger's; None is a node that does not exist."""
    if claimed.kind is LedgerKind.SCHEMA:
        return OrphanCause.HALF_DELETED_TOPIC if owner is None else OrphanCause.SCHEMA_RACE
    if topic is None:
        return OrphanCause.HALF_DELETED_TOPIC
    if claimed.kind is LedgerKind.COMPACTED:
        return OrphanCause.FAILED_COMPACTION
    if owner is None:
        return OrphanCause.HALF_DELETED_CURSOR
    match claimed.kind:
        case LedgerKind.DATA:
            return _cause_of_data(ledger_id, claimed, owner)
        case LedgerKind.CURSOR:
            return OrphanCause.FAILED_CURSOR_SWITCH
        case LedgerKind.DELAYED_INDEX_BUCKET:
            return OrphanCause.LOST_BUCKET_POINTER
        case LedgerKind.LOG_SEGMENT | LedgerKind.UNKNOWN:
            return OrphanCause.UNKNOWN


def _cause_of_data(ledger_id: int, claimed: ClaimedLedger, owner: OwnerNode) -> OrphanCause:
    if owner.ledgers is None:
        return OrphanCause.UNKNOWN
    if ledger_id in owner.offloaded:
        return OrphanCause.OFFLOADED_COPY
    if owner.first_ledger is None or owner.last_ledger is None:
        # The list was emptied, so nothing shows on which side of it the ledger was.
        return OrphanCause.UNKNOWN
    if ledger_id < owner.first_ledger:
        return OrphanCause.INTERRUPTED_TRIM
    is_empty = claimed.size.state is not LedgerState.CLOSED or claimed.size.last_entry_id < 0
    if ledger_id > owner.last_ledger or is_empty:
        return OrphanCause.FAILED_ROLLOVER
    return OrphanCause.HAND_EDIT


def evidence_of(ledger_id: int, claimed: ClaimedLedger, owner: OwnerNode | None, topic: OwnerNode | None) -> list[str]:
    """Return the reads that prove "unreferenced", as sentences."""
    sentences = [f"its metadata: {_describe_claim(claimed)}"]
    if claimed.topic_path is not None and claimed.topic_path != claimed.owner_path:
        sentences.append(f"the topic's node: {_describe_node(ledger_id, claimed.topic_path, topic)}")
    return [*sentences, f"the owner's node: {_describe_node(ledger_id, claimed.owner_path, owner)}"]


def _describe_claim(claimed: ClaimedLedger) -> str:
    match claimed.kind:
        case LedgerKind.SCHEMA:
            return f"a version of the schema {claimed.schema_id}"
        case LedgerKind.CURSOR:
            return f"the position of the cursor {claimed.cursor_name} of {claimed.managed_ledger}"
        case LedgerKind.COMPACTED:
            return f"the compacted view of {claimed.owner.topic}"
        case LedgerKind.DELAYED_INDEX_BUCKET:
            return f"a delayed-index bucket of {claimed.cursor_name} on {claimed.owner.topic}"
        case LedgerKind.DATA | LedgerKind.LOG_SEGMENT | LedgerKind.UNKNOWN:
            return f"entries of {claimed.managed_ledger}"


def _describe_node(ledger_id: int, path: str, node: OwnerNode | None) -> str:
    if node is None:
        return f"there is no {path}"
    at = f"{path} at version {node.version} (mzxid {node.mzxid})"
    if node.ledgers is None:
        return f"{at} cannot be decoded"
    if node.ledgers == 0:
        return f"{at} names no ledger"
    span = f"ledger {node.first_ledger}" if node.ledgers == 1 else f"from {node.first_ledger} to {node.last_ledger}"
    this = "this one as replaced by tiered storage" if ledger_id in node.offloaded else "not this one"
    return f"{at} names {node.ledgers}, {span}, and {this}"


def path_marks(paths: pa.Array) -> Numbers:
    """Return a number below 2**26 for each path; a node whose mark no owner's path has is no owner's."""
    return np.fromiter((zlib.crc32(path.encode()) & _MARK for path in paths.to_pylist()), np.int64, len(paths))


def node_marks(nodes: pa.RecordBatch) -> Numbers:
    return path_marks(nodes.column("path"))


def owner_nodes(columns: ColumnReader, nodes: pa.RecordBatch) -> list[OwnerNode]:
    """Return `owner_node` of each node; plain lists are read together."""
    plain = columns.read_nodes(nodes.column("path"), nodes.column("value"), with_entries=False)
    lists, misplaced = plain.lists, set(plain.misplaced.tolist())
    starts = np.flatnonzero(np.diff(lists.node, prepend=NO_LEDGER))
    counts = np.diff(starts, append=len(lists.node))
    ends = starts + counts - 1
    summed = zip(lists.node[starts], counts, lists.ledger_id[starts], lists.ledger_id[ends], strict=True)
    read = {int(node): (int(count), int(first), int(last)) for node, count, first, last in summed}
    about = nodes.select(["path", "version", "mzxid"]).to_pylist()
    return [
        OwnerNode(row["path"], row["version"], row["mzxid"], *read[number])
        if number in read and number not in misplaced
        else owner_node({**row, "value": nodes.column("value")[number].as_py()})
        for number, row in enumerate(about)
    ]
