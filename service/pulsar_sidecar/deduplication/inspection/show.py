"""The state of deduplication on a topic, out of what is stored, and of the policies that brokers report.

Invariant: a number is known or None, never a guess.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.deduplication.inspection.replay import Replay
from pulsar_sidecar.deduplication.policies import BrokerDeduplication, PolicyLevel, PolicyValues
from pulsar_sidecar.deduplication.replay_cost import replay_seconds
from pulsar_sidecar.deduplication.snapshots import (
    ENTRY_SUFFIX,
    LEDGER_SUFFIX,
    ReplicatedPosition,
    Snapshot,
    replicated_positions,
)
from pulsar_sidecar.deduplication.stored import Amount, StoredDeduplication
from pulsar_sidecar.model.entry_sizes import STOCK_JUTE_MAX_BUFFER
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName

_NEARLY_FULL: Final = 0.9


@dataclass(frozen=True, slots=True)
class DeduplicationDecision:
    """Whether a topic is to be deduplicated, and which level decides.

    Attributes:
        enabled: None if that could not be asked.
        level: the level that decides; None if none does.
        reason: the same in words.
    """

    enabled: bool | None
    reason: str
    level: PolicyLevel | None = None

    @classmethod
    def of(cls, values: PolicyValues) -> "DeduplicationDecision":
        enabled = bool(values.applied)
        level = values.decided_by
        names = {
            PolicyLevel.TOPIC: "the topic's own policy",
            PolicyLevel.TOPIC_GLOBAL: "the topic's global policy",
            PolicyLevel.NAMESPACE: "the namespace's policy",
            PolicyLevel.BROKER: "the broker's configuration (brokerDeduplicationEnabled)",
        }
        return cls(enabled, f"{'enabled' if enabled else 'disabled'} by {names[level]}", level)


SYSTEM_TOPIC: Final = DeduplicationDecision(False, "a system topic is never deduplicated, whatever its policies are")


@dataclass(frozen=True, slots=True)
class ProducerSequence:
    """A producer, and the sequence id of the last message of it that the snapshot counts as stored."""

    name: str
    last_sequence_id: int


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A snapshot as it is stored.

    Attributes:
        position: up to here every entry is in it.
        covered_until_ms: when the message there, or the first one after it if that is gone, was published, by its
            producer's clock; None if that is not known.
        age_ms: how long ago that was; None likewise.
        producers: in order of their names, without the replicators that keep positions.
        replicators: those.
        names: how many names the broker stored: a replicator counts twice.
        size_bytes: what the broker wrote.
        ledger_id: the cursor's ledger that holds it, None if the cursor's node does.
        entry_id: the entry of it.
        lost: why a broker would begin with nothing.
    """

    position: Position
    covered_until_ms: int | None
    age_ms: int | None
    producers: Sequence[ProducerSequence]
    replicators: Sequence[ReplicatedPosition]
    names: int
    size_bytes: int
    ledger_id: LedgerId | None
    entry_id: EntryId | None
    lost: str | None


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """How far a snapshot may grow.

    Attributes:
        max_producers: names that a broker stores; it leaves out what is beyond. None if that could not be asked.
        max_entry_bytes: of an entry of the cursor's ledger (``maxMessageSize``); None likewise.
        max_node_bytes: of the cursor's node in a stock ZooKeeper.
    """

    max_producers: int | None
    max_entry_bytes: int | None
    max_node_bytes: int = STOCK_JUTE_MAX_BUFFER


@dataclass(frozen=True, slots=True)
class HeldLedgers:
    """Ledgers that the cursor keeps brokers from deleting."""

    ledgers: Sequence[LedgerId]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DeduplicationView:
    """A topic without partitions, or one partition.

    Attributes:
        status: the broker's own word, None if it was not asked or has not loaded the topic.
        snapshot: None if there is no cursor, or it could not be read.
        since: what came after the snapshot, which a load replays; None if that is not known.
        replay_seconds: how long that takes; 0 where deduplication is off, because a load then deletes the cursor.
        held: what the cursor holds; None if that is not known.
        held_alone: what no other cursor holds; None likewise.
        replay: None if none was asked for.
        remarks: what one would not expect.
        problem: why something could not be read; None if everything could.
    """

    topic: TopicName
    decision: DeduplicationDecision
    status: str | None
    snapshot: SnapshotView | None
    limits: SnapshotLimits
    since: Amount | None = None
    replay_seconds: float | None = None
    held: HeldLedgers | None = None
    held_alone: HeldLedgers | None = None
    replay: Replay | None = None
    remarks: Sequence[str] = ()
    problem: str | None = None


def view_of(
    stored: StoredDeduplication,
    decision: DeduplicationDecision,
    broker: BrokerDeduplication | None,
    *,
    status: str | None,
    covered_until_ms: int | None,
    now_ms: int,
    held_alone: Sequence[LedgerId] | Unreadable,
    replayed: Replay | Unreadable | None,
) -> DeduplicationView:
    """Everything about one topic; see `DeduplicationView` and `SnapshotView`.

    ``broker`` has the owner's settings, or any broker's; None if they could not be asked.
    """
    snapshot = stored.snapshot
    unknown = (each.reason for each in (snapshot, held_alone, replayed) if isinstance(each, Unreadable))
    limits = SnapshotLimits(*((None, None) if broker is None else (broker.max_producers, broker.max_entry_bytes)))
    since = stored.since
    return DeduplicationView(
        topic=stored.topic,
        decision=decision,
        status=status,
        snapshot=_snapshot(snapshot, covered_until_ms, now_ms) if isinstance(snapshot, Snapshot) else None,
        limits=limits,
        since=since,
        replay_seconds=None if since is None else _load_seconds(since, decision),
        held=_held(stored, stored.held),
        held_alone=_held(stored, None if isinstance(held_alone, Unreadable) else held_alone),
        replay=None if isinstance(replayed, Unreadable) else replayed,
        remarks=tuple(_remarks(stored, decision, limits, broker)),
        problem="; ".join(dict.fromkeys(filter(None, [*unknown, stored.unmeasured]))) or None,
    )


def _load_seconds(since: Amount, decision: DeduplicationDecision) -> float:
    return 0.0 if decision.enabled is False else replay_seconds(since)


def _held(stored: StoredDeduplication, ledgers: Sequence[LedgerId] | None) -> HeldLedgers | None:
    return None if ledgers is None else HeldLedgers(ledgers, stored.size_of(ledgers))


def _snapshot(snapshot: Snapshot, covered_until_ms: int | None, now_ms: int) -> SnapshotView:
    replicators = tuple(replicated_positions(snapshot.sequences))
    theirs = {f"{each.producer}{suffix}" for each in replicators for suffix in (LEDGER_SUFFIX, ENTRY_SUFFIX)}
    named = sorted(snapshot.sequences.items())
    return SnapshotView(
        position=snapshot.position,
        covered_until_ms=covered_until_ms,
        age_ms=None if covered_until_ms is None else max(0, now_ms - covered_until_ms),
        producers=tuple(ProducerSequence(*pair) for pair in named if pair[0] not in theirs),
        replicators=replicators,
        names=len(snapshot.sequences),
        size_bytes=snapshot.size_bytes,
        ledger_id=snapshot.ledger_id,
        entry_id=snapshot.entry_id,
        lost=snapshot.lost,
    )


def _remarks(
    stored: StoredDeduplication,
    decision: DeduplicationDecision,
    limits: SnapshotLimits,
    broker: BrokerDeduplication | None,
) -> Iterator[str]:
    snapshot, since = stored.snapshot, stored.since
    if isinstance(snapshot, Absent):
        if decision.enabled:
            yield (
                "there is no deduplication cursor: the topic was not loaded since deduplication was enabled, or its "
                "broker could not create one; a load begins with an empty map and replays nothing"
            )
        return
    if decision.enabled is False:
        yield (
            "deduplication is off and its cursor still exists: a load of the topic deletes the cursor, "
            "and until then no ledger from its position on is trimmed"
        )
    if isinstance(snapshot, Snapshot):
        yield from _remarks_on(snapshot, limits)
    if since is None or broker is None or not decision.enabled:
        return
    if replay_seconds(since) > broker.load_timeout_seconds:
        yield (
            f"a load may take longer than brokers allow, {broker.load_timeout_seconds} s (topicLoadTimeoutSeconds), "
            "and then it fails"
        )


def _remarks_on(snapshot: Snapshot, limits: SnapshotLimits) -> Iterator[str]:
    if snapshot.lost is not None:
        yield (
            f"{snapshot.lost}: a broker that loads the topic begins at {snapshot.position} with an empty map, "
            "and forgets what was stored before"
        )
    most, names = limits.max_producers, len(snapshot.sequences)
    if most is not None and names >= most:
        yield (
            f"the snapshot is full: it has {format_count(names, 'name')}, and brokers store {most:,} at most "
            "(brokerDeduplicationMaxNumberOfProducers); a load forgets other producers that published nothing since"
        )
    elif most is not None and names > most * _NEARLY_FULL:
        yield f"the snapshot is nearly full: brokers store {format_count(most, 'name')} at most"
    if limits.max_entry_bytes is not None and snapshot.size_bytes > limits.max_entry_bytes * _NEARLY_FULL:
        most_bytes = limits.max_entry_bytes
        yield (
            f"the snapshot nearly fills an entry of the cursor's ledger: {format_count(most_bytes, 'byte')} "
            "(maxMessageSize)"
        )
    if snapshot.size_bytes > limits.max_node_bytes * _NEARLY_FULL:
        yield (
            "brokers write the snapshot to the metadata store when they unload the topic, and when they change the "
            f"cursor's ledger: check that jute.maxbuffer, which a stock ZooKeeper has at {limits.max_node_bytes:,} and "
            "bin/pulsar sets to 10,485,760 bytes, is larger"
        )
    negative = sorted(name for name, sequence_id in snapshot.sequences.items() if sequence_id < -1)
    if negative:
        yield (
            f"negative sequence ids, of {', '.join(negative[:3])}: ids from 2^63 on are negative for brokers, "
            "and lower than all others"
        )
