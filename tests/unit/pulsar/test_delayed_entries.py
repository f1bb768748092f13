"""Search for an entry that bookies do not have, and its conclusions."""

from typing import cast

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BulkDelayedEntries, StoredDueTimes
from pulsar_sidecar.adapters.pulsar_wire.encoding import entry_facts_in_headers
from pulsar_sidecar.backlog.ports import Chunk, EntryAnswer, EntryFacts
from pulsar_sidecar.features.delayed_index.stored import StoredIndexes
from pulsar_sidecar.features.pins.facts import DueSpan
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Absent, Unreadable
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.bookie_servers import FakeBookies, stored_entry
from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import FakeBucketEntries, FakeCursorPositions, IndexedTopic
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.pulsar.test_message_metadata import message, stored

TOPIC = parse_topic_name("persistent://public/default/orders")
PLACE = "/admin/v2/persistent/public/default/orders"
CLOSED, OPEN, OFFLOADED, LOST = (LedgerId(n) for n in (3, 4, 5, 6))
A, B = BookieId("a:3181"), BookieId("b:3181")
HEADERS = {"X-Pulsar-publish-time": "2026-11-21T14:01:57.277Z", "X-Pulsar-deliver-at-time": "2026-11-21T15:01:57.5Z"}


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


class StoredTopic:
    """A topic of four ledgers: a closed one, one offloaded, one whose metadata is lost, and the open one."""

    def __init__(self) -> None:
        self.store, self.bookies, self.rest = FakeMetadataStore(), FakeBookies(), FakeAdminRest()
        self.bookies.silence = TemporaryError("a bookie does not respond")
        self.bulk = BookieEntries(self.bookies)
        self.list_ledgers({})
        ensemble = (A, B)
        self.store.put(ledger_path(CLOSED), ledger_metadata_bytes(last_entry_id=9, ensemble=ensemble))
        self.store.put(ledger_path(OPEN), ledger_metadata_bytes(LedgerState.OPEN, ensemble=ensemble))
        self.rest.answers[f"{PLACE}/lastMessageId"] = {"ledgerId": OPEN, "entryId": 2}

    def list_ledgers(self, properties: dict[str, str]) -> None:
        info = ml.ManagedLedgerInfo()
        for ledger_id in (CLOSED, OFFLOADED, LOST, OPEN):
            listed = info.ledgerInfo.add(ledgerId=ledger_id)
            if ledger_id == OFFLOADED:
                context = listed.offloadContext
                context.uidMsb, context.uidLsb, context.complete, context.bookkeeperDeleted = 1, 2, True, True
                context.driverMetadata.name = "aws-s3"
        for name, value in properties.items():
            info.properties.add(key=name, value=value)
        self.store.put(managed_ledger_path(TOPIC.managed_ledger_name), info.SerializeToString())

    def hold(self, position: Position, payload: bytes | None = None) -> None:
        entry = stored(message(deliver_at_time=77)) if payload is None else payload
        for bookie in (A, B):
            held = self.bookies.held.setdefault(bookie, {})
            held[position.entry_id] = stored_entry(position.ledger_id, position.entry_id, entry)

    def broker_has(self, position: Position) -> None:
        self.rest.headers_by_path[f"{PLACE}/ledger/{position.ledger_id}/entry/{position.entry_id}"] = HEADERS

    def read(self, position: Position) -> EntryAnswer:
        entries = BulkDelayedEntries(self.store, self.bulk, self.rest, "/ledgers", FakeClock())  # type: ignore[arg-type]
        answers = entries.read(TOPIC, [position])
        assert list(answers) == [position]
        return answers[position]


@pytest.fixture
def topic() -> StoredTopic:
    return StoredTopic()


@pytest.mark.parametrize("ledger_id", [CLOSED, OPEN])
def test_bookies_are_asked_first_and_the_broker_not_at_all(topic: StoredTopic, ledger_id: LedgerId) -> None:
    topic.hold(at(ledger_id, 1))
    answer = topic.read(at(ledger_id, 1))
    assert isinstance(answer, EntryFacts)
    assert (answer.deliver_at_ms, topic.rest.asked) == (77, [])


def test_beyond_the_end_is_absent_without_asking_a_bookie(topic: StoredTopic) -> None:
    topic.bookies.silent = {A, B}
    assert topic.read(at(CLOSED, 10)) == Absent()
    assert topic.read(at(CLOSED, -1)) == Absent()
    assert topic.read(at(99, 0)) == Absent()


def test_beyond_the_last_message_of_an_open_ledger_is_absent(topic: StoredTopic) -> None:
    topic.hold(at(OPEN, 2))
    assert topic.read(at(OPEN, 3)) == Absent()
    topic.rest.answers[f"{PLACE}/lastMessageId"] = {"ledgerId": OPEN, "entryId": 3}
    topic.broker_has(at(OPEN, 3))
    assert isinstance(topic.read(at(OPEN, 3)), EntryFacts), "it was just written; the broker has it"


@pytest.mark.parametrize("answers", [{}, {f"{PLACE}/lastMessageId": "no position"}])
def test_missing_entry_is_unreadable_while_the_end_is_unknown(topic: StoredTopic, answers: dict[str, object]) -> None:
    topic.rest.answers = answers
    answer = topic.read(at(OPEN, 4))
    assert isinstance(answer, Unreadable)
    assert answer.reason.startswith(f"it is not known whether ledger {OPEN} of {TOPIC} ends before it: ")


def test_a_ledger_whose_metadata_are_damaged_does_not_hide_the_others(topic: StoredTopic) -> None:
    topic.store.put(ledger_path(CLOSED), b"no metadata")
    topic.hold(at(OPEN, 1))
    entries = BulkDelayedEntries(topic.store, topic.bulk, topic.rest, "/ledgers", FakeClock())  # type: ignore[arg-type]
    answers = entries.read(TOPIC, [at(CLOSED, 1), at(OPEN, 1)])
    damaged = answers[at(CLOSED, 1)]
    assert isinstance(damaged, Unreadable)
    assert f"ledger {CLOSED}" in damaged.reason
    assert isinstance(answers[at(OPEN, 1)], EntryFacts)


def test_entry_lost_by_bookies_is_requested_from_the_broker(topic: StoredTopic) -> None:
    topic.hold(at(CLOSED, 0))
    topic.rest.headers_by_path[f"{PLACE}/ledger/{CLOSED}/entry/4"] = BrokerRefusedError(412, "cannot be read")
    lost = topic.read(at(CLOSED, 4))
    assert isinstance(lost, Unreadable)
    assert "cannot be read" in lost.reason


def test_unresponsive_bookie_is_not_absence(topic: StoredTopic) -> None:
    topic.bookies.silent = {A}
    answer = topic.read(at(CLOSED, 4))
    assert isinstance(answer, Unreadable)
    assert "does not respond" in answer.reason
    assert topic.rest.asked == []


def test_entry_locations_are_cached_and_absences_are_not(topic: StoredTopic) -> None:
    clock = FakeClock()
    entries = BulkDelayedEntries(topic.store, topic.bulk, topic.rest, "/ledgers", clock)  # type: ignore[arg-type]
    topic.hold(at(CLOSED, 1))
    topic.hold(at(OPEN, 0))
    both = [at(CLOSED, 1), at(OPEN, 0)]
    answers = entries.read(TOPIC, both, max_age_seconds=10)
    topic.store.remove(managed_ledger_path(TOPIC.managed_ledger_name))
    assert entries.read(TOPIC, both, max_age_seconds=10) == answers, "the entries themselves were read"
    for not_from_memory in ([at(OPEN, 2)], [at(CLOSED, -1)], [at(99, 1)], [*both, at(CLOSED, 10)]):
        with pytest.raises(NotFoundError):
            entries.read(TOPIC, not_from_memory, max_age_seconds=10)
    with pytest.raises(NotFoundError):
        entries.read(TOPIC, both)
    clock.advance_ms(10_000)
    with pytest.raises(NotFoundError):
        entries.read(TOPIC, both, max_age_seconds=10)


def test_an_offloaded_ledger_is_read_by_the_broker(topic: StoredTopic) -> None:
    topic.broker_has(at(OFFLOADED, 1))
    answer = topic.read(at(OFFLOADED, 1))
    assert isinstance(answer, EntryFacts)
    assert answer.deliver_at_ms == 1795273317500
    assert topic.read(at(OFFLOADED, 2)) == Absent(), "the broker said so"


def test_entry_missing_on_bookies_is_unreadable_without_broker(topic: StoredTopic) -> None:
    """A broker that is asked for a message loads the topic."""
    topic.hold(at(CLOSED, 0))
    entries = BulkDelayedEntries(topic.store, topic.bulk, None, "/ledgers", FakeClock())
    lost = [at(CLOSED, 1), at(OPEN, 2), at(OFFLOADED, 1)]
    answers = entries.read(TOPIC, [at(CLOSED, 0), at(CLOSED, 10), at(99, 0), *lost])
    assert isinstance(answers[at(CLOSED, 0)], EntryFacts)
    assert answers[at(CLOSED, 10)] == answers[at(99, 0)] == Absent()
    for position in lost:
        answer = answers[position]
        assert isinstance(answer, Unreadable), position
        assert answer.reason.endswith(f"no broker was queried, because that would have loaded {TOPIC}")
    topic.list_ledgers({SHADOW_SOURCE: "persistent://public/default/source"})
    assert isinstance(entries.read(TOPIC, [at(CLOSED, 0)])[at(CLOSED, 0)], Unreadable)


def test_a_listed_ledger_without_metadata_is_not_absent(topic: StoredTopic) -> None:
    assert isinstance(topic.read(at(LOST, 0)), Unreadable)


def test_a_shadow_topic_is_read_by_the_broker(topic: StoredTopic) -> None:
    topic.list_ledgers({SHADOW_SOURCE: "persistent://public/default/source"})
    topic.broker_has(at(99, 1))
    assert isinstance(topic.read(at(99, 1)), EntryFacts)


def test_entry_without_a_message_is_unreadable(topic: StoredTopic) -> None:
    topic.hold(at(CLOSED, 1), b"no message")
    assert isinstance(topic.read(at(CLOSED, 1)), Unreadable)


def test_headers_name_what_makes_a_message_special() -> None:
    more = {
        "X-Pulsar-PROPERTY": '{"a":"1"}',
        "X-Pulsar-partition-key": "k",
        "X-Pulsar-num-batch-message": "3",
        "X-Pulsar-uuid": "u",
        "X-Pulsar-chunk-id": "0",
        "X-Pulsar-num-chunks-from-msg": "2",
        "X-Pulsar-marker-type": "10",
        "X-Pulsar-txnid-most-bits": "0",
        "X-Pulsar-sequence-id": "5",
        "X-Pulsar-producer-name": "p",
    }
    facts = entry_facts_in_headers({name.upper(): value for name, value in {**HEADERS, **more}.items()})
    assert (facts.messages_in_batch, facts.chunk, facts.marker, facts.transaction) == (3, Chunk("u", 0, 2), True, True)
    assert (facts.key, facts.properties, facts.sequence_id, facts.producer_name) == ("k", {"a": "1"}, 5, "p")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Pulsar-publish-time": "yesterday"},
        {"X-Pulsar-publish-time": "2026-11-21T14:01:57"},
        {**HEADERS, "X-Pulsar-PROPERTY": "["},
        {**HEADERS, "X-Pulsar-num-batch-message": "many"},
    ],
)
def test_headers_that_brokers_do_not_send_are_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(UndecodableError):
        entry_facts_in_headers(headers)


# --- due times of cursors --------------------------------------------------------------------------------------------


FIRST, SECOND, THIRD, FOURTH = (Position(LedgerId(1), EntryId(number)) for number in range(4))


class FakeEntries:
    """Answers for whole topics, or fails."""

    def __init__(self, answers: dict[Position, EntryAnswer] | None) -> None:
        self.answers = answers

    def read(self, topic: TopicName, positions: list[Position]) -> dict[Position, EntryAnswer]:
        if self.answers is None:
            raise TemporaryError("no bookie answered")
        return {position: self.answers[position] for position in positions}


def dues(answers: dict[Position, EntryAnswer] | None, indexes: StoredIndexes | None = None) -> StoredDueTimes:
    return StoredDueTimes(cast("BulkDelayedEntries", FakeEntries(answers)), cast("StoredIndexes", indexes))


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
    store.fail_next("children", TemporaryError("ZooKeeper does not respond"))
    assert dues(None, indexes).spans(TOPIC) == {}
