"""Ledgers written once: durable on every bookie of the write quorum and closed, or gone again."""

import hashlib
from collections.abc import Callable, Iterator
from itertools import count

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.ledger_writer import MOST_ENTRY_BYTES, LedgerWriter, Replication
from pulsar_sidecar.model.errors import InvalidInputError, OutcomeUnknownError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata, LedgerState
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.bookie_servers import EREADONLY, FakeBookie, addition_response
from tests.fakes.metadata import FakeMetadataStore, Method

CUSTOM = {"application": b"pulsar", "component": b"delayed-index-bucket"}
PAYLOADS = [b"zero", b"one", b"", b"three" * 1000]
FIRST_ID = 27


class Killed(BaseException):
    """The process ends here."""


class Setup:
    """Bookies that listen, the metadata store in memory, and the writer between them."""

    def __init__(self, bookies: int) -> None:
        self.bookies = [FakeBookie() for _ in range(bookies)]
        self.store = FakeMetadataStore()
        self.store.put("/ledgers/available/readonly")
        for bookie in self.bookies:
            self.store.put(f"/ledgers/available/{bookie.bookie_id}")
        self.connections = BookieConnections(connect_timeout_seconds=1, read_timeout_seconds=0.5)
        self.entries = BookieEntries(self.connections)
        ids = count(FIRST_ID)
        self.writer = LedgerWriter(self.store, lambda: LedgerId(next(ids)), self.connections)

    def write(self, *sizes: int) -> LedgerId:
        return self.writer.write(PAYLOADS, CUSTOM, Replication(*sizes or (2, 2, 2)))

    def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        node = self.store.peek(ledger_path(ledger_id))
        assert node is not None
        return decode_ledger_metadata(node.data)

    def ledgers(self) -> list[str]:
        return [path for path in self.store.paths() if "/L" in path]

    def close(self) -> None:
        self.entries.close()
        for bookie in self.bookies:
            bookie.close()


@pytest.fixture
def setups() -> Iterator[Callable[[int], Setup]]:
    opened: list[Setup] = []

    def open_setup(bookies: int = 2) -> Setup:
        opened.append(Setup(bookies))
        return opened[-1]

    yield open_setup
    for setup in opened:
        setup.close()


@pytest.mark.parametrize(("bookies", "sizes"), [(1, (1, 1, 1)), (2, (2, 2, 1)), (3, (3, 2, 2)), (4, (3, 3, 2))])
def test_every_bookie_of_the_write_quorum_has_it(
    setups: Callable[[int], Setup], bookies: int, sizes: tuple[int, ...]
) -> None:
    setup = setups(bookies)
    ledger_id = setup.write(*sizes)
    metadata = setup.metadata(ledger_id)
    assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (LedgerState.CLOSED, 3, 5007)
    assert metadata.custom_metadata == CUSTOM
    held = {bookie.bookie_id: {entry for _, entry in bookie.entries} for bookie in setup.bookies}
    [segment] = metadata.segments
    for entry_id in range(len(PAYLOADS)):
        write_set = {segment.ensemble[(entry_id + rank) % sizes[0]] for rank in range(sizes[1])}
        assert write_set == {bookie for bookie, entries in held.items() if entry_id in entries}
    answer = setup.entries.read_many(ledger_id, metadata, map(EntryId, range(4)), bytes)
    assert [answer.found[EntryId(entry_id)] for entry_id in range(4)] == PAYLOADS


def test_the_wire(setups: Callable[[int], Setup]) -> None:
    setup = setups(1)
    setup.writer.write([b"payload"], CUSTOM, Replication(1, 1, 1))
    [request] = setup.bookies[0].requests
    key = hashlib.sha1(b"ledger").hexdigest()
    header = "000000000000001b 0000000000000000 ffffffffffffffff 0000000000000007"
    assert request.startswith(bytes.fromhex(f"00000043 02010000 {key} {header}"))
    assert request.endswith(b"payload")


def test_bookies_of_different_racks(setups: Callable[[int], Setup]) -> None:
    setup = setups(4)
    ids = [str(bookie.bookie_id) for bookie in setup.bookies]
    racks = ", ".join(f'"{name}": {{"rack": "{"/a" if name != ids[3] else "/b"}"}}' for name in ids)
    setup.store.put("/bookies", f'{{"default": {{{racks}}}}}'.encode())
    for _ in range(5):
        assert ids[3] in setup.metadata(setup.write()).segments[0].ensemble


@pytest.mark.parametrize("code", [EREADONLY, 101, None])
def test_a_bookie_that_fails_is_done_without(setups: Callable[[int], Setup], code: int | None) -> None:
    setup = setups(3)
    bad = setup.bookies[0]
    bad.answer_addition = lambda ledger, entry, _: None if code is None else addition_response(code, ledger, entry)
    for _ in range(6):
        assert bad.bookie_id not in setup.metadata(setup.write()).segments[0].ensemble
    assert all(setup.metadata(LedgerId(int(path[-4:]))).state is LedgerState.CLOSED for path in setup.ledgers())


def test_too_few_bookies_leave_nothing(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    setup.bookies[0].answer_addition = lambda ledger, entry, _: addition_response(EREADONLY, ledger, entry)
    with pytest.raises(TemporaryError, match=r"needs 2 bookies, and 1 can.*read-only"):
        setup.write()
    with pytest.raises(TemporaryError, match="needs 3 bookies, and 2 can"):
        setup.write(3, 2, 2)
    assert setup.ledgers() == []


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(addition_response(0, FIRST_ID, 99), id="another entry"),
        pytest.param(addition_response(0, 99, 0), id="another ledger"),
        pytest.param(b"\x00\x00\x00\x18\x02\x02" + bytes(22), id="an answer to a read"),
    ],
)
def test_an_answer_to_something_else_stores_nothing(setups: Callable[[int], Setup], answer: bytes) -> None:
    setup = setups(1)
    setup.bookies[0].answer_addition = lambda *_: answer
    with pytest.raises(TemporaryError):
        setup.write(1, 1, 1)
    assert setup.ledgers() == []


def test_an_id_that_is_taken_is_passed_over(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    setup.store.put(ledger_path(LedgerId(FIRST_ID)), b"somebody's")
    assert setup.write() == FIRST_ID + 1
    taken = setup.store.peek(ledger_path(LedgerId(FIRST_ID)))
    assert taken is not None
    assert taken.data == b"somebody's"


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("method", ["create", "write"])
def test_a_lost_answer_is_looked_up(setups: Callable[[int], Setup], method: Method, applied: bool) -> None:
    setup = setups(2)
    assert method in ("create", "write")
    setup.store.lose_answer_next(method, applied=applied)
    if method == "write" and applied:
        assert setup.metadata(setup.write()).state is LedgerState.CLOSED
    else:
        with pytest.raises(TemporaryError):
            setup.write()
        assert setup.ledgers() == []


def test_metadata_changed_by_another_client_fails_the_write(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    path = ledger_path(LedgerId(FIRST_ID))

    def touch() -> None:
        node = setup.store.peek(path)
        assert node is not None
        setup.store.put(path, node.data)

    setup.store.before("write", touch)
    with pytest.raises(TemporaryError):
        setup.write()
    assert setup.ledgers() == []


def test_error_names_a_ledger_that_cannot_be_deleted(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    setup.store.fail_next("write", TemporaryError("the store is away"))
    setup.store.fail_next("delete", TemporaryError("the store is away"), times=-1)
    with pytest.raises(OutcomeUnknownError, match=rf"ledger {FIRST_ID} .*may be left"):
        setup.write()


def test_a_writer_that_dies_leaves_an_open_ledger(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)

    def kill() -> None:
        raise Killed

    setup.store.before("write", kill)
    setup.store.before("read", kill, path=ledger_path(LedgerId(FIRST_ID)), times=-1)
    with pytest.raises(Killed):
        setup.write()
    assert setup.metadata(LedgerId(FIRST_ID)).state is LedgerState.OPEN


@pytest.mark.parametrize("payloads", [[], [bytes(MOST_ENTRY_BYTES + 1)]])
def test_invalid_entries_are_refused(setups: Callable[[int], Setup], payloads: list[bytes]) -> None:
    setup = setups(2)
    with pytest.raises(InvalidInputError):
        setup.writer.write(payloads, CUSTOM, Replication())
    assert setup.ledgers() == []


@pytest.mark.parametrize("sizes", [(0, 0, 0), (2, 3, 2), (3, 2, 3), (2, 2, 0)])
def test_quorums_that_cannot_be(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(InvalidInputError):
        Replication(*sizes)


def test_many_large_entries_arrive(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    payloads = [bytes([number % 251]) * (300_000 + number) for number in range(40)]
    ledger_id = setup.writer.write(payloads, CUSTOM, Replication())
    answer = setup.entries.read_many(ledger_id, setup.metadata(ledger_id), map(EntryId, range(40)), bytes)
    assert [answer.found[EntryId(number)] for number in range(40)] == payloads


def test_racks_that_cannot_be_read_write_nothing(setups: Callable[[int], Setup]) -> None:
    setup = setups(2)
    setup.store.put("/bookies", b"[]")
    with pytest.raises(SidecarError, match="/bookies"):
        setup.write()
    assert setup.ledgers() == []
