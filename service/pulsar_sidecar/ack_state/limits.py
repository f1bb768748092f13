"""How much of a cursor's acknowledgements a broker writes down, and whether it stops dispatching where not all fit.

Everything here follows ``ManagedCursorImpl`` of Pulsar 4.0.8, its off-by-one included: the list of ranges is cut behind
number ``maxUnackedRangesToPersist + 1``, while dispatch pauses when there are more than ``maxUnackedRangesToPersist``.
The lowest positions are kept, the highest are left out. The broker reports its pause nowhere (PIP-299), and decides
again after each acknowledgement.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby, islice
from operator import attrgetter

from pulsar_sidecar.model.entry_sizes import (
    DEFAULT_MAX_MESSAGE_SIZE,
    STOCK_JUTE_MAX_BUFFER,
    max_entry_bytes,
    max_node_bytes,
)
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import SubscriptionType
from pulsar_sidecar.wire import MLDataFormats_pb2 as ml

_WORD_BITS = 64
_LEDGER_OF = attrgetter("ledger_id")


@dataclass(frozen=True, slots=True)
class AckStateLimits:
    """A broker's settings (``broker.conf``), with the defaults of 4.0.8.

    Attributes:
        max_unacked_ranges: ``managedLedgerMaxUnackedRangesToPersist``.
        max_batch_deleted_indexes: ``managedLedgerMaxBatchDeletedIndexToPersist``.
        as_long_array: ``managedLedgerPersistIndividualAckAsLongArray``, which counts entries and not ranges, and leaves
            out whole ledgers.
        pause_enabled: ``dispatcherPauseOnAckStatePersistentEnabled``.
        max_entry_bytes: of an entry of the cursor's ledger; by ``maxMessageSize``.
        max_node_bytes: of the cursor's node; by ``jute.maxbuffer`` of ZooKeeper.
        max_node_ranges: ``managedLedgerMaxUnackedRangesToPersistInMetadataStore``; an unload writes more to the ledger.
    """

    max_unacked_ranges: int = 10_000
    max_batch_deleted_indexes: int = 10_000
    as_long_array: bool = False
    pause_enabled: bool = False
    max_entry_bytes: int = max_entry_bytes(DEFAULT_MAX_MESSAGE_SIZE)
    max_node_bytes: int = max_node_bytes(STOCK_JUTE_MAX_BUFFER)
    max_node_ranges: int = 1_000

    @property
    def in_node(self) -> "AckStateLimits":
        """The limits of what is written to the cursor's node, which is always a list of ranges."""
        return replace(self, as_long_array=False)


def persisted_ranges(acknowledged: PositionRanges, limits: AckStateLimits) -> PositionRanges:
    """What of a cursor's memory is left after the broker has written it down and read it again."""
    if limits.as_long_array and acknowledged.range_count:
        ranges = _whole_ledgers(acknowledged, limits.max_unacked_ranges)
    else:
        ranges = islice(acknowledged, limits.max_unacked_ranges + 1)
    return PositionRanges(acknowledged.mark_delete, ranges)


def written_bytes(acknowledged: PositionRanges, limits: AckStateLimits) -> int:
    """How large the ranges are that the broker writes, without what else is in the entry."""
    written, info = persisted_ranges(acknowledged, limits), ml.PositionInfo(ledgerId=0, entryId=0)
    without_ranges = info.ByteSize()
    if limits.as_long_array:
        for ledger_id, found in groupby(written, _LEDGER_OF):
            info.individualDeletedMessageRanges.add(key=ledger_id, values=_words(found))
    else:
        for each in written:
            lower = ml.NestedPositionInfo(ledgerId=each.ledger_id, entryId=each.first - 1)
            upper = ml.NestedPositionInfo(ledgerId=each.ledger_id, entryId=each.last)
            info.individualDeletedMessages.add(lowerEndpoint=lower, upperEndpoint=upper)
    return info.ByteSize() - without_ranges


def _whole_ledgers(acknowledged: PositionRanges, most_entries: int) -> Iterator[EntryRange]:
    """``OpenLongPairRangeSet.toRanges``: ledgers in order, until those before it hold more entries than the limit."""
    entries = 0
    for _, found in groupby(acknowledged, _LEDGER_OF):
        if entries > most_entries:
            return
        ranges = list(found)
        entries += sum(each.entries for each in ranges)
        yield from ranges


def _words(ranges: Iterable[EntryRange]) -> tuple[int, ...]:
    text, end = [], 0
    for _, first, last in ranges:
        text.append("0" * (first - end) + "1" * (last - first + 1))
        end = last + 1
    words = -(-end // _WORD_BITS)
    packed = int("".join(text)[::-1], 2).to_bytes(words * _WORD_BITS // 8, "little")
    return struct.unpack(f"<{words}q", packed)


# --- pausing -------------------------------------------------------------------------------------------------------


class TopicPolicy(Enum):
    """A topic's own policy, as far as brokers report it: up to 4.0.8 they report an unset policy as false."""

    TRUE = "true"
    FALSE_OR_UNSET = "false or unset"


class PauseState(Enum):
    """Whether dispatch of a subscription is paused, and why (not)."""

    OFF = "off"
    """No policy asks for a pause: what does not fit is lost when the broker stops."""
    NOT_APPLICABLE = "not applicable"
    """Enabled, but the subscription is not Shared or Key_Shared, and only these pause."""
    ARMED = "armed"
    """Enabled, and everything fits."""
    IN_FORCE = "in force"
    """Enabled, and there are too many ranges: no new messages are read; due delayed ones and redeliveries still are."""
    UNKNOWN = "unknown"
    """There are too many ranges, and brokers do not report whether the topic's policy overrides the rest."""

    @property
    def blocked(self) -> bool | None:
        """PIP-299's ``isBlockedOnAckStatePersistent``; None if unknown."""
        return None if self is PauseState.UNKNOWN else self is PauseState.IN_FORCE


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """``dispatcherPauseOnAckStatePersistentEnabled`` on every level; a topic's goes before its namespace's.

    ``namespace`` None means that the namespace has no policy; ``broker`` is the owner's configuration.
    """

    topic: TopicPolicy
    namespace: bool | None
    broker: bool

    @property
    def enabled(self) -> bool | None:
        """What is in effect; None if unknown, because a topic's false would override a true."""
        if self.topic is TopicPolicy.TRUE:
            return True
        inherited = self.broker if self.namespace is None else self.namespace
        return None if inherited else False


def pause_state(kind: SubscriptionType, ranges: int, policies: PauseSettings, limits: AckStateLimits) -> PauseState:
    """The state after the subscription's next acknowledgement at the latest; ``ranges`` are its cursor's."""
    enabled = policies.enabled
    if enabled is False:
        return PauseState.OFF
    if not kind.dispatches_to_many:
        return PauseState.NOT_APPLICABLE
    if ranges <= limits.max_unacked_ranges:  # as ``ManagedCursor.isCursorDataFullyPersistable``
        return PauseState.ARMED
    return PauseState.UNKNOWN if enabled is None else PauseState.IN_FORCE
