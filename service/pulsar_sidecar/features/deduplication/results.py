"""Results about deduplication.

Invariant: a number is known or null, never a guess.
"""

from enum import StrEnum
from typing import Final

from pulsar_sidecar.model.entry_sizes import STOCK_JUTE_MAX_BUFFER
from pulsar_sidecar.model.results import result

LEDGER_SUFFIX: Final = "_LID"
ENTRY_SUFFIX: Final = "_EID"
PolicyValue = bool | int


class PolicyLevel(StrEnum):
    """Level of a policy, nearest first."""

    TOPIC = "topic"
    TOPIC_GLOBAL = "topic (global)"
    NAMESPACE = "namespace"
    BROKER = "broker"


@result
class PolicyValues:
    """A policy on each level; null where it is not set."""

    topic: PolicyValue | None
    topic_global: PolicyValue | None
    """The topic's global policy, which applies after its own."""
    namespace: PolicyValue | None
    broker: PolicyValue
    """Configuration of the broker that owns the topic, or of any broker."""
    applied: PolicyValue
    """The policy in effect."""
    decided_by: PolicyLevel
    """The level that decides."""

    @classmethod
    def of(
        cls,
        broker: PolicyValue,
        namespace: PolicyValue | None,
        topic: PolicyValue | None = None,
        topic_global: PolicyValue | None = None,
    ) -> "PolicyValues":
        """Decide by the nearest level that has a value."""
        levels = zip(PolicyLevel, (topic, topic_global, namespace, broker), strict=True)
        level, applied = next((level, value) for level, value in levels if value is not None)
        return cls(topic, topic_global, namespace, broker, applied, level)


@result
class TopicStatus:
    """Deduplication status of a topic without partitions, or of a partition."""

    topic: str
    status: str | None
    """``deduplicationStatus``; null if no broker has the topic loaded: the policy applies from the next topic load."""


@result
class PolicyChange:
    """Effect of a policy change."""

    asked: PolicyValue | None
    """Requested value; null for a removal."""
    stored: PolicyValue | None
    """Present value of this level; null if it is not set."""
    values: PolicyValues
    statuses: tuple[TopicStatus, ...]
    """Each partition of a topic, or some loaded topics of a namespace; at most 20."""
    remarks: tuple[str, ...]
    """Unexpected effects of the change."""


class CheckOutcome(StrEnum):
    """Broker's decision on the second message."""

    REFUSED = "refused as duplicate"
    STORED_TWICE = "stored twice"
    UNKNOWN = "unknown"


@result
class DeduplicationCheck:
    """Result of publishing two messages under one sequence id."""

    namespace: str
    topic: str
    """The check's own topic, which is deleted unless ``leftBehind`` has a reason."""
    outcome: CheckOutcome
    reason: str
    policy: PolicyValues
    """Policy that should decide the outcome."""
    as_configured: bool | None
    """True if the broker follows the policy; null if the outcome is unknown."""
    status: str | None
    """The topic's ``deduplicationStatus``; null if its broker did not report it."""
    first: str
    """``ledgerId:entryId``, ``duplicate`` or an error."""
    second: str
    left_behind: str | None
    """Reason why the topic still exists, with the command that deletes it."""


@result
class DeduplicationDecision:
    """Effective deduplication of a topic, and the level that decides it."""

    enabled: bool | None
    """Null if brokers could not be reached."""
    level: PolicyLevel | None
    """The level that decides; null for a system topic, or if it is unknown."""
    reason: str
    """The decision in words."""


@result
class ProducerSequence:
    """A producer in a snapshot."""

    name: str
    last_sequence_id: int
    """Highest stored sequence id, as a signed number."""


@result
class ReplicatedPosition:
    """A replicator in a snapshot, which keeps the last position of its source in place of a sequence id."""

    producer: str
    """The replicator's producer name."""
    position: str
    """The source's ledger and entry (``_LID`` and ``_EID``)."""

    @property
    def names(self) -> tuple[str, str]:
        """Names under which a snapshot has the two numbers."""
        return f"{self.producer}{LEDGER_SUFFIX}", f"{self.producer}{ENTRY_SUFFIX}"


@result
class SnapshotView:
    """A snapshot as a broker stored it."""

    position: str
    """Last entry that the snapshot covers."""
    covered_until_ms: int | None
    """Publish time of the message there, or of the next one if that is gone, by its producer's clock; null if
    unknown."""
    age_ms: int | None
    """Age of that message."""
    names: int
    """Number of stored names; a replicator counts twice."""
    size_bytes: int
    """Bytes of the cursor's entry, or of its node."""
    ledger_id: int | None
    """The cursor's ledger; null if the cursor's node holds the snapshot."""
    entry_id: int | None
    """The entry of that ledger."""
    lost: str | None
    """Reason why a broker would begin with an empty map; null if it would not."""
    producers: tuple[ProducerSequence, ...]
    """Producers in order of their names."""
    replicators: tuple[ReplicatedPosition, ...]
    """Replicators that keep positions."""


@result
class SnapshotLimits:
    """Limits of a snapshot's growth; null where brokers could not be reached."""

    max_producers: int | None
    """Maximum number of names that a broker stores (``brokerDeduplicationMaxNumberOfProducers``)."""
    max_entry_bytes: int | None
    """Maximum size of an entry of the cursor's ledger (``maxMessageSize``)."""
    max_node_bytes: int = STOCK_JUTE_MAX_BUFFER
    """Maximum size of the cursor's node in a stock ZooKeeper (``jute.maxbuffer``); ``bin/pulsar`` sets 10,485,760."""


@result
class Amount:
    """Entries and their bytes."""

    entries: int
    size_bytes: int


@result
class HeldLedgers:
    """Ledgers that a cursor retains."""

    ledgers: tuple[int, ...]
    size_bytes: int


@result
class SequenceRow:
    """Sequence ids of one name."""

    name: str
    stored: int | None
    """In the snapshot; null if absent."""
    replayed: int
    """After the replay."""
    replicated_from: str | None = None
    """Cluster from which the last replayed entry of this name was replicated, so that its ids are another producer's;
    null for this one, or if no entry was replayed."""


@result
class Replay:
    """Rebuilt last-sequence-persisted."""

    is_whole: bool
    """True if a broker that loads and deduplicates the topic now gets this map."""
    entries: int
    """Number of replayed entries."""
    markers: int
    """Number of replayed entries that brokers wrote themselves."""
    last: str | None
    """Last replayed entry; null if there was none."""
    problems: tuple[str, ...]
    """Reasons why a broker's map may differ."""
    rows: tuple[SequenceRow, ...]
    """Every name of both maps, sorted."""


@result
class DeduplicationView:
    """Deduplication (PIP-6) of a topic without partitions, or of one partition."""

    topic: str
    """The topic, or the partition."""
    decision: DeduplicationDecision
    """Decision of the policies."""
    status: str | None
    """``deduplicationStatus`` as its broker reports it; null if not queried, or no broker has loaded the topic."""
    snapshot: SnapshotView | None
    """Null if there is no deduplication cursor, or it could not be read."""
    limits: SnapshotLimits
    """Limits of a snapshot."""
    since: Amount | None
    """Entries after the snapshot; null if unknown."""
    replay_seconds: float | None
    """Time that a topic load would replay them; 0 where deduplication is off: a topic load then deletes the cursor."""
    replay_seconds_by: str
    """Source of that estimate."""
    held: HeldLedgers | None
    """Ledgers that brokers may not delete because of the cursor; null if unknown."""
    held_alone: HeldLedgers | None
    """Ledgers that only this cursor retains; null if unknown."""
    replay: Replay | None
    """Null unless ``replay`` was requested."""
    remarks: tuple[str, ...]
    """Unexpected facts."""
    problem: str | None
    """Reason why something could not be read; null if everything could."""


class StuckReason(StrEnum):
    """Kind of stuck cursor."""

    LEFT_OVER = "left over"
    LAGS = "lags"


@result
class StuckCursor:
    """A cursor that retains ledgers although deduplication is off, or that lags."""

    topic: str
    """The topic without partitions, or the partition."""
    reason: StuckReason
    because: str
    """Level that switches deduplication off, or the cursor's lag."""
    certain: bool
    """False where the topic's own policy, or the cursor's true position, is unknown."""
    position: str
    """Position of the snapshot; the true one is at or after it."""
    since: Amount | None
    """Entries after the snapshot; null if unknown."""
    held_ledgers: int
    """Number of ledgers that the cursor retains."""
    held_bytes: int
    """Bytes of these ledgers."""
    freed_bytes: int | None
    """Bytes of those that no other cursor retains: the remedy frees them once retention has ended. Null if unknown."""
    status: str | None
    """The broker's ``deduplicationStatus``; null where the topic is not loaded, or brokers were not queried."""
    remedy: str


@result
class StuckReport:
    """Result of a search for stuck cursors."""

    topics: int
    """Number of partitions, and of topics without partitions, that were searched."""
    cursors: int
    """Number of searched partitions and topics with a deduplication cursor."""
    found: int
    """Number of stuck cursors."""
    held_bytes: int
    """Bytes that all stuck cursors retain."""
    stuck: tuple[StuckCursor, ...]
    """The stuck cursors that retain most."""
    unreadable: tuple[str, ...]
    """Topics that could not be read, and may be stuck."""


@result
class LoadForecast:
    """Cost of deduplication for the next topic load."""

    topic: str
    """The topic without partitions, or the partition."""
    position: str
    """Position of the snapshot."""
    replay: Amount
    """Entries that the broker replays."""
    seconds: float
    deduplicated: bool | None
    """Null if the topic's own policy is unknown, so that the topic load may replay nothing."""
    times_out: bool
    """True if it takes longer than ``topicLoadTimeoutSeconds``."""


@result
class LoadForecasts:
    """Topic loads that deduplication slows, slowest first."""

    topics: int
    """Number of partitions, and of topics without partitions, that were examined."""
    cursors: int
    """Number of examined partitions and topics with a deduplication cursor; a load of the others replays nothing."""
    load_timeout_seconds: int
    """``topicLoadTimeoutSeconds`` of a broker."""
    slowest: tuple[LoadForecast, ...]
    """Slowest topic loads of deduplicated topics, as far as that is known."""
    unreadable: tuple[str, ...]
    """Topics that could not be read, and may be slow."""
    assumption: str
    """Assumption behind the seconds."""
