"""What exactly-once publishing and reading need from brokers."""

from typing import NamedTuple, Protocol

from pulsar_sidecar.deduplication.publishing.messages import Batch
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName


class Receipt(NamedTuple):
    """A broker's answer to a batch; ``position`` is None for a duplicate."""

    first_sequence_id: int
    position: Position | None


class SequencedProducer(Protocol):
    """One producer, open on one broker; used by one thread.

    Every call may raise: TemporaryError (the connection or the topic is gone, or the broker does not know yet whether a
    batch is a duplicate: open a new one), PermanentError (the broker will not take this). After any error this producer
    is of no more use.
    """

    @property
    def name(self) -> str:
        """The name that was asked for, or that the broker assigned."""

    @property
    def last_sequence_id(self) -> int:
        """The highest id that the broker *pushed* for this name when the producer was opened; it may not be stored."""

    def send(self, batch: Batch, pushed: int) -> None:
        """Send without waiting for the receipt; ``pushed`` is the highest id that the broker has got of this name.

        Brokers judge the last chunk of a message only. So where the id is pushed already that one is sent alone: it
        gets its answer, and the others would be stored again. The chunks before the last bear ``pushed`` as their
        sequence id, because a broker that replays a topic takes the id of any chunk for the whole message's.
        """

    def receive(self, wait_seconds: float) -> Receipt | None:
        """The next receipt, in the order of sending; None when none came in time (0: do not wait)."""

    def close(self) -> None:
        """Leave; raises nothing."""


class SequencedProducers(Protocol):
    """Opens producers, and answers what must be asked before."""

    def open(self, topic: TopicName, name: str | None) -> SequencedProducer:
        """A producer on the broker that owns the topic now, looked up anew; None lets the broker choose a name.

        Raises:
            ProducerBusyError: another producer of this name is connected, or was until a moment ago.
            TemporaryError: the topic is moving, or the broker cannot be reached.
            PermanentError: the broker refuses.
        """

    def partitions(self, topic: TopicName) -> int:
        """The number of partitions, 0 for a topic without."""

    def deduplication_status(self, topic: TopicName) -> str:
        """``deduplicationStatus`` in the topic's statistics, asked of the broker that has loaded it."""
