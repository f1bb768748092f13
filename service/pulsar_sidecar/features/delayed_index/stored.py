"""Stored delayed indexes: the buckets that cursors name, their ledgers in BookKeeper, and their entry 0.

The sidecar reads the metadata store and bookies; it queries no broker and loads no topic. Invariant: an unreadable part
is a value with its reason; `Absent` is a confirmed absence. Nothing is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.bucket_key import BucketKey
from pulsar_sidecar.features.delayed_index.ports import BucketEntries, EntryPayload
from pulsar_sidecar.features.delayed_index.snapshot import (
    DelayedIndexes,
    SnapshotMetadata,
    decode_metadata,
    decode_segment,
)
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, NodeVersion, Position
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import MetadataStore, Node
from pulsar_sidecar.model.names import TopicName, encode_cursor
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.ports import CursorPositions
from pulsar_sidecar.ownership.references import LedgerReference, cursor_references, managed_ledger_references
from pulsar_sidecar.ownership.stored_topics import StoredTopics, subscriptions_among

_Source = TypeVar("_Source")
_Value = TypeVar("_Value")

METADATA_ENTRY: Final = EntryId(0)
"""Entry of a bucket's ledger that holds its `SnapshotMetadata`."""

_TOPICS_AT_ONCE: Final = 100
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class StoredBucket:
    """Bucket that a cursor names.

    Attributes:
        name: name of the cursor property.
        key: key in the name; a broker cannot recover the subscription's buckets if one is unreadable.
        ledger_id: ledger that the property points to.
        ledger: metadata of the ledger; `Absent` if there is no such ledger.
        snapshot: entry 0; `Absent` if there is no ledger, or it has no entry.
    """

    name: str
    key: BucketKey | Unreadable
    ledger_id: LedgerId
    ledger: LedgerMetadata | Absent | Unreadable
    snapshot: SnapshotMetadata | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class StoredIndex:
    """Buckets of one subscription, in order of their ledgers.

    Attributes:
        version: version of the cursor's node, for a compare-and-set.
        acknowledged: stored acknowledgements; a loaded topic may have more.
    """

    topic: TopicName
    subscription: str
    version: NodeVersion
    buckets: tuple[StoredBucket, ...]
    acknowledged: PositionRanges | Unreadable


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """Topic without partitions, or one partition: its ledgers, and its cursors by subscription."""

    topic: TopicName
    ledgers: Mapping[LedgerId, LedgerReference]
    subscriptions: Mapping[str, StoredIndex | Unreadable]


class AcknowledgedEntries:
    """Acknowledged positions as bitmaps, to compare with those of buckets."""

    def __init__(self, acknowledged: PositionRanges) -> None:
        self.mark_delete = acknowledged.mark_delete
        marked = BitMap()
        marked.add_range(0, self.mark_delete.entry_id + 1)
        self._by_ledger = {self.mark_delete.ledger_id: marked}
        for ledger_id, first, last in acknowledged:
            self._by_ledger.setdefault(ledger_id, BitMap()).add_range(first, last + 1)

    def left(self, ledger_id: LedgerId, entries: BitMap) -> BitMap:
        """Return the entries of a ledger that are not acknowledged."""
        if ledger_id < self.mark_delete.ledger_id:
            return BitMap()
        return entries - self._by_ledger.get(ledger_id, BitMap())

    def count_left(self, bitmaps: Mapping[LedgerId, BitMap]) -> int:
        """Return the number of a segment's entries that are not acknowledged."""
        return sum(len(self.left(ledger_id, entries)) for ledger_id, entries in bitmaps.items())


class StoredIndexes:
    """Reader of stored indexes."""

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
        """Yield each of these topics that exists, with all subscriptions or only one, but not brokers' own cursors.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        rest = iter(places)
        while some := list(islice(rest, _TOPICS_AT_ONCE)):
            nodes = self._store.read_many([managed_ledger_path(place.managed_ledger_name) for place in some])
            for place, node in zip(some, nodes, strict=True):
                if node is not None:
                    yield place, self._topic(place, node, subscription)

    def buckets(self, place: TopicName) -> Iterator[StoredBucket]:
        """Yield the buckets of all subscriptions, without acknowledgements, which take further reads.

        Cursors that are unreadable or change meanwhile are skipped: for callers that need no complete response.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        paths = self._cursors_of(managed_ledger_path(place.managed_ledger_name), None)
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
        paths = self._cursors_of(node.path, subscription)
        found: dict[str, StoredIndex | Unreadable] = {}
        for _ in range(_TRIES):
            read = self._indexes(place, lengths, paths)
            found = {name: index for name, index in found.items() if name not in paths} | read
            # A broker deletes a bucket's ledger first and the property next: cursors that changed meanwhile are read
            # again.
            paths = self._changed(read, paths)
            if not paths:
                break
        return StoredTopic(place, listed, found)

    def _cursors_of(self, path: str, subscription: str | None) -> dict[str, str]:
        # A replicator has no tracker: it copies delayed messages at once.
        cursors = self._store.children(path) if subscription is None else [encode_cursor(subscription)]
        return {name: f"{path}/{cursor}" for name, cursor in subscriptions_among(cursors or ()).items()}

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
        named = [_named_buckets(node) for node in cursors]
        readable = [buckets for buckets in named if not isinstance(buckets, Unreadable)]
        ledgers = self.ledgers({ledger_id for buckets in readable for ledger_id in buckets.values()})
        snapshots = self._snapshots(ledgers)

        def stored(buckets: Mapping[str, LedgerId]) -> tuple[StoredBucket, ...]:
            found = (
                StoredBucket(name, _decoded(BucketKey.parse, name), id_, ledgers[id_], snapshots[id_])
                for name, id_ in buckets.items()
            )
            return tuple(sorted(found, key=_in_order))

        return [buckets if isinstance(buckets, Unreadable) else stored(buckets) for buckets in named]

    def ledgers(self, ids: Iterable[LedgerId]) -> dict[LedgerId, LedgerMetadata | Absent | Unreadable]:
        """Return the metadata of each ledger in BookKeeper, in order."""
        wanted = list(ids)
        nodes = self._store.read_many([ledger_path(ledger_id, self._root) for ledger_id in wanted])
        return {
            ledger_id: Absent() if node is None else _decoded(decode_ledger_metadata, node.data)
            for ledger_id, node in zip(wanted, nodes, strict=True)
        }

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


def _decoded(decode: Callable[[_Source], _Value], source: _Source) -> _Value | Unreadable:
    try:
        return decode(source)
    except UndecodableError as error:
        return Unreadable(str(error))


def _named_buckets(node: Node) -> Mapping[str, LedgerId] | Unreadable:
    found = _decoded(cursor_references, node.data)
    if isinstance(found, Unreadable):
        return Unreadable(f"the cursor at {node.path} cannot be read: {found.reason}")
    return found.buckets


def decode_snapshot(payload: EntryPayload) -> SnapshotMetadata | Absent | Unreadable:
    """Decode entry 0; return a failed read or decoding as a value."""
    return _decoded(decode_metadata, payload) if isinstance(payload, bytes) else payload


def decode_stored_segment(payload: EntryPayload) -> DelayedIndexes | Absent | Unreadable:
    """Decode a later entry; return a failed read or decoding as a value."""
    return _decoded(decode_segment, payload) if isinstance(payload, bytes) else payload


def _in_order(bucket: StoredBucket) -> tuple[bool, BucketKey | str]:
    """Return a sort key by ledgers; buckets with malformed names come last."""
    return (False, bucket.key) if isinstance(bucket.key, BucketKey) else (True, bucket.name)
