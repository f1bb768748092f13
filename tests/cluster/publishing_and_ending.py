"""A program that publishes through the sidecar's own publisher, closes everything and ends.

python -m tests.cluster.publishing_and_ending BROKER_SERVICE_URL TOPIC DEADLINE_SECONDS

A deadline of 0 gives up every message before its receipt, so that the producer is abandoned.
"""

import secrets
import sys
from contextlib import closing

from pulsar_sidecar.adapters.pulsar_client.clients import opened_client
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.features.ledger_deletion.ports import OutgoingMessage
from pulsar_sidecar.model.clocks import SystemClock

_MESSAGES = 200


def _run(broker_service_url: str, topic: str, deadline_seconds: str) -> None:
    settings = PublisherSettings(batching=True, deadline_seconds=float(deadline_seconds))
    with (
        opened_client(broker_service_url) as client,
        closing(TopicPublisher(client, topic, secrets.token_hex(4), settings, SystemClock())) as publisher,
    ):
        publisher.publish([OutgoingMessage(b"message %d" % number) for number in range(_MESSAGES)])


if __name__ == "__main__":
    _run(*sys.argv[1:])
