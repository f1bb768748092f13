"""Waiting messages selected by due time, key or property, in order to be cancelled.

Invariants: two runs with the same selection give the same hash, by which a caller confirms a preview, exactly when they
found the same messages. An entry never changes, so it is read once for a selection, however often that is looked for;
whether it is still there and still waits is asked of the broker each time.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from pulsar_sidecar.delayed_delivery.backlog import (
    EntriesByLedger,
    is_earlier_chunk,
    minus,
    partitions_of,
    positions_of,
    subscriptions_of,
    waiting_entries,
)
from pulsar_sidecar.delayed_delivery.cancel.plan import SubscriptionChoice, choose_subscriptions
from pulsar_sidecar.delayed_delivery.cancel.requests import CancellationStatus, Target
from pulsar_sidecar.delayed_delivery.ports import EntryAnswer, EntryFacts, Ports
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

MAX_SAMPLE: Final = 20
_READ_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class Selection:
    """What the messages must be; None and empty demand nothing.

    Attributes:
        due_from_ms: the earliest due time, included.
        due_to_ms: the latest due time, excluded.
        published_before_ms: only messages published before it by their producers' clocks, so that a selection does not
            grow.
        properties: all of these, with these values.
        subscriptions: where; empty for every Shared and Key_Shared subscription.
    """

    due_from_ms: int | None = None
    due_to_ms: int | None = None
    published_before_ms: int | None = None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    subscriptions: tuple[str, ...] = ()

    def check(self) -> None:
        """Whether it selects anything less than everything.

        Raises:
            InvalidInputError: it names nothing, or an empty range.
        """
        if self.due_from_ms is None and self.due_to_ms is None and self.key is None and not self.properties:
            raise InvalidInputError("a selection needs at least one of dueFrom, dueTo, key and properties")
        if self.due_from_ms is not None and self.due_to_ms is not None and self.due_from_ms >= self.due_to_ms:
            raise InvalidInputError("dueFrom is not before dueTo, so nothing can match")

    def matches(self, facts: EntryFacts) -> bool:
        """Whether a message is meant, if it waits, is not due yet and was not published too late."""
        due_ms = facts.deliver_at_ms
        return (
            due_ms is not None
            and (self.due_from_ms is None or due_ms >= self.due_from_ms)
            and (self.due_to_ms is None or due_ms < self.due_to_ms)
            and (self.key is None or facts.key == self.key)
            and all(facts.properties.get(name) == value for name, value in self.properties.items())
        )

    def was_published_later(self, facts: EntryFacts) -> bool:
        return self.published_before_ms is not None and facts.publish_time_ms >= self.published_before_ms


# --- what was read -------------------------------------------------------------------------------------------------


class Selected(NamedTuple):
    """One message that a selection found; the order is a preview's."""

    deliver_at_ms: int
    topic: str
    position: Position
    key: str | None


_ROW: Final = np.dtype(
    [("deliver_at_ms", "<i8"), ("ledger", "<i8"), ("entry", "<i8"), ("publish_time_ms", "<i8"), ("plain", "?")]
)
Rows = npt.NDArray[Any]
"""Messages that are meant, one a row of 33 bytes. ``plain``: its entry has nothing but the two times that a
decision depends on: it is not a batch, a chunk or part of a transaction."""


@dataclass(slots=True)
class PartitionReading:
    """What was read of one partition for one selection.

    Attributes:
        read: every entry of which it is known whether it is meant.
        rows: those that are meant.
        first: the first of them by due time.
        unreadable: how many entries could not be read the last time; they are read again the next time.
        published_later: how many would be meant, had they been published before.
    """

    topic: TopicName
    read: dict[LedgerId, BitMap] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.empty(0, _ROW))
    first: Sequence[Selected] = ()
    unreadable: int = 0
    published_later: int = 0

    def unread(self, waiting: EntriesByLedger) -> Iterator[Position]:
        """The entries that were not read yet."""
        return positions_of(minus(waiting, self.read))

    def learn(self, selection: Selection, answers: Mapping[Position, EntryAnswer]) -> None:
        """Keep entries' metadata; of a chunked message only the last chunk is meant."""
        topic, meant, first = str(self.topic), [], [*self.first]
        for position, facts in sorted(answers.items()):
            self.unreadable += isinstance(facts, Unreadable)
            if not isinstance(facts, EntryFacts):
                continue
            self.read.setdefault(position.ledger_id, BitMap()).add(position.entry_id)
            if not selection.matches(facts) or facts.marker or is_earlier_chunk(facts):
                continue
            if selection.was_published_later(facts):
                self.published_later += 1
            else:
                assert facts.deliver_at_ms is not None
                meant.append((facts.deliver_at_ms, *position, facts.publish_time_ms, _is_plain(facts)))
                first.append(Selected(facts.deliver_at_ms, topic, position, facts.key))
        self.rows = np.concatenate([self.rows, np.array(meant, _ROW)])
        self.first = nsmallest(MAX_SAMPLE, first, key=lambda one: one[:3])

    def found(self, waiting: EntriesByLedger, now_ms: int) -> Rows:
        """Those that are meant, still wait and are not due yet, in the order of their entries."""
        rows: Rows = self.rows[self.rows["deliver_at_ms"] > now_ms]
        rows = rows[np.lexsort((rows["entry"], rows["ledger"]))]
        places = zip(rows["ledger"].tolist(), rows["entry"].tolist(), strict=True)
        still = np.fromiter((entry in waiting.get(ledger, ()) for ledger, entry in places), bool, len(rows))
        waiting_rows: Rows = rows[still]
        return waiting_rows


def _is_plain(facts: EntryFacts) -> bool:
    # Fields that no decision depends on are left out here by name, so that any other field makes the entry read again.
    decisive = facts._replace(
        key=None,
        properties=EntryFacts._field_defaults["properties"],
        producer_name="",
        sequence_id=0,
        event_time_ms=None,
        size_bytes=None,
    )
    return decisive == EntryFacts(facts.deliver_at_ms, facts.publish_time_ms)


Reading = dict[TopicName, PartitionReading]
"""What was read for one selection, by partition."""


@dataclass(frozen=True, slots=True)
class SelectedBatch:
    """Some of the messages that a selection found, all of one partition."""

    topic: TopicName
    rows: Rows
    subscriptions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def targets(self) -> list[Target]:
        """To be cancelled on the selection's subscriptions."""
        return [
            Target(position, deliver_at_ms, None, self.subscriptions)
            for position, deliver_at_ms in zip(
                self._positions(self.rows), self.rows["deliver_at_ms"].tolist(), strict=True
            )
        ]

    def known(self) -> dict[Position, EntryFacts]:
        """The entries that need not be read again."""
        rows = self.rows[self.rows["plain"]]
        times = zip(rows["deliver_at_ms"].tolist(), rows["publish_time_ms"].tolist(), strict=True)
        return {position: EntryFacts(*both) for position, both in zip(self._positions(rows), times, strict=True)}

    @staticmethod
    def _positions(rows: Rows) -> list[Position]:
        places = zip(rows["ledger"].tolist(), rows["entry"].tolist(), strict=True)
        return [Position(LedgerId(ledger_id), EntryId(entry_id)) for ledger_id, entry_id in places]


# --- looking -------------------------------------------------------------------------------------------------------


def find_selected(ports: Ports, topic: TopicName, selection: Selection, reading: Reading) -> dict[TopicName, Rows]:
    """The messages that wait and are meant, by partition; what was not read yet is read into ``reading``.

    Entries that the index has at another due time are not read. Selected ones always are: an entry's own metadata
    decides whether it is cancelled.

    Raises:
        NotFoundError: there is no such topic, or no partition has one of the subscriptions.
        ConflictError: nothing can be cancelled on one of the subscriptions, or on any.
    """
    now_ms = ports.brokers_now_ms()
    topics = ports.topics
    found: dict[TopicName, Rows] = {}
    choices: list[SubscriptionChoice] = []
    for partition in partitions_of(topics, topic):
        subscriptions = subscriptions_of(topics, topic, partition)
        choices.append(choose_subscriptions(selection.subscriptions, subscriptions))
        if not choices[-1].admitted:
            continue
        state = topics.state(partition)
        chosen = [one.name for one in choices[-1].admitted if one.name in state.cursors]
        waiting = waiting_entries(state.ledgers, [state.cursors[name].acknowledged for name in chosen])
        if partition not in reading:
            others = ports.due_times.outside(partition, selection.due_from_ms, selection.due_to_ms)
            reading[partition] = PartitionReading(
                partition, {ledger_id: BitMap(bits) for ledger_id, bits in others.items()}
            )
        read_before = reading[partition]
        read_before.unreadable = 0
        unread = read_before.unread(waiting)
        while portion := list(islice(unread, _READ_AT_ONCE)):
            read_before.learn(selection, ports.entries.read(partition, portion))
        found[partition] = read_before.found(waiting, now_ms)
    _demand_subscriptions(selection, choices)
    return found


def _demand_subscriptions(selection: Selection, choices: Sequence[SubscriptionChoice]) -> None:
    """Where nothing can be cancelled, nothing found would look like nothing that waits."""
    admitted = {one.name for choice in choices for one in choice.admitted}
    for refusal in (refusal for choice in choices for refusal in choice.refusals):
        if refusal.subscription not in admitted and (selection.subscriptions or not admitted):
            error = NotFoundError if refusal.status is CancellationStatus.NOT_FOUND else ConflictError
            raise error(f"{refusal.reason}; nothing was cancelled")


# --- showing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Preview:
    """What a selection would cancel.

    Attributes:
        selection: made exact, so that it finds the same messages again.
        hash: of all messages found; a caller repeats it to confirm.
        sample: the first of them by due time.
        unreadable: entries that could not be read, and so are not among them.
        published_later: messages that are left out because of ``published_before_ms`` alone.
    """

    selection: Selection
    count: int
    hash: str
    first_due_ms: int | None
    last_due_ms: int | None
    sample: tuple[Selected, ...]
    unreadable: int
    published_later: int


def preview(selection: Selection, found: Mapping[TopicName, Rows], reading: Reading) -> Preview:
    """What a caller gets to see, with the hash of exactly these messages."""
    dues = [
        int(due)
        for rows in found.values()
        if len(rows)
        for due in (rows["deliver_at_ms"].min(), rows["deliver_at_ms"].max())
    ]
    return Preview(
        selection=selection,
        count=sum(map(len, found.values())),
        hash=hash_of(selection, found),
        first_due_ms=min(dues, default=None),
        last_due_ms=max(dues, default=None),
        sample=tuple(
            nsmallest(MAX_SAMPLE, (one for part in reading.values() for one in part.first), key=lambda one: one[:3])
        ),
        unreadable=sum(part.unreadable for part in reading.values()),
        published_later=sum(part.published_later for part in reading.values()),
    )


def hash_of(selection: Selection, found: Mapping[TopicName, Rows]) -> str:
    """Of the messages, and of the subscriptions that they are selected on."""
    digest = hashlib.sha256()
    for topic, rows in sorted(found.items(), key=lambda one: str(one[0])):
        if len(rows):
            digest.update(f"{topic}|{len(rows)}\n".encode())
            digest.update(np.stack([rows[name] for name in ("ledger", "entry", "deliver_at_ms")]).tobytes())
    digest.update("|".join(sorted(selection.subscriptions)).encode())
    return digest.hexdigest()[:32]


def batches_of(selection: Selection, found: Mapping[TopicName, Rows], most: int) -> Iterator[SelectedBatch]:
    """At most so many messages each."""
    for topic, rows in found.items():
        for begin in range(0, len(rows), most):
            yield SelectedBatch(topic, rows[begin : begin + most], selection.subscriptions)
