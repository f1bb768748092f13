"""Gathering of the facts that `decide.decide` judges by, for a whole batch at a time.

The order of the reads is part of the safety: first the ledgers' own nodes, whose versions the deletion will name;
then the clock; then the live owners; last the owners' nodes, whose versions guard the deletion. A reference that
appears between a read and the deletion changes a version and so makes the deletion a conflict. A copy in tiered storage
that a list names as the only one is read after the list. The clock comes before
the owners: a ledger that was old enough, or in use for long enough, by then was so when its owner was read (tests/model
has the two counterexamples of a clock that is read last).

Nothing here concludes "unreferenced" from a node that was not read or not decoded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, assert_never

from pulsar_sidecar.features.ledger_deletion.ports import LiveOwners
from pulsar_sidecar.features.ledger_deletion.record import SIGNING_KEY, PendingDeleteLedgerInfo, is_signed
from pulsar_sidecar.features.ledger_deletion.second_phase.decide import (
    Facts,
    Referenced,
    References,
    ReferencesUnknown,
    StoredLedger,
    UndecodableLedger,
    Unreferenced,
)
from pulsar_sidecar.features.ledger_deletion.second_phase.only_copies import OnlyCopies, OnlyCopy
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import operation_path
from pulsar_sidecar.features.ledger_deletion.undelete import protected_until
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerType, OffloadContext
from pulsar_sidecar.model.metadata import Guard, MetadataStore, Node, read_nodes
from pulsar_sidecar.model.names import ManagedLedgerName, TopicName, topic_of_managed_ledger
from pulsar_sidecar.ownership.claims import (
    BucketClaim,
    Claim,
    CompactedClaim,
    CursorClaim,
    DataClaim,
    ForeignLedger,
    SchemaClaim,
    UnknownClaim,
    owner_path,
    read_claim,
)
from pulsar_sidecar.ownership.compaction import CompactedLedgers, LedgerEntries
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import (
    identity_paths,
    instance_id_of,
    ledger_path,
    managed_ledger_path,
    replication_lock_path,
    replication_locks_path,
    under_replication_mark_path,
    under_replication_marks_path,
)
from pulsar_sidecar.ownership.references import (
    LedgerReference,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Gatherer:
    """Reader of all that a batch of evaluations needs."""

    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    only_copies: OnlyCopies
    root: str

    def gather(self, seen: Sequence[tuple[PendingDeleteLedgerInfo, int | None]]) -> list[Facts]:
        """Return each record's facts, in order; ``seen`` has the time it was first found in use, on the store's clock.

        Raises:
            TemporaryError: the store or a live broker could not be reached; no record's facts are known.
        """
        records = [record for record, _ in seen]
        paths = {record.ledger_id: ledger_path(record.ledger_id, self.root) for record in records}
        identity = identity_paths(self.root)
        nodes = read_nodes(self.store, [*identity, *paths.values(), *_marked_paths(records)])
        instance_id = instance_id_of(map(nodes.get, identity), self.root)
        # Two listings, mostly empty, instead of two reads for each ledger.
        locks_path = replication_locks_path(self.root)
        locks = frozenset(f"{locks_path}/{name}" for name in self.store.children(locks_path) or ())
        marks = self._under_replication_marks(paths)
        ledgers = {
            ledger_id: stored_ledger(
                nodes[path], locked=bool(locks) and replication_lock_path(ledger_id, self.root) in locks
            )
            for ledger_id, path in paths.items()
        }
        claims = [_claim(record, ledgers[record.ledger_id]) for record in records]
        topics = [_topic(record, claim) for record, claim in zip(records, claims, strict=True)]
        # After the ledgers' nodes: ``undelete`` protects a ledger before it restores its node.
        protected = protected_until(self.store, paths)
        now_ms = self.store.now_ms()
        views = self.owners.views({topic for topic in topics if topic is not None})
        owner_nodes = read_nodes(self.store, [owner_path(claim) for claim in claims if claim is not None])
        owners = OwnerNodes(owner_nodes, CompactedLedgers(self.store, self.entries, self.root))
        key = nodes.get(SIGNING_KEY)
        references = [_references(owners, record, claim) for record, claim in zip(records, claims, strict=True)]
        whole = self.only_copies.whole([_only_copy(*each) for each in zip(records, references, strict=True)])
        return [
            Facts(
                record=record,
                instance_id=instance_id,
                ledger=ledgers[record.ledger_id],
                references=referenced,
                owner=views.get(topic) if topic is not None else None,
                operation_running=_operation_running(record, nodes),
                now_ms=now_ms,
                in_use_since_ms=in_use_since_ms,
                from_own_list=is_signed(record, None if key is None else key.data),
                protected_until_ms=protected.get(record.ledger_id),
                under_replication_mark=marks.get(record.ledger_id),
                only_copy_whole=is_whole,
            )
            for (record, in_use_since_ms), referenced, topic, is_whole in zip(
                seen, references, topics, whole, strict=True
            )
        ]

    def _under_replication_marks(self, ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, str]:
        if not self.store.children(under_replication_marks_path(self.root)):
            return {}
        paths = {ledger_id: under_replication_mark_path(ledger_id, self.root) for ledger_id in ledger_ids}
        found = read_nodes(self.store, paths.values())
        return {ledger_id: path for ledger_id, path in paths.items() if found[path] is not None}


def _marked_paths(records: Iterable[PendingDeleteLedgerInfo]) -> Iterable[str]:
    for record in records:
        if record.mark.operation_id is not None:
            yield operation_path(record.mark.operation_id)
        if record.mark.signature is not None:
            yield SIGNING_KEY


def stored_ledger(node: Node | None, *, locked: bool) -> StoredLedger | UndecodableLedger | None:
    """Decode a ledger's node; ``locked`` while its copies are being repaired."""
    if node is None:
        return None
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError as error:
        return UndecodableLedger(str(error))
    claim = read_claim(metadata.custom_metadata)
    return StoredLedger(
        node.path,
        node.data,
        node.version,
        node.created_ms,
        node.birth,
        metadata,
        claim,
        locked,
        node.modified_order,
    )


def _claim(record: PendingDeleteLedgerInfo, ledger: StoredLedger | UndecodableLedger | None) -> Claim | None:
    if record.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return DataClaim(record.topic.managed_ledger_name)
    if not isinstance(ledger, StoredLedger) or isinstance(ledger.claim, (ForeignLedger, UnknownClaim)):
        return None
    return ledger.claim


def _topic(record: PendingDeleteLedgerInfo, claim: Claim | None) -> TopicName | None:
    match claim:
        case None:
            return None
        case DataClaim(managed_ledger) | CursorClaim(managed_ledger, _):
            return topic_of_managed_ledger(managed_ledger)
        case CompactedClaim(topic) | BucketClaim(topic, _, _):
            return topic
        case SchemaClaim(schema_id):
            return record.topic if record.topic.schema_id == schema_id else None


def _operation_running(record: PendingDeleteLedgerInfo, nodes: Mapping[str, Node | None]) -> bool:
    operation_id = record.mark.operation_id
    return operation_id is not None and nodes[operation_path(operation_id)] is not None


# --- references from the claimed owner -------------------------------------------------------------------------------


def _references(owners: "OwnerNodes", record: PendingDeleteLedgerInfo, claim: Claim | None) -> References:
    if record.ledger_type is LedgerType.OFFLOAD_LEDGER and record.offload_context is not None:
        return owners.offload_references(record.topic.managed_ledger_name, record.ledger_id, record.offload_context)
    if claim is None:
        return ReferencesUnknown("the ledger claims no owner that this version knows")
    return owners.references(claim, record.ledger_id)


def _only_copy(record: PendingDeleteLedgerInfo, references: References) -> OnlyCopy | None:
    if not isinstance(references, Unreferenced) or references.only_copy is None:
        return None
    return OnlyCopy(record.ledger_id, references.only_copy, record.topic.managed_ledger_name)


@dataclass(slots=True)
class OwnerNodes:
    """Owners' nodes of one batch and their references; decodes every node once."""

    nodes: Mapping[str, Node | None]
    compacted_ledgers: CompactedLedgers
    _decoded: dict[tuple[str, str], object] = field(default_factory=dict)

    def references(self, claim: Claim, ledger_id: LedgerId) -> References:
        path = owner_path(claim)
        try:
            if not isinstance(claim, DataClaim):
                return self._verdict(path, self._names(claim, path, ledger_id))
            listed = self._decode(path, managed_ledger_references)
        except TemporaryError as error:
            return ReferencesUnknown(f"{path}: {error}")
        entry = listed.ledgers.get(ledger_id) if listed else None
        # Once the offloaded copy has replaced it, the list entry no longer means BookKeeper's copy.
        replaced = entry is not None and not entry.in_bookkeeper
        return self._verdict(path, entry is not None and not replaced, entry if replaced else None)

    def offload_references(
        self, managed_ledger: ManagedLedgerName, ledger_id: LedgerId, context: OffloadContext
    ) -> References:
        """Return the managed ledger's references to this offload attempt's copy."""
        path = managed_ledger_path(managed_ledger)
        try:
            listed = self._decode(path, managed_ledger_references)
        except TemporaryError as error:
            return ReferencesUnknown(f"{path}: {error}")
        if listed is None:
            return Unreferenced()
        if SHADOW_SOURCE in listed.properties:
            # Whatever a shadow's list names now, the copies belong to its source.
            return self._verdict(path, True)
        entry = listed.ledgers.get(ledger_id)
        offload = entry.offload if entry else None
        same = offload is not None and (offload.uid_msb, offload.uid_lsb) == (context.uid_msb, context.uid_lsb)
        return self._verdict(path, same, None if same else entry)

    def _verdict(self, path: str, referenced: bool, other_copy: LedgerReference | None = None) -> References:
        node = self.nodes[path]
        if node is None:
            return Unreferenced()
        guard = Guard(path, node.version, node.modified_order)
        if referenced:
            return Referenced(guard)
        if other_copy is None:
            return Unreferenced((guard,))
        return Unreferenced((guard,), True, None if other_copy.in_bookkeeper else other_copy.offload)

    def _names(
        self, claim: CursorClaim | SchemaClaim | CompactedClaim | BucketClaim, path: str, ledger_id: LedgerId
    ) -> bool:
        match claim:
            case CursorClaim():
                cursor = self._decode(path, cursor_references)
                return cursor is not None and cursor.cursor_ledger == ledger_id
            case SchemaClaim():
                return ledger_id in (self._decode(path, schema_references) or ())
            case CompactedClaim():
                return ledger_id in (self._decode(path, self._compacted) or ())
            case BucketClaim():
                cursor = self._decode(path, cursor_references)
                return cursor is not None and ledger_id in cursor.buckets.values()
            case never:
                assert_never(never)

    def _compacted(self, data: bytes) -> frozenset[LedgerId]:
        return self.compacted_ledgers.referenced(cursor_references(data))

    def _decode(self, path: str, decoder: Callable[[bytes], Decoded]) -> Decoded | None:
        node = self.nodes[path]
        if node is None:
            return None
        key = (decoder.__name__, path)
        if key not in self._decoded:
            self._decoded[key] = decoder(node.data)
        return self._decoded[key]  # type: ignore[return-value]
