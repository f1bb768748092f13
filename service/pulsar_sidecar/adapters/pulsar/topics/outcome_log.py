"""Reads the outcomes back, from a time on to the end as it was when the reading began."""

from collections.abc import Iterator

import pulsar

from pulsar_sidecar.adapters.pulsar.client.seeking import messages_since
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.model.names import TopicName


def read_outcomes(client: pulsar.Client, topic: TopicName, since_ms: int, *, quickly: bool) -> Iterator[bytes]:
    """The payloads published at ``since_ms`` or later, oldest first.

    Raises:
        TemporaryError: the topic could not be read to its end.
    """
    with translated(f"reading {topic}"):
        for message in messages_since(client, str(topic), since_ms, seeking=quickly):
            yield message.data()
