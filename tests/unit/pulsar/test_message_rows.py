"""One row for each message of an entry, with its own sequence id, whatever is around it."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_wire.message_rows import MessageRows, replayed_entries
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.features.duplicates.rows import WHOLE_BATCH, MessageKind, MessageRow, PayloadState
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerEntry, UnseenEntries
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.stored_batches import COMPRESSORS, stored_batch, stored_message
from tests.fakes.stored_topics import StoredTopic

READ, ENCRYPTED, UNDECODABLE, INCOMPLETE = PayloadState
KEYS = [{"key": "k", "value": b"secret"}]


def rows(*entries: bytes, decoder: MessageRows | None = None) -> list[MessageRow]:
    decoder = decoder or MessageRows()
    return [
        row
        for number, entry in enumerate(entries)
        for row in decoder.of(LedgerEntry(LedgerId(4), EntryId(number), entry))
    ]


def row(entry: bytes) -> MessageRow:
    (only,) = rows(entry)
    return only


def test_a_message_that_is_in_no_batch() -> None:
    shown = row(stored_message(b"payload", sequence_id=7, publish_time=99))
    expected = ("p", 7, 4, 0, 0, 1, -1, 1, 99, shown.payload_hash, MessageKind.MESSAGE, READ, None)
    assert shown == expected
    assert -(2**63) <= shown.payload_hash < 2**63


@given(
    st.sampled_from(sorted(COMPRESSORS)),
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=40)), min_size=1, max_size=9),
)
def test_a_batch_is_opened(compression: str, messages: list[tuple[int, bytes]]) -> None:
    shown = rows(stored_batch(messages, compression))
    assert [each.sequence_id % 2**64 for each in shown] == [sequence_id for sequence_id, _ in messages]
    assert [each.batch_index for each in shown] == list(range(len(messages)))
    assert {(each.batch_size, each.payload_state, each.entry_id) for each in shown} == {(len(messages), READ, 0)}
    alone = [row(stored_message(payload)).payload_hash for _, payload in messages]
    assert [each.payload_hash for each in shown] == alone


@pytest.mark.parametrize("compression", sorted(COMPRESSORS))
def test_a_payload_is_the_same_however_it_is_compressed(compression: str) -> None:
    payload = b"some payload" * 9
    assert row(stored_message(payload, compression)).payload_hash == row(stored_message(payload)).payload_hash


def test_ids_are_as_java_has_them() -> None:
    assert row(stored_message(b"", sequence_id=2**64 - 1)).sequence_id == -1


def test_a_batch_whose_messages_carry_no_ids_is_one_row() -> None:
    entry = stored_batch([(None, b"a"), (None, b"b")], sequence_id=30, highest_sequence_id=31)
    shown = row(entry)
    assert (shown.sequence_id, shown.batch_index, shown.batch_size, shown.payload_state) == (30, WHOLE_BATCH, 2, READ)
    assert shown.payload_hash == row(entry).payload_hash != row(stored_batch([(None, b"a"), (None, b"c")])).payload_hash
    single = row(stored_batch([(None, b"a")], sequence_id=30))
    assert (single.sequence_id, single.batch_index) == (30, 0), "of one message there is no doubt"


@pytest.mark.parametrize(
    ("entry", "batch_index", "state"),
    [
        (stored_message(b"x", encryption_keys=KEYS), 0, ENCRYPTED),
        (stored_batch([(3, b"x"), (4, b"y")], encryption_keys=KEYS), WHOLE_BATCH, ENCRYPTED),
        (stored_batch([(3, b"x")], encryption_keys=KEYS), 0, ENCRYPTED),
        (stored_batch([(3, b"x")], "LZ4")[:-3], 0, UNDECODABLE),
        (stored_message(b"x" * 9, "ZLIB")[:-8], 0, UNDECODABLE),
        (stored_message(b"x" * 9, "ZSTD")[:-8], 0, UNDECODABLE),
        (stored_batch([(3, b"x"), (4, b"y")], "LZ4")[:-3], WHOLE_BATCH, UNDECODABLE),
        (stored_batch([(3, b"x"), (4, b"y")])[:-1], WHOLE_BATCH, UNDECODABLE),
        (stored_message(b"no batch", num_messages_in_batch=2), WHOLE_BATCH, UNDECODABLE),
        (stored_message(b"", num_messages_in_batch=0), WHOLE_BATCH, UNDECODABLE),
    ],
)
def test_message_that_cannot_be_opened_is_an_unreadable_row(
    entry: bytes, batch_index: int, state: PayloadState
) -> None:
    shown = row(entry)
    assert (shown.sequence_id, shown.batch_index, shown.payload_state, shown.payload_hash) == (3, batch_index, state, 0)


@pytest.mark.parametrize(
    ("entry", "batch_index"), [(stored_message(b"x"), 0), (stored_batch([(3, b"x"), (4, b"y")]), WHOLE_BATCH)]
)
def test_a_payload_compressed_in_an_unknown_way_is_not_taken_for_plain(entry: bytes, batch_index: int) -> None:
    (length,) = struct.unpack_from(">I", entry, 6)
    head = entry[10 : 10 + length] + bytes([api.MessageMetadata.COMPRESSION_FIELD_NUMBER << 3, 9])
    shown = row(entry[:6] + struct.pack(">I", len(head)) + head + entry[10 + length :])
    assert (shown.sequence_id, shown.batch_index, shown.payload_state) == (3, batch_index, UNDECODABLE)


@pytest.mark.parametrize("compression", ["LZ4", "ZLIB", "ZSTD", "SNAPPY"])
@pytest.mark.parametrize("promised", [1, 99, 2**32 - 1])
def test_a_wrong_size_is_not_believed(compression: str, promised: int) -> None:
    assert row(stored_message(b"abc", compression, uncompressed_size=promised)).payload_state is UNDECODABLE


def test_kinds() -> None:
    kinds = {
        MessageKind.MARKER: {"marker_type": 21, "txnid_most_bits": 0, "txnid_least_bits": 1},
        MessageKind.TRANSACTIONAL: {"txnid_most_bits": 0, "txnid_least_bits": 1},
        MessageKind.REPLICATED: {"replicated_from": "west"},
    }
    for kind, fields in kinds.items():
        shown = row(stored_message(b"", **fields))
        assert (shown.kind, shown.replicated_from) == (kind, fields.get("replicated_from"))


def chunk(number: int, of: int, payload: bytes, uuid: str = "p-3", **fields: object) -> bytes:
    return stored_message(payload, chunk_id=number, num_chunks_from_msg=of, uuid=uuid, **fields)


def test_a_chunked_message_is_known_by_all_its_chunks() -> None:
    first, second, last = (chunk(number, 3, b"%d" % number) for number in range(3))
    shown = rows(first, second, last)
    assert [(each.chunk_id, each.chunks) for each in shown] == [(0, 3), (1, 3), (2, 3)]
    assert [each.is_compared for each in shown] == [False, False, True]
    whole = shown[-1]
    assert whole.payload_state is READ
    other = rows(first, chunk(1, 3, b"another"), last)[-1]
    assert (other.payload_state, other.payload_hash == whole.payload_hash) == (READ, False)


def test_chunks_that_were_sent_again() -> None:
    first, second, last = (chunk(number, 3, b"%d" % number) for number in range(3))
    decoder = MessageRows()
    whole = rows(first, second, second, last, decoder=decoder)[-1]
    again = rows(first, second, last, decoder=decoder)
    assert {each.payload_hash for each in (again[-1], rows(last, decoder=decoder)[-1])} == {whole.payload_hash}


def test_another_message_of_the_same_uuid_is_another_message() -> None:
    decoder = MessageRows()
    whole = rows(chunk(0, 2, b"a"), chunk(1, 2, b"b"), decoder=decoder)[-1]
    other = rows(chunk(0, 2, b"a"), chunk(1, 2, b"c"), decoder=decoder)[-1]
    assert (other.payload_state, other.payload_hash == whole.payload_hash) == (READ, False)
    rows(chunk(0, 2, b"never ended"), decoder=decoder)
    again = rows(chunk(0, 2, b"a"), chunk(1, 2, b"b"), decoder=decoder)[-1]
    assert (again.payload_state, again.payload_hash) == (READ, whole.payload_hash)


def test_chunks_that_were_not_all_seen() -> None:
    assert rows(chunk(1, 3, b"1"), chunk(2, 3, b"2"))[-1].payload_state is INCOMPLETE
    assert rows(chunk(0, 2, b"1"), chunk(1, 2, b"2", uuid="another"))[-1].payload_state is INCOMPLETE
    encrypted = rows(chunk(0, 2, b"1", encryption_keys=KEYS), chunk(1, 2, b"2", encryption_keys=KEYS))
    assert {each.payload_state for each in encrypted} == {ENCRYPTED}


def test_few_chunked_messages_are_remembered() -> None:
    decoder = MessageRows()
    rows(chunk(0, 2, b"old", uuid="old"), decoder=decoder)
    rows(*(chunk(0, 2, b"", uuid=str(number)) for number in range(10_000)), decoder=decoder)
    assert rows(chunk(1, 2, b"", uuid="old"), decoder=decoder)[0].payload_state is INCOMPLETE


# --- entries as a broker replays them --------------------------------------------------------------------------------


def _entry(sequence_id: int, highest: int | None = None, *, marker: bool = False, broker: bytes = b"") -> bytes:
    metadata = api.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=5)
    if highest is not None:
        metadata.highest_sequence_id = highest
    if marker:
        metadata.marker_type = 20
    data = metadata.SerializeToString()
    prefix = b"\x0e\x02" + struct.pack(">I", len(broker)) + broker if broker else b""
    return prefix + b"\x0e\x01" + b"\0\0\0\0" + struct.pack(">I", len(data)) + data + b"payload"


@pytest.mark.parametrize(
    ("entry", "sequence_id"),
    [
        (_entry(7), 7),
        (_entry(7, 9), 9),
        (_entry(7, 3), 7),
        (_entry(7, broker=b"broker's"), 7),
        (_entry(2**63 - 1), 2**63 - 1),
        # As Java's ``long`` it is the least number, and the highest id that is not set is 0.
        (_entry(2**63), 0),
        (_entry(2**63, 2**63), -(2**63)),
        (_entry(2**64 - 1, 2**64 - 1), -1),
    ],
)
def test_ids_are_javas(entry: bytes, sequence_id: int) -> None:
    with StoredTopic() as topic:
        topic.add(3, [entry])
        (found,) = replayed_entries(topic.reader(), topic.name, Position(LedgerId(3), EntryId(0)))
        assert found == ReplayedEntry(Position(LedgerId(3), EntryId(0)), "p", sequence_id, 5, is_marker=False)


def test_from_one_position_to_the_end() -> None:
    with StoredTopic() as topic:
        topic.add(3, [_entry(1), _entry(2), b"no message"])
        topic.offload(topic.add(4, [_entry(3)]))
        topic.add(5, [_entry(4, marker=True)], closed=False)
        entries = topic.reader()
        second, odd, unseen, marker = replayed_entries(entries, topic.name, Position(LedgerId(3), EntryId(1)))
        assert isinstance(second, ReplayedEntry)
        assert second.sequence_id == 2
        assert isinstance(odd, UndecodableEntry)
        assert odd.position == (3, 2)
        assert isinstance(unseen, UnseenEntries)
        assert isinstance(marker, ReplayedEntry)
        assert marker.is_marker
        with pytest.raises(NotFoundError):
            list(replayed_entries(entries, parse_topic_name("persistent://public/default/none"), second.position))
