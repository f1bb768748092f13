"""Addresses of bookies by their ids."""

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_addresses import bookie_address
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import BookieId

from tests.fakes.metadata import FakeMetadataStore

REGISTRATION = bytes.fromhex(
    "32200a0a6874747073657276657210b9761a093132372e302e302e31220468747470"
    "32230a06626f6f6b696510ddbc011a093132372e302e302e31220a626f6f6b69652d727063"
)


@pytest.mark.parametrize(
    ("bookie", "address"), [("127.0.0.1:3181", ("127.0.0.1", 3181)), ("bookie-0.bk.svc:1", ("bookie-0.bk.svc", 1))]
)
def test_an_id_that_is_an_address(bookie: str, address: tuple[str, int]) -> None:
    assert bookie_address(BookieId(bookie), None) == address


@pytest.mark.parametrize("folder", ["/ledgers/available", "/ledgers/available/readonly"])
def test_an_id_of_its_own_is_looked_up(folder: str) -> None:
    store = FakeMetadataStore()
    store.create(f"{folder}/bookie-a", REGISTRATION)
    assert bookie_address(BookieId("bookie-a"), store) == ("127.0.0.1", 24157)


@pytest.mark.parametrize("registration", [b"", b"\xff", REGISTRATION[:34], REGISTRATION[:-1]])
def test_a_registration_without_an_address(registration: bytes) -> None:
    store = FakeMetadataStore()
    store.create("/ledgers/available/bookie-a", registration)
    with pytest.raises(TemporaryError):
        bookie_address(BookieId("bookie-a"), store)


@pytest.mark.parametrize("bookie", ["bookie-a", "host:", "host:0", "host:65536", "host:1e3", ":3181", "host:٣", "a/b"])
def test_unknown_bookies_may_come_back(bookie: str) -> None:
    for store in (None, FakeMetadataStore()):
        with pytest.raises(TemporaryError):
            bookie_address(BookieId(bookie), store)
