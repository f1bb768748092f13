"""Batches made by hand are those that protobuf would make; chunks bear ids that a replay cannot mistake."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_wire.encoding import batched
from pulsar_sidecar.adapters.pulsar_wire.sequenced_batches import Entry, batch_payload, entries_of, varint
from pulsar_sidecar.features.publishing.messages import Batch, OutgoingMessage
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

NUMBERS = st.integers(0, 2**63 - 1) | st.sampled_from([0, 127, 128, 16383, 16384, 2**28 - 1, 2**28, 2**63 - 1])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
MESSAGES = st.builds(
    OutgoingMessage,
    st.binary(max_size=300),
    NUMBERS,
    st.none() | TEXTS,
    st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.none() | NUMBERS,
)


def entries(batch: Batch, pushed: int = -1, most_bytes: int = 5_000) -> list[Entry]:
    return list(entries_of(batch, pushed, "loader", 123, most_bytes, "a1"))


def by_protobuf(message: OutgoingMessage) -> bytes:
    metadata = api.SingleMessageMetadata(
        partition_key=message.key,
        payload_size=len(message.payload),
        event_time=message.event_time_ms,
        sequence_id=message.sequence_id,
        properties=[api.KeyValue(key=name, value=value) for name, value in message.properties.items()],
    ).SerializeToString()
    return struct.pack(">I", len(metadata)) + metadata + message.payload


@given(messages=st.lists(MESSAGES, min_size=1, max_size=5))
def test_a_batch_has_the_bytes_that_protobuf_writes(messages: list[OutgoingMessage]) -> None:
    written = batch_payload(messages)
    assert written == b"".join(map(by_protobuf, messages))
    assert [payload for _, payload in batched(written, 0, len(messages))] == [one.payload for one in messages]
    assert len(written) <= sum(message.size_bytes for message in messages)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, 2**21, 2**28, 2**35 + 1, 2**63, 2**64 - 1])
def test_varints_are_protobufs(number: int) -> None:
    assert varint(number) == api.BrokerEntryMetadata(index=number).SerializeToString()[1:]


def test_a_batch_names_its_lowest_and_its_highest_id() -> None:
    batch = Batch([OutgoingMessage(b"a", 5, "first"), OutgoingMessage(b"b", 9, "second")], 5, 9)
    (entry,) = entries(batch)
    metadata = entry.metadata
    assert (metadata.sequence_id, metadata.highest_sequence_id, metadata.num_messages_in_batch) == (5, 9, 2)
    assert (metadata.producer_name, metadata.publish_time, metadata.partition_key) == ("loader", 123, "first")
    assert (entry.judged_by, entry.is_chunk, entry.completes, entry.is_probe) == (5, False, True, False)


def test_single_message_is_not_batched() -> None:
    (entry,) = entries(Batch([OutgoingMessage(b"a", 5, "k", {"p": "v"}, 77)], 5, 5))
    metadata = entry.metadata
    assert not metadata.HasField("num_messages_in_batch")
    assert not metadata.HasField("highest_sequence_id")
    assert (metadata.sequence_id, metadata.partition_key, metadata.event_time) == (5, "k", 77)
    assert [(pair.key, pair.value) for pair in metadata.properties] == [("p", "v")]
    assert entry.payload == b"a"


@pytest.mark.parametrize(("pushed", "others_id"), [(4, 4), (-1, 2**64 - 1)])
def test_only_the_last_chunk_bears_the_messages_id(pushed: int, others_id: int) -> None:
    payload = bytes(range(256)) * 10
    chunks = entries(Batch([OutgoingMessage(payload, 5)], 5, 5), pushed, 1_000)
    assert b"".join(chunk.payload for chunk in chunks) == payload
    count = len(chunks)
    assert count > 2
    assert [chunk.metadata.sequence_id for chunk in chunks] == [others_id] * (count - 1) + [5]
    assert [chunk.judged_by for chunk in chunks] == [5] * count
    assert [chunk.completes for chunk in chunks] == [False] * (count - 1) + [True]
    assert [chunk.metadata.chunk_id for chunk in chunks] == list(range(count))
    assert {
        (one.metadata.num_chunks_from_msg, one.metadata.total_chunk_msg_size, one.metadata.uuid) for one in chunks
    } == {(count, len(payload), "loader-5-a1")}
    assert all(len(one.payload) + one.metadata.ByteSize() < 1_000 and one.is_chunk for one in chunks)


def test_of_a_message_that_was_pushed_only_the_last_chunk_is_sent() -> None:
    batch = Batch([OutgoingMessage(b"x" * 3_000, 5)], 5, 5)
    assert entries(batch, 5, 1_000) == [entries(batch, 4, 1_000)[-1]._replace(is_probe=True)]


@pytest.mark.parametrize(
    "messages",
    [
        [OutgoingMessage(b"x" * 600, 1), OutgoingMessage(b"x" * 600, 2)],
        [OutgoingMessage(b"x", 1, properties={"p": "v" * 2_000})],
    ],
)
def test_batch_that_brokers_reject_is_refused(messages: list[OutgoingMessage]) -> None:
    with pytest.raises(PermanentError, match="maxMessageSize"):
        entries(Batch(messages, 1, len(messages)), -1, 1_000)
