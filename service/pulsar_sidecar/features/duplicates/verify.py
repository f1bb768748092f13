"""Verification of one topic on one machine: memory grows with its producers and findings."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol

from pulsar_sidecar.features.duplicates.findings import (
    EarlierMessages,
    Finding,
    Producer,
    ProducerCounts,
    SequenceComparison,
)
from pulsar_sidecar.features.duplicates.rows import MessageKind, MessageRow
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.model.metadata import NodeReader
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.stored_topics import StoredTopics
from pulsar_sidecar.reports.formatting import format_count

_REPORT_EVERY_SECONDS: Final = 5.0
_PROGRESS_EVERY_ENTRIES: Final = 512

Stream = Iterator[Sequence[MessageRow] | UnseenEntries]
"""Entries in the order of the log: the rows of each, at least one, or a range that was not seen."""


class TopicMessages(Protocol):
    """Reader of stored messages."""

    def read(self, topic: TopicName, last: Position | None = None) -> Stream:
        """Yield every entry of a partition, or of a topic without, up to ``last`` (inclusive; None for the end).

        `NotFoundError`: there is no such topic. `TemporaryError`: the metadata store could not be read.
        """


class TopicResult(Enum):
    """Result of a topic's verification."""

    CLEAN = "clean"
    """The verification saw everything that the topic holds, and has no finding."""
    FINDINGS = "findings"
    NOT_PROVEN = "not-proven"
    """The verification has no finding, and did not see everything."""


@dataclass(frozen=True, slots=True)
class VerifiedTopic:
    """Content of a topic, and its findings in the order of the log.

    Attributes:
        first: first entry that was seen; None if there was none.
        rows: numbers of messages, chunks, and batches whose messages' ids are unknown, by kind.
        earlier_chunks: number of rows that are chunks before the last one of their message.
        unseen: entries that were not read, and entries that hold no message.
    """

    topic: TopicName
    entries: int
    first: Position | None
    last: Position | None
    rows: Counter[MessageKind]
    earlier_chunks: int
    producers: dict[Producer, ProducerCounts]
    findings: tuple[Finding, ...]
    unseen: tuple[UnseenEntries, ...]

    @property
    def result(self) -> TopicResult:
        if self.findings:
            return TopicResult.FINDINGS
        # Entries that were trimmed meanwhile are no longer in the topic.
        unseen = any(each.cause is not UnseenCause.TRIMMED for each in self.unseen)
        unopened = any(counts.unopened_batches for counts in self.producers.values())
        return TopicResult.NOT_PROVEN if unseen or unopened else TopicResult.CLEAN


class Progress:
    """Periodic reports on the progress of reading topics."""

    def __init__(self, report: Callable[[str], None], clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._reported_at = clock.monotonic_seconds()
        self._entries = self._messages = 0

    def of(self, topic: TopicName, doing: str, stream: Stream) -> Stream:
        """Yield the stream unchanged; entries and messages are counted over all streams."""
        for each in stream:
            if not isinstance(each, UnseenEntries):
                self._entries += 1
                self._messages += len(each)
                if self._entries % _PROGRESS_EVERY_ENTRIES == 0:
                    self._report_progress(topic, doing, each[0])
            yield each

    def _report_progress(self, topic: TopicName, doing: str, row: MessageRow) -> None:
        now = self._clock.monotonic_seconds()
        if now >= self._reported_at + _REPORT_EVERY_SECONDS:
            self._reported_at = now
            place = Position(row.ledger_id, row.entry_id)
            self._report(
                f"{doing}: {format_count(self._entries, 'entry')}, "
                f"{format_count(self._messages, 'message')}; {topic} at {place}"
            )


@dataclass(slots=True)
class _FirstPass:
    watch: SequenceComparison = field(default_factory=SequenceComparison)
    unseen: list[UnseenEntries] = field(default_factory=list)
    entries: int = 0
    entries_to_last_suspect: int = 0
    first: Position | None = None
    last: Position | None = None

    def take(self, rows: Sequence[MessageRow]) -> None:
        self.last = Position(rows[0].ledger_id, rows[0].entry_id)
        self.first = self.first or self.last
        self.entries += 1
        suspects = len(self.watch.suspects)
        for row in rows:
            self.watch.take(row)
        if len(self.watch.suspects) > suspects:
            self.entries_to_last_suspect = self.entries


def verify_partitions(
    topic: TopicName, store: NodeReader, messages: TopicMessages, progress: Progress
) -> tuple[VerifiedTopic, ...]:
    """Verify every partition of a topic, or the topic itself where it has none.

    `NotFoundError`: there is no such topic, or it was deleted meanwhile. `TemporaryError`: it could not be read.
    """
    places = StoredTopics(store).places_of(topic)
    nodes = store.read_many([managed_ledger_path(place.managed_ledger_name) for place in places])
    return tuple(
        # A partition exists from its first load on.
        verify_topic(place, messages, progress, may_be_missing=node is None)
        for place, node in zip(places, nodes, strict=True)
    )


def verify_topic(
    topic: TopicName, messages: TopicMessages, progress: Progress, *, may_be_missing: bool = False
) -> VerifiedTopic:
    """Verify a partition, or a topic without partitions; a second reading ends at the last suspect, if there is any.

    `NotFoundError`: there is no such topic; if it may be missing, it counts as empty instead. `TemporaryError`: the
    metadata store could not be read, or the second reading lacked messages of the first.
    """
    reading = _FirstPass()
    try:
        for each in progress.of(topic, "reading", messages.read(topic)):
            if isinstance(each, UnseenEntries):
                reading.unseen.append(each)
            else:
                reading.take(each)
    except NotFoundError:
        if not may_be_missing:
            raise
    return VerifiedTopic(
        topic,
        reading.entries,
        reading.first,
        reading.last,
        reading.watch.kinds,
        reading.watch.earlier_chunks,
        reading.watch.producers,
        _findings(topic, messages, reading, progress),
        tuple(reading.unseen),
    )


def _findings(
    topic: TopicName, messages: TopicMessages, reading: _FirstPass, progress: Progress
) -> tuple[Finding, ...]:
    occurrences = EarlierMessages(reading.watch.suspects)
    if occurrences.last is None:
        return ()
    entries = 0
    last = Position(occurrences.last.ledger_id, occurrences.last.entry_id)
    for each in progress.of(topic, "comparing", messages.read(topic, last)):
        if not isinstance(each, UnseenEntries):
            entries += 1
            for row in each:
                occurrences.take(row)
    if entries != reading.entries_to_last_suspect:
        raise TemporaryError(
            f"{topic} dropped entries while it was read, or a bookie stopped answering: the second reading saw "
            f"{entries:,} of {format_count(reading.entries_to_last_suspect, 'entry')}; "
            "repeat the check, or take an extract, which reads once"
        )
    return tuple(occurrences.findings())
