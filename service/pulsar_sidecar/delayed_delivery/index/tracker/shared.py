"""PIP-195's optional part: one index for all subscriptions of a topic, built by a cursor of its own.

Whichever subscription asks, what is due is taken out of the index once and put into the replay queue of every
subscription, less what is before its mark-delete position. No released broker does this.

After a restart it is not known what was in a replay queue. That loses nothing: the dispatcher reads from
`read_again_from`, and a message that is due by then is delivered without the index.
"""

from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.index.snapshot import bitmaps_of
from pulsar_sidecar.delayed_delivery.index.tracker.position_bits import PositionBits
from pulsar_sidecar.delayed_delivery.index.tracker.tracker import BucketDelayedDeliveryTracker
from pulsar_sidecar.model.errors import DisabledError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

INDEX_CURSOR = "pulsar.delayed.index"
"""The cursor that builds the index and whose properties name its buckets."""


class SharedDelayedIndex:
    """One topic's; not for several threads at once.

    Attributes:
        tracker: the index itself: messages are added to it once, whatever the number of subscriptions.
    """

    def __init__(self, tracker: BucketDelayedDeliveryTracker) -> None:
        """Over the tracker of `INDEX_CURSOR`, which behaves as the PIP has it.

        Raises:
            DisabledError: its settings do not ask for a shared index.
        """
        if not tracker.settings.shared_index:
            raise DisabledError("set delayedDeliverySharedIndexEnabled=true to share one index across subscriptions")
        self.tracker = tracker
        self._replays: dict[str, _ReplayQueue] = {}

    def subscribe(self, subscription: str, mark_delete: Position) -> None:
        """One more subscription, or one that moved (a seek back too); what is before its position it does not get."""
        replay = self._replays.setdefault(subscription, _ReplayQueue(mark_delete))
        replay.mark_delete = mark_delete
        replay.drop_marked()

    def unsubscribe(self, subscription: str) -> None:
        """It gets nothing any more; no error if it was not there."""
        self._replays.pop(subscription, None)

    def read_again_from(self) -> Position | None:
        """The earliest mark-delete position: a restart adds the messages after it; None without subscriptions."""
        return min((replay.mark_delete for replay in self._replays.values()), default=None)

    def has_message_available(self, subscription: str) -> bool:
        """Whether `get_scheduled_messages` would look for one. Raises `NotFoundError` for an unknown subscription."""
        return bool(self._replay(subscription).positions.ledgers) or self.tracker.has_message_available()

    def get_scheduled_messages(self, subscription: str, max_messages: int) -> list[Position]:
        """Up to so many that are due and were not given to this subscription; ascending by position.

        Raises:
            NotFoundError: an unknown subscription.
        """
        replay = self._replay(subscription)
        due = self.tracker.pop_scheduled(max_messages)
        for ledger_id, entries in bitmaps_of(due.ledgers, due.entries).items():
            for each in self._replays.values():
                each.add(ledger_id, entries)
        return replay.take(max_messages)

    def _replay(self, subscription: str) -> "_ReplayQueue":
        if subscription not in self._replays:
            raise NotFoundError(f"the index does not know the subscription {subscription}; subscribe it first")
        return self._replays[subscription]


class _ReplayQueue:
    """Positions that one subscription is to be given (the dispatcher's ``redeliveryMessages``)."""

    def __init__(self, mark_delete: Position) -> None:
        self.mark_delete = mark_delete
        self.positions = PositionBits()

    def add(self, ledger_id: LedgerId, entries: BitMap) -> None:
        if ledger_id >= self.mark_delete.ledger_id:
            self.positions.add_all(ledger_id, entries)
            self.drop_marked()

    def drop_marked(self) -> None:
        """Those up to the mark-delete position are done."""
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
