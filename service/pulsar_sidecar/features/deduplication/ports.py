"""Ports of the inspection of deduplication.

Every method raises `TemporaryError` when the other side could not be reached; a fact that it cannot know is an
`Unreadable`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.features.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName


class StoredSnapshots(Protocol):
    """Snapshots that brokers wrote with deduplication cursors."""

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        """Return the snapshots with which a broker that recovers now would begin, in order. Raises nothing.

        Args:
            cursors: the data of deduplication cursors' nodes.
        """


@dataclass(frozen=True, slots=True)
class ReplayedEntry:
    """Metadata of an entry that a broker uses in a replay.

    Attributes:
        sequence_id: larger one of lowest and highest id, as a signed 64-bit number (Java ``long``).
        publish_time_ms: time by the producer's clock, milliseconds since the epoch.
        is_marker: True for a marker; brokers write markers themselves, and replay them like messages.
        replicated_from: cluster in which it was published; None for this one.
    """

    position: Position
    producer: str
    sequence_id: int
    publish_time_ms: int
    is_marker: bool
    replicated_from: str | None = None


@dataclass(frozen=True, slots=True)
class UndecodableEntry:
    """Entry that was read and holds no message."""

    position: Position
    reason: str


StoredMessages = Callable[[TopicName, Position], Iterator[ReplayedEntry | UndecodableEntry | UnseenEntries]]
"""Yields a partition's entries, or those of a topic without partitions, as bookies hold them, from a position on.

`NotFoundError`: there is no such topic.
"""
