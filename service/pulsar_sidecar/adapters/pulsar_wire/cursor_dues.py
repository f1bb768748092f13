"""Due times of messages that cursors wait for: from bookies' entries and buckets, not from brokers."""

from collections.abc import Mapping, Sequence

from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries
from pulsar_sidecar.backlog.ports import EntryFacts
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.pins.facts import DueSpan
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.names import TopicName


class StoredDueTimes:
    """`features.pins.ports.DueTimesOfCursors`; ``entries`` must not use a broker, which would load topics."""

    def __init__(self, entries: BulkDelayedEntries, indexes: StoredIndexes) -> None:
        self._entries, self._indexes = entries, indexes

    def first_due_ms(self, topic: TopicName, positions: Sequence[Position]) -> Mapping[Position, int]:
        try:
            found = self._entries.read(topic, positions) if positions else {}
        except SidecarError:
            return {}
        return {
            position: facts.deliver_at_ms
            for position, facts in found.items()
            if isinstance(facts, EntryFacts) and facts.deliver_at_ms is not None
        }

    def spans(self, topic: TopicName) -> Mapping[LedgerId, tuple[DueSpan, ...]]:
        try:
            buckets = list(self._indexes.buckets(topic))
        except SidecarError:
            return {}
        return {
            bucket.ledger_id: tuple(
                DueSpan(frozenset(segment.bitmaps), segment.max_schedule_timestamp) for segment in bucket.snapshot
            )
            for bucket in buckets
            if isinstance(bucket.snapshot, tuple)
        }
