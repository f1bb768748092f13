"""What stands before a message's payload in an entry (Pulsar ``Commands.parseMessageMetadata``).

An entry begins with a broker's own metadata (magic 0x0e02) if brokers are told to add some, then a checksum of the rest
(magic 0x0e01), then the length of ``MessageMetadata``, the metadata and the payload. The checksum is not looked at: the
entry's digest covered all of it.
"""

import struct

from google.protobuf.message import DecodeError

from pulsar_sidecar.delayed_delivery.cancel.facts import Chunk, EntryFacts
from pulsar_sidecar.ledger_ownership.exact_decoding import exact_text
from pulsar_sidecar.model.errors import UndecodableError
from pulsar_sidecar.wire import PulsarApi_pb2 as api

_BROKER_ENTRY_MAGIC = b"\x0e\x02"
_CHECKSUM_MAGIC = b"\x0e\x01"
_CHECKSUM_BYTES = 4
_LENGTH = struct.Struct(">I")


def entry_facts(entry: bytes) -> EntryFacts:
    """What an entry says of itself; of a batch, what holds for all of its messages.

    Raises:
        UndecodableError: these bytes are no message as brokers store it.
    """
    metadata, payload_at = metadata_of(entry)
    return _facts(metadata, len(entry) - payload_at)


def metadata_of(entry: bytes) -> tuple[api.MessageMetadata, int]:
    """An entry's metadata, and where its payload begins.

    Raises:
        UndecodableError: these bytes are no message as brokers store it.
    """
    try:
        start, length = _metadata_place(entry)
        metadata = api.MessageMetadata()
        if length > len(entry) - start:
            raise UndecodableError("an entry ends inside its metadata; read it again")
        metadata.ParseFromString(entry[start : start + length])
    except (struct.error, DecodeError) as error:
        raise UndecodableError(f"an entry of {len(entry)} bytes holds no message ({error})") from error
    if not metadata.IsInitialized():
        raise UndecodableError(f"an entry of {len(entry)} bytes holds no message: its metadata lacks a required field")
    return metadata, start + length


def _metadata_place(entry: bytes) -> tuple[int, int]:
    position = 0
    if entry.startswith(_BROKER_ENTRY_MAGIC):
        (length,) = _LENGTH.unpack_from(entry, len(_BROKER_ENTRY_MAGIC))
        position = len(_BROKER_ENTRY_MAGIC) + _LENGTH.size + length
    if entry.startswith(_CHECKSUM_MAGIC, position):
        position += len(_CHECKSUM_MAGIC) + _CHECKSUM_BYTES
    (length,) = _LENGTH.unpack_from(entry, position)
    return position + _LENGTH.size, length


def _facts(metadata: api.MessageMetadata, payload_bytes: int) -> EntryFacts:
    batch, key, producer_name = metadata.num_messages_in_batch, metadata.partition_key, metadata.producer_name
    properties = {pair.key: pair.value for pair in metadata.properties}
    for text in (key, producer_name, *properties, *properties.values()):
        if type(text) is not str:
            exact_text(text)
    # By place and not by name, because this is the innermost step of reading very many.
    return EntryFacts(
        metadata.deliver_at_time or None,
        metadata.publish_time,
        batch if batch > 1 else None,
        _chunk(metadata) if metadata.num_chunks_from_msg > 1 else None,
        key or None,
        properties,
        producer_name,
        metadata.sequence_id,
        metadata.event_time or None,
        metadata.HasField("marker_type"),
        metadata.HasField("txnid_most_bits"),
        payload_bytes,
    )


def _chunk(metadata: api.MessageMetadata) -> Chunk:
    return Chunk(exact_text(metadata.uuid), metadata.chunk_id, metadata.num_chunks_from_msg)
