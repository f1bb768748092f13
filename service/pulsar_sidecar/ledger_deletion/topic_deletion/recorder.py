"""The first phase for a whole topic: find every ledger it references and record each, before anybody shrinks a list.

What is recorded is persisted in the operation's node before it is sent, under fixed sequence ids. Brokers do not
deduplicate these topics, so whoever resumes has the publisher read back what is stored, and sends the rest.
"""

from collections.abc import Callable, Mapping, Sequence

from pulsar_sidecar.ledger_deletion.ports import (
    DeletionTopic,
    DeletionTopics,
    LiveOwners,
    OutgoingMessage,
    Publisher,
    PublishResult,
)
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.signature import signed, signing_key
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.ledger_list import (
    LedgerBirth,
    TopicReferences,
    ledger_ids_of,
    record_key,
    records_of,
    schema_records,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import (
    MAX_NODE_BYTES,
    HeldOperation,
    Operation,
    write_operation,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.shadow_protection import refuse_former_shadow, shadow_refusal
from pulsar_sidecar.ledger_ownership.claims import DataClaim, read_claim
from pulsar_sidecar.ledger_ownership.compaction import COMPACTION_CURSOR, CompactedLedgers, CursorLedgerGoneError
from pulsar_sidecar.ledger_ownership.instances import instance_id_of
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    instance_id_path,
    ledger_path,
    managed_ledger_path,
    schema_path,
)
from pulsar_sidecar.ledger_ownership.ports import LedgerEntries
from pulsar_sidecar.ledger_ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.observability.metrics import DeletionMetrics

_STABLE_ROUNDS = 5
"""A topic that gains ledgers faster than they can be recorded is too busy to be deleted now."""


class Recorder:
    """Records what topics reference."""

    def __init__(
        self,
        store: MetadataStore,
        entries: LedgerEntries,
        owners: LiveOwners,
        topics: DeletionTopics,
        ledgers_root: str,
        metrics: DeletionMetrics,
        steps: Steps,
        max_node_bytes: int = MAX_NODE_BYTES,
    ) -> None:
        self._store = store
        self._max_node_bytes = max_node_bytes
        self._owners = owners
        self._topics = topics
        self._root = ledgers_root
        self._metrics = metrics
        self._steps = steps
        self._compacted = CompactedLedgers(store, entries, ledgers_root)

    def incarnations(self, paths: Sequence[str]) -> dict[str, int]:
        """Creation order of every node that exists, by path."""
        return {node.path: node.created_order for node in self._store.read_many(paths) if node is not None}

    def record(self, held: HeldOperation, settle: Callable[[], None] = lambda: None) -> HeldOperation:
        """Record everything the operation's topics reference now, until nothing new turns up.

        Sending may take long; ``settle`` is called after it, so between the last call and the end there is but a look.

        Raises:
            TemporaryError: something could not be read or sent; the broker must not be asked yet.
            DataLossError: a topic is or was a shadow; nothing of its list was recorded.
        """
        # Nobody has produced under the operation's name before it has recorded anything: nothing is to be read back.
        outbox = _Outbox(self._topics, first_use=not held.operation.recorded)
        try:
            return self._record(held, outbox, settle)
        finally:
            outbox.close()

    def _record(self, held: HeldOperation, outbox: "_Outbox", settle: Callable[[], None]) -> HeldOperation:
        resend, settled = True, False
        for _ in range(_STABLE_ROUNDS):
            with self._steps.taking(Step.REFERENCES_GATHERED):
                records = self.current_records(held.operation)
            held, numbered = self._numbered(held, records, resend=resend)
            if settled and not numbered:
                return held
            if numbered:
                with self._steps.taking(Step.RECORDS_SENT):
                    self._send(outbox.publisher(held.operation.producer_name), numbered)
            settle()
            resend, settled = False, True
        raise TemporaryError("the topic gains ledgers faster than they are recorded; stop its producers and try again")

    def _numbered(
        self, held: HeldOperation, records: Sequence[PendingDeleteLedgerInfo], *, resend: bool
    ) -> tuple[HeldOperation, list[tuple[int, PendingDeleteLedgerInfo]]]:
        """The records to send with their sequence ids, ascending; new ones are persisted in the node first.

        A crash may have come between persisting and sending, so an attempt starts by sending everything again.
        """
        numbers = {key: number for number, key in enumerate(held.operation.recorded)}
        known = [(numbers[record_key(record)], record) for record in records if record_key(record) in numbers]
        new = [record for record in records if record_key(record) not in numbers]
        added = list(enumerate(new, start=len(numbers)))
        if new:
            with self._steps.taking(Step.RECORDING_PERSISTED):
                held = self._persist(held, new)
        return held, (sorted(known, key=_number) if resend else []) + added

    def current_records(self, operation: Operation) -> list[PendingDeleteLedgerInfo]:
        """Every ledger that the operation's incarnations reference now, as records."""
        mark = Mark(
            operation_id=operation.operation_id, instance_id=self._instance_id(), requested_by=operation.requested_by
        )
        references = [
            found
            for topic in operation.topics
            if (found := self._topic_references(topic, operation.incarnations)) is not None
        ]
        schemas = self._schema_ledgers(operation.topic)
        births = self._births({*schemas, *(ledger for found in references for ledger in ledger_ids_of(found))})
        for found in references:
            refuse_former_shadow(found, births)
        records = [record for found in references for record in records_of(found, births, mark)]
        records += schema_records(operation.topic, schemas, births, mark)
        if not records:
            return []
        key = signing_key(self._store, self._steps)
        return [signed(record, key) for record in records]

    def _topic_references(self, topic: TopicName, incarnations: Mapping[str, int]) -> TopicReferences | None:
        path = managed_ledger_path(topic.managed_ledger_name)
        node = self._store.read(path)
        if node is None or incarnations.get(path) != node.created_order:
            return None
        managed_ledger = managed_ledger_references(node.data)
        if SHADOW_SOURCE in managed_ledger.properties:
            # Its list is its source's: a record made from it would name ledgers and offloaded copies of another topic.
            raise shadow_refusal(topic, managed_ledger.properties[SHADOW_SOURCE])
        cursors = self._cursors(topic, path)
        compaction = cursors.get(COMPACTION_CURSOR)
        return TopicReferences(
            topic=topic,
            managed_ledger=managed_ledger,
            cursors=cursors,
            compacted_ledgers=self._compacted_ledgers(topic, compaction) if compaction else frozenset(),
        )

    def _compacted_ledgers(self, topic: TopicName, compaction: CursorReferences) -> frozenset[LedgerId]:
        # A broker writes the new ledger's id into the cursor's ledger up to a minute after it has switched to it.
        view = self._owners.views({topic}).get(topic)
        held = frozenset() if view is None or view.compacted_ledger is None else frozenset({view.compacted_ledger})
        return held | self._stored_compacted_ledgers(compaction)

    def _stored_compacted_ledgers(self, compaction: CursorReferences) -> frozenset[LedgerId]:
        try:
            return self._compacted.referenced(compaction)
        except CursorLedgerGoneError:
            # A broker deletes a topic's ledgers before its nodes, and may die in between. What was to be recorded was
            # recorded before it was asked; waiting for the cursor's ledger to come back would wait for ever.
            return frozenset()

    def _cursors(self, topic: TopicName, path: str) -> dict[CursorName, CursorReferences]:
        names = [CursorName(name) for name in self._store.children(path) or []]
        nodes = self._store.read_many([cursor_path(topic.managed_ledger_name, name) for name in names])
        return {name: cursor_references(node.data) for name, node in zip(names, nodes, strict=True) if node is not None}

    def _schema_ledgers(self, topic: TopicName) -> frozenset[LedgerId]:
        # Partitions share the schema of their topic, so deleting one partition does not take it along.
        if topic.partition_index is not None:
            return frozenset()
        node = self._store.read(schema_path(topic.schema_id))
        return schema_references(node.data) if node else frozenset()

    def _births(self, ledger_ids: set[LedgerId]) -> dict[LedgerId, LedgerBirth]:
        ordered = sorted(ledger_ids)
        nodes = self._store.read_many([ledger_path(ledger_id, self._root) for ledger_id in ordered])
        return {ledger_id: _birth(node) for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None}

    def _instance_id(self) -> str:
        return instance_id_of(self._store.read(instance_id_path(self._root)), self._root)

    def _persist(self, held: HeldOperation, records: Sequence[PendingDeleteLedgerInfo]) -> HeldOperation:
        operation = held.operation.recording(tuple(record_key(record) for record in records))
        return write_operation(self._store, operation, held.version, self._max_node_bytes)

    def _send(self, publisher: Publisher, numbered: Sequence[tuple[int, PendingDeleteLedgerInfo]]) -> None:
        results = publisher.publish(
            [
                OutgoingMessage(encode_record(record), str(record.topic), sequence_id=number)
                for number, record in numbered
            ]
        )
        for (_, record), result in zip(numbered, results, strict=True):
            if result is PublishResult.STORED:
                self._metrics.sent(record.ledger_type, record.component)
        missing = sum(not result.stored for result in results)
        if missing:
            raise TemporaryError(f"{missing} of {len(numbered)} records have no receipt from __ledger_deletion")


class _Outbox:
    """The operation's producer, opened when there is something to send, and again when the operation's name changed."""

    def __init__(self, topics: DeletionTopics, *, first_use: bool) -> None:
        self._topics = topics
        self._first_use = first_use
        self._name: str | None = None
        self._publisher: Publisher | None = None

    def publisher(self, name: str) -> Publisher:
        if self._publisher is None or self._name != name:
            self.close()
            self._publisher = self._topics.publisher(DeletionTopic.PENDING, name, first_use=self._first_use)
            self._name = name
        return self._publisher

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _number(numbered: tuple[int, PendingDeleteLedgerInfo]) -> int:
    return numbered[0]


def _birth(node: Node) -> LedgerBirth:
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError:
        return LedgerBirth(node.created_ms, length_bytes=0)
    claim = read_claim(metadata.custom_metadata)
    entries_of = claim.managed_ledger if isinstance(claim, DataClaim) else None
    return LedgerBirth(node.created_ms, metadata.length_bytes, entries_of)
