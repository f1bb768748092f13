"""Ports of the rehearsal, which the process fills with the results of other features.

Every method raises `SidecarError` when the other side could not be reached; no method loads a topic that no broker has
loaded, unless the topic is unloaded at that moment.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pulsar_sidecar.features.rehearsal.results import RehearsedSubscription
from pulsar_sidecar.model.names import TopicName


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of a topic by the broker's periodic statistics.

    Attributes:
        consumers: consumers and readers.
        backlog: backlogs of all subscriptions, messages.
    """

    producers: int
    consumers: int
    backlog: int = 0

    @property
    def connected(self) -> bool:
        return self.producers + self.consumers > 0


@dataclass(frozen=True, slots=True)
class BrokerContents:
    """Contents of a broker.

    Attributes:
        broker: the broker's id, ``host:port`` of its web service.
        topics: loaded persistent topics; None for one that the periodic statistics do not have yet.
        statistics_seconds: longest age of the statistics.
        session_seconds: timeout of the broker's session in the metadata store.
        load_seconds: longest time that a topic load may take (``topicLoadTimeoutSeconds``).
    """

    broker: str
    bundles: int
    topics: Mapping[TopicName, Clients | None]
    non_persistent: Mapping[TopicName, Clients]
    statistics_seconds: int
    session_seconds: float
    load_seconds: float


@dataclass(frozen=True, slots=True)
class Replay:
    """Entries that a broker replays for deduplication when it loads a topic.

    Attributes:
        lost: reason why it then forgets the sequence ids from before; None if it does not.
    """

    entries: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    lost: str | None = None


@dataclass(frozen=True, slots=True)
class Indexing:
    """Entries that a broker reads to index a topic's delayed messages again.

    Attributes:
        unusable: reasons why it does not use stored buckets, each with its subscription.
    """

    entries: int = 0
    seconds: float = 0.0
    unusable: tuple[str, ...] = ()


class TopicLookups(Protocol):
    """Look-ups of one loaded topic, each of which takes some requests."""

    def subscriptions(self, topic: TopicName, broker: str) -> Sequence[RehearsedSubscription]:
        """Return the topic's durable subscriptions; raise `TemporaryError` if another broker has it by now."""

    def replay(self, topic: TopicName) -> Replay:
        """Return the replay of the next topic load."""

    def indexing(self, topic: TopicName, subscriptions: Collection[str]) -> Indexing:
        """Return the cost of the indexes of these subscriptions, which have delayed messages, together."""

    def assumptions(self) -> Sequence[str]:
        """Return the measurements and assumptions of the seconds."""
