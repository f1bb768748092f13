"""Metadata before a message's payload, with and without brokers' additions."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_wire.encoding import decisive_facts, entry_facts
from pulsar_sidecar.backlog.ports import Chunk, EntryFacts
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

ENTRY_OF_A_BROKER = bytes.fromhex("0e01f554a02c000000190a096c6f63616c2d302d31100018ca90adc69f3432036b657976616c7565")
"""Written by a 4.0.8 broker: key ``key``, payload ``value``."""

texts = st.text(max_size=8)


def stored(
    metadata: api.MessageMetadata, payload: bytes = b"payload", *, checksum: bool = True, broker: bool = False
) -> bytes:
    written = metadata.SerializeToString()
    body = struct.pack(">I", len(written)) + written + payload
    entry = b"\x0e\x01" + bytes(4) + body if checksum else body
    if broker:
        added = api.BrokerEntryMetadata(broker_timestamp=7, index=9).SerializeToString()
        entry = b"\x0e\x02" + struct.pack(">I", len(added)) + added + entry
    return entry


def message(**fields: object) -> api.MessageMetadata:
    return api.MessageMetadata(producer_name="p", sequence_id=3, publish_time=5, **fields)


def test_an_entry_that_a_broker_wrote() -> None:
    facts = entry_facts(ENTRY_OF_A_BROKER)
    assert facts.key == "key"
    assert (facts.producer_name, facts.sequence_id, facts.publish_time_ms) == ("local-0-1", 0, 1795175434314)
    assert (facts.deliver_at_ms, facts.size_bytes) == (None, len("value"))


@given(
    st.booleans(), st.booleans(), st.integers(1, 2**62), texts.filter(bool), st.dictionaries(texts, texts, max_size=3)
)
def test_all_framings_read_the_same(
    checksum: bool, broker: bool, due_ms: int, key: str, properties: dict[str, str]
) -> None:
    metadata = message(deliver_at_time=due_ms, partition_key=key)
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    facts = entry_facts(stored(metadata, checksum=checksum, broker=broker))
    assert facts == EntryFacts(
        deliver_at_ms=due_ms,
        publish_time_ms=5,
        key=key,
        properties=properties,
        producer_name="p",
        sequence_id=3,
        size_bytes=7,
    )


def test_entry_facts_describe_special_messages() -> None:
    assert entry_facts(stored(message(num_messages_in_batch=4))).messages_in_batch == 4
    assert entry_facts(stored(message(num_messages_in_batch=1))).messages_in_batch is None
    assert entry_facts(stored(message(marker_type=0))).marker
    assert entry_facts(stored(message(txnid_most_bits=0, txnid_least_bits=1))).transaction
    chunk = message(uuid="u", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=9)
    assert entry_facts(stored(chunk)).chunk == Chunk("u", 0, 2)
    assert entry_facts(stored(message(event_time=8))).event_time_ms == 8


@pytest.mark.parametrize(
    "fields",
    [
        {"deliver_at_time": 9},
        {"deliver_at_time": 9, "num_messages_in_batch": 4},
        {"num_messages_in_batch": 1},
        {"marker_type": 0},
        {"txnid_most_bits": 0, "txnid_least_bits": 1},
        {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 9, "deliver_at_time": 9},
    ],
)
def test_decisive_facts_are_all_that_a_cancellation_depends_on(fields: dict[str, Any]) -> None:
    entry = stored(message(partition_key="k", **fields))
    whole = entry_facts(entry)
    others = {} if whole.chunk else {"key": None, "producer_name": "", "sequence_id": 0, "size_bytes": None}
    assert decisive_facts(entry) == whole._replace(properties=decisive_facts(entry).properties, **others)


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"\x0e",
        b"\x0e\x01",
        b"\x0e\x02\xff\xff\xff\xff",
        struct.pack(">I", 2**32 - 1) + b"x",
        stored(message())[:14],
        stored(api.MessageMetadata(producer_name="p", sequence_id=1, publish_time=2), checksum=False)[:-10],
        struct.pack(">I", 2) + b"\x0a\x05",
        bytes(4),
        stored(message(partition_key="ab")).replace(b"ab", b"\xff\xfe"),
    ],
)
def test_invalid_message_metadata_is_an_error(entry: bytes) -> None:
    with pytest.raises(UndecodableError):
        entry_facts(entry)


def test_truncated_entry_is_undecodable() -> None:
    whole = stored(message(deliver_at_time=77), broker=True)
    end_of_metadata = len(whole) - len(b"payload")
    for end in range(end_of_metadata):
        with pytest.raises(UndecodableError):
            entry_facts(whole[:end])
