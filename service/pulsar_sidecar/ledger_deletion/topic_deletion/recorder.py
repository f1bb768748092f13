"""The first phase for a whole topic: find every ledger it references and record each, before a broker shrinks a list.

What is recorded is persisted in the operation's node before it is sent, under fixed sequence ids. Brokers do not
deduplicate these topics, so a sidecar that resumes has the publisher read back what is stored, and sends the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record, signed, signing_key
from pulsar_sidecar.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import HeldOperation, Operation, write_operation
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
    ManagedLedgerReferences,
    cursor_references,
    managed_ledger_references,
    schema_references,
)
from pulsar_sidecar.ledger_ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.model.errors import (
    DataLossError,
    OutcomeUnknownError,
    PermanentError,
    TemporaryError,
    UndecodableError,
)
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import (
    CursorName,
    ManagedLedgerName,
    TopicName,
    decode_cursor,
    topic_of_managed_ledger,
)
from pulsar_sidecar.model.topic_stats import COMPACTION_CURSOR


@dataclass(frozen=True, slots=True)
class TopicReferences:
    """Every ledger that one topic's metadata references.

    Its schema's are apart (`schema_records`), because partitions share them.
    """

    topic: TopicName
    managed_ledger: ManagedLedgerReferences
    cursors: Mapping[CursorName, CursorReferences] = field(default_factory=dict)
    compacted_ledgers: frozenset[LedgerId] = frozenset()


@dataclass(frozen=True, slots=True)
class LedgerDetails:
    """What a ledger's own metadata holds.

    Attributes:
        created_ms: distinguishes it from a later ledger with the same id.
        length_bytes: how much waits to be freed.
        entries_of: the managed ledger whose entries it holds; None where the metadata does not name one.
    """

    created_ms: int
    length_bytes: int
    entries_of: ManagedLedgerName | None = None


def records_of(references: TopicReferences) -> list[PendingDeleteLedgerInfo]:
    """One record per ledger and storage, in ascending order of ledger id.

    A ledger that lives both in BookKeeper and in tiered storage gets two (PIP-186 "ledgerType").
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
    """One record per version of the topic's schema."""
    records = [_record(topic, LedgerComponent.SCHEMA_STORAGE, ledger_id) for ledger_id in sorted(ledger_ids)]
    return [replace(record, schema_id=topic.schema_id) for record in records]


def marked_record(
    record: PendingDeleteLedgerInfo, details: Mapping[LedgerId, LedgerDetails], mark: Mark
) -> PendingDeleteLedgerInfo:
    """The record with the first phase's mark, and with the creation time and length of a ledger that BookKeeper has."""
    ledger = details.get(record.ledger_id)
    if ledger is None or record.ledger_type is LedgerType.OFFLOAD_LEDGER:
        return record.marked(mark)
    return record.marked(replace(mark, created_ms=ledger.created_ms, length_bytes=ledger.length_bytes))


def record_key(record: PendingDeleteLedgerInfo) -> str:
    """What makes two records of one first phase the same record."""
    offload = record.offload_context
    if record.ledger_type is LedgerType.LEDGER or offload is None:
        return str(record.ledger_id)
    # A failed offload is tried again under another id, and leaves a copy of its own.
    return f"{record.ledger_id}o{offload.uid_msb:x}.{offload.uid_lsb:x}"


def _record(
    topic: TopicName, component: LedgerComponent, ledger_id: LedgerId, cursor_name: str | None = None
) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic, component, LedgerType.LEDGER, ledger_id, cursor_name=cursor_name)


_STABLE_ROUNDS = 5
"""A topic that gains ledgers faster than they can be recorded is too busy to be deleted now."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records what topics reference."""

    store: MetadataStore
    entries: LedgerEntries
    owners: LiveOwners
    admin: TopicAdmin
    topics: DeletionTopics
    root: str
    metrics: DeletionMetrics
    steps: Steps

    def record(self, held: HeldOperation) -> HeldOperation:
        """Record everything that the operation's topics reference, until a look after loading them finds nothing new.

        Sending may take long. The topics are loaded after it, so only a look lies between loading and the broker's
        deletion.

        Raises:
            TemporaryError: something could not be read or sent; the broker must not be asked yet.
            DataLossError: a topic is or was a shadow; nothing of its list was recorded.
        """
        publisher: Publisher | None = None
        # Nothing was produced under the operation's name before it has recorded anything: nothing is to be read back.
        first_use = not held.operation.recorded
        # A crash may have come between persisting and sending, so an attempt starts by sending everything again.
        held, numbered = self._numbered(held, resend=True)
        try:
            for _ in range(_STABLE_ROUNDS):
                if numbered:
                    with self.steps.taking(Step.RECORDS_SENT):
                        publisher = publisher or self.topics.publisher(
                            DeletionTopic.PENDING, held.operation.producer_name, first_use=first_use
                        )
                        self._send(publisher, numbered)
                self._load(held.operation)
                held, numbered = self._numbered(held, resend=False)
                if not numbered:
                    return held
        finally:
            if publisher is not None:
                publisher.close()
        raise TemporaryError("the topic gains ledgers faster than they are recorded; stop its producers and try again")

    def _load(self, operation: Operation) -> None:
        """Have the topics loaded when the broker is asked to delete them, where a broker can load them.

        A broker that becomes the owner of a bundle loads its topics by itself (``PulsarService.loadNamespaceTopics``).
        If a deletion makes it the owner, it opens the managed ledger and deletes it at the same time, and the ledger
        that opening creates is then linked to nothing. A loaded topic is fenced first, and what loading has created is
        recorded with the rest.
        """
        for topic in operation.topics if operation.incarnations else ():
            try:
                with self.steps.taking(Step.TOPIC_LOADED):
                    self.admin.load_topic(topic)
            except PermanentError:
                continue
            except (TemporaryError, OutcomeUnknownError):
                return

    def _numbered(
        self, held: HeldOperation, *, resend: bool
    ) -> tuple[HeldOperation, list[tuple[int, PendingDeleteLedgerInfo]]]:
        """The records to send with their sequence ids, ascending; new ones are persisted in the node first."""
        with self.steps.taking(Step.REFERENCES_GATHERED):
            records = self._current_records(held.operation)
        recorded = held.operation.recorded
        numbers = {key: number for number, key in enumerate(recorded)}
        new = [record for record in records if record_key(record) not in numbers]
        if new:
            operation = held.operation.recording(tuple(record_key(record) for record in new))
            with self.steps.taking(Step.RECORDING_PERSISTED):
                held = write_operation(self.store, operation, held.version)
        known = [(numbers[record_key(record)], record) for record in records if record_key(record) in numbers]
        return held, [*(sorted(known, key=itemgetter(0)) if resend else ()), *enumerate(new, start=len(recorded))]

    def _current_records(self, operation: Operation) -> list[PendingDeleteLedgerInfo]:
        """Every ledger that the operation's incarnations reference now, as records."""
        instance_id = instance_id_of(self.store.read(instance_id_path(self.root)), self.root)
        mark = Mark(operation_id=operation.operation_id, instance_id=instance_id, requested_by=operation.requested_by)
        found = (self._topic_references(topic, operation.incarnations) for topic in operation.topics)
        references = [each for each in found if each is not None]
        records = [record for each in references for record in records_of(each)]
        records += schema_records(operation.topic, self._schema_ledgers(operation.topic))
        details = self._ledger_details({record.ledger_id for record in records})
        for each in references:
            _refuse_former_shadow(each, details)
        if not records:
            return []
        key = signing_key(self.store, self.steps)
        return [signed(marked_record(record, details, mark), key) for record in records]

    def _topic_references(self, topic: TopicName, incarnations: Mapping[str, int]) -> TopicReferences | None:
        path = managed_ledger_path(topic.managed_ledger_name)
        node = self.store.read(path)
        if node is None or incarnations.get(path) != node.created_order:
            return None
        managed_ledger = managed_ledger_references(node.data)
        if SHADOW_SOURCE in managed_ledger.properties:
            # Its list is its source's: a record made from it would name ledgers and offloaded copies of another topic.
            raise shadow_refusal(topic, managed_ledger.properties[SHADOW_SOURCE])
        cursors = self._cursors(topic, path)
        compaction = cursors.get(COMPACTION_CURSOR)
        compacted = self._compacted_ledgers(topic, compaction) if compaction else frozenset()
        return TopicReferences(topic, managed_ledger, cursors, compacted)

    def _compacted_ledgers(self, topic: TopicName, compaction: CursorReferences) -> frozenset[LedgerId]:
        # A broker writes the new ledger's id into the cursor's ledger up to a minute after it has switched to it.
        view = self.owners.views({topic}).get(topic)
        held = frozenset() if view is None or view.compacted_ledger is None else frozenset({view.compacted_ledger})
        try:
            return held | CompactedLedgers(self.store, self.entries, self.root).referenced(compaction)
        except CursorLedgerGoneError:
            # A broker deletes a topic's ledgers before its nodes, and may die in between. What was to be recorded was
            # recorded before it was asked; waiting for the cursor's ledger to come back would wait for ever.
            return held

    def _cursors(self, topic: TopicName, path: str) -> dict[CursorName, CursorReferences]:
        names = [CursorName(name) for name in self.store.children(path) or []]
        nodes = self.store.read_many([cursor_path(topic.managed_ledger_name, name) for name in names])
        return {name: cursor_references(node.data) for name, node in zip(names, nodes, strict=True) if node is not None}

    def _schema_ledgers(self, topic: TopicName) -> frozenset[LedgerId]:
        # Partitions share the schema of their topic, so deleting one partition does not take it along.
        if topic.partition_index is not None:
            return frozenset()
        node = self.store.read(schema_path(topic.schema_id))
        return schema_references(node.data) if node else frozenset()

    def _ledger_details(self, ledger_ids: set[LedgerId]) -> dict[LedgerId, LedgerDetails]:
        ordered = sorted(ledger_ids)
        nodes = self.store.read_many([ledger_path(ledger_id, self.root) for ledger_id in ordered])
        return {each: _details_of(node) for each, node in zip(ordered, nodes, strict=True) if node is not None}

    def _send(self, publisher: Publisher, numbered: Sequence[tuple[int, PendingDeleteLedgerInfo]]) -> None:
        messages = [
            OutgoingMessage(encode_record(each), str(each.topic), sequence_id=number) for number, each in numbered
        ]
        results = publisher.publish(messages)
        for (_, record), result in zip(numbered, results, strict=True):
            if result is PublishResult.STORED:
                self.metrics.sent(record.ledger_type, record.component)
        missing = sum(not result.stored for result in results)
        if missing:
            raise TemporaryError(f"{missing} of {len(numbered)} records have no receipt from __ledger_deletion")


def shadow_refusal(topic: TopicName, source: str) -> DataLossError:
    """Why a shadow's deletion is not passed on, and what to do instead."""
    return DataLossError(
        f"{topic} is a shadow of {source}, and brokers delete the source's ledgers together with a shadow: {source} "
        f"would lose its data. Delete the shadow alone with: pulsar-sidecar topics delete-shadow {topic.base}"
    )


def _refuse_former_shadow(references: TopicReferences, details: Mapping[LedgerId, LedgerDetails]) -> None:
    """Raise `DataLossError` if the topic lists a ledger whose own metadata names another owner of its entries.

    So a shadow looks that lost its property. A ledger that is gone or cannot be read proves nothing.
    """
    own = references.topic.managed_ledger_name
    listed = {each: details[each].entries_of for each in sorted(references.managed_ledger.ledgers) if each in details}
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


def _details_of(node: Node) -> LedgerDetails:
    try:
        metadata = decode_ledger_metadata(node.data)
    except UndecodableError:
        return LedgerDetails(node.created_ms, length_bytes=0)
    claim = read_claim(metadata.custom_metadata)
    entries_of = claim.managed_ledger if isinstance(claim, DataClaim) else None
    return LedgerDetails(node.created_ms, metadata.length_bytes, entries_of)
