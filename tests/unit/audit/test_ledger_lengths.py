"""Lengths of many ledgers at once are the lengths of each."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.audit.columnar.nodes import ledger_lengths
from pulsar_sidecar.features.audit.columnar.reader import ColumnReader
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.ownership.ledger_metadata import ledger_length
from pulsar_sidecar.protobuf import DataFormats_pb2 as bookkeeper

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
def test_length_column_is_read_like_single_ledgers(values: Sequence[bytes | None], skipped: int) -> None:
    column = pa.array([*([b"x"] * skipped), *values], pa.binary()).slice(skipped)
    for columns in (ColumnReader(), ColumnReader(exact=True)):
        assert columns.ledger_lengths(column).to_pylist() == [ledger_length(value) for value in values]


def metadata(
    *segments: tuple[int, Sequence[str]], left_out: str = "", **changed: int
) -> bookkeeper.LedgerMetadataFormat:
    """A closed ledger's, with more segments, a field left out, and others changed."""
    whole = ledger_metadata_bytes()
    message = bookkeeper.LedgerMetadataFormat.FromString(whole[len(HEADER) + 1 :])
    for first_entry_id, members in segments:
        message.segment.add(ensembleMember=members, firstEntryId=first_entry_id)
    if left_out:
        message.ClearField(left_out)  # type: ignore[arg-type]
    for name, value in changed.items():
        setattr(message, name, value)
    return message


def with_custom(*entries: tuple[str, bytes | None]) -> bookkeeper.LedgerMetadataFormat:
    message = metadata()
    for key, value in entries:
        message.customMetadata.add(key=key, value=value)
    return message


TWO = ("bookie-2:3181", "bookie-3:3181")
LONG, OTHER, THIRD = "a-long-key-1", "a-long-key-2", "a-third-long-key"
PLAIN = {
    "nothing changed": metadata(),
    "one acknowledgement": metadata(ackQuorumSize=1),
    "no acknowledgements told": metadata(left_out="ackQuorumSize"),
    "a time": metadata(ctime=1_700_000_000_000),
    "no digest": metadata(left_out="digestType"),
    "the last digest": metadata(digestType=4),
    "no password": metadata(left_out="password"),
    "no token": metadata(left_out="cToken"),
    "open, without a last entry": metadata(left_out="lastEntryId", state=1),
    "in recovery": metadata(state=2),
    "two more ensembles": metadata((4, TWO), (9, TWO)),
    "the shortest key": with_custom(("12345678", b"")),
    "three keys": with_custom((LONG, b"1"), (OTHER, b"2"), (THIRD, b"\xff" * 40)),
}
ODD = {
    "no acknowledgements": metadata(ackQuorumSize=0),
    "closed, without a last entry": metadata(left_out="lastEntryId"),
    "no state": metadata(left_out="state"),
    "no length": metadata(left_out="length"),
    "no quorum": metadata(left_out="quorumSize"),
    "ensembles that begin together": metadata((4, TWO), (4, TWO)),
    "ensembles in another order": metadata((4, TWO), (3, TWO)),
    "a second ensemble from the first entry": metadata((0, TWO)),
    "an ensemble of one": metadata((4, TWO[:1])),
    "an ensemble of three": metadata((4, (*TWO, "bookie-4:3181"))),
    "a bookie beyond ASCII": metadata((4, ("b\u00fccher:3181", "bookie-2:3181"))),
    "no ensemble": metadata(left_out="segment"),
    "a short key": with_custom(("1234567", b"")),
    "a key beyond ASCII": with_custom(("a-key-\u00fc-long", b"")),
    "a key twice": with_custom((LONG, b"1"), (LONG, b"2")),
    "a key again, after another": with_custom((LONG, b"1"), (OTHER, b"2"), (LONG, b"3")),
    "a key again, before another": with_custom((LONG, b"1"), (LONG, b"2"), (OTHER, b"3")),
    "a key without a value": with_custom((LONG, None)),
    "the second key without a value": with_custom((OTHER, b"1"), (LONG, None)),
}


def test_each_form_of_metadata_is_read_as_alone() -> None:
    forms = PLAIN | ODD
    values = [HEADER + delimited(message.SerializePartialToString()) for message in forms.values()]
    # One entry of custom metadata in another order, with another field, and with nothing in it.
    whole = metadata().SerializePartialToString()
    for entry in (b"\x12\x01x" + b"\x0a\x0c" + LONG.encode(), b"\x0a\x0c" + LONG.encode() + b"\x12\x00\x18\x01", b""):
        custom = b"\x5a" + delimited(entry)
        values.append(HEADER + delimited(whole[:-2] + custom + whole[-2:]))
    exact = [ledger_length(value) for value in values]
    for alone_or_not in (values, [*values, *values]):
        column = pa.array(alone_or_not, pa.binary())
        assert ColumnReader().ledger_lengths(column).to_pylist() == exact * (len(alone_or_not) // len(values))
    found, left = ledger_lengths(pa.array(values, pa.binary()))
    assert found.dtype == np.int64
    assert left.tolist() == [name in ODD for name in forms] + [True] * 3
