"""Digests against entries that 4.0.8 brokers wrote, and against every flipped byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import checked_entry, digest
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ledgers import DigestType

from tests.fakes.bookie_servers import stored_entry

COMPACTED_ENTRY_CRC32 = bytes.fromhex(
    "00000000000000080000000000000000ffffffffffffffff000000000000003f0000000073b5f7ab0000000f0807100018ffffffffffffff"
    "ffff01000000280e01f554a02c000000190a096c6f63616c2d302d31100018ca90adc69f3432036b657976616c7565"
)
DATA_ENTRY_HMAC = bytes.fromhex(
    "00000000000000070000000000000000ffffffffffffffff0000000000000028f89efa8ce2ff510e8321b1fa93f74f3a347beec30e01f554"
    "a02c000000190a096c6f63616c2d302d31100018ca90adc69f3432036b657976616c7565"
)
CURSOR_ENTRY_HMAC = bytes.fromhex(
    "00000000000000090000000000000000ffffffffffffffff000000000000000dbd1ffd6b0078b2f7f961e6bb73964addd4511e9d080710ff"
    "ffffffffffffffff01"
)


@pytest.mark.parametrize(
    ("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_crc32c(data: bytes, crc: int) -> None:
    """The check value of the algorithm, and vectors of RFC 3720."""
    assert digest(DigestType.CRC32C, data, b"") == crc.to_bytes(4, "big")


@pytest.mark.parametrize(
    ("data", "digest_type", "password", "ledger_id", "end"),
    [
        (COMPACTED_ENTRY_CRC32, DigestType.CRC32, b"", 8, b"value"),
        (DATA_ENTRY_HMAC, DigestType.HMAC, b"s3cret", 7, b"value"),
        (CURSOR_ENTRY_HMAC, DigestType.HMAC, b"s3cret", 9, b"\xff\x01"),
    ],
)
def test_entries_of_a_broker(data: bytes, digest_type: DigestType, password: bytes, ledger_id: int, end: bytes) -> None:
    stored = checked_entry(data, digest_type, password)
    assert (stored.ledger_id, stored.entry_id, stored.last_confirmed) == (ledger_id, 0, -1)
    assert stored.payload.endswith(end)


@given(st.sampled_from(DigestType), st.binary(max_size=50), st.integers(-1, 99))
def test_round_trip(digest_type: DigestType, payload: bytes, last_confirmed: int) -> None:
    data = stored_entry(5, 100, payload, last_confirmed=last_confirmed, digest_type=digest_type, password=b"p")
    stored = checked_entry(data, digest_type, b"p")
    assert (stored.payload, stored.entry_id, stored.last_confirmed) == (payload, 100, last_confirmed)


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
def test_every_flipped_byte_is_noticed(digest_type: DigestType) -> None:
    data = stored_entry(5, 1, b"payload", digest_type=digest_type)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1
        with pytest.raises(UndecodableError):
            checked_entry(bytes(damaged), digest_type, b"")


@pytest.mark.parametrize("digest_type", list(DigestType))
def test_entry_that_is_too_short_is_refused(digest_type: DigestType) -> None:
    shortest = 32 + len(digest(digest_type, b"", b""))
    for length in range(shortest):
        with pytest.raises(UndecodableError):
            checked_entry(bytes(length), digest_type, b"")


def test_another_password_and_an_unnamed_digest_are_refused() -> None:
    with pytest.raises(UndecodableError):
        checked_entry(DATA_ENTRY_HMAC, DigestType.HMAC, b"")
    with pytest.raises(UndecodableError):
        checked_entry(DATA_ENTRY_HMAC, None, b"")
