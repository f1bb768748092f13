"""Many entries from one bookie, against bookies that really listen: requests, and only their own responses."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections, runs_of
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId

from tests.fakes.bookie_servers import EOK, FakeBookie, batch_response, response, stored_entry

LEDGER = LedgerId(27)


def ids(*numbers: int) -> list[EntryId]:
    return [EntryId(number) for number in numbers]


def fill(bookie: FakeBookie, count: int, size_bytes: int = 10) -> None:
    for entry_id in range(count):
        bookie.store(LEDGER, entry_id, bytes([entry_id % 251]) * size_bytes)


@pytest.mark.parametrize("batches", [True, False])
def test_every_wanted_entry_comes_and_no_other(
    bookie: FakeBookie, connections: BookieConnections, batches: bool
) -> None:
    fill(bookie, 2_000)
    bookie.batches = batches
    wanted = [EntryId(entry_id) for entry_id in range(2_000) if entry_id % 3 or 100 < entry_id < 200]
    found = connections.read_many(bookie.bookie_id, LEDGER, wanted)
    assert found == {entry_id: bookie.entries[LEDGER, entry_id] for entry_id in wanted}


def test_a_batch_is_asked_for_without_fencing(bookie: FakeBookie, connections: BookieConnections) -> None:
    fill(bookie, 8)
    connections.read_many(bookie.bookie_id, LEDGER, ids(2, 3, 7))
    assert bookie.requests == [
        bytes.fromhex("00000028 02070000 000000000000001b 0000000000000002 0000000000000002 00000006 0000000000080000")
    ]


def test_a_bookie_that_knows_no_batches_is_asked_one_by_one_from_then_on(
    bookie: FakeBookie, connections: BookieConnections
) -> None:
    fill(bookie, 5)
    bookie.batches = False
    connections.read_many(bookie.bookie_id, LEDGER, ids(0, 1))
    asked = len(bookie.requests)
    connections.read_many(bookie.bookie_id, LEDGER, ids(2, 3))
    assert [len(request) for request in bookie.requests[asked:]] == [24, 24]


def test_a_bookie_that_broke_off_one_batch_is_asked_for_batches_again(
    bookie: FakeBookie, connections: BookieConnections
) -> None:
    fill(bookie, 5)
    bookie.batches = False
    connections.read_many(bookie.bookie_id, LEDGER, ids(0, 1))
    bookie.batches = True
    for _ in range(65):
        asked = len(bookie.requests)
        connections.read_many(bookie.bookie_id, LEDGER, ids(2, 3))
    assert [len(request) for request in bookie.requests[asked:]] == [44]
    connections.read_many(bookie.bookie_id, LEDGER, ids(2, 3))
    assert len(bookie.requests[asked:]) == 2, "and from then on"


def test_an_answer_that_is_shorter_than_asked_for_is_continued(
    bookie: FakeBookie, connections: BookieConnections
) -> None:
    fill(bookie, 40, size_bytes=60_000)
    wanted = ids(*range(40))
    assert list(connections.read_many(bookie.bookie_id, LEDGER, wanted)) == wanted
    assert len(bookie.requests) > 4, "half a megabyte at a time"


def test_missing_entries_are_left_out(bookie: FakeBookie, connections: BookieConnections) -> None:
    fill(bookie, 10)
    del bookie.entries[LEDGER, 4]
    assert list(connections.read_many(bookie.bookie_id, LEDGER, ids(2, 3, 30))) == ids(2, 3)
    assert connections.read_many(bookie.bookie_id, LedgerId(28), ids(0)) == {}
    assert connections.read_many(bookie.bookie_id, LEDGER, []) == {}


def test_entries_behind_a_gap_are_requested_individually(bookie: FakeBookie, connections: BookieConnections) -> None:
    fill(bookie, 10)
    del bookie.entries[LEDGER, 4], bookie.entries[LEDGER, 6]
    assert list(connections.read_many(bookie.bookie_id, LEDGER, ids(3, 5))) == ids(3, 5)
    assert list(connections.read_many(bookie.bookie_id, LEDGER, ids(4, 5, 6, 7, 9))) == ids(5, 7, 9)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        batch_response(101, LEDGER, 0),
        batch_response(102, LEDGER, 0),
        batch_response(EOK, LEDGER + 1, 0, [b"another ledger's"]),
        batch_response(EOK, LEDGER, 1, [b"another request's"]),
        batch_response(EOK, LEDGER, 0, [b"one", b"two", b"one more than asked for"]),
        batch_response(EOK, LEDGER, 0, []),
        batch_response(EOK, LEDGER, 0, [b"cut short"])[:-1],
        batch_response(EOK, LEDGER, 0, [b"x"])[:-5] + struct.pack(">i", 9) + b"x",
        batch_response(EOK, LEDGER, 0, [b"x"])[:-5] + struct.pack(">i", -1) + b"x",
        response(EOK, LEDGER, 0, b"the answer to a single read"),
        struct.pack(">i", -1) + bytes(40),
        struct.pack(">i", 2**31 - 1) + bytes(40),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ],
)
def test_invalid_response_raises_temporary_error(
    bookie: FakeBookie, connections: BookieConnections, answer: bytes
) -> None:
    bookie.answer_batch = lambda *_: answer
    bookie.answer = lambda *_: b""
    with pytest.raises(TemporaryError):
        connections.read_many(bookie.bookie_id, LEDGER, ids(0, 1))


def test_a_damaged_length_inside_a_batch_is_noticed(bookie: FakeBookie, connections: BookieConnections) -> None:
    whole = batch_response(EOK, LEDGER, 0, [stored_entry(LEDGER, 0, b"a"), stored_entry(LEDGER, 1, b"b")])
    for length in range(36, len(whole)):
        cut = struct.pack(">i", length - 4) + whole[4:length]
        bookie.answer_batch = lambda *_, cut=cut: cut  # type: ignore[misc]
        try:
            found = connections.read_many(bookie.bookie_id, LEDGER, ids(0, 1, 2))
        except TemporaryError:
            continue
        assert set(found.values()) <= {stored_entry(LEDGER, 0, b"a"), stored_entry(LEDGER, 1, b"b")}


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(1, 50), st.integers(0, 5))
def test_runs_cover_what_is_wanted(wanted: set[int], longest: int, widest_gap: int) -> None:
    ascending = [EntryId(number) for number in sorted(wanted)]
    runs = list(runs_of(ascending, longest=longest, widest_gap=widest_gap))
    covered = [number for run in runs for number in range(run.first, run.first + run.length)]
    assert covered == sorted(set(covered)), "in order, none twice"
    assert wanted <= set(covered)
    assert all(run.length <= longest for run in runs)
    assert all(run.first in wanted and run.first + run.length - 1 in wanted for run in runs)
    unwanted = set(covered) - wanted
    assert not any(unwanted.issuperset(range(start, start + widest_gap + 1)) for start in unwanted)
