"""What is stored of delayed indexes: the buckets that cursors name, what BookKeeper keeps of them, and their entry 0.

Everything comes from the metadata store and from bookies, so no broker is asked and no topic is loaded. Invariant:
what could not be read is a value with its reason; `Absent` was read. Nothing is left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.bucket_key import BucketKey
from pulsar_sidecar.delayed_delivery.index.ports import BucketEntries, EntryPayload
from pulsar_sidecar.delayed_delivery.index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import (
    ledger_path,
    managed_ledger_path,
)
from pulsar_sidecar.ledger_ownership.ports import CursorPositions
from pulsar_sidecar.ledger_ownership.references import (
    LedgerReference,
    cursor_references,
    managed_ledger_references,
)
from pulsar_sidecar.ledger_ownership.stored_topics import StoredTopics
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import (
    CursorName,
    TopicName,
    decode_cursor,
    encode_cursor,
)
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX, SYSTEM_SUBSCRIPTIONS

METADATA_ENTRY: Final = EntryId(0)
"""Where a bucket's ledger holds its `SnapshotMetadata`."""

_TOPICS_AT_ONCE: Final = 100
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """A bucket that a cursor names.

    Attributes:
        name: the cursor property.
        key: what the name contains; a broker cannot recover the subscription's buckets if one is unreadable.
        ledger_id: the ledger that the property points to.
        ledger: what BookKeeper keeps of it; `Absent` if there is no such ledger.
        snapshot: entry 0; `Absent` if there is no ledger, or it has no entry.
    """

    name: str
    key: BucketKey | Unreadable
    ledger_id: LedgerId
    ledger: LedgerMetadata | Absent | Unreadable
    snapshot: SnapshotMetadata | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """One subscription's buckets, in order of their ledgers.

    Attributes:
        version: of the cursor's node, for a compare-and-set.
        acknowledged: as stored; a loaded topic may have acknowledged more.
    """

    topic: TopicName
    subscription: str
    version: NodeVersion
    buckets: tuple[StoredBucket, ...]
    acknowledged: PositionRanges | Unreadable


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic without partitions, or one partition: its ledgers, and its cursors by subscription."""

    topic: TopicName
    ledgers: Mapping[LedgerId, LedgerReference]
    subscriptions: Mapping[str, StoredIndex | Unreadable]


class AcknowledgedEntries:
    """Acknowledged positions as bitmaps, to be compared with those of buckets."""

    def __init__(self, acknowledged: PositionRanges) -> None:
        self._mark_delete = acknowledged.mark_delete
        marked = BitMap()
        marked.add_range(0, self._mark_delete.entry_id + 1)
        self._by_ledger = {self._mark_delete.ledger_id: marked}
        for ledger_id, first, last in acknowledged:
            self._by_ledger.setdefault(ledger_id, BitMap()).add_range(first, last + 1)

    def left(self, ledger_id: LedgerId, entries: BitMap) -> BitMap:
        """Which of a ledger's entries are not acknowledged."""
        if ledger_id < self._mark_delete.ledger_id:
            return BitMap()
        return entries - self._by_ledger.get(ledger_id, BitMap())

    def count_left(self, bitmaps: Mapping[LedgerId, BitMap]) -> int:
        """How many entries of a segment are not acknowledged."""
        return sum(len(self.left(ledger_id, entries)) for ledger_id, entries in bitmaps.items())


class StoredIndexes:
    """Reads what is stored."""

    def __init__(
        self, store: MetadataStore, entries: BucketEntries, cursors: CursorPositions, ledgers_root: str
    ) -> None:
        self._store = store
        self._entries = entries
        self._cursors = cursors
        self._root = ledgers_root
        self.topics = StoredTopics(store)

    def read(
        self, places: Iterable[TopicName], subscription: str | None = None
    ) -> Iterator[tuple[TopicName, StoredTopic | Unreadable]]:
        """Each of these that exists.

        Args:
            places: partitions, or topics without partitions.
            subscription: only this one; cursors that brokers keep for themselves are always left out.

        Raises:
            TemporaryError: the metadata store could not be asked.
        """
        rest = iter(places)
        while some := list(islice(rest, _TOPICS_AT_ONCE)):
            nodes = self._store.read_many([managed_ledger_path(place.managed_ledger_name) for place in some])
            for place, node in zip(some, nodes, strict=True):
                if node is not None:
                    yield place, self._topic(place, node, subscription)

    def buckets(self, place: TopicName) -> Iterator[StoredBucket]:
        """The buckets of all subscriptions, without what these have acknowledged, which takes further reading.

        None of a cursor that cannot be read, or that changes at the moment: for callers that need no complete answer.

        Args:
            place: a partition, or a topic without partitions; it need not exist.

        Raises:
            TemporaryError: the metadata store could not be asked.
        """
        paths = dict(self._cursors_of(managed_ledger_path(place.managed_ledger_name), None))
        cursors = self._store.read_many(list(paths.values()))
        for buckets in self._buckets(node for node in cursors if node is not None):
            if not isinstance(buckets, Unreadable):
                yield from buckets

    def _topic(self, place: TopicName, node: Node, subscription: str | None) -> StoredTopic | Unreadable:
        try:
            listed = managed_ledger_references(node.data).ledgers
        except UndecodableError as error:
            return Unreadable(f"the managed ledger of {place} cannot be read: {error}")
        lengths = {ledger_id: ledger.entries for ledger_id, ledger in listed.items()}
        paths = dict(self._cursors_of(node.path, subscription))
        found: dict[str, StoredIndex | Unreadable] = {}
        for _ in range(_TRIES):
            read = self._indexes(place, lengths, paths)
            found = {name: index for name, index in found.items() if name not in paths} | read
            # A broker deletes a bucket's ledger first and the property next: what changed meanwhile is read again.
            paths = self._changed(read, paths)
            if not paths:
                break
        return StoredTopic(place, listed, found)

    def _cursors_of(self, path: str, subscription: str | None) -> Iterator[tuple[str, str]]:
        cursors = self._store.children(path) if subscription is None else [encode_cursor(subscription)]
        for child in cursors or ():
            name = decode_cursor(CursorName(child)) or child
            # A replicator has no tracker: it copies delayed messages at once.
            if name not in SYSTEM_SUBSCRIPTIONS and not name.startswith(f"{REPLICATOR_PREFIX}."):
                yield name, f"{path}/{child}"

    def _changed(self, read: "Mapping[str, StoredIndex | Unreadable]", paths: Mapping[str, str]) -> dict[str, str]:
        versions = {
            name: index.version
            for name, index in read.items()
            if isinstance(index, StoredIndex) and any(isinstance(bucket.ledger, Absent) for bucket in index.buckets)
        }
        nodes = self._store.read_many([paths[name] for name in versions])
        return {
            name: paths[name]
            for (name, version), node in zip(versions.items(), nodes, strict=True)
            if node is None or node.version != version
        }

    def _indexes(
        self, place: TopicName, lengths: Mapping[LedgerId, int], paths: Mapping[str, str]
    ) -> dict[str, StoredIndex | Unreadable]:
        read = zip(paths, self._store.read_many(list(paths.values())), strict=True)
        nodes = {name: node for name, node in read if node is not None}
        positions = self._cursors.acknowledged([node.data for node in nodes.values()], lengths)
        buckets = self._buckets(nodes.values())
        return {
            name: each if isinstance(each, Unreadable) else StoredIndex(place, name, node.version, each, acknowledged)
            for (name, node), each, acknowledged in zip(nodes.items(), buckets, positions, strict=True)
        }

    def _buckets(self, cursors: Iterable[Node]) -> list[tuple[StoredBucket, ...] | Unreadable]:
        """What each of the cursors names, in their order."""
        named = [_named_buckets(node) for node in cursors]
        readable = [buckets for buckets in named if not isinstance(buckets, Unreadable)]
        ledgers = self.ledgers({ledger_id for buckets in readable for ledger_id in buckets.values()})
        snapshots = self._snapshots(ledgers)

        def stored(buckets: Mapping[str, LedgerId]) -> tuple[StoredBucket, ...]:
            found = (StoredBucket(name, _key(name), id_, ledgers[id_], snapshots[id_]) for name, id_ in buckets.items())
            return tuple(sorted(found, key=_in_order))

        return [buckets if isinstance(buckets, Unreadable) else stored(buckets) for buckets in named]

    def ledgers(self, ids: Iterable[LedgerId]) -> dict[LedgerId, LedgerMetadata | Absent | Unreadable]:
        """What BookKeeper keeps of each, in order."""
        wanted = list(ids)
        nodes = self._store.read_many([ledger_path(ledger_id, self._root) for ledger_id in wanted])
        return {ledger_id: _ledger(node) for ledger_id, node in zip(wanted, nodes, strict=True)}

    def _snapshots(
        self, ledgers: Mapping[LedgerId, LedgerMetadata | Absent | Unreadable]
    ) -> dict[LedgerId, SnapshotMetadata | Absent | Unreadable]:
        there = {id_: ledger for id_, ledger in ledgers.items() if isinstance(ledger, LedgerMetadata)}
        payloads = self._entries.read(there, [Position(ledger_id, METADATA_ENTRY) for ledger_id in there])
        return {
            ledger_id: decode_snapshot(payloads[Position(ledger_id, METADATA_ENTRY)])
            if isinstance(ledger, LedgerMetadata)
            else ledger
            for ledger_id, ledger in ledgers.items()
        }


def _named_buckets(node: Node) -> Mapping[str, LedgerId] | Unreadable:
    try:
        return cursor_references(node.data).buckets
    except UndecodableError as error:
        return Unreadable(f"the cursor at {node.path} cannot be read: {error}")


def _key(name: str) -> BucketKey | Unreadable:
    try:
        return BucketKey.parse(name)
    except UndecodableError as error:
        return Unreadable(str(error))


def _ledger(node: Node | None) -> LedgerMetadata | Absent | Unreadable:
    try:
        return Absent() if node is None else decode_ledger_metadata(node.data)
    except UndecodableError as error:
        return Unreadable(str(error))


def decode_snapshot(payload: EntryPayload) -> SnapshotMetadata | Absent | Unreadable:
    """Entry 0 as it was read."""
    try:
        return decode_metadata(payload) if isinstance(payload, bytes) else payload
    except UndecodableError as error:
        return Unreadable(str(error))


def decode_stored_segment(payload: EntryPayload) -> DelayedIndexes | Absent | Unreadable:
    """A later entry as it was read."""
    try:
        return decode_segment(payload) if isinstance(payload, bytes) else payload
    except UndecodableError as error:
        return Unreadable(str(error))


def _in_order(bucket: StoredBucket) -> tuple[bool, BucketKey | str]:
    """By ledgers; buckets whose names have none come last."""
    return (False, bucket.key) if isinstance(bucket.key, BucketKey) else (True, bucket.name)
