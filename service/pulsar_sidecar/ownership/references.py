"""The ledgers that a metadata-store node, or an entry of a cursor ledger, references: one function per kind.

The invariant: a result names every reference that the bytes hold, or the call raises `UndecodableError`. A shorter
result would make a live ledger look like an orphan.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import MAX_LEDGER_ID, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import OffloadContext, OffloadSegment
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, exact_text, unwrap
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.protobuf import SchemaStorageFormat_pb2 as schema_storage
from pulsar_sidecar.reports.formatting import format_count

DELAYED_BUCKET_KEY_PREFIX = "#pulsar.internal.delayed.bucket"
"""``Bucket.DELAYED_BUCKET_KEY_PREFIX``: cursor properties that start so hold a bucket's ledger id in decimal."""

COMPACTED_TOPIC_LEDGER = "CompactedTopicLedger"
"""``Compactor.COMPACTED_TOPIC_LEDGER_PROPERTY``, a property of the ``__compaction`` cursor's position."""

K = TypeVar("K")
V = TypeVar("V")

_NO_LEDGER = -1
_DECIMAL = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class LedgerReference:
    """A ledger of a managed ledger (``ManagedLedgerInfo.LedgerInfo``).

    The last ledger is still written to: its ``entries``, ``size_bytes`` and ``closed_ms`` are 0.
    """

    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    offload: OffloadContext | None = None

    @property
    def in_bookkeeper(self) -> bool:
        """True if BookKeeper has the ledger by the list: tiered storage does not hold its only copy.

        Brokers read a copy from tiered storage only if it is complete, whatever else its context has.
        """
        return self.offload is None or not (self.offload.complete and self.offload.bookkeeper_deleted)


@dataclass(frozen=True, slots=True)
class ManagedLedgerReferences:
    """References of a ``ManagedLedgerInfo`` node; its ledgers ascend."""

    ledgers: Mapping[LedgerId, LedgerReference] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    terminated: bool = False


@dataclass(frozen=True, slots=True)
class CursorReferences:
    """References of a ``ManagedCursorInfo`` node.

    Attributes:
        cursor_ledger: the ledger that holds the cursor's position while the topic is loaded; None once the node does.
        mark_delete: the node's own position, stale while there is a cursor ledger.
        compacted_ledger: the node's ``CompactedTopicLedger``, the truth only if there is no cursor ledger;
            otherwise the last entry of that ledger holds it (`position_entry_compacted_ledger`).
        buckets: ledgers of the delayed index, by cursor property.
    """

    cursor_ledger: LedgerId | None
    mark_delete: Position
    compacted_ledger: LedgerId | None
    buckets: Mapping[str, LedgerId]


def managed_ledger_references(data: bytes) -> ManagedLedgerReferences:
    """Read a ``ManagedLedgerInfo`` node, compressed or not.

    A node without data is a managed ledger without ledgers, as for Pulsar itself (``MetaStoreImpl`` parses it so); the
    parents of managed ledgers look the same.
    """
    info = decode_exactly(ml.ManagedLedgerInfo, unwrap(data))
    listed = _distinct((_ledger_id(ledger.ledgerId), _ledger_reference(ledger)) for ledger in info.ledgerInfo)
    # A broker that offloads stores the list in a hash map's order (``ManagedLedgerImpl.transformLedgerInfo``).
    ledgers = {ledger_id: listed[ledger_id] for ledger_id in sorted(listed)}
    return ManagedLedgerReferences(ledgers, _texts(info.properties), info.HasField("terminatedPosition"))


def cursor_references(data: bytes) -> CursorReferences:
    """Read a ``ManagedCursorInfo`` node, compressed or not.

    A mark-delete position that is not set reads as 0:0, as it does for Pulsar.
    """
    info = decode_exactly(ml.ManagedCursorInfo, unwrap(data))
    return CursorReferences(
        cursor_ledger=_optional_ledger_id(info.cursorsLedgerId),
        mark_delete=Position(LedgerId(info.markDeleteLedgerId), EntryId(info.markDeleteEntryId)),
        compacted_ledger=_compacted_ledger(info.properties),
        buckets=_buckets(info.cursorProperties),
    )


def position_entry_compacted_ledger(payload: bytes) -> LedgerId | None:
    """Return the compacted ledger that an entry of the ``__compaction`` cursor's ledger names (``PositionInfo``)."""
    return _compacted_ledger(decode_exactly(ml.PositionInfo, payload).properties)


def schema_references(data: bytes) -> frozenset[LedgerId]:
    """Return the ledgers of every version in a ``SchemaLocator`` node; positions of -1 stand for no ledger."""
    locator = decode_exactly(schema_storage.SchemaLocator, data)
    named = (_optional_ledger_id(entry.position.ledgerId) for entry in (locator.info, *locator.index))
    return frozenset(ledger_id for ledger_id in named if ledger_id is not None)


def _ledger_reference(ledger: ml.ManagedLedgerInfo.LedgerInfo) -> LedgerReference:
    offload = _offload_context(ledger.offloadContext) if ledger.HasField("offloadContext") else None
    return LedgerReference(ledger.entries, ledger.size, ledger.timestamp, offload)


def _offload_context(context: ml.OffloadContext) -> OffloadContext | None:
    segments = tuple(_offload_segment(segment) for segment in context.offloadSegment)
    if not _has_attempt(context) and not segments:
        if context.complete or context.bookkeeperDeleted:
            raise UndecodableError(
                "an offloaded ledger names no offload attempt; inspect its managed ledger's node with zkCli.sh"
            )
        return None
    return OffloadContext(
        uid_msb=context.uidMsb,
        uid_lsb=context.uidLsb,
        driver_name=exact_text(context.driverMetadata.name),
        driver_metadata=_texts(context.driverMetadata.properties),
        complete=context.complete,
        bookkeeper_deleted=context.bookkeeperDeleted,
        segments=segments,
        offloaded_ms=context.timestamp,
    )


def _offload_segment(segment: ml.OffloadSegment) -> OffloadSegment:
    if not _has_attempt(segment):
        raise UndecodableError(
            "an offloaded segment names no offload attempt; inspect its managed ledger's node with zkCli.sh"
        )
    return OffloadSegment(
        uid_msb=segment.uidMsb,
        uid_lsb=segment.uidLsb,
        driver_name=exact_text(segment.driverMetadata.name),
        driver_metadata=_texts(segment.driverMetadata.properties),
        complete=segment.complete,
    )


def _has_attempt(offload: ml.OffloadContext | ml.OffloadSegment) -> bool:
    return offload.HasField("uidMsb") and offload.HasField("uidLsb")


def _compacted_ledger(properties: Iterable[ml.LongProperty]) -> LedgerId | None:
    named = [each.value for each in properties if exact_text(each.name) == COMPACTED_TOPIC_LEDGER]
    if len(named) > 1:
        raise UndecodableError(
            f"a cursor names {format_count(len(named), 'compacted ledger')}; inspect it with zkCli.sh"
        )
    return _optional_ledger_id(named[0]) if named else None


def _buckets(properties: Iterable[ml.StringProperty]) -> dict[str, LedgerId]:
    named = [(exact_text(each.name), exact_text(each.value)) for each in properties]
    return _distinct(
        (key, _decimal_ledger_id(value)) for key, value in named if key.startswith(DELAYED_BUCKET_KEY_PREFIX)
    )


def _texts(pairs: Iterable[ml.KeyValue]) -> dict[str, str]:
    return {exact_text(pair.key): exact_text(pair.value) for pair in pairs}


def _distinct(pairs: Iterable[tuple[K, V]]) -> dict[K, V]:
    listed = list(pairs)
    distinct = dict(listed)
    if len(distinct) != len(listed):
        raise UndecodableError("a node names the same thing twice, which Pulsar never does; inspect it with zkCli.sh")
    return distinct


def _decimal_ledger_id(text: str) -> LedgerId:
    if not _DECIMAL.fullmatch(text):
        raise UndecodableError(f"{text!r:.80} is not a ledger id; inspect the cursor's node with zkCli.sh")
    return _ledger_id(int(text))


def _optional_ledger_id(value: int) -> LedgerId | None:
    return None if value == _NO_LEDGER else _ledger_id(value)


def _ledger_id(value: int) -> LedgerId:
    if not 0 <= value <= MAX_LEDGER_ID:
        raise UndecodableError(f"{value} is not a ledger id; inspect the node with zkCli.sh")
    return LedgerId(value)
