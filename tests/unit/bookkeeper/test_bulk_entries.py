"""Entries in bulk from bookies that lack some, damage some, or do not respond."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries, BulkRead
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerSegment, LedgerState
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata

from tests.fakes.bookie_servers import FakeBookies, stored_entry
from tests.fakes.bookkeeper import ledger_metadata_bytes

LEDGER = LedgerId(5)
A, B, C = (BookieId(f"{name}:3181") for name in "abc")
COUNT = 30


def metadata(ensemble: tuple[BookieId, ...] = (A, B), quorum: int = 2) -> LedgerMetadata:
    closed = decode_ledger_metadata(ledger_metadata_bytes(LedgerState.CLOSED))
    return replace(
        closed,
        ensemble_size=len(ensemble),
        write_quorum_size=quorum,
        ack_quorum_size=quorum,
        last_entry_id=EntryId(COUNT - 1),
        length_bytes=COUNT * 100,
        segments=(LedgerSegment(EntryId(0), ensemble),),
        digest_type=DigestType.CRC32C,
        password=b"",
    )


def payload(entry_id: int) -> bytes:
    return b"payload %d" % entry_id


def bookies(described: LedgerMetadata) -> FakeBookies:
    """Each entry on the bookies of its write set."""
    fake = FakeBookies()
    fake.silence = TemporaryError("a bookie does not respond")
    for entry_id in range(COUNT):
        ensemble = [each for each in described.segments if each.first_entry_id <= entry_id][-1].ensemble
        for rank in range(described.write_quorum_size):
            held = fake.held.setdefault(ensemble[(entry_id + rank) % len(ensemble)], {})
            held[EntryId(entry_id)] = stored_entry(LEDGER, entry_id, payload(entry_id))
    return fake


def read(fake: FakeBookies, described: LedgerMetadata, wanted: list[int] | range = range(COUNT)) -> BulkRead[bytes]:
    entries = BookieEntries(fake)
    try:
        return entries.read_many(LEDGER, described, [EntryId(entry_id) for entry_id in wanted], bytes)
    finally:
        entries.close()


def everything(wanted: list[int] | range = range(COUNT)) -> dict[EntryId, bytes]:
    return {EntryId(entry_id): payload(entry_id) for entry_id in wanted}


@given(st.lists(st.integers(0, COUNT - 1), max_size=40), st.sampled_from([2, 3]))
def test_each_requested_entry_is_returned_once(wanted: list[int], size: int) -> None:
    described = metadata((A, B, C)[:size])
    answer = read(bookies(described), described, wanted)
    assert answer.found == everything(sorted(set(wanted)))
    assert (answer.missing, answer.unreadable) == (set(), {})


@pytest.mark.parametrize("silent", [A, B, C])
def test_a_silent_bookie_is_replaced_by_the_others_of_each_write_set(silent: BookieId) -> None:
    described = metadata((A, B, C), quorum=2)
    fake = bookies(described)
    fake.silent = {silent}
    assert read(fake, described).found == everything()


def test_a_damaged_copy_is_passed_over() -> None:
    described = metadata()
    fake = bookies(described)
    fake.held[A][EntryId(7)] = fake.held[A][EntryId(7)][:-1] + b"?"
    fake.held[B][EntryId(8)] = fake.held[B][EntryId(9)]
    fake.held[A][EntryId(9)] = b""
    assert read(fake, described).found == everything()


def test_an_entry_is_missing_only_if_every_bookie_lacks_it() -> None:
    described = metadata()
    fake = bookies(described)
    del fake.held[A][EntryId(3)], fake.held[B][EntryId(3)]
    answer = read(fake, described)
    assert (answer.missing, answer.unreadable, len(answer.found)) == ({3}, {}, COUNT - 1)
    fake.silent = {A}
    answer = read(fake, described)
    assert (answer.missing, list(answer.unreadable)) == (set(), [3])
    assert "does not respond" in answer.unreadable[EntryId(3)]


def test_when_no_bookie_answers_nothing_is_known() -> None:
    described = metadata()
    fake = bookies(described)
    fake.silent = {A, B}
    answer = read(fake, described)
    assert (answer.found, answer.missing, len(answer.unreadable)) == ({}, set(), COUNT)


def test_an_entry_that_every_bookie_has_damaged_is_unreadable() -> None:
    described = metadata()
    fake = bookies(described)
    for bookie in (A, B):
        fake.held[bookie][EntryId(3)] = fake.held[bookie][EntryId(3)][:-1] + b"?"
    answer = read(fake, described)
    assert "damaged" in answer.unreadable[EntryId(3)]
    assert answer.missing == set()


def test_entries_are_looked_for_where_the_ensemble_was_when_they_were_written() -> None:
    described = metadata()
    moved = replace(described, segments=(LedgerSegment(EntryId(0), (A, B)), LedgerSegment(EntryId(10), (B, C))))
    fake = bookies(moved)
    assert set(fake.held[A]) == set(range(10))
    assert read(fake, moved).found == everything()


def test_the_two_bookies_take_turns() -> None:
    described = replace(metadata(), length_bytes=COUNT * 8_000_000)
    fake = bookies(described)
    asked: list[BookieId] = []

    class Counting(FakeBookies):
        def read_many(self, bookie: BookieId, ledger_id: LedgerId, wanted: object) -> dict[EntryId, bytes]:
            asked.append(bookie)
            return fake.read_many(bookie, ledger_id, wanted)  # type: ignore[arg-type]

    read(Counting(), described)
    assert len(asked) > 2, "large entries are read in small parts"
    assert {asked.count(A) - asked.count(B)} <= {-1, 0, 1}
