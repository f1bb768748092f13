"""Gathers the facts that `decide.decide` judges by, for a whole batch at a time.

The order of the reads is part of the safety: first the ledgers' own nodes, whose versions the deletion will name;
then the clock; then the live owners; last the owners' nodes, whose versions the deletion is guarded by. A reference
that appears between a read and the deletion changes a version and so makes the deletion a conflict. The clock comes
before the owners: what was old enough, or had been in use for long enough, by then was so when its owner was read
(tests/model has the two counterexamples of a clock that is read last).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pulsar_sidecar.ledger_deletion.ports import LiveOwners
from pulsar_sidecar.ledger_deletion.protect import protected_until
from pulsar_sidecar.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_deletion.second_phase.facts import (
    Facts,
    References,
    ReferencesUnknown,
    StoredLedger,
    UndecodableLedger,
)
from pulsar_sidecar.ledger_deletion.second_phase.reference_check import OwnerNodes, owner_path
from pulsar_sidecar.ledger_deletion.signature import SIGNING_KEY, is_signed
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import operation_path
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
from pulsar_sidecar.ledger_ownership.compaction import CompactedLedgers, LedgerEntries
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import (
    instance_id_of,
    instance_id_path,
    ledger_path,
    managed_ledger_path,
    replication_lock_path,
    replication_locks_path,
    under_replication_mark_path,
    under_replication_marks_path,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerType
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, topic_of_managed_ledger


@dataclass(frozen=True, slots=True)
class Question:
    """One record to be judged, and since when it has been seen in use (store's clock), if it has."""

    record: PendingDeleteLedgerInfo
    in_use_since_ms: int | None = None


class Gatherer:
    """Reads everything that a batch of evaluations needs."""

    def __init__(self, store: MetadataStore, entries: LedgerEntries, owners: LiveOwners, ledgers_root: str) -> None:
        self._store = store
        self._owners = owners
        self._root = ledgers_root
        self._compacted = CompactedLedgers(store, entries, ledgers_root)

    def gather(self, questions: Sequence[Question]) -> list[Facts]:
        """The facts of each question, in order.

        Raises:
            TemporaryError: the store or a live broker could not be asked; nothing is known about any of them.
        """
        ledger_paths = {
            question.record.ledger_id: ledger_path(question.record.ledger_id, self._root) for question in questions
        }
        nodes = self._read(self._first_paths(questions, ledger_paths.values()))
        instance_id = instance_id_of(nodes[instance_id_path(self._root)], self._root)
        repair = self._repair(ledger_paths)
        ledgers = {ledger_id: _ledger(ledger_id, nodes[path], repair) for ledger_id, path in ledger_paths.items()}
        claims = [_claim(question.record, ledgers[question.record.ledger_id]) for question in questions]
        topics = [_topic(question.record, claim) for question, claim in zip(questions, claims, strict=True)]
        # After the ledgers' nodes: a ledger that is brought back is protected before it is there.
        protected = protected_until(self._store, ledger_paths)
        now_ms = self._store.now_ms()
        views = self._owners.views({topic for topic in topics if topic is not None})
        owners = OwnerNodes(self._read(_owner_paths(questions, claims)), self._compacted)
        return [
            Facts(
                record=question.record,
                instance_id=instance_id,
                ledger=ledgers[question.record.ledger_id],
                references=_references(owners, question.record, claim),
                owner=views.get(topic) if topic is not None else None,
                operation_running=_operation_running(question.record, nodes),
                in_use_since_ms=question.in_use_since_ms,
                now_ms=now_ms,
                from_own_list=_is_from_own_list(question.record, nodes),
                protected_until_ms=protected.get(question.record.ledger_id),
                under_replication_mark=repair.marks.get(question.record.ledger_id),
            )
            for question, claim, topic in zip(questions, claims, topics, strict=True)
        ]

    def _first_paths(self, questions: Sequence[Question], ledger_paths: Iterable[str]) -> Iterable[str]:
        yield instance_id_path(self._root)
        yield from ledger_paths
        for question in questions:
            if question.record.mark.operation_id is not None:
                yield operation_path(question.record.mark.operation_id)
            if question.record.mark.signature is not None:
                yield SIGNING_KEY

    def _read(self, paths: Iterable[str]) -> dict[str, Node | None]:
        distinct = list(dict.fromkeys(paths))
        return dict(zip(distinct, self._store.read_many(distinct), strict=True))

    def _repair(self, ledger_ids: Iterable[LedgerId]) -> "_Repair":
        """Two listings, mostly empty, instead of two reads for each ledger."""
        locks = replication_locks_path(self._root)
        return _Repair(
            locks=frozenset(f"{locks}/{name}" for name in self._store.children(locks) or ()),
            marks=self._marks(ledger_ids) if self._store.children(under_replication_marks_path(self._root)) else {},
            root=self._root,
        )

    def _marks(self, ledger_ids: Iterable[LedgerId]) -> dict[LedgerId, str]:
        paths = {ledger_id: under_replication_mark_path(ledger_id, self._root) for ledger_id in ledger_ids}
        found = self._read(paths.values())
        return {ledger_id: path for ledger_id, path in paths.items() if found[path] is not None}


@dataclass(frozen=True, slots=True)
class _Repair:
    """The locks that are held on ledgers, and the notes about those of this batch."""

    locks: frozenset[str]
    marks: Mapping[LedgerId, str]
    root: str

    def is_locked(self, ledger_id: LedgerId) -> bool:
        return bool(self.locks) and replication_lock_path(ledger_id, self.root) in self.locks


def _ledger(ledger_id: LedgerId, node: Node | None, repair: _Repair) -> StoredLedger | UndecodableLedger | None:
    if node is None:
        return None
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError as error:
        return UndecodableLedger(node.path, node.version, str(error))
    return StoredLedger(
        path=node.path,
        raw=node.data,
        version=node.version,
        created_ms=node.created_ms,
        metadata=metadata,
        claim=read_claim(metadata.custom_metadata),
        replication_locked=repair.is_locked(ledger_id),
    )


def _claim(record: PendingDeleteLedgerInfo, ledger: StoredLedger | UndecodableLedger | None) -> Claim | None:
    if record.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return DataClaim(record.topic.managed_ledger_name)
    if not isinstance(ledger, StoredLedger) or isinstance(ledger.claim, (NotPulsars, Unrecognised)):
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


def _owner_paths(questions: Sequence[Question], claims: Sequence[Claim | None]) -> Iterable[str]:
    for question, claim in zip(questions, claims, strict=True):
        if question.record.ledger_type is LedgerType.OFFLOAD_LEDGER:
            yield managed_ledger_path(question.record.topic.managed_ledger_name)
        elif claim is not None:
            yield owner_path(claim)


def _references(owners: OwnerNodes, record: PendingDeleteLedgerInfo, claim: Claim | None) -> References:
    if record.ledger_type is LedgerType.OFFLOAD_LEDGER and record.offload_context is not None:
        return owners.offload_references(record.topic.managed_ledger_name, record.ledger_id, record.offload_context)
    if claim is None:
        return ReferencesUnknown("the ledger claims no owner that this version knows")
    return owners.references(claim, record.ledger_id)


def _is_from_own_list(record: PendingDeleteLedgerInfo, nodes: Mapping[str, Node | None]) -> bool:
    key = nodes.get(SIGNING_KEY)
    return is_signed(record, None if key is None else key.data)


def _operation_running(record: PendingDeleteLedgerInfo, nodes: Mapping[str, Node | None]) -> bool:
    operation_id = record.mark.operation_id
    return operation_id is not None and nodes[operation_path(operation_id)] is not None
