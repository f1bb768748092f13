"""The first phase's list: every ledger that a topic references, as records (PIP-186 "The first phase").

Pure: what was read goes in, records come out. Each record has a key that stays the same from one attempt to the next,
so that a resumed first phase knows what it has recorded already.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo
from pulsar_sidecar.ledger_ownership.references import CursorReferences, ManagedLedgerReferences
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import CursorName, ManagedLedgerName, TopicName, encode_cursor, java_url_decode


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
        created_ms: tells it from a later ledger with the same id.
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
    topic = references.topic
    compacted = (_record(topic, LedgerComponent.COMPACTED_LEDGER, each) for each in references.compacted_ledgers)
    records = [*_data_records(references), *_cursor_records(references), *compacted]
    return sorted(records, key=lambda record: record.ledger_id)


def schema_records(topic: TopicName, ledger_ids: Iterable[LedgerId]) -> list[PendingDeleteLedgerInfo]:
    """One record per version of the topic's schema."""
    return [
        PendingDeleteLedgerInfo(
            topic, LedgerComponent.SCHEMA_STORAGE, LedgerType.LEDGER, ledger_id, schema_id=topic.schema_id
        )
        for ledger_id in sorted(ledger_ids)
    ]


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


def _data_records(references: TopicReferences) -> Iterable[PendingDeleteLedgerInfo]:
    for ledger_id, entry in references.managed_ledger.ledgers.items():
        if entry.in_bookkeeper:
            yield _record(references.topic, LedgerComponent.MANAGED_LEDGER, ledger_id)
        if entry.offload is not None:
            yield PendingDeleteLedgerInfo(
                references.topic,
                LedgerComponent.MANAGED_LEDGER,
                LedgerType.OFFLOAD_LEDGER,
                ledger_id,
                offload_context=entry.offload,
            )


def _cursor_records(references: TopicReferences) -> Iterable[PendingDeleteLedgerInfo]:
    for encoded, cursor in references.cursors.items():
        subscription = _subscription(encoded)
        if cursor.cursor_ledger is not None:
            yield _record(references.topic, LedgerComponent.MANAGED_CURSOR, cursor.cursor_ledger, subscription)
        for ledger_id in cursor.buckets.values():
            yield _record(references.topic, LedgerComponent.DELAYED_INDEX_BUCKET, ledger_id, subscription)


def _subscription(cursor: CursorName) -> str:
    """The decoded name, or the cursor's own where that would not lead back to it."""
    try:
        decoded = java_url_decode(cursor)
    except UnicodeError:
        return cursor
    return decoded if encode_cursor(decoded) == cursor else cursor


def _record(
    topic: TopicName, component: LedgerComponent, ledger_id: LedgerId, cursor_name: str | None = None
) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(topic, component, LedgerType.LEDGER, ledger_id, cursor_name=cursor_name)
