"""Cursors as their broker holds them in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.positions import Position

SHARED = "Shared"
KEY_SHARED = "Key_Shared"


@dataclass(frozen=True, slots=True)
class CursorInMemory:
    """One durable subscription (``internalStats`` and ``stats`` of its topic).

    Attributes:
        acknowledged: entries acknowledged as a whole.
        ranges: how many ranges the broker counts, which is what it compares with its limit.
        stored: the cursor's ledger and the last entry of it that the broker knows to be stored.
        type: ``SubscriptionType`` as brokers print it; None when no consumer has set it since the topic was loaded.
        consumers: how many are connected.
        unacked_messages: delivered to consumers and not acknowledged.
        delayed_messages: held back until they are due.
        backlog: messages that wait, estimated.
    """

    acknowledged: PositionRanges
    ranges: int
    read_position: Position
    stored: tuple[LedgerId, EntryId] | None
    type: str | None = None
    consumers: int = 0
    unacked_messages: int = 0
    delayed_messages: int = 0
    backlog: int = 0

    @property
    def dispatcher_can_pause(self) -> bool:
        """Only dispatchers to several consumers know the pause (``PersistentDispatcherMultipleConsumers``)."""
        return self.type in (SHARED, KEY_SHARED)


@dataclass(frozen=True, slots=True)
class TopicCursors:
    """A topic and its subscriptions at one moment.

    Attributes:
        broker: the owner, ``host:port`` of its web service.
        lengths: the entries of each ledger, the one that is written to included.
        cursors: by subscription.
    """

    broker: str | None
    lengths: Mapping[LedgerId, int]
    cursors: Mapping[str, CursorInMemory] = field(default_factory=dict)
