"""Finds retries that are due and were not delivered: a look at the retry topic beside the broker's delayed tracker.

Invariant: only reads; a message is called overdue when its own properties say when it was due, and the subscription's
progress, read first, does not show it acknowledged.
"""

from collections.abc import Collection, Generator
from contextlib import closing
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar.client.deliveries import delivery_of, position_of
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar.rest.topic_stats import parse_internal_stats
from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.ledger_deletion.second_phase.retry import DELAY_TIME, SUBSCRIPTION
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.position_ranges import PositionRanges

_READ_TIMEOUT_MS: Final = 10_000
_EARLY_MS: Final = 2_000
"""Brokers may deliver up to a tick early (``delayedDeliveryTickTimeMillis``, a second); and clocks differ."""


class OverdueReader:
    """Reads one unpartitioned retry topic from the subscription's mark-delete position on."""

    def __init__(self, client: pulsar.Client, admin: BrokerTopicAdmin, topic: TopicName, clock: Clock) -> None:
        self._client = client
        self._admin = admin
        self._topic = topic
        self._clock = clock

    def early(self, deliveries: Collection[Delivery]) -> list[Delivery]:
        """Those that came long before they were due."""
        now_ms = self._clock.now_ms()
        return [delivery for delivery in deliveries if is_early(delivery, now_ms)]

    def read(self, late_ms: int, limit: int, held: Collection[str]) -> list[Delivery]:
        """Up to ``limit`` messages that were due more than ``late_ms`` ago, without those whose ids are in ``held``.

        Raises:
            TemporaryError: the topic or its progress could not be read.
        """
        stats = parse_internal_stats(self._admin.internal_stats(self._topic), self._topic)
        progress = stats.cursor(SUBSCRIPTION).acknowledged
        due_before_ms = self._clock.now_ms() - late_ms
        found: list[Delivery] = []
        with closing(self._unacknowledged(progress)) as deliveries:
            for delivery in deliveries:
                # Nothing published later can have been due earlier, because no delay is negative.
                if delivery.publish_time_ms >= due_before_ms or len(found) >= limit:
                    break
                if due_ms(delivery) < due_before_ms and delivery.message_id not in held:
                    found.append(delivery)
        return found

    def _unacknowledged(self, progress: PositionRanges) -> Generator[Delivery, None, None]:
        start = progress.mark_delete
        with translated(f"reading {self._topic}"):
            reader = self._client.create_reader(
                str(self._topic), pulsar.MessageId(-1, start.ledger_id, start.entry_id, -1)
            )
            try:
                while reader.has_message_available():
                    message = reader.read_next(_READ_TIMEOUT_MS)
                    if position_of(message.message_id()) not in progress:
                        yield delivery_of(message)
            finally:
                reader.close()


def is_early(delivery: Delivery, now_ms: int) -> bool:
    """Whether a retry came long before it was due, from a broker that delays nothing.

    A publish time in the future comes from a machine whose clock is wrong, and proves nothing.
    """
    return delivery.publish_time_ms - _EARLY_MS <= now_ms < due_ms(delivery) - _EARLY_MS


def due_ms(delivery: Delivery) -> int:
    """When the retry was to be delivered: ``DELAY_TIME`` after its publish time, or at once if that is not a number."""
    delay = delivery.properties.get(DELAY_TIME, "0")
    usable = delay.isascii() and delay.isdigit() and len(delay) < 19
    return delivery.publish_time_ms + (int(delay) if usable else 0)
