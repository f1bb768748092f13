"""Decoding of brokers' responses to ``stats`` and ``internalStats`` of a topic.

Invariants: a message counts as acknowledged only by the broker's own string; a string that cannot be read is an error,
never "nothing is acknowledged". An incomplete response is a `TemporaryError` and not a smaller response, because
missing ledgers might be deleted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from pulsar_sidecar.model.decoding import decodable
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, java_url_decode
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges, within_ledgers
from pulsar_sidecar.model.topic_stats import (
    COMPACTION_CURSOR,
    ConnectedConsumer,
    Cursor,
    Subscription,
    SubscriptionType,
    TopicInternalStats,
    TopicStats,
)
from pulsar_sidecar.ownership.references import COMPACTED_TOPIC_LEDGER

_NO_LEDGER: Final = -1

_ONE: Final = r"[(\[]-?\d+:-?\d+\.\.-?\d+:-?\d+\]"
_ALL: Final = re.compile(rf"\[ *(?:{_ONE} *(?:, *{_ONE} *)*)?\]")
_BOUND: Final = re.compile(r"[(\[](?=-?\d)")
_ONLY_NUMBERS: Final = bytes(byte if byte in b"-0123456789" else ord(" ") for byte in range(256))
_POSITION: Final = re.compile(r"(-?\d+):(-?\d+)(?: \(ackSet is null\))?")
"""Format of ``PositionImpl``, or of ``AckSetPositionImpl``, which a cumulative acknowledgement may leave."""

_Answer = TypeVar("_Answer")


# --- the responses' own form -----------------------------------------------------------------------------------------


@decodable
class _Publisher(msgspec.Struct, rename="camel"):
    producer_name: str | None = None


@decodable
class _Consumer(msgspec.Struct, rename="camel"):
    consumer_name: str | None = None
    address: str | None = None
    connected_since: str | None = None
    available_permits: int | None = None
    blocked_consumer_on_unacked_msgs: bool = False


@decodable
class _Subscription(msgspec.Struct, rename="camel"):
    consumers: list[_Consumer]
    msg_out_counter: int
    type: str | None = None
    key_shared_mode: str | None = None
    allow_out_of_order_delivery: bool = False
    is_durable: bool | None = None
    durable: bool | None = None
    unacked_messages: int = 0
    msg_delayed: int = 0
    delayed_message_index_size_in_bytes: int = 0
    msg_backlog: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    msg_in_replay: int = 0


@decodable
class _Replicator(msgspec.Struct):
    connected: bool = False


@decodable
class _Stats(msgspec.Struct, rename="camel"):
    subscriptions: dict[str, _Subscription]
    publishers: list[_Publisher]
    owner_broker: str | None = None
    deduplication_status: str | None = None
    ongoing_txn_count: int = 0
    replication: dict[str, _Replicator] = {}


@decodable
class _Ledger(msgspec.Struct, rename="camel"):
    ledger_id: int
    entries: int


@decodable
class _Cursor(msgspec.Struct, rename="camel"):
    mark_delete_position: str
    read_position: str
    individually_deleted_messages: str
    total_non_contiguous_deleted_messages_range: int
    cursor_ledger: int
    cursor_ledger_last_entry: int
    properties: dict[str, int] | None = None
    state: str | None = None


@decodable
class _InternalStats(msgspec.Struct, rename="camel"):
    ledgers: list[_Ledger]
    cursors: dict[str, _Cursor]
    last_confirmed_entry: str
    schema_ledgers: list[_Ledger]
    compacted_ledger: _Ledger
    state: str | None = None
    entries_added_counter: int = 0


@decodable
class Waiting(msgspec.Struct, rename="camel", frozen=True):
    """Backlog of a subscription, in entries; the time is 0 unless the request included it."""

    msg_backlog: int
    earliest_msg_publish_time_in_backlog: int


@decodable
class BacklogStats(msgspec.Struct, rename="camel", frozen=True):
    """Messages published to a topic since it was loaded, and its subscriptions' backlogs."""

    msg_in_counter: int
    subscriptions: dict[str, Waiting]


@decodable
class PartitionedBacklogs(msgspec.Struct):
    """Response to ``partitioned-stats``."""

    partitions: dict[str, BacklogStats]


def read_answer(document: object, form: type[_Answer], topic: TopicName) -> _Answer:
    """Return the response in this form; raise `TemporaryError` if it does not have Pulsar's form."""
    try:
        return msgspec.convert(document, form)
    except msgspec.ValidationError as error:
        raise TemporaryError(f"a broker's statistics of {topic} cannot be read ({error}); try again") from error


# --- stats ---------------------------------------------------------------------------------------------------------


def parse_stats(document: object, topic: TopicName) -> TopicStats:
    """Return the response to ``stats``; raises as `read_answer`."""
    found = read_answer(document, _Stats, topic)
    return TopicStats(
        broker=found.owner_broker,
        subscriptions={name: _subscription(name, each) for name, each in found.subscriptions.items()},
        producers=tuple(publisher.producer_name or "" for publisher in found.publishers),
        deduplication_status=found.deduplication_status,
        open_transactions=found.ongoing_txn_count,
        replicators={cluster: each.connected for cluster, each in found.replication.items()},
    )


def parse_deduplication_status(document: object, topic: TopicName) -> str:
    """Return the status in a response to ``stats``; raises as `read_answer`, also if there is none."""
    status = parse_stats(document, topic).deduplication_status
    if status is None:
        raise TemporaryError(f"a broker's statistics of {topic} lack deduplicationStatus; try again")
    return status


def _subscription(name: str, found: _Subscription) -> Subscription:
    return Subscription(
        name=name,
        type=_type(found.type),
        consumers=tuple(
            ConnectedConsumer(
                each.consumer_name,
                each.address,
                each.connected_since,
                each.available_permits,
                each.blocked_consumer_on_unacked_msgs,
            )
            for each in found.consumers
        ),
        messages_out=found.msg_out_counter,
        sticky=found.key_shared_mode == "STICKY",
        allow_out_of_order=found.allow_out_of_order_delivery,
        durable=(found.durable if found.is_durable is None else found.is_durable) is not False,
        unacked_messages=found.unacked_messages,
        delayed_messages=found.msg_delayed,
        delayed_index_bytes=found.delayed_message_index_size_in_bytes,
        backlog=found.msg_backlog,
        blocked=found.blocked_subscription_on_unacked_msgs,
        in_replay=found.msg_in_replay,
    )


def _type(text: str | None) -> SubscriptionType:
    try:
        return SubscriptionType(text)
    except ValueError:
        return SubscriptionType.NONE


# --- internal stats ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compaction:
    """Ledger of a topic's last compaction, -1 before the first, and the last position that it covers."""

    ledger_id: LedgerId
    horizon: Position


def parse_internal_stats(document: object, topic: TopicName, broker: str | None = None) -> TopicInternalStats:
    """Return the response to ``internalStats``, with cursors decoded lazily; raises as `read_answer`."""
    found = read_answer(document, _InternalStats, topic)
    last_confirmed = _position_of(found.last_confirmed_entry)
    lengths = {LedgerId(each.ledger_id): each.entries for each in sorted(found.ledgers, key=lambda one: one.ledger_id)}
    if last_confirmed.ledger_id in lengths:
        # The list has 0 entries for the ledger that is written to.
        lengths[last_confirmed.ledger_id] = max(lengths[last_confirmed.ledger_id], last_confirmed.entry_id + 1)
    opened = found.compacted_ledger.ledger_id
    # The cursor's property is the stored one; the open handle may lag behind by one compaction, or not be open yet.
    compaction = found.cursors.get(COMPACTION_CURSOR)
    stored = ((compaction and compaction.properties) or {}).get(COMPACTED_TOPIC_LEDGER, _NO_LEDGER)
    read = [_position_of(cursor.read_position).ledger_id for cursor in found.cursors.values()]
    return TopicInternalStats(
        broker=broker,
        ledgers=lengths,
        last_confirmed=last_confirmed,
        cursors=_Cursors(found.cursors, lengths),
        cursor_ledgers=_ledgers(cursor.cursor_ledger for cursor in found.cursors.values()),
        schema_ledgers=_ledgers(each.ledger_id for each in found.schema_ledgers),
        compacted_ledger=next(iter(_ledgers([stored]) or _ledgers([opened])), None),
        ledgers_being_read=_ledgers([opened, *read]),
        terminated=found.state == "Terminated",
        entries_added=found.entries_added_counter,
    )


def compaction_of(document: object, topic: TopicName) -> Compaction:
    """Return the last compaction in a response to ``internalStats``; raises as `read_answer`."""
    found = read_answer(document, _InternalStats, topic)
    ledger_id = LedgerId(found.compacted_ledger.ledger_id)
    if ledger_id < 0:
        return Compaction(LedgerId(_NO_LEDGER), Position(LedgerId(-1), EntryId(-1)))
    if COMPACTION_CURSOR not in found.cursors:
        raise TemporaryError(f"a broker does not show how far {topic} is compacted; try again")
    return Compaction(ledger_id, _position_of(found.cursors[COMPACTION_CURSOR].mark_delete_position))


def _ledgers(ids: Iterable[int]) -> frozenset[LedgerId]:
    return frozenset(LedgerId(ledger_id) for ledger_id in ids if ledger_id >= 0)


class _Cursors(Mapping[str, Cursor]):
    """Cursors decoded lazily: most callers need one of many, and one may have ten thousand ranges."""

    def __init__(self, cursors: Mapping[str, _Cursor], lengths: Mapping[LedgerId, int]) -> None:
        try:
            self._unread = {java_url_decode(name): cursor for name, cursor in cursors.items()}
        except UnicodeError as error:
            raise TemporaryError("a broker named a cursor in an encoding that is not Pulsar's; try again") from error
        self._lengths = lengths
        self._read: dict[str, Cursor] = {}

    def __getitem__(self, subscription: str) -> Cursor:
        if subscription not in self._read:
            self._read[subscription] = _cursor(subscription, self._unread[subscription], self._lengths)
        return self._read[subscription]

    def __iter__(self) -> Iterator[str]:
        return iter(self._unread)

    def __len__(self) -> int:
        return len(self._unread)


def _cursor(subscription: str, found: _Cursor, lengths: Mapping[LedgerId, int]) -> Cursor:
    try:
        acknowledged = _acknowledged(found, lengths)
    except ValueError as error:
        message = f"the acknowledged ranges of the subscription {subscription} cannot be read; try again"
        raise TemporaryError(message) from error
    return Cursor(
        acknowledged=acknowledged,
        ranges=found.total_non_contiguous_deleted_messages_range,
        read_position=_position_of(found.read_position),
        ledger=LedgerId(found.cursor_ledger) if found.cursor_ledger >= 0 else None,
        ledger_last_entry=EntryId(found.cursor_ledger_last_entry),
        properties=found.properties or {},
        is_open=found.state in (None, "Open"),
    )


# --- positions and ranges ------------------------------------------------------------------------------------------


def _position_of(text: str) -> Position:
    """Return a position from brokers' string, ``ledgerId:entryId``."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise TemporaryError(f"a broker answered {text!r:.80} where a position was expected; try again")
    return _position(match[1], match[2])


def _acknowledged(found: _Cursor, lengths: Mapping[LedgerId, int]) -> PositionRanges:
    """Return a cursor's wholly acknowledged entries; a ValueError if the string is not a list of ranges."""
    mark_delete = _position_of(found.mark_delete_position)
    text = found.individually_deleted_messages
    usual = _usual(mark_delete, text.encode())
    if usual is not None:
        return usual
    if not _ALL.fullmatch(text):
        raise ValueError("this is not a list of ranges")
    return PositionRanges(mark_delete, _ranges(text, lengths))


def _usual(mark_delete: Position, text: bytes) -> PositionRanges | None:
    """Return ranges of one ledger that all exclude their lower bound, the usual form; None for other forms."""
    numbers = text.translate(_ONLY_NUMBERS).split()
    count = len(numbers) // 4
    between = text.translate(None, b"-0123456789 ")
    if not count or len(numbers) % 4 or between != b"[" + b",".join([b"(:..:]"] * count) + b"]":
        return None
    ledgers = {*numbers[0::4], *numbers[2::4]}
    if len(ledgers) > 1:
        return None
    firsts = [lower + 1 for lower in map(int, numbers[1::4])]
    return PositionRanges.from_single_ledger(
        mark_delete, LedgerId(int(ledgers.pop())), firsts, list(map(int, numbers[3::4]))
    )


def _ranges(text: str, lengths: Mapping[LedgerId, int]) -> Iterable[EntryRange]:
    # Ten thousand ranges are usual, so they are processed together where possible.
    numbers = list(map(int, text.encode().translate(_ONLY_NUMBERS).split()))
    lower_ledgers, lowers, upper_ledgers, uppers = (numbers[start::4] for start in range(4))
    bounds = _BOUND.findall(text) if text.count("[") > 1 else "(" * len(lowers)
    firsts = [lower + (bound == "(") for lower, bound in zip(lowers, bounds, strict=True)]
    if lower_ledgers == upper_ledgers:
        return map(EntryRange._make, zip(upper_ledgers, firsts, uppers, strict=True))
    return (
        cut
        for lower_ledger, first, upper_ledger, upper in zip(lower_ledgers, firsts, upper_ledgers, uppers, strict=True)
        for cut in within_ledgers(_position(lower_ledger, first - 1), _position(upper_ledger, upper), lengths)
    )


def _position(ledger: str | int, entry: str | int) -> Position:
    return Position(LedgerId(int(ledger)), EntryId(int(entry)))
