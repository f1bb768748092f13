"""Rules for messages of a topic: duplicates, reused ids, ids that go back, and epochs.

They hold for each producer of a topic separately, and for its replicated messages by their cluster: a producer's name
is unique only in a cluster. Its rows are those that brokers would compare (`MessageRow.is_compared`), in the order of
the log; ``highest`` is the highest id of all rows before a row, and a row whose id is above it is *rising* and never a
finding. Otherwise, if earlier rows have the same id, the row is a

* DUPLICATE, if its payload was read and one of those has the same hash: the first such one is ``earlier``;
* REUSED, if its payload and those of all of them were read; else
* REPEATED: for both, ``earlier`` is the first row with that id;

if none has, it is GOING_BACK, without an ``earlier``. In addition, a row that is not a DUPLICATE begins an EPOCH if its
id is below that of the row before it, and the row after it rises above it without being *rising*: the producer has
begun again. A resend after a broken connection begins none.

Only rows that do not rise need a comparison with the past. So a topic is read once with `SequenceComparison`, in memory
for its producers and suspects; if there are any, `EarlierMessages` searches for those ids in a second reading.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pulsar_sidecar.features.duplicates.rows import WHOLE_BATCH, FindingKind, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.ids import EntryId, LedgerId


class Producer(NamedTuple):
    """Producer whose ids are compared with each other."""

    name: str
    replicated_from: str | None


class MessagePlace(NamedTuple):
    """Place of a message; places of a topic ascend in the order of its log."""

    ledger_id: LedgerId
    entry_id: EntryId
    batch_index: int

    def __str__(self) -> str:
        return ":".join(map(str, self))


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding about one message.

    ``highest`` is the highest id of the producer before it, ``earlier`` the message with the same id (see the rules).
    """

    kind: FindingKind
    producer: Producer
    sequence_id: int
    place: MessagePlace
    message_kind: MessageKind
    publish_time_ms: int
    highest: int
    earlier: MessagePlace | None = None


class PossibleDuplicate(NamedTuple):
    """Row that does not rise, by its neighbours; its message is GOING_BACK until it is compared with earlier ones."""

    message: Finding
    payload_hash: int | None
    is_epoch: bool


@dataclass(slots=True)
class ProducerCounts:
    """Counts of one producer, without findings.

    Attributes:
        messages: rows that were judged; a chunked message is one.
        unopened: number of them whose payload was not read.
        unopened_batches: batches of several messages whose own ids are unknown, because the batch could not be opened
            or its messages carry none. Only their lowest ids were compared, so nothing is proven of such a producer.
        gaps: number of ids that exceed the highest before by more than one; a gap is not a finding.
    """

    first_sequence_id: int
    last_sequence_id: int
    highest: int
    first_publish_ms: int
    last_publish_ms: int
    messages: int = 0
    transactional: int = 0
    unopened: int = 0
    unopened_batches: int = 0
    gaps: int = 0


@dataclass(slots=True)
class SequenceComparison:
    """Comparison of one topic's rows, in order, in memory only for its producers and suspects."""

    producers: dict[Producer, ProducerCounts] = field(default_factory=dict)
    kinds: Counter[MessageKind] = field(default_factory=Counter)
    earlier_chunks: int = 0
    suspects: list[PossibleDuplicate] = field(default_factory=list)
    _undecided: dict[Producer, int] = field(default_factory=dict)

    def take(self, row: MessageRow) -> None:
        """Add the next row, of any kind."""
        self.kinds[row.kind] += 1
        if not row.is_compared:
            self.earlier_chunks += row.kind is not MessageKind.MARKER
            return
        producer, number = Producer(row.producer, row.replicated_from), row.sequence_id
        counts = self.producers.get(producer)
        if counts is None:
            self.producers[producer] = counts = ProducerCounts(
                number, number, number, row.publish_time_ms, row.publish_time_ms
            )
            _count(counts, row)
            return
        _count(counts, row)
        before, counts.last_sequence_id, counts.last_publish_ms = counts.last_sequence_id, number, row.publish_time_ms
        undecided = self._undecided.pop(producer, None)
        if number > counts.highest:
            counts.gaps += number > counts.highest + 1
            counts.highest = number
            return
        if undecided is not None and number > before:
            self.suspects[undecided] = self.suspects[undecided]._replace(is_epoch=True)
        if number < before:
            self._undecided[producer] = len(self.suspects)
        message = Finding(
            FindingKind.GOING_BACK, producer, number, _place(row), row.kind, row.publish_time_ms, counts.highest
        )
        self.suspects.append(PossibleDuplicate(message, _hash(row), is_epoch=False))


class EarlierMessages:
    """Past of suspects: the first rows with their ids, and the payloads."""

    def __init__(self, suspects: Iterable[PossibleDuplicate]) -> None:
        self._suspects = list(suspects)
        self._wanted: dict[tuple[Producer, int], _IdHistory] = {
            (suspect.message.producer, suspect.message.sequence_id): _IdHistory() for suspect in self._suspects
        }
        self.last = max((suspect.message.place for suspect in self._suspects), default=None)
        """Place behind which no reading is needed."""

    def take(self, row: MessageRow) -> None:
        """Add the next row of the same topic, in order."""
        stored = self._wanted.get((Producer(row.producer, row.replicated_from), row.sequence_id))
        if stored is not None and row.is_compared:
            stored.take(_place(row), _hash(row))

    def findings(self) -> Iterator[Finding]:
        """Yield the findings in the order of the log; an epoch follows its message's own finding."""
        for suspect in self._suspects:
            message = suspect.message
            kind, earlier = self._wanted[message.producer, message.sequence_id].judged(
                message.place, suspect.payload_hash
            )
            yield replace(message, kind=kind, earlier=earlier)
            if suspect.is_epoch and kind is not FindingKind.DUPLICATE:
                yield replace(message, kind=FindingKind.EPOCH)


@dataclass(slots=True)
class _IdHistory:
    """Rows of one id of one producer, as far as the rules need them."""

    first: MessagePlace | None = None
    first_unread: MessagePlace | None = None
    first_by_hash: dict[int, MessagePlace] = field(default_factory=dict)

    def take(self, place: MessagePlace, payload_hash: int | None) -> None:
        self.first = self.first or place
        if payload_hash is None:
            self.first_unread = self.first_unread or place
        else:
            self.first_by_hash.setdefault(payload_hash, place)

    def judged(self, place: MessagePlace, payload_hash: int | None) -> tuple[FindingKind, MessagePlace | None]:
        if self.first is None or self.first >= place:
            return FindingKind.GOING_BACK, None
        if payload_hash is None:
            return FindingKind.REPEATED, self.first
        same = self.first_by_hash.get(payload_hash)
        if same is not None and same < place:
            return FindingKind.DUPLICATE, same
        all_were_read = self.first_unread is None or self.first_unread > place
        return FindingKind.REUSED if all_were_read else FindingKind.REPEATED, self.first


def _count(counts: ProducerCounts, row: MessageRow) -> None:
    counts.messages += 1
    counts.transactional += row.kind is MessageKind.TRANSACTIONAL
    counts.unopened += row.payload_state is not PayloadState.READ
    counts.unopened_batches += row.batch_index == WHOLE_BATCH


def _place(row: MessageRow) -> MessagePlace:
    return MessagePlace(row.ledger_id, row.entry_id, row.batch_index)


def _hash(row: MessageRow) -> int | None:
    return row.payload_hash if row.payload_state is PayloadState.READ else None
