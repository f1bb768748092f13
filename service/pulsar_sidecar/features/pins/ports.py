"""Ports of pins. No method loads a topic, except those of `TopicTrimming`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.features.pins.facts import DueSpan, Retention
from pulsar_sidecar.features.pins.results import BookieFigures
from pulsar_sidecar.model.ids import BookieId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats
from pulsar_sidecar.ownership.registrations import BookieState


@dataclass(frozen=True, slots=True)
class StoredCopies:
    """Copies of a ledger that bookies hold.

    Attributes:
        size_bytes: size of one copy, as far as bookies have it.
        bookies: bookies that hold its entries.
        unanswered: bookies that did not respond.
    """

    size_bytes: int
    bookies: tuple[BookieId, ...]
    unanswered: tuple[BookieId, ...] = ()


class LiveViews(Protocol):
    """Brokers' views of the topics that they have loaded."""

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        """Return the views of the loaded topics among these. Raises `TemporaryError`."""

    def loaded(self, topics: Collection[TopicName]) -> Collection[TopicName]:
        """Return the loaded topics among these. Raises `TemporaryError`."""

    def replicators(self, topic: TopicName, broker_id: str) -> Mapping[str, bool] | Unreadable:
        """Return by remote cluster whether the broker that has loaded the topic is connected to it. Raises nothing."""

    def owner_url(self, topic: TopicName) -> str | None:
        """Return the URL of the broker that owns the topic's bundle, None if none does. Raises `TemporaryError`."""


class TrimPolicies(Protocol):
    """Policies by which brokers trim."""

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        """Return the retention in force for a partition, or a topic without partitions. Raises nothing."""

    def offload_lag_ms(self, namespace: str) -> int | Unreadable:
        """Return the lag of deleting offloaded ledgers from BookKeeper; negative for never. Raises nothing."""

    def replicated_to(self, topic: TopicName) -> frozenset[str] | Unreadable:
        """Return the clusters, including this one, of a partition or a topic without partitions. Raises nothing."""


@dataclass(frozen=True, slots=True)
class BrokerUsage:
    """Resource of a broker, as a percentage of its limit."""

    broker: str
    resource: str
    percent: float


class ClientCount(Protocol):
    """Clients connected to a topic."""

    @property
    def count(self) -> int:
        """Number of consumers and producers."""


class TopicTrimming(Protocol):
    """Brokers' operations on a topic, each of which loads it."""

    def trim(self, topic: TopicName) -> None:
        """Make a broker trim the topic. Raises `SidecarError`."""

    def unload(self, topic: TopicName) -> None:
        """Make the topic's broker unload it. Raises `SidecarError`."""

    def clients(self, topic: TopicName) -> ClientCount:
        """Return the topic's connected clients. Raises `SidecarError`."""


class DueTimesOfCursors(Protocol):
    """Stored due times of delayed messages."""

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        """Return the due times of positions whose messages are delayed and can be read. Raises nothing."""

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        """Return the contents of the readable buckets of its subscriptions. Raises nothing."""


class Bookies(Protocol):
    """Contents of bookies' disks."""

    def known(self) -> Mapping[BookieId, BookieState]:
        """Return the bookies that are registered, or have a cookie. Raises `TemporaryError`."""

    def copies(self, ledger_id: LedgerId) -> StoredCopies:
        """Return the remaining copies of a ledger without metadata. Raises `TemporaryError`."""

    def figures(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, BookieFigures | Unreadable]:
        """Return the figures of each bookie, read concurrently. Raises nothing."""
