"""Reads the outcomes back, from a time on to the end as it was when the reading began.

Invariant: the reading is complete or fails; what is published while it runs is not waited for.
"""

from collections.abc import Iterator
from typing import Final

import pulsar

from service.adapters.pulsar.deliveries import position_of
from service.adapters.pulsar.errors import translated
from service.adapters.pulsar.seeking import has_more, reader_since
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.model.ids import EntryId, LedgerId
from service.model.names import TopicName
from service.model.positions import Position

_READ_TIMEOUT_MS: Final = 30_000


def read_outcomes(client: pulsar.Client, admin: BrokerTopicAdmin, topic: TopicName, since_ms: int) -> Iterator[bytes]:
    """The payloads published at ``since_ms`` or later, oldest first.

    Raises:
        TemporaryError: the topic could not be read to its end.
    """
    ledger, entry = admin.last_message_id(topic)
    end = Position(LedgerId(ledger), EntryId(entry))
    with translated(f"reading {topic}"):
        reader = reader_since(client, str(topic), since_ms)
        try:
            while has_more(reader):
                message = reader.read_next(_READ_TIMEOUT_MS)
                if position_of(message.message_id()) > end:
                    return
                if message.publish_timestamp() >= since_ms:
                    yield message.data()
        finally:
            reader.close()
