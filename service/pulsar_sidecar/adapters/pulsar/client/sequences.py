"""Finds what a producer has already stored, where brokers do not deduplicate.

In ``pulsar/system`` every topic is a ``SystemTopic``, whose ``isDeduplicationEnabled`` is always false (4.0.8),
whatever its policy says. So a message with an explicit sequence id carries the id in a property, and before the first
explicit id is sent, the partition's recent messages of the same producer are read back. Invariant: an id counts as
stored only when its message was read.
"""

import pulsar

from pulsar_sidecar.adapters.pulsar.client.deliveries import SEQUENCE_ID
from pulsar_sidecar.adapters.pulsar.client.seeking import messages_since
from pulsar_sidecar.adapters.pulsar.errors import translated


def stored_sequence_ids(client: pulsar.Client, topic: str, producer_name: str, since_ms: int) -> set[int]:
    """The explicit sequence ids of this producer in the topic, published since ``since_ms`` and not trimmed yet.

    Raises:
        TemporaryError: the topic could not be read to its end.
    """
    with translated(f"reading back what {producer_name} has stored in {topic}"):
        mine = (each for each in messages_since(client, topic, since_ms) if each.producer_name() == producer_name)
        texts = (message.properties().get(SEQUENCE_ID, "") for message in mine)
        return {int(text) for text in texts if text.isascii() and text.isdigit()}
