"""Limits of the acknowledgements that a broker stores, and its pause of dispatch when they do not fit.

Everything here follows ``ManagedCursorImpl`` of Pulsar 4.0.8, including its off-by-one: it cuts the list of ranges
behind number ``maxUnackedRangesToPersist + 1``, while dispatch pauses when there are more than
``maxUnackedRangesToPersist``. The broker keeps the lowest positions and leaves out the highest. It reports its pause
nowhere (PIP-299), and decides again after each acknowledgement.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter

from pulsar_sidecar.features.acknowledgements.results import PausePoliciesByLevel, PauseState, TopicPolicy
from pulsar_sidecar.model.entry_sizes import (
    DEFAULT_MAX_MESSAGE_SIZE,
    STOCK_JUTE_MAX_BUFFER,
    max_entry_bytes,
    max_node_bytes,
)
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import SubscriptionType
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

_WORD_BITS = 64
_LEDGER_OF = attrgetter("ledger_id")


@dataclass(frozen=True, slots=True)
class AckStateLimits:
    """Settings of a broker (``broker.conf``), with the defaults of 4.0.8.

    Attributes:
        max_unacked_ranges: ``managedLedgerMaxUnackedRangesToPersist``.
        max_batch_deleted_indexes: ``managedLedgerMaxBatchDeletedIndexToPersist``.
        as_long_array: ``managedLedgerPersistIndividualAckAsLongArray``, which counts entries and not ranges, and leaves
            out whole ledgers.
        pause_enabled: ``dispatcherPauseOnAckStatePersistentEnabled``.
        max_entry_bytes: largest entry of the cursor's ledger; from ``maxMessageSize``.
        max_node_bytes: largest node of the cursor; from ``jute.maxbuffer`` of ZooKeeper.
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
        """Limits of the cursor's node, which is always a list of ranges."""
        return replace(self, as_long_array=False)


def persisted_ranges(acknowledged: PositionRanges, limits: AckStateLimits) -> PositionRanges:
    """Return the part of a cursor's memory that is left after the broker has written it down and read it again."""
    if limits.as_long_array and acknowledged.range_count:
        ranges = _whole_ledgers(acknowledged, limits.max_unacked_ranges)
    else:
        ranges = islice(acknowledged, limits.max_unacked_ranges + 1)
    return PositionRanges(acknowledged.mark_delete, ranges)


def written_bytes(acknowledged: PositionRanges, limits: AckStateLimits) -> int:
    """Return the bytes of the ranges that the broker writes, without the rest of the entry."""
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
    """Yield ledgers until the earlier ones exceed the limit of entries, like ``OpenLongPairRangeSet.toRanges``."""
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


@dataclass(frozen=True, slots=True)
class PauseSettings:
    """Values of ``dispatcherPauseOnAckStatePersistentEnabled`` on every level; a topic's overrides its namespace's.

    ``namespace`` None means that the namespace has no policy; ``broker`` is the owner's configuration.
    """

    topic: TopicPolicy
    namespace: bool | None
    broker: bool

    @property
    def enabled(self) -> bool | None:
        """Value in effect; None if unknown, because a topic's false would override a true."""
        if self.topic is TopicPolicy.TRUE:
            return True
        inherited = self.broker if self.namespace is None else self.namespace
        return None if inherited else False

    def result(self) -> PausePoliciesByLevel:
        return PausePoliciesByLevel(self.topic, self.namespace, self.broker, self.enabled)


def pause_state(kind: SubscriptionType, ranges: int, policies: PauseSettings, limits: AckStateLimits) -> PauseState:
    """Return the state after the subscription's next acknowledgement at the latest; ``ranges`` are its cursor's."""
    enabled = policies.enabled
    if enabled is False:
        return PauseState.OFF
    if not kind.dispatches_to_many:
        return PauseState.NOT_APPLICABLE
    if ranges <= limits.max_unacked_ranges:  # as ``ManagedCursor.isCursorDataFullyPersistable``
        return PauseState.ARMED
    return PauseState.UNKNOWN if enabled is None else PauseState.IN_FORCE
