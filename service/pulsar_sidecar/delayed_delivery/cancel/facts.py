"""What is known of an entry and of its topic's policy before anything is decided about them.

Invariant: what could not be read is a value of its own (`Unreadable`), never an absence.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a chunked message (PIP-37): ``uuid``, ``chunk_id`` and ``num_chunks_from_msg``."""

    uuid: str
    chunk_id: int
    total: int


_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


class EntryFacts(NamedTuple):
    """What an entry's own ``MessageMetadata`` says; the payload is not kept.

    A tuple, because bulk requests make very many of them.

    Attributes:
        deliver_at_ms: the due time, milliseconds since the epoch; None for a message that is not delayed.
        messages_in_batch: None for an entry that is no batch, also for a batch of one.
        key: the partition key as text, base64 when the producer sent bytes.
        marker: whether the entry is one of Pulsar's own markers (transactions, replicated subscriptions).
        transaction: whether the message belongs to a transaction.
    """

    deliver_at_ms: int | None
    publish_time_ms: int
    messages_in_batch: int | None = None
    chunk: Chunk | None = None
    key: str | None = None
    properties: Mapping[str, str] = _NO_PROPERTIES
    producer_name: str = ""
    sequence_id: int = 0
    event_time_ms: int | None = None
    marker: bool = False
    transaction: bool = False
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Absent:
    """The topic has no such entry, and that was read: no such ledger in its list, or no such entry in the ledger."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The entry could not be read, so nothing is known of it; ``reason`` says why."""

    reason: str


EntryAnswer = EntryFacts | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """How the broker decides that a delayed message is due.

    Attributes:
        enabled: ``delayedDeliveryEnabled`` and the topic's policy: otherwise delayed messages are delivered at once.
        tick_ms: ``delayedDeliveryTickTimeMillis``: unless strict, a message may leave up to one tick early.
        strict: ``isDelayedDeliveryDeliverAtTimeStrict``.
        ttl_seconds: the topic's message time-to-live, None for none.
        batch_index_ack: ``acknowledgmentAtBatchIndexLevelEnabled``.
    """

    enabled: bool = True
    tick_ms: int = 1000
    strict: bool = False
    ttl_seconds: int | None = None
    batch_index_ack: bool = False

    @property
    def earliest_lead_ms(self) -> int:
        """How long before the due time a broker may dispatch: a tick, and one more for rounding (PIP-423: 2 ticks)."""
        return self.tick_ms if self.strict else 2 * self.tick_ms
