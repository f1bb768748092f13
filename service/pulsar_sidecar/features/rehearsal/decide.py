"""Totals of a rehearsal, from the results of look-ups; pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.features.rehearsal.ports import BrokerContents, Clients, Indexing, Replay
from pulsar_sidecar.features.rehearsal.results import (
    Consequence,
    Rehearsal,
    RehearsedDeletion,
    RehearsedSubscription,
    RehearsedTopic,
    Times,
    Total,
)
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName

MOST_REASONS: Final = 100
_MOST_SUBSCRIPTIONS: Final = 10
_LIVE: Final = "the cursors in the broker's memory (internalStats), less what they would recover from bookies and store"
_UNACKED: Final = (
    "unackedMessages of the broker (stats); for Exclusive and Failover with a consumer the entries between mark-delete "
    "and read position, because brokers count no messages of these"
)
_STORED: Final = "stored cursors, snapshots and buckets, and the brokers' limits of an entry and of a topic load"
_SNAPSHOTS: Final = "the stored snapshot of the producers' sequence ids, and the ledgers' entries after it"
_INDEXES: Final = (
    "the stored cursors and buckets, and the tracker of the brokers' configuration, for subscriptions with delayed "
    "messages: an upper bound, as if every unacknowledged entry were delayed"
)
_SESSION: Final = "the session timeout of the broker's configuration (metadataStoreSessionTimeoutMillis)"
_OPERATIONS: Final = "the sidecars' operations in the metadata store"
ASSUMPTIONS: Final = (
    "the numbers change with the traffic: they apply to the moment of the look-ups",
    "acknowledgements of parts of batches that are only in memory are not counted: brokers do not report them, and "
    "deliver those messages again",
    "ledgers that the broker is deleting itself at that moment may be left; the ledger watch finds them",
    "publishing clients retry; duplicates of what was stored and not confirmed are prevented by deduplication only",
)


@dataclass(frozen=True, slots=True)
class Look:
    """Results of the look-ups of one topic; None for one that failed, with its reason in ``failures``."""

    subscriptions: Sequence[RehearsedSubscription] | None = None
    replay: Replay | None = None
    indexing: Indexing | None = None
    failures: tuple[str, ...] = ()


NOT_LOOKED_AT: Final = Look()


def by_weight(topics: Mapping[TopicName, Clients | None]) -> list[TopicName]:
    """Return the topics, those first that probably matter most: by backlog and clients."""

    def weight(topic: TopicName) -> tuple[bool, int, str]:
        clients = topics[topic] or Clients(0, 0)
        return not clients.connected, -(clients.backlog + clients.producers + clients.consumers), str(topic)

    return sorted(topics, key=weight)


def rehearsal_of(
    contents: BrokerContents,
    looks: Mapping[TopicName, Look],
    deletions: Sequence[RehearsedDeletion] | Unreadable | None,
    measured: Sequence[str],
    as_of_ms: int,
    rows: int,
) -> Rehearsal:
    """Return the rehearsal.

    Args:
        contents: the broker's topics and clients.
        looks: look-ups by topic; a missing topic was not looked at.
        deletions: deletions under way; None where two-phase deletion is off.
        measured: measurements and assumptions of the seconds.
        as_of_ms: time of the first look-up.
        rows: maximum number of topics in the response.
    """
    found = [
        _topic(topic, clients, looks.get(topic, NOT_LOOKED_AT), contents.load_seconds)
        for topic, clients in contents.topics.items()
    ]
    worst = sorted(found, key=lambda topic: (-_work(topic), topic.topic))
    failures = [f"deletions: {deletions.reason}"] if isinstance(deletions, Unreadable) else []
    failures += [f"{topic.topic}: {reason}" for topic in worst for reason in topic.not_known]
    under_way = None if isinstance(deletions, Unreadable) else deletions
    return Rehearsal(
        broker=contents.broker,
        as_of_ms=as_of_ms,
        bundles=contents.bundles,
        topics=len(contents.topics),
        examined=len(looks),
        totals=(*_totals(contents, found), *_deletions_total(contents, deletions)),
        times=Times(
            takeover_seconds=contents.session_seconds,
            replay_seconds=max((topic.replay_seconds or 0.0 for topic in found), default=0.0),
            all_replays_seconds=sum(topic.replay_seconds or 0.0 for topic in found),
            index_seconds=max((topic.index_seconds or 0.0 for topic in found), default=0.0),
            all_indexes_seconds=sum(topic.index_seconds or 0.0 for topic in found),
            derived_from=(_SESSION, *measured),
        ),
        deletions=tuple(under_way or ()),
        warnings=tuple([f"{topic.topic}: {warning}" for topic in worst for warning in topic.warnings][:MOST_REASONS]),
        worst=tuple(topic for topic in worst[:rows] if _work(topic)),
        not_known=tuple(failures[:MOST_REASONS]),
        assumptions=ASSUMPTIONS,
    )


def _topic(topic: TopicName, clients: Clients | None, look: Look, load_seconds: float) -> RehearsedTopic:
    subscriptions = look.subscriptions or ()
    known = look.subscriptions is not None
    again = [each for each in subscriptions if each.acknowledged_again or each.in_flight or each.delayed]
    again.sort(key=lambda each: (-each.acknowledged_again - each.in_flight - each.delayed, each.subscription))
    replay, indexing = look.replay, look.indexing
    return RehearsedTopic(
        topic=str(topic),
        producers=None if clients is None else clients.producers,
        consumers=None if clients is None else clients.consumers,
        acknowledged_again=sum(each.acknowledged_again for each in subscriptions) if known else None,
        in_flight=sum(each.in_flight for each in subscriptions) if known else None,
        replayed_entries=None if replay is None else replay.entries,
        replayed_bytes=None if replay is None else replay.size_bytes,
        replay_seconds=None if replay is None else replay.seconds,
        delayed=sum(each.delayed for each in subscriptions) if known else None,
        read_for_index=None if indexing is None else indexing.entries,
        index_seconds=None if indexing is None else indexing.seconds,
        subscriptions=tuple(again[:_MOST_SUBSCRIPTIONS]),
        warnings=tuple(_warnings(look, load_seconds)),
        not_known=look.failures,
    )


def _warnings(look: Look, load_seconds: float) -> Iterator[str]:
    for each in look.subscriptions or ():
        if not each.loadable:
            yield f"{each.subscription}: stored acknowledgements are larger than brokers read: raise maxMessageSize"
    replay, indexing = look.replay or Replay(), look.indexing or Indexing()
    if replay.seconds > load_seconds:
        yield (
            f"the replay takes {replay.seconds:.0f} s, and a topic load fails after {load_seconds:g} s "
            "(topicLoadTimeoutSeconds)"
        )
    if replay.lost is not None:
        yield f"the producers' sequence ids are forgotten: {replay.lost}"
    yield from (f"buckets are not used: {reason}" for reason in indexing.unusable)


def _work(topic: RehearsedTopic) -> int:
    counts = (topic.acknowledged_again, topic.in_flight, topic.replayed_entries, topic.read_for_index, topic.delayed)
    return sum(count or 0 for count in counts)


def _totals(contents: BrokerContents, found: Sequence[RehearsedTopic]) -> Iterable[Total]:
    statistics = f"the broker's own statistics (broker-stats/topics), at most {contents.statistics_seconds} s old"
    clients = [None if each is None else int(each.connected) for each in contents.topics.values()]
    lossy = [int(each.connected) for each in contents.non_persistent.values()]
    known = [_impaired(topic) for topic in found]
    yield _total(Consequence.IMPAIRED, known, _STORED)
    yield _total(Consequence.TOPICS_LOADED, clients, f"its loaded topics (broker-stats/bookieops), and {statistics}")
    users = [
        each
        for topic, each in (*contents.topics.items(), *contents.non_persistent.items())
        if not topic.is_system_topic
    ]
    of_users = f"{statistics}; not those of system topics"
    yield _total(Consequence.PRODUCERS, [None if each is None else each.producers for each in users], of_users)
    yield _total(Consequence.CONSUMERS, [None if each is None else each.consumers for each in users], of_users)
    yield _total(Consequence.ACKNOWLEDGED_AGAIN, [topic.acknowledged_again for topic in found], _LIVE)
    yield _total(Consequence.IN_FLIGHT, [topic.in_flight for topic in found], _UNACKED)
    yield _total(Consequence.REPLAYED, [topic.replayed_entries for topic in found], _SNAPSHOTS)
    yield _total(Consequence.REPLAYED_BYTES, [topic.replayed_bytes for topic in found], _SNAPSHOTS)
    yield _total(Consequence.DELAYED, [topic.delayed for topic in found], "msgDelayed of the broker (stats)")
    yield _total(Consequence.READ_FOR_INDEX, [topic.read_for_index for topic in found], _INDEXES)
    yield _total(Consequence.NOT_PERSISTENT, lossy, f"{statistics}: what is published until another broker serves them")


def _impaired(topic: RehearsedTopic) -> int | None:
    """Return 1 for a topic with warnings, None for one without of which not everything is known."""
    is_known = None not in (topic.in_flight, topic.replayed_entries, topic.read_for_index)
    return 1 if topic.warnings else 0 if is_known else None


def _deletions_total(
    contents: BrokerContents, deletions: Sequence[RehearsedDeletion] | Unreadable | None
) -> Iterable[Total]:
    match deletions:
        case None:
            return
        case Unreadable():
            yield Total(Consequence.DELETIONS, None, 0, len(contents.topics), _OPERATIONS)
        case _:
            yield Total(Consequence.DELETIONS, len(deletions), len(deletions), 0, _OPERATIONS)


def _total(consequence: Consequence, counts: Sequence[int | None], derived_from: str) -> Total:
    known = [count for count in counts if count is not None]
    count = sum(known) if known or not counts else None
    return Total(consequence, count, sum(each > 0 for each in known), len(counts) - len(known), derived_from)
