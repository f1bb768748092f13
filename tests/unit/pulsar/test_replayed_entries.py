"""Entries on bookies as a broker replays them: ids as Java sees them, markers, and what is no message."""

import struct

import pytest
from pulsar_sidecar.adapters.pulsar_wire.message_rows import BookieReplayedEntries
from pulsar_sidecar.features.deduplication.ports import ReplayedEntry, UndecodableEntry
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import UnseenEntries
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

from tests.fakes.stored_topics import StoredTopic


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
        (found,) = BookieReplayedEntries(topic.reader()).read(topic.name, Position(LedgerId(3), EntryId(0)))
        assert found == ReplayedEntry(Position(LedgerId(3), EntryId(0)), "p", sequence_id, 5, is_marker=False)


def test_from_one_position_to_the_end() -> None:
    with StoredTopic() as topic:
        topic.add(3, [_entry(1), _entry(2), b"no message"])
        topic.offload(topic.add(4, [_entry(3)]))
        topic.add(5, [_entry(4, marker=True)], closed=False)
        reading = BookieReplayedEntries(topic.reader())
        second, odd, unseen, marker = reading.read(topic.name, Position(LedgerId(3), EntryId(1)))
        assert isinstance(second, ReplayedEntry)
        assert second.sequence_id == 2
        assert isinstance(odd, UndecodableEntry)
        assert odd.position == (3, 2)
        assert isinstance(unseen, UnseenEntries)
        assert isinstance(marker, ReplayedEntry)
        assert marker.is_marker
        with pytest.raises(NotFoundError):
            list(reading.read(parse_topic_name("persistent://public/default/none"), Position(LedgerId(3), EntryId(0))))
