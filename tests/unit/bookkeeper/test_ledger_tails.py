"""The end of a ledger, whatever part of its bookies responds: an acknowledged entry is read or the call raises."""

import threading
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerSegment, LedgerState

from tests.fakes.bookie_servers import FakeBookie, FakeBookies, stored_entry

LEDGER = LedgerId(27)
B = [BookieId(f"bookie-{number}:3181") for number in range(6)]


def _metadata(
    *ensembles: tuple[int, list[BookieId]], write: int, ack: int, last_entry_id: int | None = None
) -> LedgerMetadata:
    return LedgerMetadata(
        state=LedgerState.OPEN if last_entry_id is None else LedgerState.CLOSED,
        ensemble_size=len(ensembles[0][1]),
        write_quorum_size=write,
        ack_quorum_size=ack,
        length_bytes=0,
        last_entry_id=EntryId(-1 if last_entry_id is None else last_entry_id),
        segments=tuple(LedgerSegment(EntryId(first), tuple(members)) for first, members in ensembles),
    )


@dataclass
class Written:
    """A ledger some entries of which were acknowledged; the rest reached any bookies of their write sets, or none."""

    bookies: FakeBookies
    metadata: LedgerMetadata
    acknowledged: int

    def highest_in_last_ensemble(self) -> int:
        ensemble = self.metadata.segments[-1].ensemble
        stored = max((max(self.bookies.held.get(member, {-1: b""})) for member in ensemble), default=-1)
        return max(stored, self.metadata.segments[-1].first_entry_id - 1)


@st.composite
def written_ledgers(draw: st.DrawFn) -> Written:
    size = draw(st.integers(1, 4))
    write = draw(st.integers(1, size))
    ack = draw(st.integers(1, write))
    acknowledged = draw(st.integers(0, 6))
    ensembles = [(0, B[:size])]
    change = draw(st.integers(1, acknowledged)) if acknowledged and draw(st.booleans()) else None
    if change is not None:
        ensembles.append((change, [*B[: size - 1], B[size]]))
    metadata = _metadata(*ensembles, write=write, ack=ack)
    bookies = FakeBookies()
    for entry_id in range(acknowledged + draw(st.integers(0, 3))):
        ensemble = ensembles[-1][1] if change is not None and entry_id >= change else ensembles[0][1]
        write_set = [ensemble[(entry_id + i) % size] for i in range(write)]
        holders = draw(st.sets(st.sampled_from(write_set), min_size=ack if entry_id < acknowledged else 0))
        if entry_id >= acknowledged and len(holders) >= ack:
            holders = set(sorted(holders)[: ack - 1])
        confirmed = draw(st.integers(-1, min(entry_id, acknowledged) - 1))
        for holder in holders:
            held = bookies.held.setdefault(holder, {})
            held[EntryId(entry_id)] = stored_entry(LEDGER, entry_id, b"x", last_confirmed=confirmed)
    return Written(bookies, metadata, acknowledged)


@given(written_ledgers(), st.sets(st.sampled_from(B)), st.integers(1, 5))
def test_no_acknowledged_entry_of_the_tail_is_missed(written: Written, silent: set[BookieId], count: int) -> None:
    written.bookies.silent = silent
    written.bookies.silence = TemporaryError("silent")
    try:
        tail = BookieEntries(written.bookies).read_tail(LEDGER, written.metadata, count)
    except TemporaryError:
        assert silent, "with every bookie answering there is nothing to wait for"
        return
    ids = [entry.entry_id for entry in tail]
    assert ids == sorted(set(ids))
    if not silent:
        assert max(ids, default=-1) == written.highest_in_last_ensemble()
    highest = max(ids, default=-1)
    assert highest >= written.acknowledged - 1
    assert {entry_id for entry_id in range(written.acknowledged) if entry_id > highest - count} <= set(ids)
    assert all(entry_id > highest - count for entry_id in ids)


@given(written_ledgers(), st.sets(st.sampled_from(B)), st.integers(1, 5))
def test_a_closed_ledger_is_read_completely_or_not_at_all(written: Written, silent: set[BookieId], count: int) -> None:
    metadata = replace(written.metadata, state=LedgerState.CLOSED, last_entry_id=EntryId(written.acknowledged - 1))
    written.bookies.silent = silent
    written.bookies.silence = TemporaryError("silent")
    entries = BookieEntries(written.bookies)
    try:
        tail = entries.read_tail(LEDGER, metadata, count)
        assert entries.readable(LEDGER, metadata)
    except TemporaryError:
        assert silent
        return
    wanted = range(max(0, written.acknowledged - count), written.acknowledged)
    assert [entry.entry_id for entry in tail] == list(wanted)


@pytest.mark.parametrize(("silent", "enough"), [([], True), ([0], True), ([1], True), ([0, 1], False)])
def test_fewer_than_the_ack_quorum_may_be_silent(silent: list[int], enough: bool) -> None:
    bookies = FakeBookies()
    for member in B[:2]:
        bookies.held[member] = {EntryId(0): stored_entry(LEDGER, 0, b"x")}
    bookies.silent, bookies.silence = {B[index] for index in silent}, TemporaryError("silent")
    metadata = _metadata((0, B[:2]), write=2, ack=2)
    if enough:
        assert len(BookieEntries(bookies).read_tail(LEDGER, metadata, 1)) == 1
    else:
        with pytest.raises(TemporaryError, match="too few"):
            BookieEntries(bookies).read_tail(LEDGER, metadata, 1)


def test_a_gap_below_what_the_writer_knew_to_be_acknowledged_raises() -> None:
    bookies = FakeBookies()
    bookies.held[B[0]] = {EntryId(2): stored_entry(LEDGER, 2, b"x", last_confirmed=1)}
    with pytest.raises(TemporaryError, match="27:1"):
        BookieEntries(bookies).read_tail(LEDGER, _metadata((0, B[:1]), write=1, ack=1), 2)


def test_an_entry_before_the_last_ensemble_that_no_bookie_delivers_raises() -> None:
    bookies = FakeBookies()
    metadata = _metadata((0, B[:1]), (5, B[1:2]), write=1, ack=1)
    with pytest.raises(TemporaryError, match="27:4"):
        BookieEntries(bookies).read_tail(LEDGER, metadata, 1)


def test_a_damaged_copy_counts_as_silence_and_another_one_is_read() -> None:
    bookies = FakeBookies()
    good = stored_entry(LEDGER, 0, b"good")
    bookies.held = {B[0]: {EntryId(0): good[:-1] + b"?"}, B[1]: {EntryId(0): good}}
    metadata = _metadata((0, B[:2]), write=2, ack=2, last_entry_id=0)
    assert BookieEntries(bookies).read_tail(LEDGER, metadata, 1)[0].payload == b"good"
    del bookies.held[B[1]]
    with pytest.raises(TemporaryError, match="damaged"):
        BookieEntries(bookies).readable(LEDGER, metadata)


def test_a_bookie_that_cannot_read_one_entry_is_asked_for_the_next() -> None:
    class OneBadEntryEach(FakeBookies):
        def read(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
            if (bookie, entry_id) in ((B[0], 0), (B[1], 1)):
                raise TemporaryError("EIO")
            return super().read(bookie, ledger_id, entry_id)

    bookies = OneBadEntryEach()
    entries = {EntryId(entry_id): stored_entry(LEDGER, entry_id, b"x") for entry_id in (0, 1)}
    bookies.held = {B[0]: dict(entries), B[1]: dict(entries)}
    closed = _metadata((0, B[:2]), write=2, ack=2, last_entry_id=1)
    assert [entry.entry_id for entry in BookieEntries(bookies).read_tail(LEDGER, closed, 2)] == [0, 1]


def test_bookies_are_asked_side_by_side_where_an_open_ledger_ends() -> None:
    class OnlyTogether(FakeBookies):
        asked = threading.Barrier(2, timeout=10)

        def read(self, bookie: BookieId, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
            self.asked.wait()
            return super().read(bookie, ledger_id, entry_id)

    bookies = OnlyTogether()
    bookies.held = {bookie: {EntryId(0): stored_entry(LEDGER, 0, b"x")} for bookie in B[:2]}
    open_ledger = _metadata((0, B[:2]), write=2, ack=2)
    assert [entry.entry_id for entry in BookieEntries(bookies).read_tail(LEDGER, open_ledger, 1)] == [0]


def test_response_with_another_entry_is_rejected() -> None:
    for answered in (stored_entry(LEDGER, 1, b"x"), stored_entry(LEDGER + 1, 0, b"x")):
        bookies = FakeBookies()
        bookies.held[B[0]] = {EntryId(0): answered}
        with pytest.raises(TemporaryError, match="a different entry"):
            BookieEntries(bookies).read_tail(LEDGER, _metadata((0, B[:1]), write=1, ack=1, last_entry_id=0), 1)


def test_readable_distinguishes_gone_from_unknown() -> None:
    bookies = FakeBookies()
    entries = BookieEntries(bookies)
    metadata = _metadata((0, B[:2]), write=2, ack=1, last_entry_id=4)
    assert not entries.readable(LEDGER, metadata)
    bookies.held = {B[0]: {EntryId(0): stored_entry(LEDGER, 0, b"x")}}
    assert not entries.readable(LEDGER, metadata), "the last entry is gone"
    bookies.silent, bookies.silence = {B[1]}, TemporaryError("silent")
    with pytest.raises(TemporaryError):
        entries.readable(LEDGER, metadata)


def test_over_real_sockets_with_striping_and_a_replaced_bookie() -> None:
    with FakeBookie() as one, FakeBookie() as two, FakeBookie() as three:
        for entry_id, bookie in enumerate((one, two, one, three, one)):
            bookie.store(LEDGER, entry_id, b"%d" % entry_id, last_confirmed=entry_id - 1)
        metadata = _metadata((0, [one.bookie_id, two.bookie_id]), (3, [one.bookie_id, three.bookie_id]), write=1, ack=1)
        entries = BookieEntries(BookieConnections())
        assert [entry.payload for entry in entries.read_tail(LEDGER, metadata, 10)] == [b"0", b"1", b"2", b"3", b"4"]
        two.close()
        assert [entry.payload for entry in entries.read_tail(LEDGER, metadata, 3)] == [b"2", b"3", b"4"]
        entries.close()
