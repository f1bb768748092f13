"""Every entry of a topic is in the stream, as itself or as one that was not seen."""

from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.bookkeeper.topic_entries import BookieTopicEntries
from pulsar_sidecar.model.clocks import Pace
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerEntry, UnseenCause, UnseenEntries
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path

from tests.fakes.bookie_servers import ENOENTRY, EREADONLY, response
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.stored_topics import StoredTopic

UNREACHABLE = "127.0.0.1:1"
Seen = tuple[int, int, bytes]
Unseen = tuple[int, int, int | None, UnseenCause]


@pytest.fixture
def topic() -> Iterator[StoredTopic]:
    with StoredTopic() as made:
        yield made


def at(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


def of(ledger_id: int, first: int, count: int) -> list[Seen | Unseen]:
    return [(ledger_id, entry_id, b"%d" % entry_id) for entry_id in range(first, first + count)]


def payloads(count: int) -> list[bytes]:
    return [b"%d" % entry_id for entry_id in range(count)]


def as_tuples(stream: Iterator[LedgerEntry | UnseenEntries]) -> list[Seen | Unseen]:
    return [
        (each.ledger_id, each.entry_id, each.payload)
        if isinstance(each, LedgerEntry)
        else (each.ledger_id, each.first_entry_id, each.last_entry_id, each.cause)
        for each in stream
    ]


def test_ledgers_come_in_order_and_the_open_one_too(topic: StoredTopic) -> None:
    topic.add(3, payloads(2000))
    topic.add(5, [])
    topic.add(9, payloads(100), closed=False)
    assert as_tuples(topic.reader().read(topic.name)) == of(3, 0, 2000) + of(9, 0, 100)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (at(3, 7), at(9, 0), of(3, 7, 3) + of(9, 0, 1)),
        (at(4, 0), at(9, 99), of(9, 0, 3)),
        (at(9, 3), at(9, 9), []),
        (at(9, 2), at(9, 1), []),
        (at(3, 2), at(3, 4), of(3, 2, 3)),
    ],
)
def test_from_and_to(topic: StoredTopic, first: Position, last: Position, expected: list[Seen]) -> None:
    topic.add(3, payloads(10))
    topic.add(9, payloads(3), closed=False)
    assert as_tuples(topic.reader().read(topic.name, first, last)) == expected


def test_entries_only_in_tiered_storage_are_not_seen(topic: StoredTopic) -> None:
    topic.offload(topic.add(3, payloads(4)))
    topic.offload(topic.add(5, payloads(2)), in_bookkeeper=True)
    topic.add(9, payloads(1), closed=False)
    offloaded = UnseenCause.OFFLOADED
    assert as_tuples(topic.reader().read(topic.name)) == [(3, 0, 3, offloaded), *of(5, 0, 2), *of(9, 0, 1)]
    assert as_tuples(topic.reader().read(topic.name, at(3, 2), at(3, 9))) == [(3, 2, 3, offloaded)]
    assert as_tuples(topic.reader().read(topic.name, at(3, 4), at(3, 9))) == []


def test_lost_and_damaged_entries_are_not_seen(topic: StoredTopic) -> None:
    topic.add(3, payloads(9))
    for entry_id in (0, 4, 5):
        del topic.bookie.entries[3, entry_id]
    topic.bookie.entries[3, 7] = topic.bookie.entries[3, 7][:-1] + b"x"
    lost = UnseenCause.UNREADABLE
    assert as_tuples(topic.reader().read(topic.name)) == [
        (3, 0, 0, lost), *of(3, 1, 3), (3, 4, 5, lost), *of(3, 6, 1), (3, 7, 7, lost), *of(3, 8, 1),
    ]  # fmt: skip


def test_a_lost_ledger_is_not_one_that_was_trimmed(topic: StoredTopic) -> None:
    topic.add(3, payloads(9))
    topic.add(5, payloads(2), closed=False)
    topic.store.remove(ledger_path(LedgerId(3)))
    assert as_tuples(topic.reader().read(topic.name)) == [(3, 0, 8, UnseenCause.UNREADABLE), *of(5, 0, 2)]


def test_ledger_trimmed_during_the_read_is_reported(topic: StoredTopic) -> None:
    topic.add(3, payloads(1))
    topic.add(5, payloads(2))
    topic.add(7, payloads(2))
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 3
    del topic.info.ledgerInfo[:2]
    topic.write()
    topic.store.remove(ledger_path(LedgerId(5)))
    assert as_tuples(stream) == [(5, 0, 1, UnseenCause.TRIMMED), *of(7, 0, 2)]


def test_ledger_offloaded_during_the_read_is_reported(topic: StoredTopic) -> None:
    topic.add(3, payloads(1))
    listed = topic.add(5, payloads(2))
    topic.add(7, payloads(1), closed=False)
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 3
    topic.offload(listed)
    assert as_tuples(stream) == [(5, 0, 1, UnseenCause.OFFLOADED), *of(7, 0, 1)]


def test_topic_deleted_during_the_read_is_unreadable(topic: StoredTopic) -> None:
    topic.add(3, payloads(1))
    topic.add(5, payloads(2), closed=False)
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 3
    topic.store.remove(managed_ledger_path(topic.name.managed_ledger_name))
    topic.store.remove(ledger_path(LedgerId(5)))
    (unseen,) = stream
    assert isinstance(unseen, UnseenEntries)
    assert as_tuples(iter([unseen])) == [(5, 0, None, UnseenCause.UNREADABLE)], "what it held is not known"
    assert unseen.reason == "the topic was deleted while it was being read, and ledger 5 too"


def test_topic_recreated_during_the_read_is_unreadable(topic: StoredTopic) -> None:
    topic.add(3, payloads(1))
    topic.add(5, payloads(2))
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 3
    for path in (managed_ledger_path(topic.name.managed_ledger_name), ledger_path(LedgerId(5))):
        topic.store.remove(path)
    del topic.info.ledgerInfo[:]
    topic.add(7, payloads(1), closed=False)
    assert as_tuples(stream) == [(5, 0, 1, UnseenCause.UNREADABLE)]


def test_open_ledger_dropped_during_the_read_has_an_unknown_end(topic: StoredTopic) -> None:
    topic.add(9, payloads(40), closed=False)
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 9
    topic.store.remove(managed_ledger_path(topic.name.managed_ledger_name))
    topic.store.remove(ledger_path(LedgerId(9)))
    topic.bookie.entries.clear()
    assert as_tuples(stream) == [*of(9, 1, 15), (9, 16, None, UnseenCause.UNREADABLE)]


def test_a_closed_ledger_that_is_trimmed_while_it_is_read_is_not_lost(topic: StoredTopic) -> None:
    topic.add(3, payloads(40))
    topic.add(5, payloads(2), closed=False)
    stream = topic.reader().read(topic.name)
    assert next(stream).ledger_id == 3
    del topic.info.ledgerInfo[0]
    topic.write()
    topic.store.remove(ledger_path(LedgerId(3)))
    for entry_id in range(20, 40):
        del topic.bookie.entries[3, entry_id]
    assert as_tuples(stream) == [*of(3, 1, 19), (3, 20, 39, UnseenCause.TRIMMED), *of(5, 0, 2)]


def test_entries_that_the_topic_lists_and_bookkeeper_does_not_are_not_seen(topic: StoredTopic) -> None:
    topic.add(3, payloads(1)).entries = 5
    topic.add(5, payloads(3), closed=False)
    topic.info.ledgerInfo[1].entries, topic.info.ledgerInfo[1].timestamp = 4, 1
    topic.write()
    del topic.bookie.entries[5, 1]
    lost = UnseenCause.UNREADABLE
    assert as_tuples(topic.reader().read(topic.name)) == [
        *of(3, 0, 1), (3, 1, 4, lost), *of(5, 0, 1), (5, 1, 1, lost), *of(5, 2, 1), (5, 3, 3, lost),
    ]  # fmt: skip
    assert as_tuples(topic.reader().read(topic.name, at(3, 2), at(3, 3))) == [(3, 2, 3, lost)]
    assert as_tuples(topic.reader().read(topic.name, at(3, 5), at(3, 9))) == []


def test_bookies_that_do_not_answer(topic: StoredTopic) -> None:
    topic.add(3, payloads(5), bookie=UNREACHABLE)
    topic.add(5, payloads(5))
    topic.add(9, payloads(5), closed=False, bookie=UNREACHABLE)
    unreadable = UnseenCause.UNREADABLE
    assert as_tuples(topic.reader().read(topic.name)) == [(3, 0, 4, unreadable), *of(5, 0, 5), (9, 0, None, unreadable)]


def test_the_open_end_is_where_recovery_would_close_the_ledger(topic: StoredTopic) -> None:
    topic.add(9, payloads(8), closed=False, last_confirmed=2)
    del topic.bookie.entries[9, 5]
    assert as_tuples(topic.reader().read(topic.name)) == of(9, 0, 5), "6 and 7 cannot have been acknowledged"
    del topic.bookie.entries[9, 1]
    lost = (9, 1, 1, UnseenCause.UNREADABLE)
    assert as_tuples(topic.reader().read(topic.name)) == [*of(9, 0, 1), lost, *of(9, 2, 3)], "1 was acknowledged"


def test_an_open_end_that_no_bookie_names_is_not_the_end(topic: StoredTopic) -> None:
    topic.add(9, payloads(4), closed=False)
    stored = topic.bookie.answer
    topic.bookie.batches = False
    topic.bookie.answer = lambda ledger_id, entry_id: (
        response(EREADONLY, ledger_id, entry_id) if entry_id == 2 else stored(ledger_id, entry_id)
    )
    unseen = [each for each in topic.reader().read(topic.name) if isinstance(each, UnseenEntries)]
    assert unseen[0].first_entry_id == 0, "a refusal breaks the whole request"
    assert unseen[-1].last_entry_id == 3
    topic.bookie.answer = lambda ledger_id, entry_id: (
        response(ENOENTRY, ledger_id, entry_id) if entry_id == 2 else stored(ledger_id, entry_id)
    )
    assert as_tuples(topic.reader().read(topic.name)) == of(9, 0, 2)


def test_damaged_ledger_metadata_is_not_seen(topic: StoredTopic) -> None:
    topic.add(3, payloads(5))
    topic.store.put(ledger_path(LedgerId(3)), b"damaged")
    assert as_tuples(topic.reader().read(topic.name)) == [(3, 0, 4, UnseenCause.UNREADABLE)]


def test_a_damaged_list_of_ledgers_is_an_error_that_names_its_topic(topic: StoredTopic) -> None:
    topic.store.put(managed_ledger_path(topic.name.managed_ledger_name), b"\xff")
    with pytest.raises(UndecodableError, match=f"the ledgers of {topic.name} cannot be read: 1 bytes are not"):
        next(topic.reader().read(topic.name))


def test_a_topic_that_does_not_exist(topic: StoredTopic) -> None:
    with pytest.raises(NotFoundError):
        next(topic.reader().read(topic.name))


def test_a_metadata_store_that_cannot_be_asked_is_an_error(topic: StoredTopic) -> None:
    topic.add(3, payloads(5))
    store = _Silent()
    with pytest.raises(TemporaryError):
        next(BookieTopicEntries(store, topic.entries, "/ledgers", Pace(FakeClock(), None)).read(topic.name))


def test_the_rate_is_kept(topic: StoredTopic) -> None:
    topic.add(3, payloads(500))
    clock = FakeClock()
    before = clock.monotonic_seconds()
    assert len(as_tuples(topic.reader(clock, per_second=100).read(topic.name))) == 500
    assert clock.monotonic_seconds() - before >= 4.9
    assert len(set(topic.bookie.requests)) >= 50, "no burst is longer than a tenth of a second"


class _Silent(FakeMetadataStore):
    def read(self, path: str) -> None:
        raise TemporaryError("no answer")
