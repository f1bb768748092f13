"""`ExactlyOncePublisher` stores each message once, in order, even if any process dies.

A broker recognises duplicates only by the *lowest* sequence id of a batch, and stores or refuses a batch as a whole
(``MessageDeduplication.isDuplicateNormal``). So batches are resent unchanged, and no batch holds messages on both sides
of a *resume point*: the last sequence id that the broker reports as pushed. Pushed is not stored, so messages up to the
resume point are sent one by one, and none beyond it before all of them are confirmed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, NoReturn, Self, TypedDict

from pulsar_sidecar.features.publishing.messages import (
    MAX_SEQUENCE_ID,
    BatchLimits,
    Confirmation,
    Outcome,
    OutgoingMessage,
)
from pulsar_sidecar.features.publishing.partition_publisher import PartitionPublisher, PublishTimeouts
from pulsar_sidecar.features.publishing.ports import SequencedProducer, SequencedProducers
from pulsar_sidecar.features.publishing.routing import HashingScheme, router
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicDomain, TopicName
from pulsar_sidecar.model.topic_stats import REPLICATOR_PREFIX, DeduplicationStatus
from pulsar_sidecar.reports.formatting import format_count

_STATUSES_OF_A_LOAD: Final = (DeduplicationStatus.INITIALIZED, DeduplicationStatus.RECOVERING)


class PublisherOptions(TypedDict, total=False):
    """Arguments of `ExactlyOncePublisher` that have a default."""

    producer_name: str | None
    initial_sequence_id: int | None
    limits: BatchLimits | None
    hashing: HashingScheme
    partitions: int | None
    on_confirmed: Callable[[Confirmation], None] | None
    timeouts: PublishTimeouts | None


class ExactlyOncePublisher:
    """Publisher to one topic under one producer name; used by one thread, and by ``with``.

    A batch is sent when it is full, or by `flush`; the next call resends what brokers did not confirm. Leaving the
    ``with`` flushes; leaving it by an error does not.

    A program that may be killed gives each message a sequence id of its own, such as the record's offset in a file.
    After a restart it publishes again from the message with the id `last_sequence_id_of` its partition on; with several
    partitions, from the least of these ids on. That message is included: a broker reports the pushed id, and only a
    receipt proves that the message is stored.
    """

    def __init__(
        self,
        producers: SequencedProducers,
        clock: Clock,
        topic: TopicName,
        *,
        producer_name: str | None = None,
        initial_sequence_id: int | None = None,
        limits: BatchLimits | None = None,
        hashing: HashingScheme = HashingScheme.JAVA_STRING_HASH,
        partitions: int | None = None,
        on_confirmed: Callable[[Confirmation], None] | None = None,
        timeouts: PublishTimeouts | None = None,
    ) -> None:
        """Connect to every partition, and read the last id that this name has published.

        Args:
            producers: brokers to publish to.
            clock: clock for waiting.
            topic: persistent topic, with partitions or without.
            producer_name: unique among the topic's producers; None lets the broker assign one that no later run has.
            initial_sequence_id: id of the first message where messages carry none; None continues after the last one.
            limits: limits of batches.
            hashing: hashing of keys; the same as that of the topic's other producers.
            partitions: number of partitions that the topic must have (0 for none); None takes any.
            on_confirmed: function that takes each confirmed batch, in order for each partition, inside the calls below.
            timeouts: timeouts of each partition.

        Raises:
            ConflictError: deduplication is not in effect, the number of partitions differs, or the name is in use.
            InvalidInputError: brokers never deduplicate this topic or this name.
            TemporaryError: no broker could be queried in time.
            PermanentError: a broker refused.
        """
        _refuse_never_deduplicated(topic, producer_name)
        if initial_sequence_id is not None and not 0 <= initial_sequence_id <= MAX_SEQUENCE_ID:
            raise InvalidInputError("an initial sequence id must be a number from 0 to 2^63 - 1")
        self.topic = topic
        self.counts = Counter[Outcome]()
        """Messages confirmed so far, by outcome."""
        self._producers = producers
        self._name = producer_name
        self._initial_sequence_id = initial_sequence_id
        self._on_confirmed = on_confirmed
        self._carries_ids: bool | None = None
        self._without_id = 0
        self._failure: SidecarError | None = None
        self._is_closed = False
        self.partitions = producers.partitions(topic)
        if partitions is not None:
            self._check_partitions(partitions)
        self._partition_of = router(max(1, self.partitions), hashing)
        self.topics = [topic.partition(index) for index in range(self.partitions)] or [topic]
        """Partitions of the topic, or the topic itself where it has none."""
        self._by_partition = [
            PartitionPublisher(
                index, name, self._open, clock, limits or BatchLimits(), timeouts or PublishTimeouts(), self._count
            )
            for index, name in enumerate(self.topics)
        ]
        try:
            for partition in self._by_partition:
                partition.connect()
        except BaseException:
            self.abandon()
            raise

    @property
    def producer_name(self) -> str:
        """Name that was chosen, or that the broker has assigned."""
        assert self._name is not None
        return self._name

    @property
    def last_sequence_id(self) -> int:
        """Highest id published over all partitions, -1 for none; another partition may lack one below it."""
        return max(partition.last_sequence_id for partition in self._by_partition)

    def last_sequence_id_of(self, partition: int) -> int:
        """Return the highest id that was confirmed here, or that the broker had pushed before; -1 for none.

        0 is the partition of a topic without partitions.
        """
        return self._by_partition[partition].last_sequence_id

    def know_stored(self, partition: int, sequence_id: int) -> None:
        """Record messages that the program knows to be stored.

        The publisher then does not trust a reconnected broker that remembers nothing of the name.
        """
        self._by_partition[partition].know_stored(sequence_id)

    def partition_of(self, message: OutgoingMessage) -> int:
        """Return the partition for a message that carries its sequence id; without a key, the id alone decides."""
        if len(self._by_partition) == 1:
            return 0
        number = message.sequence_id
        return self._partition_of(message, self._without_id if number is None else number)

    def publish(self, message: OutgoingMessage) -> None:
        """Add a message to its partition's batch, and send the batch when it is full.

        Raises:
            InvalidInputError: the id does not rise, or some messages carry ids and others do not; nothing was added.
            TemporaryError: a partition has confirmed nothing for too long; the message is kept, and `flush` continues.
            PermanentError: a broker refused; every later call raises it too.
            OutcomeUnknownError: a broker confirmed out of order, which it never does; read the topic.
        """
        sequence_id = message.sequence_id
        if (sequence_id is not None) is not self._carries_ids:
            self._choose_ids(sequence_id is not None)
        if self._failure or self._is_closed:
            self._refuse()
        partition = self._by_partition[self.partition_of(message)]
        if sequence_id is None:
            self._without_id += 1
            sequence_id = partition.next_sequence_id
            message = message._replace(sequence_id=sequence_id)
        try:
            partition.add(message, sequence_id)
        except SidecarError as error:
            self._remember(error)
            raise

    def flush(self) -> None:
        """Send everything, and wait until all of it is confirmed; raises as `publish`."""
        if self._failure or self._is_closed:
            self._refuse()
        try:
            for partition in self._by_partition:
                partition.send()
            for partition in self._by_partition:
                partition.await_receipts()
        except SidecarError as error:
            self._remember(error)
            raise

    def close(self) -> None:
        """Flush and close; idempotent. The producers are closed even if the flush fails."""
        if self._is_closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close at once; unconfirmed messages may or may not be stored."""
        self._is_closed = True
        for partition in self._by_partition:
            partition.drop_producer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abandon()

    def _choose_ids(self, carry: bool) -> None:
        if self._carries_ids is not None:
            raise InvalidInputError(
                "some messages carry a sequence id and others do not; give all of them one, or none of them"
            )
        if not carry and self._initial_sequence_id is not None:
            for partition in self._by_partition:
                partition.next_sequence_id = self._initial_sequence_id
        self._carries_ids = carry

    def _refuse(self) -> NoReturn:
        raise self._failure or ConflictError("this publisher is closed; open another one")

    def _remember(self, error: SidecarError) -> None:
        """Fail later calls after an error that a retry would not change; refused messages change nothing."""
        if not isinstance(error, TemporaryError | InvalidInputError):
            self._failure = error

    def _count(self, confirmation: Confirmation) -> None:
        self.counts[confirmation.outcome] += len(confirmation.batch.messages)
        if self._on_confirmed is not None:
            self._on_confirmed(confirmation)

    # --- opening ---------------------------------------------------------------------------------------------------

    def _open(self, topic: TopicName) -> SequencedProducer:
        producer = self._producers.open(topic, self._name)
        try:
            self._check_deduplication(topic)
            self._check_partitions(self.partitions)
        except BaseException:
            producer.close()
            raise
        self._name = producer.name
        return producer

    def _check_deduplication(self, topic: TopicName) -> None:
        """Check while the producer is open, so that the topic is loaded and the response is about this publishing."""
        status = self._producers.deduplication_status(topic)
        if status in _STATUSES_OF_A_LOAD:
            raise TemporaryError(f"deduplication of {topic} is {status}; try again")
        if status != DeduplicationStatus.ENABLED:
            raise ConflictError(
                f"deduplication of {topic} is {status}: the broker would store resent messages twice. Enable it: "
                f"pulsar-admin topicPolicies set-deduplication --enable {topic.base} (or for its namespace)"
            )

    def _check_partitions(self, wanted: int) -> None:
        found = self._producers.partitions(self.topic)
        if found != wanted:
            raise ConflictError(
                f"{self.topic} has {format_count(found, 'partition')} and had {wanted}: keys belong to other "
                "partitions than before. What is published so far stays; publish the rest under another producer name"
            )


def _refuse_never_deduplicated(topic: TopicName, producer_name: str | None) -> None:
    if topic.domain is not TopicDomain.PERSISTENT:
        raise InvalidInputError(f"{topic} is not persistent: brokers deduplicate persistent topics only")
    if topic.is_system_topic:
        raise InvalidInputError(f"{topic} is a system topic: brokers never deduplicate those; choose another topic")
    if producer_name is not None and producer_name.startswith(REPLICATOR_PREFIX):
        raise InvalidInputError(
            f"brokers take a producer whose name begins with {REPLICATOR_PREFIX} for a replicator; choose another name"
        )
    if producer_name == "":
        raise InvalidInputError("a producer name must have at least one character; omit it to have one assigned")
    if any("\ud800" <= character <= "\udfff" for character in producer_name or ""):
        raise InvalidInputError("a producer name must be Unicode text, without lone surrogates")
