"""Turns the client's messages into deliveries, message ids spelled as Java spells them."""

from typing import Final

import _pulsar
import pulsar

from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.model.errors import PermanentError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position

SEQUENCE_ID: Final = "PULSAR_SIDECAR_SEQUENCE_ID"
"""The property in which an explicit sequence id travels where brokers do not deduplicate."""


def delivery_of(message: pulsar.Message) -> Delivery:
    """The message as the workflow sees it; its handle is the client's own message id."""
    # Past the client's wrapper, which adds a call of its own to each of these.
    raw = message._message
    message_id = raw.message_id()
    properties = raw.properties()
    properties.pop(SEQUENCE_ID, None)
    return Delivery(
        handle=message_id,
        payload=raw.data(),
        key=raw.partition_key() or raw.ordering_key() or None,
        properties=properties,
        message_id=java_message_id(message_id),
        topic=raw.topic_name(),
        publish_time_ms=raw.publish_timestamp(),
        redelivery_count=max(0, raw.redelivery_count()),
        event_time_ms=raw.event_timestamp() or None,
    )


def java_message_id(message_id: _pulsar.MessageId) -> str:
    """``ledgerId:entryId:partitionIndex[:batchIndex]`` (``MessageIdImpl``, ``BatchMessageIdImpl``)."""
    text = f"{message_id.ledger_id()}:{message_id.entry_id()}:{message_id.partition()}"
    batch_index = message_id.batch_index()
    return f"{text}:{batch_index}" if batch_index >= 0 else text


def handle_of(delivery: Delivery) -> _pulsar.MessageId:
    """The client's message id that `delivery_of` put there.

    Raises:
        PermanentError: the delivery was made elsewhere.
    """
    if not isinstance(delivery.handle, _pulsar.MessageId):
        raise PermanentError(f"{delivery.message_id} was not received here, so it cannot be acknowledged here")
    return delivery.handle


def position_of(message_id: _pulsar.MessageId) -> Position:
    """The entry that holds the message."""
    return Position(LedgerId(message_id.ledger_id()), EntryId(message_id.entry_id()))
