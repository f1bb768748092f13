"""Selection of waiting messages by due time, key or property, in order to cancel them.

Invariants: two runs of a selection give the same hash, by which a caller confirms a preview, exactly if they found the
same messages. An entry never changes, so it is read once per selection; the broker reports at each run whether it still
exists and waits.
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

from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.backlog.waiting import (
    EntriesByLedger,
    is_earlier_chunk,
    minus,
    partitions_of,
    positions_of,
    subscriptions_of,
    waiting_entries,
)
from pulsar_sidecar.features.delayed_messages.cancel.plan import SubscriptionChoice, choose_subscriptions
from pulsar_sidecar.features.delayed_messages.cancel.requests import Target
from pulsar_sidecar.features.delayed_messages.ports import Ports
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Preview, SelectedMessage
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

MAX_SAMPLE: Final = 20
_READ_AT_ONCE: Final = 5_000


@dataclass(frozen=True, slots=True)
class Selection:
    """Criteria for messages; None and empty match everything.

    Attributes:
        due_from_ms: earliest due time, inclusive, milliseconds since the epoch.
        due_to_ms: latest due time, exclusive, milliseconds since the epoch.
        published_before_ms: exclusive upper bound of the publish time by producers' clocks, so that a selection does
            not grow.
        properties: required properties with their values.
        publish_time_ms: exact publish time by the producer's clock.
        subscriptions: names of subscriptions; empty for every Shared and Key_Shared one.
    """

    due_from_ms: int | None = None
    due_to_ms: int | None = None
    published_before_ms: int | None = None
    key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    producer_name: str | None = None
    sequence_id: int | None = None
    publish_time_ms: int | None = None
    subscriptions: tuple[str, ...] = ()

    def check(self) -> None:
        """Check that the selection has a criterion and no empty range.

        Raises:
            InvalidInputError: the selection has no criterion, or an empty range.
        """
        times = (self.due_from_ms, self.due_to_ms, self.publish_time_ms)
        others = (self.key, self.producer_name, self.sequence_id)
        if not self.properties and all(each is None for each in (*times, *others)):
            raise InvalidInputError(
                "a selection needs at least one of dueFrom, dueTo, key, properties, producerName, sequenceId and "
                "publishTime"
            )
        if self.due_from_ms is not None and self.due_to_ms is not None and self.due_from_ms >= self.due_to_ms:
            raise InvalidInputError("dueFrom is not before dueTo, so nothing can match")

    def matches(self, facts: EntryFacts) -> bool:
        """Return True if a message meets the criteria, apart from the upper bound of the publish time."""
        due_ms = facts.deliver_at_ms
        return (
            due_ms is not None
            and (self.due_from_ms is None or due_ms >= self.due_from_ms)
            and (self.due_to_ms is None or due_ms < self.due_to_ms)
            and (self.key is None or facts.key == self.key)
            and all(facts.properties.get(name) == value for name, value in self.properties.items())
            and (self.producer_name is None or facts.producer_name == self.producer_name)
            and (self.sequence_id is None or facts.sequence_id == self.sequence_id)
            and (self.publish_time_ms is None or facts.publish_time_ms == self.publish_time_ms)
        )

    def as_request(self) -> dict[str, object]:
        """Return the JSON by which a caller selects the same."""
        given: dict[str, object] = {
            "dueFrom": self.due_from_ms,
            "dueTo": self.due_to_ms,
            "publishedBefore": self.published_before_ms,
            "key": self.key,
            "properties": dict(self.properties),
            "producerName": self.producer_name,
            "sequenceId": self.sequence_id,
            "publishTime": self.publish_time_ms,
            "subscriptionNames": list(self.subscriptions) or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def was_published_later(self, facts: EntryFacts) -> bool:
        return self.published_before_ms is not None and facts.publish_time_ms >= self.published_before_ms


# --- readings ------------------------------------------------------------------------------------------------------


class PreviewRow(NamedTuple):
    """Message that a selection found; tuples sort in a preview's order."""

    deliver_at_ms: int
    topic: str
    position: Position
    key: str | None


_ROW: Final = np.dtype(
    [("deliver_at_ms", "<i8"), ("ledger", "<i8"), ("entry", "<i8"), ("publish_time_ms", "<i8"), ("plain", "?")]
)
Rows = npt.NDArray[Any]
"""Matching messages, one per row of 33 bytes. ``plain``: the two times are the entry's only fields that affect a
decision: it is not a batch, a chunk or part of a transaction."""


@dataclass(slots=True)
class PartitionReading:
    """Entries read of one partition for one selection.

    Attributes:
        read: entries that were matched or ruled out.
        rows: matching messages.
        first: first matching messages by due time.
        unreadable: number of entries that the last run could not read; the next run reads them again.
        published_later: number of messages excluded only because they were published too late.
    """

    topic: TopicName
    read: dict[LedgerId, BitMap] = field(default_factory=dict)
    rows: Rows = field(default_factory=lambda: np.empty(0, _ROW))
    first: Sequence[PreviewRow] = ()
    unreadable: int = 0
    published_later: int = 0

    def unread(self, waiting: EntriesByLedger) -> Iterator[Position]:
        """Return the waiting entries that were not read yet."""
        return positions_of(minus(waiting, self.read))

    def learn(self, selection: Selection, answers: Mapping[Position, EntryAnswer]) -> None:
        """Record the metadata of entries; of a chunked message only the last chunk matches."""
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
                first.append(PreviewRow(facts.deliver_at_ms, topic, position, facts.key))
        self.rows = np.concatenate([self.rows, np.array(meant, _ROW)])
        self.first = nsmallest(MAX_SAMPLE, first, key=lambda one: one[:3])

    def found(self, waiting: EntriesByLedger, now_ms: int) -> Rows:
        """Return the matching messages that still wait and are not due yet, in the order of their entries."""
        rows: Rows = self.rows[self.rows["deliver_at_ms"] > now_ms]
        rows = rows[np.lexsort((rows["entry"], rows["ledger"]))]
        places = zip(rows["ledger"].tolist(), rows["entry"].tolist(), strict=True)
        still = np.fromiter((entry in waiting.get(ledger, ()) for ledger, entry in places), bool, len(rows))
        waiting_rows: Rows = rows[still]
        return waiting_rows


def _is_plain(facts: EntryFacts) -> bool:
    # Fields that affect no decision are excluded by name, so that any other field makes the sidecar read the entry
    # again.
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
"""Readings for one selection, by partition."""


@dataclass(frozen=True, slots=True)
class SelectedBatch:
    """Messages of one partition that a selection found."""

    topic: TopicName
    rows: Rows
    subscriptions: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def targets(self) -> list[Target]:
        """Return the targets to cancel on the selection's subscriptions."""
        return [
            Target(position, deliver_at_ms, None, self.subscriptions)
            for position, deliver_at_ms in zip(
                self._positions(self.rows), self.rows["deliver_at_ms"].tolist(), strict=True
            )
        ]

    def known(self) -> dict[Position, EntryFacts]:
        """Return the facts of entries that need not be read again."""
        rows = self.rows[self.rows["plain"]]
        times = zip(rows["deliver_at_ms"].tolist(), rows["publish_time_ms"].tolist(), strict=True)
        return {position: EntryFacts(*both) for position, both in zip(self._positions(rows), times, strict=True)}

    @staticmethod
    def _positions(rows: Rows) -> list[Position]:
        places = zip(rows["ledger"].tolist(), rows["entry"].tolist(), strict=True)
        return [Position(LedgerId(ledger_id), EntryId(entry_id)) for ledger_id, entry_id in places]


# --- search --------------------------------------------------------------------------------------------------------


def find_selected(ports: Ports, topic: TopicName, selection: Selection, reading: Reading) -> dict[TopicName, Rows]:
    """Return the matching messages that wait, by partition; entries not read yet are read into ``reading``.

    Entries whose due time in the index is outside the selection are not read. Selected entries always are: an entry's
    own metadata decides whether it is cancelled.

    Raises:
        NotFoundError: there is no such topic, or no partition has one of the subscriptions.
        ConflictError: nothing can be cancelled on one of the named subscriptions, or on any subscription.
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
    """Raise if nothing can be cancelled: an empty result would look as if no messages wait."""
    admitted = {one.name for choice in choices for one in choice.admitted}
    for refusal in (refusal for choice in choices for refusal in choice.refusals):
        if refusal.subscription not in admitted and (selection.subscriptions or not admitted):
            error = NotFoundError if refusal.proof is CancellationStatus.NOT_FOUND else ConflictError
            raise error(f"{refusal.reason}; nothing was cancelled")


# --- previews ------------------------------------------------------------------------------------------------------


def preview(selection: Selection, found: Mapping[TopicName, Rows], reading: Reading) -> Preview:
    """Return the preview for the caller, with the hash of exactly these messages."""
    dues = [
        int(due)
        for rows in found.values()
        if len(rows)
        for due in (rows["deliver_at_ms"].min(), rows["deliver_at_ms"].max())
    ]
    first = nsmallest(MAX_SAMPLE, (one for part in reading.values() for one in part.first), key=lambda one: one[:3])
    return Preview(
        count=sum(map(len, found.values())),
        hash=hash_of(selection, found),
        first_due=min(dues, default=None),
        last_due=max(dues, default=None),
        unreadable=sum(part.unreadable for part in reading.values()),
        published_later=sum(part.published_later for part in reading.values()),
        selection=selection.as_request(),
        sample=tuple(SelectedMessage(one.topic, *one.position, one.deliver_at_ms, one.key) for one in first),
    )


def hash_of(selection: Selection, found: Mapping[TopicName, Rows]) -> str:
    """Return the hash of the messages and of the subscriptions on which they are selected."""
    digest = hashlib.sha256()
    for topic, rows in sorted(found.items(), key=lambda one: str(one[0])):
        if len(rows):
            digest.update(f"{topic}|{len(rows)}\n".encode())
            digest.update(np.stack([rows[name] for name in ("ledger", "entry", "deliver_at_ms")]).tobytes())
    digest.update("|".join(sorted(selection.subscriptions)).encode())
    return digest.hexdigest()[:32]


def batches_of(selection: Selection, found: Mapping[TopicName, Rows], most: int) -> Iterator[SelectedBatch]:
    """Split the messages into batches of at most ``most``."""
    for topic, rows in found.items():
        for begin in range(0, len(rows), most):
            yield SelectedBatch(topic, rows[begin : begin + most], selection.subscriptions)
