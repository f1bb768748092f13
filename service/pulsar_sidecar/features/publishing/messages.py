"""Messages to publish, their batches, and the brokers' confirmations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.ids import Position

NOTHING_PUBLISHED = -1
"""Last sequence id of a producer that a broker does not know (``CommandProducerSuccess.last_sequence_id``)."""

MAX_SEQUENCE_ID = 2**63 - 1
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_OVERHEAD_BYTES = 64
"""Upper bound of the bytes of a message's own numbers in a batch."""


class OutgoingMessage(NamedTuple):
    """Message to publish; a tuple, because each record of a file becomes one.

    Attributes:
        payload: bytes of the message.
        sequence_id: 0 to 2^63 - 1, rising with each message of a partition; None for all messages lets the publisher
            count.
        key: key that chooses the partition.
        properties: the application's own properties.
        event_time_ms: the application's time, in milliseconds since the epoch; None for none.
    """

    payload: bytes
    sequence_id: int | None = None
    key: str | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """Lower bound of its bytes in a batch; raises `InvalidInputError` for a message that cannot be written."""
        size = len(self.payload) + _OVERHEAD_BYTES
        if self.event_time_ms is not None and not 0 <= self.event_time_ms <= MAX_SEQUENCE_ID:
            raise InvalidInputError(f"the event time {self.event_time_ms} must be 0 to 2^63 - 1 milliseconds")
        if self.key is None and not self.properties:
            return size
        try:
            names = [self.key or "", *self.properties, *self.properties.values()]
            return size + _OVERHEAD_BYTES * len(names) + sum(len(name.encode()) for name in names)
        except UnicodeEncodeError as error:
            raise InvalidInputError("keys and properties must be Unicode text, without lone surrogates") from error


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of a batch; Java's are ``batchingMaxMessages`` and ``batchingMaxBytes``.

    Attributes:
        messages: largest number of messages in one entry; 1 for no batches.
        size_bytes: approximate size; a larger message is alone, and in chunks where a broker refuses such an entry.
        in_flight: number of batches of one partition that may await their receipts.
    """

    messages: int = 1000
    size_bytes: int = 128 * 1024
    in_flight: int = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one entry, or of several chunks; resent in the same batch, or brokers could not judge it.

    Attributes:
        messages: at least one message; their sequence ids are set, and rise.
    """

    messages: Sequence[OutgoingMessage]
    first_sequence_id: int
    last_sequence_id: int


class Outcome(Enum):
    """Outcome of a batch, as a broker confirmed it."""

    STORED = "stored"
    """The broker stored it now, at a known position."""
    STORED_BEFORE_ANSWER_LOST = "stored-before-answer-lost"
    """This publisher sent it more than once; the broker stored an earlier one, and its receipt was lost."""
    DUPLICATE = "duplicate"
    """An earlier publisher of the same name stored it; the broker refused it now."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Confirmation that a batch is stored, once.

    Attributes:
        partition: index of the partition, 0 for a topic without partitions.
        position: position of the entry; of chunks, of the last one; None if stored before (a receipt with ``-1:-1``).
    """

    partition: int
    batch: Batch
    outcome: Outcome
    position: Position | None


class ProducerStateLostError(ConflictError):
    """Raised when a broker remembers less of a producer than it has confirmed: resending might store duplicates."""


class NameTakenError(ConflictError):
    """Raised when another publisher uses, or has used, the same producer name on the topic."""
