"""Entries that a broker would delay, read from bookies: everything or an error."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_connections import BookieConnections
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.pulsar_wire.delayed_entries import BookieDelayTimes
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerMetadata
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api
from pyroaring import BitMap

from tests.fakes.bookie_servers import FakeBookie
from tests.fakes.bookkeeper import ledger_metadata_bytes

LEDGER = LedgerId(27)
DUE = 1_800_000_000_000


def entry(**fields: Any) -> bytes:
    """A message's entry without a checksum."""
    metadata = api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, **fields).SerializeToString()
    return struct.pack(">I", len(metadata)) + metadata + b"payload"


@pytest.fixture
def bookie() -> Iterator[FakeBookie]:
    with FakeBookie() as opened:
        yield opened


@pytest.fixture
def times() -> Iterator[BookieDelayTimes]:
    entries = BookieEntries(BookieConnections(connect_timeout_seconds=1, read_timeout_seconds=0.5))
    yield BookieDelayTimes(entries)
    entries.close()


def metadata(bookie: FakeBookie, last: int) -> LedgerMetadata:
    return decode_ledger_metadata(
        ledger_metadata_bytes(last_entry_id=last, ensemble=[bookie.bookie_id], write_quorum_size=1, ack_quorum_size=1)
    )


def test_only_what_a_tracker_would_hold_by_itself(bookie: FakeBookie, times: BookieDelayTimes) -> None:
    stored = [
        entry(deliver_at_time=DUE),
        entry(),
        entry(deliver_at_time=DUE + 1, txnid_most_bits=0, txnid_least_bits=3),
        entry(deliver_at_time=DUE + 2, marker_type=10),
        entry(deliver_at_time=-5),
        entry(deliver_at_time=DUE - 3, num_messages_in_batch=4),
        entry(deliver_at_time=DUE + 9),
    ]
    for number, data in enumerate(stored):
        bookie.store(LEDGER, number, data)
    found = times.delayed(LEDGER, metadata(bookie, 6), BitMap(range(6)))
    assert found.deliver_at_ms.tolist() == [DUE, DUE - 3]
    assert [tuple(position) for position in found.positions()] == [(LEDGER, 0), (LEDGER, 5)]
    assert len(times.delayed(LEDGER, metadata(bookie, 6), BitMap())) == 0


@pytest.mark.parametrize("data", [None, b"no message at all"])
def test_an_entry_that_is_not_read_is_an_error(bookie: FakeBookie, times: BookieDelayTimes, data: bytes | None) -> None:
    bookie.store(LEDGER, 0, entry(deliver_at_time=DUE))
    if data is not None:
        bookie.store(LEDGER, 1, data)
    with pytest.raises(TemporaryError, match=rf"entry {LEDGER}:1 cannot be read"):
        times.delayed(LEDGER, metadata(bookie, 1), BitMap([0, 1]))
