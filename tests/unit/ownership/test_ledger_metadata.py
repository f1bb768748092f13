"""Ledger metadata in BookKeeper's three formats, and what contradicts itself."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.model.ledgers import DigestType, LedgerMetadata, LedgerState
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper

from tests.fakes.bookkeeper import delimited, ledger_metadata_bytes, schema_custom_metadata
from tests.unit.ownership import golden

HEADER_1 = b"BookieMetadataFormatVersion\t1\n"
HEADER_2 = b"BookieMetadataFormatVersion\t2\n"
HEADER_3 = b"BookieMetadataFormatVersion\t3\n"
ENSEMBLE = ("bookie-1:3181", "bookie-2:3181")


def test_an_open_ledger_as_a_broker_wrote_it() -> None:
    metadata = decode_ledger_metadata(golden.LEDGER_OF_A_CURSOR_OPEN)
    assert metadata.state is LedgerState.OPEN
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (2, 2, 2)
    assert (metadata.length_bytes, metadata.last_entry_id) == (0, -1)
    assert [(segment.first_entry_id, segment.ensemble) for segment in metadata.segments] == [
        (0, ("127.0.0.1:26323", "127.0.0.1:24157"))
    ]
    assert metadata.custom_metadata["pulsar/cursor"] == b"a+b%2Fc"
    assert metadata.digest_type is DigestType.CRC32C


def test_a_closed_ledger_with_another_digest() -> None:
    metadata = decode_ledger_metadata(golden.LEDGER_OF_A_COMPACTION)
    assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (LedgerState.CLOSED, 0, 63)
    assert metadata.digest_type is DigestType.CRC32


def test_a_password_is_read_but_never_shown() -> None:
    metadata = decode_ledger_metadata(golden.LEDGER_WITH_PASSWORD)
    assert metadata.password == b"s3cret"
    assert "s3cret" not in repr(metadata)


@given(
    st.sampled_from(LedgerState),
    st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=4),
    st.sampled_from(DigestType),
)
def test_format_3_round_trips(state: LedgerState, custom_metadata: dict[str, bytes], digest_type: DigestType) -> None:
    data = ledger_metadata_bytes(
        state, custom_metadata, digest_type=digest_type, later_ensembles={5: ["bookie-1:3181", "bookie-3:3181"]}
    )
    metadata = decode_ledger_metadata(data)
    assert (metadata.state, metadata.custom_metadata, metadata.digest_type) == (state, custom_metadata, digest_type)
    assert [segment.first_entry_id for segment in metadata.segments] == [0, 5]
    assert metadata.last_entry_id == (9 if state is LedgerState.CLOSED else -1)
    assert encode_ledger_metadata(metadata) == data


def encoded_again(data: bytes) -> bytes:
    return encode_ledger_metadata(decode_ledger_metadata(data))


@pytest.mark.parametrize(
    "data", [golden.LEDGER_OF_A_CURSOR_OPEN, golden.LEDGER_OF_A_COMPACTION, golden.LEDGER_WITH_PASSWORD]
)
def test_broker_metadata_is_reencoded_identically(data: bytes) -> None:
    assert encoded_again(data) == data


def test_metadata_without_a_digest_cannot_be_written() -> None:
    without = decode_ledger_metadata(HEADER_1 + b"2\n2\n0\n0\tbookie-1:3181\tbookie-2:3181")
    with pytest.raises(ValueError, match="digest"):
        encode_ledger_metadata(without)


def test_format_2_is_the_same_as_text() -> None:
    binary = ledger_metadata_bytes(custom_metadata=schema_custom_metadata("t/n/s"))
    message = bookkeeper.LedgerMetadataFormat.FromString(_message(binary))
    assert decode_ledger_metadata(HEADER_2 + text_format.MessageToBytes(message)) == decode_ledger_metadata(binary)


def _message(binary: bytes) -> bytes:
    body = binary.removeprefix(HEADER_3)
    return body[next(index for index, byte in enumerate(body) if byte < 0x80) + 1 :]


@pytest.mark.parametrize(
    ("ending", "state", "last_entry_id", "length_bytes"),
    [
        ("", LedgerState.OPEN, -1, 0),
        ("\n-102\tCLOSED", LedgerState.IN_RECOVERY, -1, 0),
        ("\n41\tCLOSED", LedgerState.CLOSED, 41, 4200),
        ("\n41\tCLOSED\n", LedgerState.CLOSED, 41, 4200),
    ],
)
def test_format_1(ending: str, state: LedgerState, last_entry_id: int, length_bytes: int) -> None:
    lines = "2\n2\n4200\n0\tbookie-1:3181\tbookie-2:3181\n7\tbookie-1:3181\tbookie-3:3181"
    metadata = decode_ledger_metadata(HEADER_1 + (lines + ending).encode())
    assert (metadata.state, metadata.last_entry_id, metadata.length_bytes) == (state, last_entry_id, length_bytes)
    assert [segment.ensemble for segment in metadata.segments] == [ENSEMBLE, ("bookie-1:3181", "bookie-3:3181")]
    assert (metadata.write_quorum_size, metadata.digest_type, metadata.custom_metadata) == (2, None, {})


def test_every_truncation_is_undecodable() -> None:
    for data in (golden.LEDGER_OF_A_BUCKET, golden.LEDGER_OF_A_CURSOR_OPEN):
        for length in range(len(data)):
            with pytest.raises(UndecodableError):
                decode_ledger_metadata(data[:length])


def _changed(**fields: object) -> bytes:
    message = bookkeeper.LedgerMetadataFormat.FromString(_message(ledger_metadata_bytes()))
    for name, value in fields.items():
        if value is None:
            message.ClearField(name)
        else:
            setattr(message, name, value)
    return HEADER_3 + delimited(message.SerializePartialToString())


def _resegmented(*segments: tuple[int, tuple[str, ...]]) -> bytes:
    message = bookkeeper.LedgerMetadataFormat.FromString(_message(ledger_metadata_bytes()))
    del message.segment[:]
    for first_entry_id, members in segments:
        message.segment.add(firstEntryId=first_entry_id, ensembleMember=members)
    return HEADER_3 + delimited(message.SerializeToString())


def _custom(*entries: dict[str, object]) -> bytes:
    message = bookkeeper.LedgerMetadataFormat.FromString(_message(ledger_metadata_bytes()))
    for entry in entries:
        message.customMetadata.add(**entry)
    return HEADER_3 + delimited(message.SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BookieMetadataFormatVersion\t3",
        b"BookieMetadataFormatVersion\tx\n",
        b"BookieMetadataFormatVersion\t0\n",
        b" " + ledger_metadata_bytes(),
        ledger_metadata_bytes() + b"\x00",
        HEADER_3 + b"\xff\xff\xff\xff\xff\xff",
        HEADER_3 + delimited(_message(ledger_metadata_bytes()) + b"\xf8\x01\x01"),
        HEADER_2 + b"unheard: 2",
        HEADER_1 + b"2\n2\nx\n0\ta:1\tb:1",
        HEADER_1 + b"2\n2\n0\n5\tCLOSED\n0\ta:1\tb:1",
        _changed(lastEntryId=-2),
        _changed(length=-1),
        _changed(state=None),
        _changed(ensembleSize=3),
        _changed(quorumSize=3),
        _changed(ackQuorumSize=0),
        _changed(ackQuorumSize=3),
        _resegmented(),
        _resegmented((1, ENSEMBLE)),
        _resegmented((0, ENSEMBLE), (0, ENSEMBLE)),
        _resegmented((0, ENSEMBLE), (9, ENSEMBLE), (5, ENSEMBLE)),
        _resegmented((0, ENSEMBLE[:1])),
        _custom({"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}),
    ],
)
def test_malformed_metadata_is_undecodable(data: bytes) -> None:
    with pytest.raises(UndecodableError):
        decode_ledger_metadata(data)


def test_the_ack_quorum_is_the_write_quorum_where_it_was_not_written() -> None:
    assert decode_ledger_metadata(_changed(ackQuorumSize=None)).ack_quorum_size == 2


@given(st.sampled_from([HEADER_1, HEADER_2, HEADER_3]), st.binary(max_size=80))
def test_garbage_behind_the_header(header: bytes, data: bytes) -> None:
    try:
        assert isinstance(decode_ledger_metadata(header + data), LedgerMetadata)
    except UndecodableError:
        return


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEADER_2 + b"quorumSize: 2", "a ledger's metadata lacks a required field; read it again"),
        (_changed(lastEntryId=None), "a closed ledger's metadata names no last entry; read it again"),
        (
            _custom({"value": b"1"}),
            "a ledger's custom metadata is ambiguous; inspect it with `bookkeeper shell ledgermetadata`",
        ),
    ],
)
def test_why_metadata_is_not_understood(data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError) as refusal:
        decode_ledger_metadata(data)
    assert str(refusal.value) == reason


def test_the_end_in_an_open_ledgers_node_is_not_believed() -> None:
    """Only closing fixes a ledger's end; BookKeeper reads none before either (``LedgerMetadataImpl``)."""
    read = decode_ledger_metadata(_changed(state=bookkeeper.LedgerMetadataFormat.OPEN, lastEntryId=9, length=99))
    assert (read.state, read.last_entry_id, read.length_bytes) == (LedgerState.OPEN, -1, 0)


def test_a_digest_type_that_was_not_written_is_not_made_up() -> None:
    assert decode_ledger_metadata(_changed(digestType=None)).digest_type is None


def test_single_bookie_ensemble_is_valid() -> None:
    assert decode_ledger_metadata(HEADER_1 + b"1\n1\n0\n0\ta:1\n").ensemble_size == 1


def test_a_bookies_name_may_hold_a_space() -> None:
    (segment,) = decode_ledger_metadata(HEADER_1 + b"1\n1\n0\n0\ta b:1\n").segments
    assert segment.ensemble == ("a b:1",)


def test_a_long_message_has_a_long_length() -> None:
    """128 is the first length of two bytes."""
    for size in (127, 128, 129, 300):
        padding = size - len(_message(ledger_metadata_bytes())) - 9
        message = _message(_custom({"key": "pad", "value": b"x" * padding}))
        while len(message) < size:
            padding += 1
            message = _message(_custom({"key": "pad", "value": b"x" * padding}))
        read = decode_ledger_metadata(HEADER_3 + delimited(message))
        assert read.custom_metadata == {"pad": b"x" * padding}
