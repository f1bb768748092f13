"""Publisher of one partition: an id space, a resume point, and the batches in flight."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from pulsar_sidecar.features.publishing.messages import (
    MAX_SEQUENCE_ID,
    NOTHING_PUBLISHED,
    Batch,
    BatchLimits,
    Confirmation,
    NameTakenError,
    Outcome,
    OutgoingMessage,
    ProducerStateLostError,
)
from pulsar_sidecar.features.publishing.ports import Receipt, SequencedProducer
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import (
    ConflictError,
    InvalidInputError,
    OutcomeUnknownError,
    ProducerBusyError,
    TemporaryError,
)
from pulsar_sidecar.model.names import TopicName

_RECEIPT_SECONDS: Final = 1.0
_FIRST_PAUSE_SECONDS: Final = 0.05
_LONGEST_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class PublishTimeouts:
    """Timeouts of publishing to one partition.

    Attributes:
        confirmation_seconds: time without a confirmation from a partition after which a call raises `TemporaryError`.
        takeover_seconds: time for a broker to notice that an earlier publisher of the name has died.
    """

    confirmation_seconds: float = 120.0
    takeover_seconds: float = 30.0


class PartitionPublisher:
    """Publisher that stores each message of one partition once, in order.

    Invariants: each batch is confirmed by a receipt of its own, in order; batches are resent unchanged; nothing beyond
    the resume point is sent before everything up to it is confirmed; after any error nothing is sent before a new
    producer is open and has reported its resume point. The publisher does not trust a reconnected broker that
    remembers nothing of the name: messages may be stored. Nor does it trust one that remembers less than it reported
    at first, unless the program publishes from there on, or knows the stored messages itself: bookies may fail messages
    that a predecessor had pushed, and the program would skip them.
    """

    def __init__(
        self,
        index: int,
        topic: TopicName,
        open_producer: Callable[[TopicName], SequencedProducer],
        clock: Clock,
        limits: BatchLimits,
        timeouts: PublishTimeouts,
        on_confirmed: Callable[[Confirmation], None],
    ) -> None:
        self.topic = topic
        self._index = index
        self._open_producer = open_producer
        self._clock = clock
        self._limits = limits
        self._timeouts = timeouts
        self._on_confirmed = on_confirmed
        self._producer: SequencedProducer | None = None
        self._filling: list[OutgoingMessage] = []
        self._filling_bytes = 0
        self._waiting: deque[Batch] = deque()
        self._in_flight: deque[Batch] = deque()
        self._resume_at = self._pushed = self._pushed_before = NOTHING_PUBLISHED
        """Ids that the broker had pushed: when this producer was opened, by now, and when the first one was opened."""
        self._highest_added = self._highest_sent = self._sent_again_up_to = self._confirmed = NOTHING_PUBLISHED
        self._may_be_stored = NOTHING_PUBLISHED
        """Highest id that was sent to its end, that the first broker had, or that the caller knows to be stored."""
        self._first_added: int | None = None
        self._knows_what_is_stored = False
        self._has_been_open = False
        self.next_sequence_id = 0
        """Next id for messages without one."""
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._give_up_at = 0.0

    @property
    def last_sequence_id(self) -> int:
        """Highest id confirmed, or pushed before the first opening."""
        return max(self._confirmed, self._pushed_before)

    def know_stored(self, sequence_id: int) -> None:
        """Record that messages up to this id are stored, although the broker may have forgotten it."""
        self._knows_what_is_stored = True
        self._may_be_stored = max(self._may_be_stored, sequence_id)

    def connect(self) -> None:
        """Open a producer for the first time; raises as `ExactlyOncePublisher`."""
        self._restart_timeout()
        self._opened()
        self.next_sequence_id = self._pushed_before + 1

    def add(self, message: OutgoingMessage, sequence_id: int) -> None:
        """Add a message, and send full batches; raises as `ExactlyOncePublisher.publish`."""
        if not self._highest_added < sequence_id <= MAX_SEQUENCE_ID:
            self._refuse_id(sequence_id)
        alone = sequence_id <= self._resume_at
        size_bytes = message.size_bytes
        if self._filling and (alone or self._filling_bytes + size_bytes > self._limits.size_bytes):
            self._seal()
        self._filling.append(message)
        self._filling_bytes += size_bytes
        self._highest_added, self.next_sequence_id = sequence_id, sequence_id + 1
        if self._first_added is None:
            self._first_added = sequence_id
        if alone or len(self._filling) >= self._limits.messages or self._filling_bytes >= self._limits.size_bytes:
            self._seal()
        if self._waiting:
            self._work(lambda: not self._waiting)

    def send(self) -> None:
        """Send the incomplete batch as well; raises as `add`."""
        if self._filling:
            self._seal()
        self._work(lambda: not self._waiting)

    def await_receipts(self) -> None:
        """Wait until every sent message is confirmed; raises as `add`."""
        self._work(lambda: not self._waiting and not self._in_flight)

    def drop_producer(self) -> None:
        """Close this producer; unconfirmed batches are to be resent."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
        if self._in_flight:
            self._sent_again_up_to = max(self._sent_again_up_to, self._in_flight[-1].last_sequence_id)
            self._waiting.extendleft(reversed(self._in_flight))
            self._in_flight.clear()

    # --- sending ---------------------------------------------------------------------------------------------------

    def _refuse_id(self, sequence_id: int) -> NoReturn:
        if not 0 <= sequence_id <= MAX_SEQUENCE_ID:
            raise InvalidInputError(f"{sequence_id} is not a sequence id: those are 0 to 2^63 - 1")
        raise InvalidInputError(
            f"the sequence id {sequence_id} follows {self._highest_added} on {self.topic}; ids of a partition must "
            "rise, or brokers would take the message for a duplicate"
        )

    def _seal(self) -> None:
        messages = self._filling
        first, last = messages[0].sequence_id, messages[-1].sequence_id
        assert first is not None
        assert last is not None
        self._waiting.append(Batch(messages, first, last))
        self._filling, self._filling_bytes = [], 0

    def _work(self, is_enough: Callable[[], bool]) -> None:
        self._restart_timeout()
        while True:
            producer = self._opened()
            try:
                self._send_waiting(producer)
                self._take_receipts(producer, 0)
                self._send_waiting(producer)
                if is_enough():
                    return
                if not self._take_receipts(producer, _RECEIPT_SECONDS):
                    self._check_timeout("the broker sent no receipt")
            except TemporaryError as error:
                self.drop_producer()
                self._pause(error)

    def _send_waiting(self, producer: SequencedProducer) -> None:
        while self._waiting and len(self._in_flight) < self._limits.in_flight:
            batch = self._waiting[0]
            is_beyond = batch.first_sequence_id > self._resume_at
            if is_beyond and self._in_flight and self._in_flight[0].last_sequence_id <= self._resume_at:
                return
            self._in_flight.append(self._waiting.popleft())
            self._highest_sent = max(self._highest_sent, batch.last_sequence_id)
            pushed, self._pushed = self._pushed, max(self._pushed, batch.last_sequence_id)
            producer.send(batch, pushed)
            self._may_be_stored = max(self._may_be_stored, batch.last_sequence_id)

    def _take_receipts(self, producer: SequencedProducer, wait_seconds: float) -> bool:
        """Return True if there was any receipt."""
        found = False
        while self._in_flight:
            receipt = producer.receive(0 if found else wait_seconds)
            if receipt is None:
                break
            self._confirm(receipt)
            found = True
        return found

    def _confirm(self, receipt: Receipt) -> None:
        batch = self._in_flight[0]
        if receipt.first_sequence_id != batch.first_sequence_id:
            raise OutcomeUnknownError(
                f"a broker confirmed the message {receipt.first_sequence_id} of {self.topic} before the message "
                f"{batch.first_sequence_id}, which was sent earlier; read the topic before you publish more"
            )
        outcome = self._outcome(batch, receipt)
        self._in_flight.popleft()
        self._confirmed = batch.last_sequence_id
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._restart_timeout()
        self._on_confirmed(Confirmation(self._index, batch, outcome, receipt.position))

    def _outcome(self, batch: Batch, receipt: Receipt) -> Outcome:
        if receipt.position is not None:
            return Outcome.STORED
        if batch.last_sequence_id <= self._pushed_before:
            return Outcome.DUPLICATE
        if batch.last_sequence_id <= self._sent_again_up_to:
            return Outcome.STORED_BEFORE_ANSWER_LOST
        raise NameTakenError(
            f"a broker refused the message {batch.first_sequence_id} of {self.topic} as a duplicate, although it was "
            "never sent before: another publisher uses the same producer name"
        )

    # --- opening ---------------------------------------------------------------------------------------------------

    def _opened(self) -> SequencedProducer:
        busy_since: float | None = None
        while self._producer is None:
            try:
                producer = self._open_producer(self.topic)
            except ProducerBusyError as error:
                now = self._clock.monotonic_seconds()
                busy_since = now if busy_since is None else busy_since
                if now - busy_since >= self._timeouts.takeover_seconds:
                    raise NameTakenError(f"{error}; stop the other publisher, or choose another name") from error
                self._wait()
            except TemporaryError as error:
                self._pause(error)
            else:
                self._resume(producer)
        return self._producer

    def _resume(self, producer: SequencedProducer) -> None:
        last = producer.last_sequence_id
        if not self._has_been_open:
            self._pushed_before = self._highest_sent = self._may_be_stored = last
            self._has_been_open = True
        try:
            self._check_resume_point(last)
        except ConflictError:
            producer.close()
            raise
        self._resume_at = self._pushed = last
        self._producer = producer

    def _check_resume_point(self, last: int) -> None:
        is_all_forgotten = last == NOTHING_PUBLISHED < self._may_be_stored
        if last < self._confirmed or is_all_forgotten or self._may_skip(last):
            confirmed = f"has confirmed message {self._confirmed}"
            if self._confirmed == NOTHING_PUBLISHED:
                confirmed = f"may have stored messages up to {self._may_be_stored}, has confirmed none here"
            raise ProducerStateLostError(
                f"the broker of {self.topic} {confirmed} and now remembers {last}: deduplication was off meanwhile, "
                "the topic was deleted and created again, the broker has forgotten this producer, or bookies failed to "
                "store it. What was not confirmed may be stored: compare with the end of the topic before you publish "
                "it again"
            )
        if last > self._highest_sent or any(
            batch.first_sequence_id <= last < batch.last_sequence_id for batch in self._waiting
        ):
            raise NameTakenError(
                f"the broker of {self.topic} has the message {last} of this producer name, which was not sent from "
                "here: another publisher uses the name; stop it, or choose another name"
            )

    def _may_skip(self, last: int) -> bool:
        """Return True if the program resumed behind messages that the broker had only pushed, and has since lost."""
        if self._knows_what_is_stored or max(last, self._confirmed) >= self._pushed_before:
            return False
        return self._first_added is None or self._first_added > last + 1

    def _restart_timeout(self) -> None:
        self._give_up_at = self._clock.monotonic_seconds() + self._timeouts.confirmation_seconds

    def _check_timeout(self, reason: object) -> None:
        if self._clock.monotonic_seconds() < self._give_up_at:
            return
        # An unresponsive broker may have lost the messages, so the next call uses another connection.
        self.drop_producer()
        seconds = self._timeouts.confirmation_seconds
        raise TemporaryError(f"{self.topic} has confirmed nothing for {seconds:g} s ({reason}); call flush to continue")

    def _pause(self, error: TemporaryError) -> None:
        self._check_timeout(error)
        self._wait()

    def _wait(self) -> None:
        self._clock.wait_seconds(self._pause_seconds)
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2 * self._pause_seconds)
