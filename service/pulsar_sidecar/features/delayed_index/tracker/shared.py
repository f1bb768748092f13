"""PIP-195's optional shared index: one for all subscriptions of a topic, built by its own cursor.

Whichever subscription reads, due positions leave the index once and go into the replay queue of every subscription,
except those before its mark-delete position. No released broker does this.

A restart forgets the replay queues. That loses no message: the dispatcher reads from the earliest mark-delete position
on, and delivers a message that is due by then without the index.
"""

from pyroaring import BitMap

from pulsar_sidecar.features.delayed_index.snapshot import bitmaps_of
from pulsar_sidecar.features.delayed_index.tracker.position_bits import PositionBits
from pulsar_sidecar.features.delayed_index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import DisabledError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

INDEX_CURSOR = "pulsar.delayed.index"
"""Cursor that builds the index, and whose properties name its buckets."""


class SharedDelayedIndex:
    """Shared index of one topic; not thread-safe.

    Attributes:
        tracker: index, to which each message is added once, whatever the number of subscriptions.
    """

    def __init__(self, tracker: BucketDelayedDeliveryTracker) -> None:
        """Share the tracker of `INDEX_CURSOR`, which behaves as in the PIP.

        Raises:
            DisabledError: its settings do not enable a shared index.
        """
        if not tracker.settings.shared_index:
            raise DisabledError("set delayedDeliverySharedIndexEnabled=true to share one index across subscriptions")
        self.tracker = tracker
        self._replays: dict[str, _ReplayQueue] = {}

    def subscribe(self, subscription: str, mark_delete: Position) -> None:
        """Add a subscription or move it (also by a seek back); it gets nothing before its position."""
        replay = self._replays.setdefault(subscription, _ReplayQueue(mark_delete))
        replay.mark_delete = mark_delete
        replay.drop_marked()

    def get_scheduled_messages(self, subscription: str, max_messages: int) -> list[Position]:
        """Return due positions not yet given to this subscription, at most ``max_messages``, ascending.

        Raises:
            NotFoundError: the subscription is unknown.
        """
        if subscription not in self._replays:
            raise NotFoundError(f"the index does not know the subscription {subscription}; subscribe it first")
        due = self.tracker.pop_scheduled(max_messages)
        for ledger_id, entries in bitmaps_of(due.ledgers, due.entries).items():
            for each in self._replays.values():
                each.add(ledger_id, entries)
        return self._replays[subscription].take(max_messages)


class _ReplayQueue:
    """Positions to replay to one subscription (the dispatcher's ``redeliveryMessages``)."""

    def __init__(self, mark_delete: Position) -> None:
        self.mark_delete = mark_delete
        self.positions = PositionBits()

    def add(self, ledger_id: LedgerId, entries: BitMap) -> None:
        if ledger_id >= self.mark_delete.ledger_id:
            self.positions.add_all(ledger_id, entries)
            self.drop_marked()

    def drop_marked(self) -> None:
        """Drop positions up to the mark-delete position."""
        ledger_id, entry_id = self.mark_delete
        for done in [each for each in self.positions.ledgers if each < ledger_id]:
            del self.positions.ledgers[done]
        marked = self.positions.of(ledger_id)
        if marked is not None and entry_id >= 0:
            self.positions.remove_all(ledger_id, marked & BitMap(range(entry_id + 1)))

    def take(self, most: int) -> list[Position]:
        taken: list[Position] = []
        for ledger_id in sorted(self.positions.ledgers):
            entries = self.positions.ledgers[ledger_id][: most - len(taken)]
            taken += [Position(ledger_id, EntryId(entry_id)) for entry_id in entries]
            self.positions.remove_all(ledger_id, entries)
            if len(taken) >= most:
                break
        return taken
