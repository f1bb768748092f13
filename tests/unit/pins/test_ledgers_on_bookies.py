"""Ledgers on bookies, read in bulk as each of them alone."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.pins import ledgers_on_bookies
from pulsar_sidecar.features.pins.ledgers_on_bookies import bytes_by_bookie, read_ledgers
from pulsar_sidecar.features.pins.reading import topic_of
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ids import BookieId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import Claim, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata

from tests.fakes.bookkeeper import cursor_custom_metadata, data_custom_metadata, ledger_metadata_bytes

FIRST, SECOND, THIRD = BOOKIES = [BookieId(f"bookie-{number}:3181") for number in (1, 2, 3)]
CUSTOM = [
    {},
    {"short": b"1"},
    data_custom_metadata("t/n/persistent/orders"),
    data_custom_metadata("t/other/persistent/orders"),
    data_custom_metadata("not a topic"),
    cursor_custom_metadata("t/n/persistent/orders", "sub"),
]
WHAT = ("ledgers", "open", "bytes")
Sums = dict[tuple[BookieId, TopicName | None, str], int]
ensembles = st.lists(st.sampled_from(BOOKIES), min_size=2, max_size=3)


@st.composite
def nodes(draw: st.DrawFn) -> bytes:
    ensemble = draw(ensembles)
    later = draw(st.just({}) | st.fixed_dictionaries({4: st.permutations(ensemble)}))
    whole = ledger_metadata_bytes(
        draw(st.sampled_from(list(LedgerState))),
        draw(st.sampled_from(CUSTOM)),
        ensemble=ensemble,
        later_ensembles=later,
        last_entry_id=draw(st.sampled_from([-1, 0, 9])),
        length_bytes=draw(st.integers(0, 2**48)),
    )
    return draw(st.just(whole) | st.sampled_from([b"", b"broken", whole[:-1], whole + b"\x00"]))


def each_alone(values: Sequence[bytes]) -> tuple[Sums, list[int]]:
    """Ledgers, open ledgers and bytes of each owner on each bookie; and the ledgers that cannot be read."""
    found: Sums = Counter()
    unreadable = []
    for number, value in enumerate(values):
        try:
            metadata = decode_ledger_metadata(value)
        except UndecodableError:
            unreadable.append(number)
            continue
        claim = read_claim(metadata.custom_metadata)
        topic = topic_of(claim) if isinstance(claim, Claim) else None
        for bookie, size_bytes in bytes_by_bookie(metadata).items():
            found[bookie, topic, "ledgers"] += 1
            found[bookie, topic, "open"] += metadata.state is not LedgerState.CLOSED
            found[bookie, topic, "bytes"] += size_bytes
    return found, unreadable


@given(st.lists(nodes(), max_size=12))
def test_ledgers_are_counted_in_bulk_as_each_of_them_alone(values: Sequence[bytes]) -> None:
    counts: list[int] = []
    found = read_ledgers([(LedgerId(number), value) for number, value in enumerate(values)], counts.append)
    assert counts == [len(values)] * bool(values)
    in_bulk: Sums = Counter()
    for bookie in BOOKIES:
        for topic, there in found.owners_on(bookie):
            in_bulk[bookie, topic, "ledgers"] = there.ledgers
            in_bulk[bookie, topic, "open"] = there.open_ledgers
            in_bulk[bookie, topic, "bytes"] = there.size_bytes
    assert (in_bulk, list(found.unreadable)) == each_alone(values)
    sums = {
        bookie: (there.ledgers, there.open_ledgers, there.size_bytes) for bookie, there in found.by_bookie().items()
    }
    assert {bookie: each for bookie, each in sums.items() if each[0]} == {
        bookie: tuple(sum(n for key, n in in_bulk.items() if key[0] == bookie and key[2] == what) for what in WHAT)
        for bookie in {key[0] for key in in_bulk}
    }


def test_of_like_ledgers_the_exact_decoder_reads_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(
        ledgers_on_bookies, "decode_ledger_metadata", lambda data: read.append(data) or decode_ledger_metadata(data)
    )
    values = [ledger_metadata_bytes(custom_metadata=CUSTOM[2 + number % 2], length_bytes=number) for number in range(9)]
    read_ledgers([(LedgerId(number), value) for number, value in enumerate(values)], lambda _: None)
    assert len(read) == 2


def test_a_bookie_holds_its_share_of_each_stretch() -> None:
    striped = ledger_metadata_bytes(ensemble=[FIRST, SECOND, THIRD], length_bytes=3_000)
    assert bytes_by_bookie(decode_ledger_metadata(striped)) == {FIRST: 2_000, SECOND: 2_000, THIRD: 2_000}
    moved = ledger_metadata_bytes(later_ensembles={4: [FIRST, THIRD]}, last_entry_id=9, length_bytes=1_000)
    assert bytes_by_bookie(decode_ledger_metadata(moved)) == {FIRST: 1_000, SECOND: 400, THIRD: 600}
    empty = ledger_metadata_bytes(last_entry_id=-1, length_bytes=0)
    assert bytes_by_bookie(decode_ledger_metadata(empty)) == {FIRST: 0, SECOND: 0}
