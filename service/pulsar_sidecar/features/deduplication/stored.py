"""Stored deduplication state: the cursor's snapshot, the entries after it, and the ledgers that it retains.

Everything comes from the metadata store and from bookies, so the sidecar queries no broker and loads no topic.
Invariant: an unreadable fact is a value with its reason; `Absent` was read.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from pulsar_sidecar.features.deduplication.ports import StoredSnapshots
from pulsar_sidecar.features.deduplication.results import Amount
from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.metadata import Node, NodeReader
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path
from pulsar_sidecar.ownership.ports import CursorPositions, LedgerLengths
from pulsar_sidecar.ownership.references import LedgerReference, managed_ledger_references
from pulsar_sidecar.ownership.stored_topics import StoredTopics

_TOPICS_AT_ONCE: Final = 100
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class StoredDeduplication:
    """Stored state of a topic without partitions, or of one partition.

    Attributes:
        snapshot: `Absent` if there is no deduplication cursor: no broker deduplicates, or has ever loaded, the topic.
        ledgers: ledgers in order; with the length of the last one if there is a cursor.
        unmeasured: reason why the length of the last ledger is unknown; None if it is known or not needed.
    """

    topic: TopicName
    snapshot: Snapshot | Absent | Unreadable
    ledgers: Mapping[LedgerId, LedgerReference]
    unmeasured: str | None = None

    @property
    def since(self) -> Amount | None:
        """Entries after the snapshot, which a topic load replays; None if unknown.

        The ledger that contains the snapshot's position counts with the share of its entries.
        """
        if not isinstance(self.snapshot, Snapshot) or self.unmeasured is not None:
            return None
        position = self.snapshot.position
        entries = size_bytes = 0
        for ledger_id, ledger in self.ledgers.items():
            left = ledger.entries if ledger_id > position.ledger_id else 0
            if ledger_id == position.ledger_id:
                left = max(0, ledger.entries - position.entry_id - 1)
            entries += left
            size_bytes += ledger.size_bytes * left // max(1, ledger.entries)
        return Amount(entries, size_bytes)

    @property
    def held(self) -> Sequence[LedgerId] | None:
        """Ledgers that brokers may not delete because of the cursor; None if unknown.

        The last ledger of a topic is not among them: brokers never delete it.
        """
        if isinstance(self.snapshot, Unreadable):
            return None
        return held_by(self.snapshot.position, self.ledgers) if isinstance(self.snapshot, Snapshot) else ()

    def size_of(self, ledgers: Iterable[LedgerId]) -> int:
        """Return the bytes of these ledgers of the topic."""
        return sum(self.ledgers[ledger_id].size_bytes for ledger_id in ledgers)


def held_by(mark_delete: Position, ledgers: Mapping[LedgerId, LedgerReference]) -> Sequence[LedgerId]:
    """Return the ledgers that brokers may not delete because of a cursor at this position (``internalTrimLedgers``).

    A ledger whose last entry is the position is not held.
    """
    last = max(ledgers, default=None)
    at = ledgers.get(mark_delete.ledger_id)
    is_read = at is not None and at.entries == mark_delete.entry_id + 1
    first = mark_delete.ledger_id + (1 if is_read else 0)
    return [ledger_id for ledger_id in ledgers if ledger_id >= first and ledger_id != last]


class StoredDeduplications:
    """Reader of stored deduplication state."""

    def __init__(
        self, store: NodeReader, snapshots: StoredSnapshots, lengths: LedgerLengths, cursors: CursorPositions
    ) -> None:
        self._store = store
        self._snapshots = snapshots
        self._lengths = lengths
        self._cursors = cursors
        self.topics = StoredTopics(store)

    def read(self, places: Iterable[TopicName]) -> Iterator[tuple[TopicName, StoredDeduplication | Unreadable]]:
        """Yield each of these that exists; `Unreadable` if its list of ledgers cannot be decoded.

        Args:
            places: partitions, or topics without partitions.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        rest = iter(places)
        while some := list(islice(rest, _TOPICS_AT_ONCE)):
            names = [place.managed_ledger_name for place in some]
            topics = self._store.read_many([managed_ledger_path(name) for name in names])
            cursors = self._store.read_many([cursor_path(name, DEDUPLICATION_CURSOR) for name in names])
            for place, topic, cursor in zip(some, topics, cursors, strict=True):
                if topic is not None:
                    yield place, self._of(place, topic, cursor)

    def held_alone(self, stored: StoredDeduplication) -> Sequence[LedgerId] | Unreadable:
        """Return the ledgers that no other cursor retains.

        Brokers delete them once the cursor has moved and retention has ended. The other cursors count as they are
        stored: those of a loaded topic may have moved on and retain less.

        Raises:
            TemporaryError: the metadata store could not be read.
        """
        held = stored.held
        if not held:
            return held if held is not None else Unreadable("the position of the deduplication cursor is unknown")
        path = managed_ledger_path(stored.topic.managed_ledger_name)
        others = [child for child in self._store.children(path) or () if child != DEDUPLICATION_CURSOR]
        nodes = [node for node in self._store.read_many([f"{path}/{other}" for other in others]) if node is not None]
        lengths = {ledger_id: ledger.entries for ledger_id, ledger in stored.ledgers.items()}
        alone = set(held)
        for acknowledged in self._cursors.acknowledged([node.data for node in nodes], lengths):
            if isinstance(acknowledged, Unreadable):
                return acknowledged
            alone -= set(held_by(acknowledged.mark_delete, stored.ledgers))
        return [ledger_id for ledger_id in held if ledger_id in alone]

    def _of(self, place: TopicName, topic: Node, cursor: Node | None) -> StoredDeduplication | Unreadable:
        try:
            listed = managed_ledger_references(topic.data).ledgers
        except UndecodableError as error:
            return Unreadable(f"the managed ledger of {place} cannot be read: {error}")
        snapshot = Absent() if cursor is None else self._snapshot(cursor)
        if isinstance(snapshot, Absent):
            return StoredDeduplication(place, snapshot, listed)
        measured = self._lengths.measured(listed)
        if isinstance(measured, Unreadable):
            return StoredDeduplication(place, snapshot, listed, measured.reason)
        return StoredDeduplication(place, snapshot, measured)

    def _snapshot(self, cursor: Node) -> Snapshot | Absent | Unreadable:
        """Read a changed node again: a broker that moves a cursor to another ledger deletes the old one."""
        node, found = cursor, self._snapshots.snapshots([cursor.data])[0]
        for _ in range(_TRIES):
            if isinstance(found, Snapshot) and found.lost is None:
                break
            now = self._store.read(node.path)
            if now is None:
                return Absent()
            if now.version == node.version:
                break
            node, found = now, self._snapshots.snapshots([now.data])[0]
        return found
