"""Stored messages of the fake topics, with a broker's deduplication by producer name and sequence id (PIP-6)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pulsar_sidecar.features.ledger_deletion.ports import (
    SYSTEM_NAMESPACE,
    DeletionTopic,
    Delivery,
    OutgoingMessage,
    PublishResult,
)
from pulsar_sidecar.model.errors import InvalidInputError


@dataclass(slots=True)
class StoredMessage:
    """A message of a topic; ``deliver_at_ms`` is None without a delay."""

    message_id: str
    topic: str
    payload: bytes
    key: str | None
    properties: dict[str, str]
    publish_time_ms: int
    deliver_at_ms: int | None
    producer_name: str
    sequence_id: int
    acknowledged: bool = False
    holder: object | None = None
    not_before_ms: int = 0
    redelivery_count: int = 0
    event_time_ms: int | None = None

    def delivery(self) -> Delivery:
        return Delivery(
            handle=self.message_id,
            payload=self.payload,
            key=self.key,
            properties=dict(self.properties),
            message_id=self.message_id,
            topic=self.topic,
            publish_time_ms=self.publish_time_ms,
            redelivery_count=self.redelivery_count,
            event_time_ms=self.event_time_ms,
        )


@dataclass(slots=True)
class MessageLog:
    """A partition or an unpartitioned topic."""

    uri: str
    ledger_id: int
    partition_index: int
    messages: list[StoredMessage] = field(default_factory=list)
    last_sequence_ids: dict[str, int] = field(default_factory=dict)

    def append(self, message: OutgoingMessage, producer_name: str, now_ms: int) -> PublishResult:
        last = self.last_sequence_ids.get(producer_name, -1)
        sequence_id = last + 1 if message.sequence_id is None else message.sequence_id
        if sequence_id <= last:
            return PublishResult.ALREADY_STORED
        self.last_sequence_ids[producer_name] = sequence_id
        delay = message.deliver_after_ms
        self.messages.append(
            StoredMessage(
                message_id=f"{self.ledger_id}:{len(self.messages)}:{self.partition_index}",
                topic=self.uri,
                payload=message.payload,
                key=message.key,
                properties=dict(message.properties),
                publish_time_ms=now_ms,
                deliver_at_ms=None if not delay else now_ms + delay,
                producer_name=producer_name,
                sequence_id=sequence_id,
                event_time_ms=message.event_time_ms,
            )
        )
        return PublishResult.STORED

    def waiting(self) -> list[StoredMessage]:
        return [message for message in self.messages if not message.acknowledged]


def message_logs(topic: DeletionTopic, number: int, partitions: int) -> list[MessageLog]:
    uri = f"persistent://{SYSTEM_NAMESPACE}/{topic.value}"
    if topic is not DeletionTopic.PENDING:
        return [MessageLog(uri, 100 * (number + 1), -1)]
    return [MessageLog(f"{uri}-partition-{index}", 100 * (number + 1) + index, index) for index in range(partitions)]


def check_ids(messages: Sequence[OutgoingMessage]) -> None:
    ids = [message.sequence_id for message in messages if message.sequence_id is not None]
    if ids and len(ids) != len(messages):
        raise InvalidInputError("give every message of a call a sequence id, or none of them")
    if ids and (ids[0] < 0 or any(later <= earlier for earlier, later in pairwise(ids))):
        raise InvalidInputError("sequence ids must not be negative, and must ascend within a call")
