"""`ExactlyOnceReader` returns data and position together: the reading half of PIP-6.

A program that stores a message's effects and its position in one transaction applies each message once, however often
it is killed: it continues after the stored position.

Invariant: whenever a partition is opened behind a position, the message at that position is read first. A topic is
trimmed from its front, so where that message still exists nothing behind it is missing; otherwise the reader refuses.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol, Self

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.reports.formatting import format_count

_POSITION: Final = re.compile(r"(\d{1,19}):(\d{1,19}):(-1|\d{1,10}):(-1|\d{1,10})(?::(\d{1,19}):(\d{1,19}))?", re.ASCII)
_LOOK_SECONDS: Final = 0.2
_MOST_IN_A_ROW: Final = 1000
"""Messages in a row from one partition; polling an empty one takes a millisecond, so a full one keeps its turn."""
_FAILURE_TIMEOUT_SECONDS: Final = 120.0
"""Time that a partition may fail before a call raises its error."""
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


class ReadPosition(NamedTuple):
    """Position of a message in its partition; as text ``ledgerId:entryId:partition:batchIndex``.

    The text of a message in chunks continues with the entry of its first chunk, ``:ledgerId:entryId``.
    """

    ledger_id: LedgerId
    entry_id: EntryId
    partition: int
    batch_index: int
    first_chunk: Position | None = None

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.batch_index}"
        return text if self.first_chunk is None else f"{text}:{self.first_chunk}"

    @classmethod
    def parse(cls, text: str) -> "ReadPosition":
        """Parse the text that ``str`` returned; an `InvalidInputError` for any other text."""
        match = _POSITION.fullmatch(text)
        if match is None:
            raise InvalidInputError(f"{text!r:.80} is not a position; write ledgerId:entryId:partition:batchIndex")
        ledger_id, entry_id, partition, batch_index = map(int, match.groups()[:4])
        first = None if match[5] is None else Position(LedgerId(int(match[5])), EntryId(int(match[6])))
        return cls(LedgerId(ledger_id), EntryId(entry_id), partition, batch_index, first)

    def is_after(self, other: "ReadPosition") -> bool:
        """Return True if it is later in the same partition."""
        return (self.ledger_id, self.entry_id, self.batch_index) > (other.ledger_id, other.entry_id, other.batch_index)


class ReadMessage(NamedTuple):
    """Message with the position to store together with its effects.

    Attributes:
        partition: index of the partition, 0 for a topic without partitions.
        position: position of the message; a reader opened at it continues after it.
    """

    payload: bytes
    key: str | None
    properties: Mapping[str, str]
    event_time_ms: int | None
    partition: int
    position: ReadPosition


class PartitionReader(Protocol):
    """Reading of one partition; used by one thread."""

    def next(self, wait_seconds: float) -> ReadMessage | None:
        """Return the next message, None if none arrived in time; a `TemporaryError` ends this reading."""

    def close(self) -> None:
        """Close the reading; raises nothing."""


class MessageSource(Protocol):
    """Source of an `ExactlyOnceReader`; raises the errors of `model.errors`."""

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions, 0 for a topic without."""

    def open(self, topic: TopicName, partition: int, start: ReadPosition | None) -> PartitionReader:
        """Read from the message at a position on, inclusively, or from the oldest message for None."""


class ExactlyOnceReader:
    """Reader of each message of a topic once, in the order of its partition; used by one thread, and by ``with``.

    A reader is not a subscription: retention decides how long a topic keeps unread messages.
    """

    def __init__(
        self,
        source: MessageSource,
        clock: Clock,
        topic: TopicName,
        after: Mapping[int, ReadPosition] | None = None,
    ) -> None:
        """Continue after the positions that the program has stored.

        Args:
            source: brokers to read from.
            clock: clock for waiting.
            topic: topic with partitions or without.
            after: last stored position of each partition; a partition that is missing is read from its beginning.

        Raises:
            ConflictError: a position belongs to a partition that the topic does not have.
        """
        self._source = source
        self._clock = clock
        count = source.partitions(topic)
        names = [topic.partition(index) for index in range(count)] or [topic]
        unknown = [index for index in after or {} if not 0 <= index < len(names)]
        if unknown:
            raise ConflictError(
                f"{topic} has {format_count(count, 'partition')}, and a position of partition {unknown[0]} was given"
            )
        self._partitions = deque(_Partition(index, name, (after or {}).get(index)) for index, name in enumerate(names))
        self._in_a_row = 0

    def read(self, wait_seconds: float) -> ReadMessage | None:
        """Return the next message of any partition, in turns; None if none arrived in time.

        Raises:
            ConflictError: the message at a stored position is gone, and later ones may be; read on knowingly.
            TemporaryError: a partition could not be read for too long.
            PermanentError: a broker refused.
        """
        until = self._clock.monotonic_seconds() + wait_seconds
        while True:
            for _ in range(len(self._partitions)):
                found = self._next(self._partitions[0], 0)
                if found is not None:
                    return found
                self._turn()
            left = until - self._clock.monotonic_seconds()
            if left <= 0:
                return None
            found = self._next(self._partitions[0], min(_LOOK_SECONDS, left))
            if found is not None:
                return found

    def __iter__(self) -> Iterator[ReadMessage]:
        """Yield every message, without end."""
        while True:
            found = self.read(_LONGEST_PAUSE_SECONDS)
            if found is not None:
                yield found

    def close(self) -> None:
        """Close the reader; idempotent."""
        for partition in self._partitions:
            partition.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self, partition: "_Partition", wait_seconds: float) -> ReadMessage | None:
        try:
            if partition.reading is None:
                partition.reading = self._source.open(partition.topic, partition.index, partition.after)
                partition.expected = partition.after
            found = partition.reading.next(wait_seconds)
        except TemporaryError:
            partition.close()
            now = self._clock.monotonic_seconds()
            partition.failing_since = now if partition.failing_since is None else partition.failing_since
            if now - partition.failing_since >= _FAILURE_TIMEOUT_SECONDS:
                partition.failing_since = None
                raise
            self._clock.wait_seconds(partition.pause_seconds)
            partition.pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * partition.pause_seconds)
            return None
        partition.failing_since, partition.pause_seconds = None, _FIRST_PAUSE_SECONDS
        if found is None:
            return None
        if partition.expected is not None:
            partition.check_first(found.position)
        if partition.after is not None and not found.position.is_after(partition.after):
            # It is the expected message, or one that a reconnected client returns again.
            return None
        partition.after = found.position
        self._in_a_row += 1
        if self._in_a_row >= _MOST_IN_A_ROW:
            self._turn()
        return found

    def _turn(self) -> None:
        self._partitions.rotate(-1)
        self._in_a_row = 0


class _Partition:
    def __init__(self, index: int, topic: TopicName, after: ReadPosition | None) -> None:
        self.index = index
        self.topic = topic
        self.after = after
        self.expected: ReadPosition | None = None
        """Message that a new reading must return first."""
        self.reading: PartitionReader | None = None
        self.failing_since: float | None = None
        self.pause_seconds = _FIRST_PAUSE_SECONDS

    def check_first(self, first: ReadPosition) -> None:
        expected, self.expected = self.expected, None
        if first != expected:
            self.close()
            raise ConflictError(
                f"{self.topic} no longer holds the message at {expected}, after which reading was to continue, and "
                f"begins at {first}: it was trimmed, or the topic was deleted and created again, and messages in "
                "between may be lost. Give the topic a longer retention; to read what is left, open the reader "
                "without this partition's position"
            )

    def close(self) -> None:
        if self.reading is not None:
            self.reading.close()
            self.reading = None
