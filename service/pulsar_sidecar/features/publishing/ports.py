"""Ports of exactly-once publishing to brokers."""

from typing import NamedTuple, Protocol

from pulsar_sidecar.features.publishing.messages import Batch
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName


class Receipt(NamedTuple):
    """Broker's response to a batch; ``position`` is None for a duplicate."""

    first_sequence_id: int
    position: Position | None


class SequencedProducer(Protocol):
    """Producer that is open on one broker; used by one thread.

    Every call may raise `TemporaryError` (the connection or the topic is gone, or the broker does not know yet whether
    a batch is a duplicate: open a new one) or `PermanentError` (the broker refuses it). After any error this producer
    is unusable.
    """

    @property
    def name(self) -> str:
        """Name that the caller requested, or that the broker assigned."""

    @property
    def last_sequence_id(self) -> int:
        """Highest id that the broker had *pushed* for this name when the producer was opened; it may not be stored."""

    def send(self, batch: Batch, pushed: int) -> None:
        """Send without waiting for the receipt; ``pushed`` is the highest id of this name that the broker has received.

        Brokers judge only the last chunk of a message. So if the id is already pushed, only that chunk is sent: the
        broker acknowledges it, and would store the others again. The chunks before the last have ``pushed`` as their
        sequence id, because a broker that replays a topic takes the id of any chunk for the whole message's.
        """

    def receive(self, wait_seconds: float) -> Receipt | None:
        """Return the next receipt, in the order of sending; None if none arrived in time (0: do not wait)."""

    def close(self) -> None:
        """Close the producer; raises nothing."""


class SequencedProducers(Protocol):
    """Source of producers, and of the facts needed before."""

    def open(self, topic: TopicName, name: str | None) -> SequencedProducer:
        """Open a producer on the broker that owns the topic now, looked up again; None lets the broker choose a name.

        Raises:
            ProducerBusyError: another producer of this name is connected, or was until a moment ago.
            TemporaryError: the topic is moving, or the broker cannot be reached.
            PermanentError: the broker refuses.
        """

    def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions, 0 for a topic without."""

    def deduplication_status(self, topic: TopicName) -> str:
        """Return ``deduplicationStatus`` from the statistics of the broker that has loaded the topic."""
