"""What is asked to learn what pins ledgers; nothing here loads a topic."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pulsar_sidecar.ledger_ownership.pins.facts import DueSpan, Retention
from pulsar_sidecar.model.ids import BookieId, LedgerId, Position
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import TopicInternalStats


@dataclass(frozen=True, slots=True)
class StoredCopies:
    """Copies of a ledger that bookies hold.

    Attributes:
        size_bytes: of one copy, as far as bookies have it.
        bookies: that hold entries of it.
        unanswered: bookies that did not answer.
    """

    size_bytes: int
    bookies: tuple[BookieId, ...]
    unanswered: tuple[BookieId, ...] = ()


@dataclass(frozen=True, slots=True)
class Compaction:
    """It takes entry logs that are less full than ``threshold``, every so often; never if the interval is 0.

    Attributes:
        is_suspended: by an operator, or by the bookie while its disks are too full.
    """

    threshold: float
    interval_seconds: float
    is_suspended: bool = False


class BookieState(StrEnum):
    """By the metadata store."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    DOWN = "down"
    """It has a cookie, or ledgers name it, and it is not registered."""


@dataclass(frozen=True, slots=True)
class BookieFigures:
    """A bookie's own figures. It tells nobody how large its files are.

    Attributes:
        live_bytes: of the ledgers that existed at its last collection, in the entry logs that it left.
        entry_logs: that its last collection left; the one it writes to is not among them.
        disk_used_bytes: by whatever is on the disks of its ledgers.
        ledgers: that its index knew at its last collection.
        http_url: of its HTTP service.
        gc_wait_seconds: it collects every so often.
        entry_log_limit_bytes: an entry log that is smaller is still written to.
    """

    http_url: str
    live_bytes: int
    entry_logs: int
    ledgers: int
    disk_used_bytes: int
    disk_total_bytes: int
    gc_wait_seconds: float
    entry_log_limit_bytes: int
    minor: Compaction
    major: Compaction
    is_collecting: bool


class LiveViews(Protocol):
    """Brokers' views of the topics that they have loaded."""

    def views(self, topics: Collection[TopicName]) -> Mapping[TopicName, TopicInternalStats]:
        """Of those that are loaded; loads none. Raises `TemporaryError`."""


class TrimPolicies(Protocol):
    """The policies by which brokers trim."""

    def retention(self, topic: TopicName) -> Retention | Unreadable:
        """In force for a partition, or a topic without. Raises nothing."""

    def offload_lag_ms(self, namespace: str) -> int | Unreadable:
        """How long BookKeeper keeps its copy of an offloaded ledger; negative for always. Raises nothing."""

    def replicated_to(self, topic: TopicName) -> frozenset[str] | Unreadable:
        """The clusters that keep a partition, or a topic without, this one included. Raises nothing."""


class DueTimesOfCursors(Protocol):
    """When delayed messages are due, as far as it is stored."""

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        """Of those positions whose messages are delayed and could be read. Raises nothing."""

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        """What the buckets of its subscriptions hold, of those that could be read. Raises nothing."""


class Bookies(Protocol):
    """What bookies have on their disks."""

    def known(self) -> Mapping[BookieId, BookieState]:
        """Those that are registered, or have a cookie. Raises `TemporaryError`."""

    def copies(self, ledger_id: LedgerId) -> StoredCopies:
        """Where entries of a ledger without metadata still are. Raises `TemporaryError`."""

    def figures(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, BookieFigures | Unreadable]:
        """Each one's own, asked side by side. Raises nothing."""
