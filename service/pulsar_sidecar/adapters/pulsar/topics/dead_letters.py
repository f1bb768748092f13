"""The dead letters, held by a durable subscription and handed to one user at a time.

Invariant: a listing is complete up to its limit, or it fails: the broker's own count says when it is.
"""

import logging
from collections.abc import Sequence
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar.client.deliveries import delivery_of, handle_of, position_of
from pulsar_sidecar.adapters.pulsar.errors import translated
from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName

DEAD_LETTERS_SUBSCRIPTION: Final = "dead-letters"
_RECEIVE_TIMEOUT_MS: Final = 500
_DEADLINE_SECONDS: Final = 15.0
_LOGGER = logging.getLogger(__name__)


class ExclusiveDeadLetters:
    """`ledger_deletion.ports.DeadLetters` on the dead-letter topic."""

    def __init__(self, client: pulsar.Client, admin: BrokerTopicAdmin, topic: TopicName, clock: Clock) -> None:
        """Subscribe alone.

        Raises:
            ConflictError: another listing or redrive is running.
        """
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._closed = False
        self._received: set[Position] = set()
        self._finished: set[Position] = set()
        try:
            with translated(f"subscribing to {topic}"):
                self._consumer = client.subscribe(
                    str(topic),
                    DEAD_LETTERS_SUBSCRIPTION,
                    pulsar.ConsumerType.Exclusive,
                    initial_position=pulsar.InitialPosition.Earliest,
                )
        except ConflictError as error:
            raise ConflictError("another listing or redrive of dead letters is running, try again") from error

    def receive(self, limit: int) -> list[Delivery]:
        self._check_open()
        found: list[Delivery] = []
        give_up = self._clock.monotonic_seconds() + _DEADLINE_SECONDS
        missing = self._missing_entries()
        while len(found) < limit and (missing > 0 or _inside_batch(found)):
            message = self._next_message()
            if message is not None:
                self._received.add(position_of(message.message_id()))
                found.append(delivery_of(message))
                missing = missing - 1 if message.message_id().batch_index() <= 0 else missing
                continue
            # Acknowledgements reach the broker a moment later, so its count is asked for again.
            missing = self._missing_entries()
            if missing > 0 and self._clock.monotonic_seconds() > give_up:
                raise TemporaryError("the broker does not hand out all dead letters it counts; try again")
            if missing <= 0:
                break
        return found

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        with translated("acknowledging dead letters"):
            for delivery in deliveries:
                message_id = handle_of(delivery)
                self._consumer.acknowledge(message_id)
                self._finished.add(position_of(message_id))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            with translated("leaving the dead letters"):
                self._consumer.close()
        except SidecarError as error:
            _LOGGER.warning("%s", error)

    def _next_message(self) -> pulsar.Message | None:
        with translated("receiving dead letters"):
            try:
                return self._consumer.receive(_RECEIVE_TIMEOUT_MS)
            except pulsar.exceptions.Timeout:
                return None

    def _missing_entries(self) -> int:
        """Entries the broker counts as waiting that were not received yet: a batch counts once."""
        stats = self._admin.stats(self._topic, {"getPreciseBacklog": "true", "subscriptionBacklogSize": "false"})
        subscriptions = stats.get("subscriptions")
        found = subscriptions.get(DEAD_LETTERS_SUBSCRIPTION) if isinstance(subscriptions, dict) else None
        count = found.get("msgBacklog") if isinstance(found, dict) else None
        if not isinstance(count, int):
            raise TemporaryError("the broker does not count the dead letters; try again")
        return count + len(self._finished) - len(self._received)

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this user of the dead letters is closed; open a new one")


def _inside_batch(found: Sequence[Delivery]) -> bool:
    return bool(found) and handle_of(found[-1]).batch_index() >= 0
