"""The error when something is not understood: it must name what was odd, and what to do about it."""

from collections.abc import Callable

import pytest
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.ownership.compaction import CompactedLedgers, CursorLedgerGoneError
from pulsar_sidecar.ownership.exact_decoding import decode_exactly, exact_text
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import (
    cursor_references,
    managed_ledger_references,
    position_entry_compacted_ledger,
)
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.bookkeeper import FakeLedgerEntries, cursor_bytes, ledger_metadata_bytes, managed_ledger_bytes
from tests.fakes.metadata import FakeMetadataStore

HEADER = b"BookieMetadataFormatVersion\t"


def managed_ledger(**context: object) -> bytes:
    info = ml.ManagedLedgerInfo()
    offload = info.ledgerInfo.add(ledgerId=3).offloadContext
    for name, value in context.items():
        setattr(offload, name, value)
    return info.SerializeToString()


def segmented(**segment: object) -> bytes:
    info = ml.ManagedLedgerInfo()
    info.ledgerInfo.add(ledgerId=3).offloadContext.offloadSegment.add(**segment)  # type: ignore[arg-type]
    return info.SerializeToString()


def cursor(*values: str) -> bytes:
    info = ml.ManagedCursorInfo(cursorsLedgerId=-1)
    for value in values:
        info.cursorProperties.add(name="#pulsar.internal.delayed.bucket_1_2", value=value)
    return info.SerializeToString()


def position(*values: int) -> bytes:
    info = ml.PositionInfo(ledgerId=1, entryId=1)
    for value in values:
        info.properties.add(name="CompactedTopicLedger", value=value)
    return info.SerializeToString()


NO_ATTEMPT = "an offloaded ledger names no offload attempt; inspect its managed ledger's node with zkCli.sh"
NO_SEGMENT = "an offloaded segment names no offload attempt; inspect its managed ledger's node with zkCli.sh"
TWICE = "a node names the same thing twice, which Pulsar never does; inspect it with zkCli.sh"


@pytest.mark.parametrize(
    ("reader", "data", "reason"),
    [
        (decode_ledger_metadata, b"{}", "a ledger's node does not start with BookKeeper's header; read it again"),
        (
            decode_ledger_metadata,
            HEADER + b"4\n",
            "ledger metadata format 4 is not known to this version; upgrade first",
        ),
        (decode_ledger_metadata, HEADER + b"3\n\x02a", "a ledger's node holds 1 byte, not 2; read it again"),
        (decode_ledger_metadata, HEADER + b"3\n\xff", "a ledger's node ends inside its length; read it again"),
        (decode_ledger_metadata, HEADER + b"2\n\xff", "a ledger's node is not text metadata ('utf-8' codec can't"),
        (decode_ledger_metadata, HEADER + b"1\n2\n2\n", "a ledger's node is not version 1 metadata; read it again"),
        (decode_ledger_metadata, HEADER + b"1\n\xff", "a ledger's node is not text metadata; read it again"),
        (
            decode_ledger_metadata,
            HEADER + b"1\n2\n2\n0\n0\ta:1\tb:1\n5\tCLOSED\n6\tCLOSED",
            "a ledger's node ends more than once; read it again",
        ),
        (
            decode_ledger_metadata,
            HEADER + b"1\n2\n2\n0\n1\ta:1\tb:1",
            "a ledger's ensembles contradict its metadata; inspect it with `bookkeeper shell ledgermetadata`",
        ),
        (
            decode_ledger_metadata,
            HEADER + b"1\n3\n2\n0\n0\ta:1\tb:1",
            "a ledger's metadata contradicts itself; inspect it with `bookkeeper shell ledgermetadata`",
        ),
        (managed_ledger_references, managed_ledger(complete=True), NO_ATTEMPT),
        (managed_ledger_references, managed_ledger(bookkeeperDeleted=True), NO_ATTEMPT),
        (managed_ledger_references, managed_ledger(complete=True, uidMsb=1), NO_ATTEMPT),
        (managed_ledger_references, managed_ledger(complete=True, uidLsb=1), NO_ATTEMPT),
        (managed_ledger_references, segmented(complete=True, assignedTimestamp=1), NO_SEGMENT),
        (managed_ledger_references, segmented(uidMsb=1), NO_SEGMENT),
        (managed_ledger_references, managed_ledger_bytes([5]) * 2, TWICE),
        (cursor_references, cursor("5", "6"), TWICE),
        (cursor_references, cursor("x"), "'x' is not a ledger id; inspect the cursor's node with zkCli.sh"),
        (cursor_references, cursor(str(2**63)), f"{2**63} is not a ledger id; inspect the node with zkCli.sh"),
        (
            position_entry_compacted_ledger,
            position(5, 6),
            "a cursor names 2 compacted ledgers; inspect it with zkCli.sh",
        ),
        (position_entry_compacted_ledger, position(-2), "-2 is not a ledger id; inspect the node with zkCli.sh"),
        (position_entry_compacted_ledger, b"\xff", "1 bytes are not a PositionInfo; read the node again"),
        (
            position_entry_compacted_ledger,
            position() + b"\xf8\x01\x01",
            "PositionInfo has a field that this version does not know; upgrade first",
        ),
    ],
)
def test_why_bytes_are_not_understood(reader: Callable[[bytes], object], data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableError) as refusal:
        reader(data)
    assert str(refusal.value).startswith(reason)
    assert len(str(refusal.value)) == len(reason) or "codec" in reason


def test_why_a_message_or_a_text_is_not_understood() -> None:
    with pytest.raises(UndecodableError, match=r"^ManagedCursorInfo lacks a required field; read it again$"):
        decode_exactly(ml.ManagedCursorInfo, b"")
    with pytest.raises(UndecodableError, match=r"^b'.xff' is not a UTF-8 string; read it again$"):
        exact_text(b"\xff")


def test_why_nothing_is_known_of_a_compacted_ledger() -> None:
    store, entries = FakeMetadataStore(), FakeLedgerEntries()
    compacted = CompactedLedgers(store, entries, "/ledgers")
    with pytest.raises(CursorLedgerGoneError, match=r"^the compaction cursor's ledger 7 has no metadata$"):
        compacted.referenced(cursor_references(cursor_bytes(7)))
    store.put(ledger_path(LedgerId(7)), ledger_metadata_bytes(state=LedgerState.OPEN))
    with pytest.raises(TemporaryError, match=r"^no bookie holds an entry of the compaction cursor's ledger 7$"):
        compacted.referenced(cursor_references(cursor_bytes(7)))
