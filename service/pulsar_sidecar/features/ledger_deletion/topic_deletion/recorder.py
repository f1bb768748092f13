"""First phase for a whole topic: find and record every referenced ledger, before a broker shrinks a list.

Invariant: the sidecar calls the broker only after every record has its receipt, and a re-read found nothing new. A
sidecar that dies in between leaves no trace of sent records, so the next one sends all again: the second copy of a
record finds its ledger deleted, or kept for the same reason as the first.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from msgspec.structs import replace as struct_replace

from pulsar_sidecar.features.ledger_deletion.grouping import GroupedPublisher
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.ports import LiveOwners, OutgoingMessage, PublishResult, TopicAdmin
from pulsar_sidecar.features.ledger_deletion.record import (
    SIGNING_KEY,
    Mark,
    PendingDeleteLedgerInfo,
    encode_record,
    record_key,
    signed,
    signing_key,
)
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    HeldOperation,
    Operation,
    PartOperation,
    incarnations_of,
    marked_node,
    operation_path,
    require_held,
)
from pulsar_sidecar.model.errors import DataLossError, OutcomeUnknownError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import Birth, MetadataStore, Node, Nodes, read_nodes
from pulsar_sidecar.model.names import CursorName, ManagedLedgerName, TopicName, decode_cursor, topic_of_managed_ledger
from pulsar_sidecar.model.request_traces import RequestTrace
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR, remote_cluster
from pulsar_sidecar.ownership.claims import DataClaim, read_claim
from pulsar_sidecar.ownership.compaction import CompactedLedgers, CursorLedgerGoneError, LedgerEntries
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import (
    POLICIES,
    cursor_path,
    identity_paths,
    instance_id_of,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ownership.references import (
    CursorReferences,
    ManagedLedgerReferences,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ownership.registrations import describe_registered
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, partition_count
from pulsar_sidecar.reports.formatting import format_count


@dataclass(frozen=True, slots=True)
class TopicReferences:
    """Ledgers that one topic's metadata references.

    The schema's are separate (`schema_records`), because partitions share them.
    """

    topic: TopicName
    managed_ledger: ManagedLedgerReferences
    cursors: Mapping[CursorName, CursorReferences] = field(default_factory=dict)
    compacted_ledgers: frozenset[LedgerId] = frozenset()

    @property
    def remotes(self) -> frozenset[str]:
        """Remote clusters to which replicators with cursors here send the topic's messages."""
        return frozenset(filter(None, (remote_cluster(decode_cursor(name) or name) for name in self.cursors)))


@dataclass(frozen=True, slots=True)
class LedgerDetails:
    """Details from a ledger's own metadata."""

    birth: Birth
    length_bytes: int
    entries_of: ManagedLedgerName | None = None
    """Managed ledger whose entries it holds; None where the metadata does not name one."""


def records_of(references: TopicReferences) -> list[PendingDeleteLedgerInfo]:
    """Return one record per ledger and storage, in ascending order of ledger id.

    A ledger that is both in BookKeeper and in tiered storage gets two (PIP-186 "ledgerType").
    """
    topic, records = references.topic, list[PendingDeleteLedgerInfo]()
    for ledger_id, entry in references.managed_ledger.ledgers.items():
        if entry.in_bookkeeper:
            records.append(_record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id))
        if entry.offload is not None:
            record = _record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)
            records.append(replace(record, ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=entry.offload))
    for encoded, cursor in references.cursors.items():
        subscription = decode_cursor(encoded) or encoded
        if cursor.cursor_ledger is not None:
            records.append(_record(topic, LedgerComponent.MANAGED_CURSOR, cursor.cursor_ledger, subscription))
        for ledger_id in cursor.buckets.values():
            records.append(_record(topic, LedgerComponent.DELAYED_INDEX_BUCKET, ledger_id, subscription))
    records += [_record(topic, LedgerComponent.COMPACTED_LEDGER, each) for each in references.compacted_ledgers]
    return sorted(records, key=lambda record: record.ledger_id)


def schema_records(topic: TopicName, ledger_ids: Iterable[LedgerId]) -> list[PendingDeleteLedgerInfo]:
    """Return one record per version of the topic's schema."""
    records = [_record(topic, LedgerComponent.SCHEMA_STORAGE, ledger_id) for ledger_id in sorted(ledger_ids)]
    return [replace(record, schema_id=topic.schema_id) for record in records]


def marked_record(
    record: PendingDeleteLedgerInfo, details: Mapping[LedgerId, LedgerDetails], mark: Mark
) -> PendingDeleteLedgerInfo:
    """Return the record with the first phase's mark, and a BookKeeper ledger's creation time and length."""
    ledger = details.get(record.ledger_id)
    if ledger is None or record.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return record.marked(mark)
    birth, length_bytes = ledger.birth, ledger.length_bytes
    return record.marked(
        replace(mark, created_ms=birth.created_ms, created_order=birth.created_order, length_bytes=length_bytes)
    )


def _record(
    topic: TopicName, component: LedgerComponent, ledger_id: LedgerId, cursor_name: str | None = None
) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic, component, LedgerType.LEDGER, ledger_id, cursor_name=cursor_name)


_Operation = TypeVar("_Operation", bound=Operation)
_STABLE_ROUNDS = 5
"""Rounds after which a topic that still gains ledgers is too busy to be deleted now."""
_TOO_BUSY = "the topic gains ledgers faster than they are recorded; stop its clients and try again"


@dataclass(frozen=True, slots=True)
class Recorder:
    """Recorder of topics' references.

    Concurrent deletions share ``records``, as they share the store's requests.
    """

    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    admin: TopicAdmin
    records: GroupedPublisher
    root: str
    metrics: DeletionMetrics
    steps: Steps

    def read_nodes(self, operation: Operation) -> Nodes:
        """Return the nodes of the topic, of its operation, and those that records need, from one read."""
        base = operation.topic.base
        paths = (
            *operation.node_paths,
            *(managed_ledger_path(each.managed_ledger_name) for each in operation.whole_ledgers),
            managed_ledger_path(operation.topic.managed_ledger_name),
            partitioned_topic_path(operation.topic),
            partitioned_topic_path(base),
            schema_path(operation.topic.schema_id),
            *identity_paths(self.root),
            SIGNING_KEY,
            operation_path(operation.operation_id),
        )
        with self.steps.taking(Step.REFERENCES_GATHERED):
            return read_nodes(self.store, tuple(dict.fromkeys(paths)))

    def record(
        self, held: HeldOperation, nodes: Nodes, check: Callable[[Operation], None]
    ) -> tuple[HeldOperation, Nodes]:
        """Record the operation's references until a read after loading the topics finds nothing new.

        Sending may take long. The topics are loaded after it, so that only ``check``, which raises where no broker may
        be called, and a read come between loading and the broker's deletion. ``nodes`` are of the last read; returns
        the operation with the stored records, and the nodes of a newer read.

        Raises:
            TemporaryError: something could not be read or sent; the broker may not be called yet.
            ConflictError: another sidecar changed the operation's node.
            OperationEndedError: another sidecar ended it.
            DataLossError: a topic is or was a shadow; none of its list was recorded.
        """
        details: dict[LedgerId, LedgerDetails] = {}
        loaded = False
        for _ in range(_STABLE_ROUNDS):
            held, nodes = self._with_new_partitions(held, nodes)
            references = self.references(held.operation, nodes, details)
            held = replace(held, replicated_with=held.replicated_with.union(*(each.remotes for each in references)))
            new = self._new_records(held.operation, references, nodes, details)
            if new:
                self.send(new, held.operation.trace)
                keys = tuple(record_key(record) for record in new)
                held = held.with_state(held.operation.recording(keys))
            elif loaded:
                return held, nodes
            self._load(held.operation)
            loaded = True
            check(held.operation)
            nodes = self.read_nodes(held.operation)
            require_held(held, nodes)
        raise TemporaryError(_TOO_BUSY)

    def record_unloaded(self, operation: _Operation, nodes: Nodes) -> _Operation:
        """Record the marked nodes' references, from ``nodes`` on, until a read finds nothing new; loads no topic."""
        details: dict[LedgerId, LedgerDetails] = {}
        for _ in range(_STABLE_ROUNDS):
            references = self.references(operation, nodes, details)
            new = self._new_records(operation, references, nodes, details)
            if not new:
                return operation
            self.send(new, operation.trace)
            operation = operation.recording(tuple(record_key(record) for record in new))
            nodes = self.read_nodes(operation)
        raise TemporaryError(_TOO_BUSY)

    def record_part(self, planned: PartOperation) -> PartOperation:
        """Mark the nodes of a subscription or schema and record their references; the broker decides."""
        nodes = self.read_nodes(planned)
        partitioned = nodes[partitioned_topic_path(planned.topic)]
        # For a partition's name, brokers do not check whether it has partitions.
        if planned.subscription is not None and planned.topic.partition_index is None and partitioned is not None:
            planned = struct_replace(planned, partitions=partition_count(partitioned.data) or None)
            nodes = self.read_nodes(planned)
        marked = incarnations_of({path: nodes[path] for path in planned.node_paths})
        if not marked:
            return planned
        return self.record_unloaded(struct_replace(planned, incarnations=marked), nodes)

    def records_now(self, operation: Operation, *, load: bool) -> list[PendingDeleteLedgerInfo]:
        """Return records of the topics' current references, after loading them if wanted; sends none."""
        if load:
            self._load(operation)
        nodes, details = self.read_nodes(operation), dict[LedgerId, LedgerDetails]()
        return self._new_records(operation, self.references(operation, nodes, details), nodes, details)

    def _load(self, operation: Operation) -> None:
        """Load the topics before their deletion, where a broker can.

        A broker that becomes the owner of a bundle loads its topics unasked (``PulsarService.loadNamespaceTopics``).
        If a deletion makes it the owner, it opens the managed ledger and deletes it at the same time, and no node links
        the ledger that opening creates. A loaded topic is fenced first, and the ledger that loading created is recorded
        with the rest.
        """
        if operation.incarnations:
            with suppress(TemporaryError, OutcomeUnknownError), self.steps.taking(Step.TOPIC_LOADED):
                self.admin.load_topics(operation.topics)

    def _with_new_partitions(self, held: HeldOperation, nodes: Nodes) -> tuple[HeldOperation, Nodes]:
        """Mark partitions created since: they belong to the same partitioned topic while its node stays.

        The node is read before and after, so that partitions of a recreated topic are never included.
        """
        operation = held.operation
        path = partitioned_topic_path(operation.topic)
        node = nodes[path] if operation.partitioned else None
        if node is None or node.created_order != operation.incarnations.get(path):
            return held, nodes
        grown = struct_replace(operation, partitions=max(operation.partitions or 0, partition_count(node.data)))
        if grown.partitions != operation.partitions:
            nodes = self.read_nodes(grown)
        found = incarnations_of({each: nodes[each] for each in grown.node_paths})
        if found.keys() <= operation.incarnations.keys():
            return held, nodes
        if found.get(path) != node.created_order or marked_node(self.store, operation.incarnations, path) is None:
            return held, nodes
        return held.with_state(struct_replace(grown, incarnations={**operation.incarnations, **found})), nodes

    def _new_records(
        self,
        operation: Operation,
        references: Sequence[TopicReferences],
        nodes: Nodes,
        details: dict[LedgerId, LedgerDetails],
    ) -> list[PendingDeleteLedgerInfo]:
        """Return records of the referenced ledgers that have none yet; adds ``details`` of new ledgers."""
        records = [record for each in references for record in records_of(each)]
        records += schema_records(operation.topic, _schema_ledgers(operation, nodes))
        self.read_details((record.ledger_id for record in records), details)
        for each in references:
            _refuse_former_shadow(each, details)
        known = set(operation.recorded)
        new = [record for record in records if record_key(record) not in known]
        return self.signed(operation, new, nodes, details) if new else []

    def signed(
        self,
        operation: Operation,
        records: Sequence[PendingDeleteLedgerInfo],
        nodes: Nodes,
        details: Mapping[LedgerId, LedgerDetails],
    ) -> list[PendingDeleteLedgerInfo]:
        """Return the records with the operation's mark, signed; ``nodes`` are of one read."""
        mark = Mark(
            operation_id=operation.operation_id,
            instance_id=self.require_identity(nodes),
            requested_by=operation.requested_by,
        )
        key = signing_key(self.store, self.steps, nodes[SIGNING_KEY])
        return [signed(marked_record(record, details, mark), key) for record in records]

    def require_identity(self, nodes: Nodes) -> str:
        """Return BookKeeper's instance id from one read; raises `TemporaryError` below a wrong root."""
        return instance_id_of(map(nodes.get, identity_paths(self.root)), self.root)

    def references(
        self, operation: Operation, nodes: Nodes, details: dict[LedgerId, LedgerDetails]
    ) -> list[TopicReferences]:
        """Return the references of the operation's incarnations; adds the listed ledgers' ``details``."""
        found: dict[TopicName, ManagedLedgerReferences] = {}
        parents: list[TopicName] = []
        for topic in operation.whole_ledgers:
            path = managed_ledger_path(topic.managed_ledger_name)
            node = nodes[path]
            if node is None or not operation.is_target(node):
                continue
            with _reading(path):
                found[topic] = managed_ledger_references(node.data)
            if SHADOW_SOURCE in found[topic].properties:
                # A shadow's list is its source's: a record from it would name another topic's ledgers and copies.
                raise shadow_refusal(topic, found[topic].properties[SHADOW_SOURCE])
            if node.children_count != 0:
                parents.append(topic)
        listed = (each for references in found.values() for each in references.ledgers)
        cursors = self._cursors_and_details(parents, listed, details)
        whole = [self._topic_references(topic, each, cursors.get(topic, {})) for topic, each in found.items()]
        return [*whole, *self._cursors_alone(operation, nodes)]

    def _cursors_alone(self, operation: Operation, nodes: Nodes) -> Iterator[TopicReferences]:
        for topic, cursor in operation.cursors.items():
            node = nodes[cursor_path(topic.managed_ledger_name, cursor)]
            if node is not None and operation.is_target(node):
                with _reading(node.path):
                    references = cursor_references(node.data)
                yield self._topic_references(topic, ManagedLedgerReferences(), {cursor: references})

    def _topic_references(
        self, topic: TopicName, managed_ledger: ManagedLedgerReferences, cursors: dict[CursorName, CursorReferences]
    ) -> TopicReferences:
        compaction = cursors.get(COMPACTION_CURSOR)
        compacted = self._compacted_ledgers(topic, compaction) if compaction else frozenset()
        return TopicReferences(topic, managed_ledger, cursors, compacted)

    def _compacted_ledgers(self, topic: TopicName, compaction: CursorReferences) -> frozenset[LedgerId]:
        # A broker writes the new ledger's id into the cursor's ledger up to a minute after it has switched to it.
        held = self._held_by_owner(topic)
        try:
            return held | CompactedLedgers(self.store, self.entries, self.root).referenced(compaction)
        except CursorLedgerGoneError:
            # A broker deletes a topic's ledgers before its nodes, and may die in between. The references were recorded
            # before it was called; waiting for the cursor's ledger would take forever.
            return held

    def _held_by_owner(self, topic: TopicName) -> frozenset[LedgerId]:
        try:
            view = self.owners.views({topic}).get(topic)
        except TemporaryError:
            # Brokers report nothing about the topics of a namespace that one of them has begun to delete.
            if not is_marked_as_deleted(self.store.read(f"{POLICIES}/{topic.namespace}")):
                raise
            return frozenset()
        return frozenset() if view is None or view.compacted_ledger is None else frozenset({view.compacted_ledger})

    def _cursors_and_details(
        self, topics: Sequence[TopicName], ledger_ids: Iterable[LedgerId], details: dict[LedgerId, LedgerDetails]
    ) -> dict[TopicName, dict[CursorName, CursorReferences]]:
        """Return the cursors of these topics; adds, from the same read, unknown details of these ledgers."""
        lists = self.store.children_many([managed_ledger_path(topic.managed_ledger_name) for topic in topics])
        names = [(topic, CursorName(name)) for topic, found in zip(topics, lists, strict=True) for name in found or ()]
        paths = [cursor_path(topic.managed_ledger_name, name) for topic, name in names]
        unknown = sorted(set(ledger_ids) - details.keys())
        nodes = self.store.read_many([*paths, *(ledger_path(each, self.root) for each in unknown)])
        details.update(_details(unknown, nodes[len(paths) :]))
        cursors: dict[TopicName, dict[CursorName, CursorReferences]] = {}
        for (topic, name), node in zip(names, nodes[: len(paths)], strict=True):
            if node is not None:
                with _reading(node.path):
                    cursors.setdefault(topic, {})[name] = cursor_references(node.data)
        return cursors

    def read_details(self, ledger_ids: Iterable[LedgerId], details: dict[LedgerId, LedgerDetails]) -> None:
        """Add the unknown details of the existing ledgers."""
        unknown = sorted(set(ledger_ids) - details.keys())
        nodes = self.store.read_many([ledger_path(each, self.root) for each in unknown])
        details.update(_details(unknown, nodes))

    def send(self, records: Sequence[PendingDeleteLedgerInfo], trace: RequestTrace) -> None:
        """Send the messages as records of this request; raise `TemporaryError` if some have no receipt."""
        properties = trace.properties()
        messages = [OutgoingMessage(encode_record(each), str(each.topic), properties) for each in records]
        with self.steps.taking(Step.RECORDS_SENT):
            results = self.records.publish(messages)
        for record, result in zip(records, results, strict=True):
            if result is PublishResult.STORED:
                self.metrics.sent(record.ledger_type, record.component)
        missing = sum(not result.stored for result in results)
        if missing:
            raise TemporaryError(
                f"no receipt from __ledger_deletion for {missing} of "
                f"{format_count(len(records), 'record')}: bookies do not store "
                f"them, or a broker hangs; {describe_registered(self.store, self.root)}"
            )


def is_marked_as_deleted(policies: Node | None) -> bool:
    """Return True if a broker has begun to delete the namespace of this node."""
    try:
        return policies is not None and json.loads(policies.data).get("deleted") is True
    except (ValueError, AttributeError):
        return False


def _schema_ledgers(operation: Operation, nodes: Nodes) -> frozenset[LedgerId]:
    node = nodes[schema_path(operation.topic.schema_id)]
    if node is None or not operation.includes_schema:
        return frozenset()
    with _reading(node.path):
        return schema_references(node.data)


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except UndecodableError as error:
        raise UndecodableError(f"{path} cannot be read: {error}") from error


def shadow_refusal(topic: TopicName, source: str) -> DataLossError:
    """Return the error that refuses a shadow's deletion, with the remedy."""
    return DataLossError(
        f"{topic} is a shadow of {source}, and brokers delete the source's ledgers together with a shadow: {source} "
        f"would lose its data. Delete the shadow alone with: pulsar-sidecar topics delete-shadow {topic.base}"
    )


def _refuse_former_shadow(references: TopicReferences, details: Mapping[LedgerId, LedgerDetails]) -> None:
    """Raise `DataLossError` if the topic lists a ledger whose own metadata names another owner of its entries.

    Such a topic is a shadow that lost its property. A ledger that is missing or unreadable proves nothing.
    """
    own = references.topic.managed_ledger_name
    listed = {each: details[each].entries_of for each in references.managed_ledger.ledgers if each in details}
    foreign = {ledger_id: owner for ledger_id, owner in listed.items() if owner is not None and owner != own}
    if not foreign:
        return
    first, owner = next(iter(foreign.items()))
    source, shadow = topic_of_managed_ledger(owner) or owner, references.topic.base
    raise DataLossError(
        f"{references.topic} lists ledgers of {source} (ledger {first} and {len(foreign) - 1} more), as a shadow does "
        f"that lost its property {SHADOW_SOURCE}: brokers delete all that a topic lists, and {source} would lose its "
        "data. Make it a shadow again, as docs/shadow-topics.md shows, and delete it with: "
        f"pulsar-sidecar topics delete-shadow {shadow}"
    )


def _details(ledger_ids: Sequence[LedgerId], nodes: Sequence[Node | None]) -> dict[LedgerId, LedgerDetails]:
    return {each: _details_of(node) for each, node in zip(ledger_ids, nodes, strict=True) if node is not None}


def _details_of(node: Node) -> LedgerDetails:
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError:
        return LedgerDetails(node.birth, length_bytes=0)
    claim = read_claim(metadata.custom_metadata)
    entries_of = claim.managed_ledger if isinstance(claim, DataClaim) else None
    return LedgerDetails(node.birth, metadata.length_bytes, entries_of)
