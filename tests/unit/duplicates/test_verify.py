"""Report of one topic from end to end, also when it is read in part or changes meanwhile."""

from collections.abc import Iterator, Sequence

import pytest
from pulsar_sidecar.adapters.pulsar_wire.message_rows import BookieTopicMessages
from pulsar_sidecar.features.duplicates.results import describe
from pulsar_sidecar.features.duplicates.rows import WHOLE_BATCH, FindingKind, MessageRow, PayloadState
from pulsar_sidecar.features.duplicates.verify import (
    Progress,
    TopicResult,
    VerifiedTopic,
    verify_partitions,
    verify_topic,
)
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import UnseenCause, UnseenEntries
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.fakes.clock import FakeClock
from tests.fakes.deduplication_policies import put_topic
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.stored_batches import stored_batch, stored_message
from tests.fakes.stored_topics import StoredTopic
from tests.unit.duplicates.rows import Log, log_of

TOPIC = parse_topic_name("persistent://public/default/orders")
Streamed = Sequence[MessageRow] | UnseenEntries


class Readings:
    """`TopicMessages` that may differ at each reading."""

    def __init__(self, *readings: Sequence[Streamed]) -> None:
        self._readings = iter(readings)
        self.lasts: list[Position | None] = []

    def read(self, topic: TopicName, last: Position | None = None) -> Iterator[Streamed]:
        self.lasts.append(last)
        yield from next(self._readings)


def quiet() -> Progress:
    return Progress(lambda text: None, FakeClock())


def unseen(cause: UnseenCause = UnseenCause.OFFLOADED) -> UnseenEntries:
    return UnseenEntries(LedgerId(9), EntryId(0), None, cause, "reason")


def rows(*ids: int) -> list[Streamed]:
    return [[row] for row in log_of(*ids)]


def verified(*readings: Sequence[Streamed]) -> VerifiedTopic:
    return verify_topic(TOPIC, Readings(*readings), quiet())


def test_a_clean_topic_is_read_once() -> None:
    readings = Readings(rows(1, 2, 9))
    found = verify_topic(TOPIC, readings, quiet())
    assert (found.result, found.entries, found.first, found.last) == (TopicResult.CLEAN, 3, (0, 0), (0, 2))
    assert readings.lasts == [None]


def test_a_suspicious_one_is_read_again_up_to_the_last_suspect() -> None:
    again = rows(1, 2, 2, 3)
    readings = Readings(again, again[:3])
    found = verify_topic(TOPIC, readings, quiet())
    assert [(each.kind, each.earlier) for each in found.findings] == [(FindingKind.DUPLICATE, (0, 1, 0))]
    assert readings.lasts == [None, (0, 2)]


def test_a_second_reading_with_fewer_entries_is_an_error() -> None:
    whole = rows(1, 2, 2)
    for second in (whole[1:], [whole[0], unseen(UnseenCause.UNREADABLE), whole[2]]):
        with pytest.raises(TemporaryError, match="dropped entries"):
            verified(whole, second)


@pytest.mark.parametrize(
    ("streamed", "verdict"),
    [
        ([], TopicResult.CLEAN),
        ([unseen()], TopicResult.NOT_PROVEN),
        ([*rows(1), unseen(UnseenCause.UNREADABLE)], TopicResult.NOT_PROVEN),
        ([unseen(UnseenCause.TRIMMED), *rows(1)], TopicResult.CLEAN),
        ([unseen(), *rows(1, 1)], TopicResult.FINDINGS),
    ],
)
def test_unseen_entries_are_never_clean(streamed: list[Streamed], verdict: TopicResult) -> None:
    assert verified(streamed, streamed).result is verdict


def test_an_unopened_batch_proves_nothing() -> None:
    row = Log().add(1, state=PayloadState.ENCRYPTED)
    assert verified([[row]]).result is TopicResult.CLEAN, "one message has one id"
    assert verified([[row._replace(batch_index=WHOLE_BATCH, batch_size=5)]]).result is TopicResult.NOT_PROVEN


def test_a_batch_whose_messages_carry_no_ids_proves_nothing() -> None:
    with StoredTopic() as topic:
        # Ids 3 to 7 again: nothing that is stored names any of them but 3.
        topic.add(3, [stored_batch([(None, b"a")] * 5, sequence_id=1), stored_batch([(None, b"a")] * 5, sequence_id=3)])
        found = verify_topic(topic.name, BookieTopicMessages(topic.reader()), quiet())
    assert (found.findings, found.result) == ((), TopicResult.NOT_PROVEN)


def test_progress_is_reported_now_and_then() -> None:
    clock, lines = FakeClock(), list[str]()
    progress = Progress(lines.append, clock)

    class Slow(Readings):
        def read(self, topic: TopicName, last: Position | None = None) -> Iterator[Streamed]:
            for each in super().read(topic, last):
                clock.advance_ms(10)
                yield each

    verify_topic(TOPIC, Slow(rows(*range(1024))), progress)
    assert len(lines) == 2
    assert lines[1].startswith("reading: 1,024 entries, 1,024 messages; persistent://public/default/orders at 341:0")


def test_topic_deleted_during_verification_is_not_clean() -> None:
    with StoredTopic() as topic:
        for ledger_id in range(3, 9):
            topic.add(ledger_id, [stored_message(b"a", sequence_id=1)])

        class Deleting(BookieTopicMessages):
            def read(self, name: TopicName, last: Position | None = None) -> Iterator[Streamed]:
                stream = super().read(name, last)
                yield next(stream)
                topic.store.remove(managed_ledger_path(name.managed_ledger_name))
                for ledger_id in range(4, 9):
                    topic.store.remove(ledger_path(LedgerId(ledger_id)))
                yield from stream

        found = verify_topic(topic.name, Deleting(topic.reader()), quiet())
    assert (found.result, found.entries, len(found.unseen)) == (TopicResult.NOT_PROVEN, 1, 5)


def test_missing_entries_of_a_listed_ledger_are_never_clean() -> None:
    with StoredTopic() as topic:
        topic.add(3, [stored_message(b"a", sequence_id=1)]).entries = 5
        topic.add(5, [], closed=False)
        found = verify_topic(topic.name, BookieTopicMessages(topic.reader()), quiet())
    assert (found.result, found.entries, len(found.unseen)) == (TopicResult.NOT_PROVEN, 1, 1)


def test_an_unused_partition_is_empty_and_a_deleted_one_an_error() -> None:
    store, parent = FakeMetadataStore(), parse_topic_name("persistent://public/default/parted")
    put_topic(store, parent, partitions=2)
    never_used = managed_ledger_path(parent.partition(1).managed_ledger_name)
    store.remove(never_used)

    class Missing:
        def read(self, topic: TopicName, last: Position | None = None) -> Iterator[Streamed]:
            if topic == parent.partition(1):
                raise NotFoundError(f"there is no topic {topic}")
            yield from rows(1)

    first, second = verify_partitions(parent, store, Missing(), quiet())
    assert (first.entries, second.entries, second.result) == (1, 0, TopicResult.CLEAN)
    store.put(never_used)
    with pytest.raises(NotFoundError, match="no topic persistent://public/default/parted-partition-1"):
        verify_partitions(parent, store, Missing(), quiet())


def test_from_the_bookies_to_the_result() -> None:
    with StoredTopic() as topic:
        batch = stored_batch([(1, b"a"), (2, b"b")], "LZ4")
        offloaded = topic.add(2, [b"is in tiered storage"])
        topic.add(3, [batch, stored_message(b"c", sequence_id=3), b"no message"])
        topic.add(5, [batch], closed=False)
        topic.offload(offloaded)
        found = verify_topic(topic.name, BookieTopicMessages(topic.reader()), quiet())
    result = describe(str(topic.name), [found], limit=1)
    (partition,) = result.partitions
    assert (result.verdict, partition.entries, partition.rows["message"]) == (TopicResult.FINDINGS, 3, 5)
    assert [(each.ledger_id, each.first_entry_id, each.cause) for each in partition.not_seen] == [
        (2, 0, UnseenCause.OFFLOADED),
        (3, 2, UnseenCause.UNREADABLE),
    ]
    (producer,) = partition.producers
    assert (producer.producer, producer.messages, producer.duplicates, producer.epochs) == ("p", 5, 2, 1)
    (finding,) = partition.findings
    assert (finding.position, finding.earlier_position, partition.findings_not_shown) == ("5:0:0", "3:0:0", 1)
