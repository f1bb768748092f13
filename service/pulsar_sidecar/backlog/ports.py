"""Ports to the entries of a backlog and to their known due times."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from pyroaring import BitMap

from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats

_NO_PROPERTIES: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Chunk:
    """Part of a chunked message (PIP-37): ``uuid``, ``chunk_id`` and ``num_chunks_from_msg``."""

    uuid: str
    chunk_id: int
    total: int


class EntryFacts(NamedTuple):
    """``MessageMetadata`` of an entry, without the payload.

    A tuple, because bulk requests make very many of them.

    Attributes:
        deliver_at_ms: the due time, milliseconds since the epoch; None for a message that is not delayed.
        messages_in_batch: None for an entry that is not a batch, also for a batch of one.
        key: the partition key as text, base64 when the producer sent bytes.
        marker: True if the entry is one of Pulsar's own markers (transactions, replicated subscriptions).
        transaction: True if the message belongs to a transaction.
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


EntryAnswer = EntryFacts | Absent | Unreadable


@dataclass(frozen=True, slots=True)
class DelayPolicy:
    """Rules by which the broker decides that a delayed message is due.

    Attributes:
        enabled: ``delayedDeliveryEnabled`` and the topic's policy: otherwise delayed messages are delivered at once.
        tick_ms: ``delayedDeliveryTickTimeMillis``: unless strict, a message may leave up to one tick early.
        strict: ``isDelayedDeliveryDeliverAtTimeStrict``.
        ttl_seconds: the topic's message time-to-live, None for none.
    """

    enabled: bool = True
    tick_ms: int = 1000
    strict: bool = False
    ttl_seconds: int | None = None

    @property
    def earliest_lead_ms(self) -> int:
        """Longest lead of a dispatch over the due time: a tick, and one more for rounding (PIP-423: 2 ticks)."""
        return self.tick_ms if self.strict else 2 * self.tick_ms

    def may_be_dispatched(self, deliver_at_ms: int, now_ms: int) -> bool:
        """Return True if the broker may have dispatched a message by ``now_ms``, the brokers' time as far as known."""
        return now_ms >= deliver_at_ms - self.earliest_lead_ms

    def expired_before_ms(self, now_ms: int) -> int:
        """Return the due time up to which messages have expired: two ticks ago (PIP-423)."""
        return now_ms - 2 * self.tick_ms


class DelayedEntries(Protocol):
    """Entries' metadata, read in bulk without a consumer and without moving any cursor."""

    def read(
        self,
        topic: TopicName,
        positions: Collection[Position],
        *,
        max_age_seconds: float = 0.0,
        only_decisive: bool = False,
    ) -> Mapping[Position, EntryAnswer]:
        """Return one result for each position of the topic (a partition, or a topic without partitions).

        A result is `Absent` only after reading that the topic's managed ledger does not list the ledger, or that the
        ledger ends before the entry. Raises `NotFoundError` when the topic does not exist.

        With ``max_age_seconds`` the topic may have dropped the ledger of a found entry, or may itself be gone, for so
        long; an entry's facts are true, and only they come from memory.

        With ``only_decisive`` the facts of an entry that is not a chunk may lack those that decide on no cancellation:
        key, properties, producer, sequence id, event time and size.
        """


class DueTimes(Protocol):
    """Due times known without the entries: those in the buckets (PIP-195)."""

    def outside(self, topic: TopicName, from_ms: int | None, to_ms: int | None) -> Mapping[LedgerId, BitMap]:
        """Return the entries of a partition, or of a topic without, due before ``from_ms``, or at ``to_ms`` or later.

        An entry that is not in the response may be due at any time. Raises `TemporaryError` if the list of buckets
        could not be read.
        """


class Topics(Protocol):
    """Topics as brokers report them; a call may load a topic, and never creates one."""

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        """Return the number of partitions, now or at most so long ago: 0 for a topic without, None without a topic."""

    def partition_of_ledger(self, topic: TopicName, partitions: int, ledger_id: LedgerId) -> int | None:
        """Return the partition whose managed ledger lists the ledger, or None."""

    def subscriptions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> Mapping[str, Subscription]:
        """Return the topic's subscriptions by name, read now or at most so long ago.

        Raises `NotFoundError` when there is no such topic.
        """

    def state(self, topic: TopicName) -> TopicInternalStats:
        """Return the topic's ledgers and cursors. Raises `NotFoundError` when there is no such topic."""

    def delay_policy(self, topic: TopicName) -> DelayPolicy:
        """Return the rules for the topic's delayed messages; they may be some seconds old."""

    def broker_ahead_ms(self) -> int:
        """Return the known lead of the brokers' clocks over this machine's, milliseconds, at least 0."""
