"""Readers that begin at a time instead of at a message.

To seek, a broker closes the reader's consumer, and the client opens it again behind the caller's back. What is asked in
between finds no consumer at the broker (seen on 3.3.6: ``BrokerMetadataError: Consumer not found``), which says nothing
about the topic. Invariant: a failure that lasts is raised.
"""

import threading
from typing import Final

import pulsar

_PAUSE_SECONDS: Final = 0.05
_TRIES: Final = 100


def reader_since(client: pulsar.Client, topic: str, since_ms: int) -> pulsar.Reader:
    """A reader of what was published at ``since_ms`` or later, and perhaps of some of what came before."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    if since_ms > 0:
        try:
            reader.seek(since_ms)
        except pulsar.PulsarException:
            reader.close()
            raise
    return reader


def has_more(reader: pulsar.Reader) -> bool:
    """Whether there is a message to read, asked again while the reader may be on its way back from seeking."""
    never = threading.Event()
    for _ in range(_TRIES):
        try:
            return reader.has_message_available()
        except pulsar.exceptions.BrokerMetadataError:
            never.wait(_PAUSE_SECONDS)
    return reader.has_message_available()
