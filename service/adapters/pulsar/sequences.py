"""Finds what a producer has already stored, where brokers do not deduplicate.

In ``pulsar/system`` every topic is a ``SystemTopic``, whose ``isDeduplicationEnabled`` is always false (4.0.8),
whatever its policy says. So a message with an explicit sequence id carries the id in a property, and before the first
explicit id is sent, the partition's recent messages of the same producer are read back. Invariant: an id counts as
stored only when its message was read.
"""

from typing import Final

import pulsar

from service.adapters.pulsar.errors import translated
from service.adapters.pulsar.seeking import has_more, reader_since

SEQUENCE_ID: Final = "PULSAR_SIDECAR_SEQUENCE_ID"
_READ_TIMEOUT_MS = 10_000


def stored_sequence_ids(client: pulsar.Client, topic: str, producer_name: str, since_ms: int) -> set[int]:
    """The explicit sequence ids of this producer in the topic, published since ``since_ms`` and not trimmed yet.

    Raises:
        TemporaryError: the topic could not be read to its end.
    """
    with translated(f"reading back what {producer_name} has stored in {topic}"):
        reader = reader_since(client, topic, since_ms)
        try:
            return _read_ids(reader, producer_name)
        finally:
            reader.close()


def _read_ids(reader: pulsar.Reader, producer_name: str) -> set[int]:
    found: set[int] = set()
    while has_more(reader):
        message = reader.read_next(_READ_TIMEOUT_MS)
        text = message.properties().get(SEQUENCE_ID, "")
        if message.producer_name() == producer_name and text.isascii() and text.isdigit():
            found.add(int(text))
    return found
