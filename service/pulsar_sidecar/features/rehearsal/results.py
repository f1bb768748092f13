"""Result of a rehearsal.

Invariant: a number is known or null; a total counts only successful reads, and gives the number of failed ones.
"""

from enum import StrEnum

from pulsar_sidecar.model.results import result


class Consequence(StrEnum):
    """Consequence of the broker's death that can be counted."""

    IMPAIRED = "topics that the next owner cannot load, or not as they are"
    TOPICS_LOADED = "topics with clients, loaded again at once"
    PRODUCERS = "producers that reconnect"
    CONSUMERS = "consumers and readers that reconnect"
    ACKNOWLEDGED_AGAIN = "acknowledged entries delivered again"
    IN_FLIGHT = "delivered, unacknowledged messages delivered again"
    REPLAYED = "entries replayed for deduplication"
    REPLAYED_BYTES = "bytes of these entries"
    DELAYED = "delayed messages indexed again"
    READ_FOR_INDEX = "entries read to index delayed messages again"
    NOT_PERSISTENT = "non-persistent topics that lose messages"
    DELETIONS = "deletions that continue at the next owner"


@result
class Total:
    """Total over the broker's topics."""

    consequence: Consequence
    count: int | None
    """Null if every look-up failed."""
    topics: int
    """Number of topics that add to it."""
    unknown_topics: int
    """Number of topics that are not in it, because a look-up failed or they were not looked at."""
    derived_from: str
    """Sources of the number."""


@result
class RehearsedSubscription:
    """Durable subscription of a topic."""

    subscription: str
    type: str | None
    """Null if no consumer has set it since the topic was loaded."""
    acknowledged_again: int
    """Acknowledged entries that are delivered again, because they are not stored as acknowledged."""
    ranges: tuple[str, ...]
    """The first ranges of these, as ``ledgerId:first-last``."""
    delayed: int
    """Delayed messages that its tracker holds back."""
    in_flight: int
    """Delivered and unacknowledged messages; entries for Exclusive and Failover, of which brokers count no messages."""
    loadable: bool
    """False if the stored acknowledgements are larger than brokers read, so that no broker can load the topic."""


@result
class RehearsedTopic:
    """Topic that the broker has loaded; a null number is not known."""

    topic: str
    producers: int | None
    consumers: int | None
    """Consumers and readers."""
    acknowledged_again: int | None
    """Acknowledged entries that are delivered again."""
    in_flight: int | None
    """Delivered, unacknowledged messages that are delivered again."""
    replayed_entries: int | None
    """Entries that the next owner replays for deduplication before it serves the topic."""
    replayed_bytes: int | None
    replay_seconds: float | None
    """Estimated time of that."""
    delayed: int | None
    """Delayed messages that trackers hold back."""
    read_for_index: int | None
    """Entries that the next owner reads to index these again; with the bucket tracker also those of buckets."""
    index_seconds: float | None
    """Estimated time of that, from the first consumer on."""
    subscriptions: tuple[RehearsedSubscription, ...]
    """Subscriptions with anything to deliver or to index again, most first; at most 10."""
    warnings: tuple[str, ...]
    """Reasons why the next owner cannot load the topic, or forgets or lacks what this one has."""
    not_known: tuple[str, ...]
    """Failed look-ups."""


@result
class RehearsedDeletion:
    """Two-phase deletion under way on topics of the broker, which the sidecar continues at the next owner."""

    subject: str
    """The topic, with its part if it is one, or the namespace."""
    operation_id: str
    state: str


@result
class Times:
    """Estimated times; from the longest for one topic, if all are loaded in parallel, to all one after the other."""

    takeover_seconds: float
    """Longest time until the metadata store reports a killed broker's absence to the others; one that is shut down
    cleanly hands its bundles over at once."""
    replay_seconds: float
    """Longest replay of one topic, during which no client can use it."""
    all_replays_seconds: float
    """All replays together."""
    index_seconds: float
    """Longest indexing of one topic's delayed messages, during which those that are due wait."""
    all_indexes_seconds: float
    """All indexing together."""
    derived_from: tuple[str, ...]
    """Sources of the times."""

    @property
    def replays(self) -> str:
        """Seconds of replays, such as ``1.2 to 30.0``: from topics in parallel to one after the other."""
        return _range(self.replay_seconds, self.all_replays_seconds)

    @property
    def indexes(self) -> str:
        """Seconds of indexing, likewise."""
        return _range(self.index_seconds, self.all_indexes_seconds)


def _range(shortest: float, longest: float) -> str:
    low, high = f"{shortest:.1f}", f"{longest:.1f}"
    return low if low == high else f"{low} to {high}"


@result
class Rehearsal:
    """Consequences of a broker's death now."""

    broker: str
    as_of_ms: int
    """Time of the first look-up."""
    bundles: int
    """Number of bundles that the broker serves."""
    topics: int
    """Number of persistent topics that the broker has loaded."""
    examined: int
    """Number of examined topics: those with the most clients and backlog first."""
    totals: tuple[Total, ...]
    times: Times
    deletions: tuple[RehearsedDeletion, ...]
    warnings: tuple[str, ...]
    """The first hundred warnings, each with its topic."""
    worst: tuple[RehearsedTopic, ...]
    """Topics with the most to deliver, replay and read again."""
    not_known: tuple[str, ...]
    """The first hundred failed look-ups, each with its topic."""
    assumptions: tuple[str, ...]
    """Assumptions of the numbers."""
