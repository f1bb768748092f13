"""What deduplication's inspection needs from outside.

Every method raises `TemporaryError` when the other side could not be asked; what was asked and cannot be known is an
`Unreadable`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.deduplication.snapshots import Snapshot
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName


class StoredSnapshots(Protocol):
    """Snapshots that brokers wrote with deduplication cursors."""

    def snapshots(self, cursors: Sequence[bytes]) -> Sequence[Snapshot | Unreadable]:
        """What a broker that recovers now would begin with, for each in order. Raises nothing.

        Args:
            cursors: the data of deduplication cursors' nodes.
        """
        ...


@dataclass(frozen=True, slots=True)
class ReplayedEntry:
    """What a broker that replays an entry takes from its metadata.

    Attributes:
        sequence_id: the larger one of lowest and highest, as a signed 64-bit number (Java ``long``).
        publish_time_ms: by the producer's clock.
        is_marker: brokers write markers themselves, and replay them like messages.
    """

    position: Position
    producer: str
    sequence_id: int
    publish_time_ms: int
    is_marker: bool


@dataclass(frozen=True, slots=True)
class UndecodableEntry:
    """An entry that was read and holds no message."""

    position: Position
    reason: str


class StoredMessages(Protocol):
    """Entries of topics as bookies hold them."""

    def read(self, topic: TopicName, first: Position) -> Iterator[ReplayedEntry | UndecodableEntry | UnseenEntries]:
        """The entries of a partition, or of a topic without partitions, in order, from ``first`` on.

        Raises:
            NotFoundError: there is no such topic.
        """
        ...
