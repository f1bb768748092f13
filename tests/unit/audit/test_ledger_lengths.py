"""Lengths of many ledgers at once are the lengths of each."""

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.audit.columnar.nodes import ledger_lengths
from pulsar_sidecar.audit.columnar.reader import ColumnReader
from pulsar_sidecar.ledger_ownership.ledger_metadata import ledger_length
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.wire import DataFormats_pb2 as bookkeeper

from tests.fakes.bookkeeper import cursor_custom_metadata, data_custom_metadata, delimited, ledger_metadata_bytes

HEADER = b"BookieMetadataFormatVersion\t3\n"
numbers = st.sampled_from([0, 1, 2, 3, 127, 128, 2**31 - 1, -1, -2])
texts = st.sampled_from(["application", "component", "pulsar/cursor", "short", "ungewöhnlich", "bookie-1:3181"])
CHANGED = ("quorumSize", "ensembleSize", "length", "lastEntryId", "ackQuorumSize")
LEFT_OUT = ("quorumSize", "lastEntryId", "ackQuorumSize", "digestType", "password", "cToken")


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Metadata as BookKeeper writes it, with some fields changed, left out or repeated."""
    custom = draw(
        st.sampled_from([{}, data_custom_metadata("t/n/persistent/x" * 10), cursor_custom_metadata("a", "b")])
    )
    later = draw(st.sampled_from([{}, {5: ("bookie-2:3181", "bookie-3:3181")}]))
    whole = ledger_metadata_bytes(draw(st.sampled_from(list(LedgerState))), custom, later_ensembles=later)
    message = bookkeeper.LedgerMetadataFormat()
    message.ParseFromString(whole[len(HEADER) + (1 if whole[len(HEADER)] < 0x80 else 2) :])
    for name in draw(st.sets(st.sampled_from(CHANGED), max_size=1)):
        setattr(message, name, draw(numbers))
    for name in draw(st.sets(st.sampled_from(LEFT_OUT), max_size=1)):
        message.ClearField(name)
    for _ in range(draw(st.integers(0, 1))):
        message.segment.add(ensembleMember=draw(st.lists(texts, max_size=3)), firstEntryId=draw(numbers))
    for _ in range(draw(st.integers(0, 2))):
        message.customMetadata.add(key=draw(texts), value=draw(st.sampled_from([b"", b"\xff" * 3])))
    return message.SerializePartialToString()


@st.composite
def nodes(draw: st.DrawFn) -> bytes:
    """A ledger's node, whole or damaged."""
    value = bytearray(HEADER + delimited(draw(messages())))
    if draw(st.integers(0, 3)) == 0:
        value[draw(st.integers(0, len(value) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 7)) == 0:
        value = value[: draw(st.integers(0, len(value)))]
    return bytes(value)


@given(st.lists(st.one_of(nodes(), st.binary(max_size=60), st.none()), max_size=12), st.integers(0, 2))
def test_many_lengths_at_once_are_each_ledgers(values: Sequence[bytes | None], skipped: int) -> None:
    column = pa.array([*([b"x"] * skipped), *values], pa.binary()).slice(skipped)
    for columns in (ColumnReader(), ColumnReader(exact=True)):
        assert columns.ledger_lengths(column).to_pylist() == [ledger_length(value) for value in values]


def test_what_brokers_write_is_not_left_to_the_slow_reader() -> None:
    values = [
        ledger_metadata_bytes(state, custom, length_bytes=length, later_ensembles=more)
        for state in (LedgerState.OPEN, LedgerState.CLOSED)
        for custom in ({}, data_custom_metadata("t/n/persistent/" + "x" * 200), cursor_custom_metadata("t/n/x", "sub"))
        for length in (0, 127, 2**40)
        for more in ({}, {5: ("bookie-2:3181", "bookie-3:3181")})
    ]
    found, left = ledger_lengths(pa.array(values, pa.binary()))
    assert not left.any()
    assert found.tolist() == [-1 if ledger_length(value) is None else ledger_length(value) for value in values]
