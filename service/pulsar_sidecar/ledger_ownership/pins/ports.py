"""What is asked to learn what pins ledgers; nothing here loads a topic."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    """It takes entry logs that are less full than ``threshold``, every so often; never if the interval is 0."""

    threshold: float
    interval_seconds: float


@dataclass(frozen=True, slots=True)
class BookieFigures:
    """A bookie's own figures.

    Attributes:
        entry_log_bytes: of the entry logs that its last collection left; the one it writes to is not among them.
        ledgers: that its index knew at its last collection.
        http_url: of its HTTP service.
        gc_wait_seconds: it collects every so often.
        entry_log_limit_bytes: an entry log that is smaller is still written to.
    """

    http_url: str
    entry_log_bytes: int
    ledgers: int
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


class DueTimesOfCursors(Protocol):
    """When delayed messages are due, as far as it is stored."""

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        """Of those positions whose messages are delayed and could be read. Raises nothing."""

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        """What the buckets of its subscriptions hold, of those that could be read. Raises nothing."""


class Bookies(Protocol):
    """What bookies have on their disks."""

    def known(self) -> Sequence[BookieId]:
        """Those that are registered. Raises `TemporaryError`."""

    def copies(self, ledger_id: LedgerId) -> StoredCopies:
        """Where entries of a ledger without metadata still are. Raises `TemporaryError`."""

    def figures(self, bookies: Sequence[BookieId]) -> Mapping[BookieId, BookieFigures | Unreadable]:
        """Each one's own, asked side by side. Raises nothing."""
