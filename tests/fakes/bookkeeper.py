"""Bookies in memory, and builders of nodes of Pulsar and BookKeeper in the metadata store.

The builders write the bytes of a 4.0.8 broker, so that a test names ledgers and their references without protobuf.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence

from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerEntry, LedgerMetadata, LedgerState, OffloadContext
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml
from pulsar_sidecar.protobuf import SchemaStorageFormat_pb2 as schema_storage

DEFAULT_ENSEMBLE = (BookieId("bookie-1:3181"), BookieId("bookie-2:3181"))


class FakeLedgerEntries:
    """`LedgerEntries` over a test's entries; satisfies the port's contract suite."""

    def __init__(self) -> None:
        self._entries: dict[LedgerId, dict[EntryId, bytes]] = {}
        self._errors: dict[LedgerId | None, Exception] = {}
        self.reads: list[LedgerId] = []

    def put(self, ledger_id: int, *payloads: bytes, first_entry_id: int = 0) -> None:
        """Store entries with consecutive ids; repeated calls add or replace."""
        stored = self._entries.setdefault(LedgerId(ledger_id), {})
        stored.update({EntryId(first_entry_id + offset): payload for offset, payload in enumerate(payloads)})

    def drop(self, ledger_id: int) -> None:
        """Drop the ledger's entries like the bookies' garbage collection."""
        self._entries.pop(LedgerId(ledger_id), None)

    def fail(self, error: Exception | None, ledger_id: int | None = None) -> None:
        """Make every read, of one ledger or of all, raise ``error`` until called with None."""
        key = None if ledger_id is None else LedgerId(ledger_id)
        if error is None:
            self._errors.pop(key, None)
        else:
            self._errors[key] = error

    def read_tail(self, ledger_id: LedgerId, metadata: LedgerMetadata, count: int) -> tuple[LedgerEntry, ...]:
        stored = self._read(ledger_id)
        known = max(stored, default=EntryId(-1))
        last = metadata.last_entry_id if metadata.state is LedgerState.CLOSED else known
        wanted = [entry_id for entry_id in sorted(stored) if last - count < entry_id <= last]
        if metadata.state is LedgerState.CLOSED and len(wanted) < min(count, last + 1):
            raise TemporaryError(f"no bookie delivers every entry of ledger {ledger_id} up to {last}; try again")
        return tuple(LedgerEntry(ledger_id, entry_id, stored[entry_id]) for entry_id in wanted)

    def readable(self, ledger_id: LedgerId, metadata: LedgerMetadata) -> bool:
        stored = self._read(ledger_id)
        if metadata.state is not LedgerState.CLOSED:
            return bool(stored)
        return metadata.last_entry_id < 0 or {0, metadata.last_entry_id} <= stored.keys()

    def _read(self, ledger_id: LedgerId) -> Mapping[EntryId, bytes]:
        self.reads.append(ledger_id)
        for key in (ledger_id, None):
            if key in self._errors:
                raise self._errors[key]
        return self._entries.get(ledger_id, {})


def ledger_metadata_bytes(
    state: LedgerState = LedgerState.CLOSED,
    custom_metadata: Mapping[str, bytes] | None = None,
    *,
    last_entry_id: int | None = None,
    length_bytes: int | None = None,
    ensemble: Sequence[str] = DEFAULT_ENSEMBLE,
    write_quorum_size: int = 2,
    ack_quorum_size: int = 2,
    later_ensembles: Mapping[int, Sequence[str]] | None = None,
    digest_type: DigestType = DigestType.CRC32C,
) -> bytes:
    """Return a ledger's metadata node in BookKeeper's format 3; a closed ledger has 10 entries by default."""
    closed = state is LedgerState.CLOSED
    metadata = bookkeeper.LedgerMetadataFormat(
        quorumSize=write_quorum_size,
        ensembleSize=len(ensemble),
        length=length_bytes if length_bytes is not None else (1000 if closed else 0),
        lastEntryId=last_entry_id if last_entry_id is not None else (9 if closed else -1),
        digestType=bookkeeper.LedgerMetadataFormat.DigestType.ValueType(digest_type.value),
        password=b"",
        ackQuorumSize=ack_quorum_size,
        cToken=0,
    )
    metadata.state = bookkeeper.LedgerMetadataFormat.State.ValueType(state.value)
    for first_entry_id, members in sorted({0: ensemble, **(later_ensembles or {})}.items()):
        metadata.segment.add(ensembleMember=members, firstEntryId=first_entry_id)
    for key, value in (custom_metadata or {}).items():
        metadata.customMetadata.add(key=key, value=value)
    return b"BookieMetadataFormatVersion\t3\n" + delimited(metadata.SerializeToString())


def data_custom_metadata(managed_ledger: str) -> dict[str, bytes]:
    """Return Pulsar's custom metadata of a ledger of a topic's entries."""
    return _stamp("managed-ledger", {"pulsar/managed-ledger": managed_ledger})


def cursor_custom_metadata(managed_ledger: str, encoded_cursor: str) -> dict[str, bytes]:
    """Return Pulsar's custom metadata of a cursor ledger; the cursor's name is encoded as in the metadata store."""
    return _stamp("managed-ledger", {"pulsar/managed-ledger": managed_ledger, "pulsar/cursor": encoded_cursor})


def schema_custom_metadata(schema_id: str) -> dict[str, bytes]:
    """Return Pulsar's custom metadata of one version of a schema."""
    return _stamp("schema", {"pulsar/schemaId": schema_id})


def compacted_custom_metadata(topic: str) -> dict[str, bytes]:
    """Return Pulsar's custom metadata of a compacted ledger; the topic is a full URI."""
    return _stamp("compacted-ledger", {"pulsar/compactedTopic": topic}) | {"pulsar/compactedTo": b"\x08\x03\x10\x07"}


def bucket_custom_metadata(topic: str, subscription: str, bucket_key: str) -> dict[str, bytes]:
    """Return Pulsar's custom metadata of a delayed-index bucket; the topic is a full URI, the subscription decoded."""
    fields = {
        "pulsar/delayedIndexBucketKey": bucket_key,
        "pulsar/delayedIndexTopic": topic,
        "pulsar/delayedIndexCursor": subscription,
    }
    return _stamp("delayed-index-bucket", fields)


def managed_ledger_bytes(
    ledger_ids: Iterable[int],
    *,
    properties: Mapping[str, str] | None = None,
    terminated: bool = False,
    offloaded: Mapping[int, OffloadContext] | None = None,
) -> bytes:
    """Return a ``ManagedLedgerInfo`` node; every ledger but the last is closed with 10 entries of 100 bytes."""
    ids = list(ledger_ids)
    info = ml.ManagedLedgerInfo()
    for ledger_id in ids[:-1]:
        info.ledgerInfo.add(ledgerId=ledger_id, entries=10, size=1000, timestamp=1_700_000_000_000)
    for ledger_id in ids[-1:]:
        info.ledgerInfo.add(ledgerId=ledger_id, timestamp=0)
    for ledger in info.ledgerInfo:
        context = (offloaded or {}).get(ledger.ledgerId)
        if context is not None:
            ledger.offloadContext.CopyFrom(_offload_context(context))
    for key, value in (properties or {}).items():
        info.properties.add(key=key, value=value)
    if terminated and ids:
        info.terminatedPosition.ledgerId = ids[-1]
        info.terminatedPosition.entryId = 9
    return info.SerializeToString()


def cursor_bytes(
    cursor_ledger: int | None = None,
    *,
    mark_delete: tuple[int, int] = (0, -1),
    compacted_ledger: int | None = None,
    buckets: Mapping[str, int] | None = None,
    sequences: Mapping[str, int] | None = None,
) -> bytes:
    """Return a ``ManagedCursorInfo`` node; without a cursor ledger the node holds the position."""
    info = ml.ManagedCursorInfo(
        cursorsLedgerId=-1 if cursor_ledger is None else cursor_ledger,
        markDeleteLedgerId=mark_delete[0],
        markDeleteEntryId=mark_delete[1],
        lastActive=1_700_000_000_000,
    )
    if compacted_ledger is not None:
        info.properties.add(name="CompactedTopicLedger", value=compacted_ledger)
    for name, value in (sequences or {}).items():
        info.properties.add(name=name, value=value)
    for key, ledger_id in (buckets or {}).items():
        info.cursorProperties.add(name=key, value=str(ledger_id))
    return info.SerializeToString()


def position_entry(
    compacted_ledger: int | None = None,
    mark_delete: tuple[int, int] = (0, 0),
    sequences: Mapping[str, int] | None = None,
) -> bytes:
    """Return an entry of a cursor ledger."""
    position = ml.PositionInfo(ledgerId=mark_delete[0], entryId=mark_delete[1])
    if compacted_ledger is not None:
        position.properties.add(name="CompactedTopicLedger", value=compacted_ledger)
    for name, value in (sequences or {}).items():
        position.properties.add(name=name, value=value)
    return position.SerializeToString()


def schema_locator_bytes(ledger_ids: Sequence[int]) -> bytes:
    """Return a ``SchemaLocator`` node with one version per ledger; the last version is current."""
    locator = schema_storage.SchemaLocator()
    for version, ledger_id in enumerate(ledger_ids):
        entry = locator.index.add(version=version, hash=bytes(32))
        entry.position.ledgerId = ledger_id
        entry.position.entryId = 0
    locator.info.CopyFrom(locator.index[-1])
    return locator.SerializeToString()


def newest_schema_ledger(data: bytes) -> LedgerId:
    """Return the ledger of the current version in a ``SchemaLocator`` node."""
    return LedgerId(schema_storage.SchemaLocator.FromString(data).info.position.ledgerId)


def compressed(algorithm: str, plain: bytes, payload: bytes) -> bytes:
    """Wrap a node's compressed ``payload`` like ``MetaStoreImpl``; ``algorithm`` is Pulsar's name."""
    return wrapped(algorithm, len(plain), payload)


def wrapped(algorithm: str, promised_bytes: int, payload: bytes = b"") -> bytes:
    """Return a node like that of `compressed`, with any promised size."""
    metadata = ml.ManagedLedgerInfoMetadata(
        compressionType=ml.CompressionType.Value(algorithm), uncompressedSize=promised_bytes
    ).SerializeToString()
    return b"\x47\x78" + struct.pack(">i", len(metadata)) + metadata + payload


def delimited(message: bytes) -> bytes:
    """Return a protobuf message after its length (Java ``writeDelimitedTo``)."""
    length, prefix = len(message), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + message


def _stamp(component: str, fields: Mapping[str, str]) -> dict[str, bytes]:
    stamp = {"application": "pulsar", "component": component, **fields}
    return {key: value.encode() for key, value in stamp.items()}


def _offload_context(context: OffloadContext) -> ml.OffloadContext:
    written = ml.OffloadContext(
        uidMsb=context.uid_msb,
        uidLsb=context.uid_lsb,
        complete=context.complete,
        bookkeeperDeleted=context.bookkeeper_deleted,
        timestamp=context.offloaded_ms,
    )
    for segment in context.segments:
        part = written.offloadSegment.add(uidMsb=segment.uid_msb, uidLsb=segment.uid_lsb, complete=segment.complete)
        part.driverMetadata.name = segment.driver_name
    written.driverMetadata.name = context.driver_name
    for key, value in context.driver_metadata.items():
        written.driverMetadata.properties.add(key=key, value=value)
    return written
