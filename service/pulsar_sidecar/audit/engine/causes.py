"""Why a ledger most likely was left behind, and the reads that say so.

Invariant: a cause explains and never decides; whether a ledger is condemned does not depend on it.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pulsar_sidecar.audit.engine.candidates import Claimed
from pulsar_sidecar.audit.engine.places import Place, locate
from pulsar_sidecar.audit.results.tables import LedgerKind, OrphanCause
from pulsar_sidecar.ledger_ownership.references import cursor_references, managed_ledger_references, schema_references
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ledgers import LedgerState


@dataclass(frozen=True, slots=True)
class OwnerNode:
    """What an owner's node held.

    Attributes:
        ledgers: how many ledgers it names, from ``first_ledger`` to ``last_ledger``; None if it was not understood.
        offloaded: those among them whose copy in BookKeeper tiered storage has replaced.
    """

    path: str
    version: int | None
    mzxid: int | None
    ledgers: int | None = None
    first_ledger: int | None = None
    last_ledger: int | None = None
    offloaded: tuple[int, ...] = ()

    def row(self) -> dict[str, Any]:
        """As a row."""
        return asdict(self)


def owner_node(node: Mapping[str, Any]) -> OwnerNode:
    """Read a node (a row of `audit.tables.NODES`)."""
    named = _named(node)
    about = (node["path"], node["version"], node["mzxid"])
    if not named:
        return OwnerNode(*about, None if named is None else 0)
    offloaded = tuple(sorted(ledger_id for ledger_id, is_offloaded in named.items() if is_offloaded))
    return OwnerNode(*about, len(named), min(named), max(named), offloaded)


def _named(node: Mapping[str, Any]) -> dict[int, bool] | None:
    """The ledgers, and which of them tiered storage has replaced."""
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
            case _:
                listed = managed_ledger_references(node["value"]).ledgers.items()
                return {id_: bool(entry.offload and entry.offload.bookkeeper_deleted) for id_, entry in listed}
    except UndecodableError:
        return None


def cause_of(ledger_id: int, claimed: Claimed, owner: OwnerNode | None, topic: OwnerNode | None) -> OrphanCause:
    """The likely cause, from the owner's node and that of its managed ledger; None is a node that is not there."""
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
        case _:
            return OrphanCause.UNKNOWN


def _cause_of_data(ledger_id: int, claimed: Claimed, owner: OwnerNode) -> OrphanCause:
    if owner.ledgers is None:
        return OrphanCause.UNKNOWN
    if ledger_id in owner.offloaded:
        return OrphanCause.OFFLOADED_COPY
    if owner.first_ledger is None or owner.last_ledger is None:
        # A list that was emptied: nothing tells on which side of it the ledger was.
        return OrphanCause.UNKNOWN
    if ledger_id < owner.first_ledger:
        return OrphanCause.INTERRUPTED_TRIM
    is_empty = claimed.extent.state is not LedgerState.CLOSED or claimed.extent.last_entry_id < 0
    if ledger_id > owner.last_ledger or is_empty:
        return OrphanCause.FAILED_ROLLOVER
    return OrphanCause.HAND_EDIT


def evidence_of(ledger_id: int, claimed: Claimed, owner: OwnerNode | None, topic: OwnerNode | None) -> list[str]:
    """The reads that lead to "unreferenced", as sentences."""
    sentences = [f"its metadata says: {_describe_claim(claimed)}"]
    if claimed.topic_path is not None and claimed.topic_path != claimed.owner_path:
        sentences.append(f"the topic's node: {_seen(ledger_id, claimed.topic_path, topic)}")
    return [*sentences, f"the owner's node: {_seen(ledger_id, claimed.owner_path, owner)}"]


def _describe_claim(claimed: Claimed) -> str:
    match claimed.kind:
        case LedgerKind.SCHEMA:
            return f"a version of the schema {claimed.schema_id}"
        case LedgerKind.CURSOR:
            return f"the position of the cursor {claimed.cursor_name} of {claimed.managed_ledger}"
        case LedgerKind.COMPACTED:
            return f"the compacted view of {claimed.owner.topic}"
        case LedgerKind.DELAYED_INDEX_BUCKET:
            return f"a delayed-index bucket of {claimed.cursor_name} on {claimed.owner.topic}"
        case _:
            return f"entries of {claimed.managed_ledger}"


def _seen(ledger_id: int, path: str, node: OwnerNode | None) -> str:
    if node is None:
        return f"there is no {path}"
    at = f"{path} at version {node.version} (mzxid {node.mzxid})"
    if node.ledgers is None:
        return f"{at} was not understood"
    if node.ledgers == 0:
        return f"{at} names no ledger"
    span = f"ledger {node.first_ledger}" if node.ledgers == 1 else f"from {node.first_ledger} to {node.last_ledger}"
    this = "this one as replaced by tiered storage" if ledger_id in node.offloaded else "not this one"
    return f"{at} names {node.ledgers}, {span}, and {this}"
