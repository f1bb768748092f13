"""What is published, how it is batched, and what is known of it afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

from pulsar_sidecar.model.errors import ConflictError, InvalidInputError
from pulsar_sidecar.model.ids import Position

NOTHING_PUBLISHED = -1
"""The last sequence id of a producer that a broker knows nothing of (``CommandProducerSuccess.last_sequence_id``)."""

MAX_SEQUENCE_ID = 2**63 - 1
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
_OVERHEAD_BYTES = 64
"""More than a message's own numbers take in a batch."""


class OutgoingMessage(NamedTuple):
    """One message to publish; a tuple, because one is made for each record of a file.

    Attributes:
        payload: its bytes.
        sequence_id: 0 to 2^63 - 1, rising with each message of a partition; None for all messages lets the publisher
            count.
        key: chooses the partition.
        properties: the application's own.
        event_time_ms: the application's time, in milliseconds since the epoch; None for none.
    """

    payload: bytes
    sequence_id: int | None = None
    key: str | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    event_time_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        """At least what it takes in a batch; an `InvalidInputError` where it cannot be written."""
        size = len(self.payload) + _OVERHEAD_BYTES
        if self.event_time_ms is not None and not 0 <= self.event_time_ms <= MAX_SEQUENCE_ID:
            raise InvalidInputError(f"the event time {self.event_time_ms} is not 0 to 2^63 - 1 milliseconds")
        if self.key is None and not self.properties:
            return size
        try:
            names = [self.key or "", *self.properties, *self.properties.values()]
            return size + _OVERHEAD_BYTES * len(names) + sum(len(name.encode()) for name in names)
        except UnicodeEncodeError as error:
            raise InvalidInputError("keys and properties are Unicode text, without lone surrogates") from error


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is full; Java's are ``batchingMaxMessages`` and ``batchingMaxBytes``.

    Attributes:
        messages: at most so many in one entry; 1 for no batches.
        size_bytes: about so many bytes; a larger message is alone, and in chunks where a broker takes no such entry.
        in_flight: batches of one partition that may wait for their receipts.
    """

    messages: int = 1000
    size_bytes: int = 128 * 1024
    in_flight: int = 64


@dataclass(frozen=True, slots=True)
class Batch:
    """What becomes one entry, or several chunks; sent again it is the same batch, or brokers could not judge it.

    Attributes:
        messages: at least one; their sequence ids are set, and rise.
    """

    messages: Sequence[OutgoingMessage]
    first_sequence_id: int
    last_sequence_id: int


class Outcome(Enum):
    """How a broker confirmed a batch."""

    STORED = "stored"
    """Stored now, at a known position."""
    STORED_BEFORE_ANSWER_LOST = "stored-before-answer-lost"
    """This publisher sent it more than once; an earlier sending was stored, and its receipt got lost."""
    DUPLICATE = "duplicate"
    """Stored before this publisher was opened, by an earlier one of the same name; the broker refused it."""


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A batch that is known to be stored, once.

    Attributes:
        partition: 0 for a topic without partitions.
        position: the entry; of chunks the last one's; None where it was stored before (a receipt with ``-1:-1``).
    """

    partition: int
    batch: Batch
    outcome: Outcome
    position: Position | None


class SequencesForgottenError(ConflictError):
    """A broker remembers less of a producer than it has confirmed to it: what is resent might be stored twice."""


class NameTakenError(ConflictError):
    """Another publisher has used, or holds, the same producer name on the topic."""
