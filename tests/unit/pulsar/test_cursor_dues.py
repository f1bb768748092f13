"""When messages are due that cursors wait for, out of entries and buckets in memory."""

from typing import cast

from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries, StoredDueTimes
from pulsar_sidecar.backlog.ports import EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.pins.facts import DueSpan
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT

from tests.fakes.delayed_index import TOPIC, FakeBucketEntries, FakeCursorPositions, IndexedTopic
from tests.fakes.metadata import FakeMetadataStore

FIRST, SECOND, THIRD, FOURTH = (Position(LedgerId(1), EntryId(number)) for number in range(4))


class Entries:
    """Answers for whole topics, or fails."""

    def __init__(self, answers: dict[Position, EntryAnswer] | None) -> None:
        self.answers = answers

    def read(self, topic: TopicName, positions: list[Position]) -> dict[Position, EntryAnswer]:
        if self.answers is None:
            raise TemporaryError("no bookie answered")
        return {position: self.answers[position] for position in positions}


def dues(answers: dict[Position, EntryAnswer] | None, indexes: StoredIndexes | None = None) -> StoredDueTimes:
    return StoredDueTimes(cast("BulkDelayedEntries", Entries(answers)), cast("StoredIndexes", indexes))


def test_only_delayed_messages_that_were_read_have_due_times() -> None:
    answers: dict[Position, EntryAnswer] = {
        FIRST: EntryFacts(5_000, 1), SECOND: EntryFacts(None, 1), THIRD: Absent(), FOURTH: Unreadable("lost"),
    }  # fmt: skip
    assert dues(answers).first_due_ms(TOPIC, [FIRST, SECOND, THIRD, FOURTH]) == {FIRST: 5_000}
    assert dues(None).first_due_ms(TOPIC, [FIRST]) == {}
    assert dues(None).first_due_ms(TOPIC, []) == {}


def test_each_segment_of_a_bucket_is_a_span() -> None:
    store, entries = FakeMetadataStore(), FakeBucketEntries()
    topic = IndexedTopic(store, entries)
    topic.ledgers(1, 2, 3)
    topic.seal("s", 20, 1, 2, [(5_000, 1, 0), (6_000, 2, 0)], [(9_000, 2, 1)])
    topic.cursor("s")
    indexes = StoredIndexes(store, entries, FakeCursorPositions(), DEFAULT_LEDGERS_ROOT)
    first, second = LedgerId(1), LedgerId(2)
    spans = (DueSpan(frozenset({first, second}), 6_000), DueSpan(frozenset({second}), 9_000))
    assert dues(None, indexes).spans(TOPIC) == {LedgerId(20): spans}
    store.fail_next("children", TemporaryError("ZooKeeper does not answer"))
    assert dues(None, indexes).spans(TOPIC) == {}
