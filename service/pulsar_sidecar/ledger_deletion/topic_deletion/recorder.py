"""The first phase for a whole topic: find every ledger it references and record each, before anybody shrinks a list.

What is recorded is persisted in the operation's node before it is sent, under fixed sequence ids. Brokers do not
deduplicate these topics, so a sidecar that resumes has the publisher read back what is stored, and sends the rest.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from pulsar_sidecar.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.ledger_deletion.ports import (
    DeletionTopic,
    DeletionTopics,
    LiveOwners,
    OutgoingMessage,
    Publisher,
    PublishResult,
    TopicAdmin,
)
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_deletion.signature import signed, signing_key
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.ledger_list import (
    LedgerDetails,
    TopicReferences,
    marked_record,
    record_key,
    records_of,
    schema_records,
)
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import HeldOperation, Operation, write_operation
from pulsar_sidecar.ledger_deletion.topic_deletion.shadow_protection import refuse_former_shadow, shadow_refusal
from pulsar_sidecar.ledger_ownership.claims import DataClaim, read_claim
from pulsar_sidecar.ledger_ownership.compaction import CompactedLedgers, CursorLedgerGoneError, LedgerEntries
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import (
    cursor_path,
    instance_id_of,
    instance_id_path,
    ledger_path,
    managed_ledger_path,
    schema_path,
)
from pulsar_sidecar.ledger_ownership.references import (
    CursorReferences,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import OutcomeUnknownError, PermanentError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR

_STABLE_ROUNDS = 5
"""A topic that gains ledgers faster than they can be recorded is too busy to be deleted now."""


class Recorder:
    """Records what topics reference."""

    def __init__(
        self,
        store: MetadataStore,
        entries: LedgerEntries,
        owners: LiveOwners,
        admin: TopicAdmin,
        topics: DeletionTopics,
        ledgers_root: str,
        metrics: DeletionMetrics,
        steps: Steps,
    ) -> None:
        self._store = store
        self._owners = owners
        self._admin = admin
        self._topics = topics
        self._root = ledgers_root
        self._metrics = metrics
        self._steps = steps
        self._compacted = CompactedLedgers(store, entries, ledgers_root)

    def record(self, held: HeldOperation) -> HeldOperation:
        """Record everything that the operation's topics reference, until a look after loading them finds nothing new.

        Sending may take long. The topics are loaded after it, so only a look lies between loading and the broker's
        deletion.

        Raises:
            TemporaryError: something could not be read or sent; the broker must not be asked yet.
            DataLossError: a topic is or was a shadow; nothing of its list was recorded.
        """
        publisher: Publisher | None = None
        # Nobody has produced under the operation's name before it has recorded anything: nothing is to be read back.
        first_use = not held.operation.recorded
        # A crash may have come between persisting and sending, so an attempt starts by sending everything again.
        held, numbered = self._numbered(held, resend=True)
        try:
            for _ in range(_STABLE_ROUNDS):
                if numbered:
                    with self._steps.taking(Step.RECORDS_SENT):
                        publisher = publisher or self._publisher(held.operation, first_use=first_use)
                        self._send(publisher, numbered)
                self._load(held.operation)
                held, numbered = self._numbered(held, resend=False)
                if not numbered:
                    return held
        finally:
            if publisher is not None:
                publisher.close()
        raise TemporaryError("the topic gains ledgers faster than they are recorded; stop its producers and try again")

    def _publisher(self, operation: Operation, *, first_use: bool) -> Publisher:
        return self._topics.publisher(DeletionTopic.PENDING, operation.producer_name, first_use=first_use)

    def _load(self, operation: Operation) -> None:
        """Have the topics loaded when the broker is asked to delete them, where a broker can load them.

        A broker that becomes the owner of a bundle loads its topics by itself (``PulsarService.loadNamespaceTopics``).
        If a deletion makes it the owner, it opens the managed ledger and deletes it at the same time, and the ledger
        that opening creates is then linked to nothing. A loaded topic is fenced first, and what loading has created is
        recorded with the rest.
        """
        for topic in operation.topics if operation.incarnations else ():
            try:
                with self._steps.taking(Step.TOPIC_LOADED):
                    self._admin.load_topic(topic)
            except PermanentError:
                continue
            except (TemporaryError, OutcomeUnknownError):
                return

    def _numbered(
        self, held: HeldOperation, *, resend: bool
    ) -> tuple[HeldOperation, list[tuple[int, PendingDeleteLedgerInfo]]]:
        """The records to send with their sequence ids, ascending; new ones are persisted in the node first."""
        with self._steps.taking(Step.REFERENCES_GATHERED):
            records = self._current_records(held.operation)
        recorded = held.operation.recorded
        numbers = {key: number for number, key in enumerate(recorded)}
        new = [record for record in records if record_key(record) not in numbers]
        if new:
            operation = held.operation.recording(tuple(record_key(record) for record in new))
            with self._steps.taking(Step.RECORDING_PERSISTED):
                held = write_operation(self._store, operation, held.version)
        known = [(numbers[record_key(record)], record) for record in records if record_key(record) in numbers]
        return held, [*(sorted(known, key=itemgetter(0)) if resend else ()), *enumerate(new, start=len(recorded))]

    def _current_records(self, operation: Operation) -> list[PendingDeleteLedgerInfo]:
        """Every ledger that the operation's incarnations reference now, as records."""
        mark = Mark(
            operation_id=operation.operation_id, instance_id=self._instance_id(), requested_by=operation.requested_by
        )
        references = [
            found
            for topic in operation.topics
            if (found := self._topic_references(topic, operation.incarnations)) is not None
        ]
        records = [record for found in references for record in records_of(found)]
        records += schema_records(operation.topic, self._schema_ledgers(operation.topic))
        details = self._ledger_details({record.ledger_id for record in records})
        for found in references:
            refuse_former_shadow(found, details)
        if not records:
            return []
        key = signing_key(self._store, self._steps)
        return [signed(marked_record(record, details, mark), key) for record in records]

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

    def _ledger_details(self, ledger_ids: set[LedgerId]) -> dict[LedgerId, LedgerDetails]:
        ordered = sorted(ledger_ids)
        nodes = self._store.read_many([ledger_path(ledger_id, self._root) for ledger_id in ordered])
        return {
            ledger_id: _details_of(node) for ledger_id, node in zip(ordered, nodes, strict=True) if node is not None
        }

    def _instance_id(self) -> str:
        return instance_id_of(self._store.read(instance_id_path(self._root)), self._root)

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


def _details_of(node: Node) -> LedgerDetails:
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError:
        return LedgerDetails(node.created_ms, length_bytes=0)
    claim = read_claim(metadata.custom_metadata)
    entries_of = claim.managed_ledger if isinstance(claim, DataClaim) else None
    return LedgerDetails(node.created_ms, metadata.length_bytes, entries_of)
