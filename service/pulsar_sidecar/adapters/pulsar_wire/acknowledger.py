"""Short-lived consumer of cancellations: it joins a subscription, acknowledges positions, and leaves.

It never grants a permit (``CommandFlow``), so a broker never sends it a message. It joins with the type in use, asks
for receipts, and leaves as soon as it has them: on a Key_Shared subscription every consumer takes over a share of the
keys, so the shorter the visit, the smaller the disturbance. Where that does not matter, the caller writes its log only
after the broker has admitted the consumer (`join`), so that a refusal leaves nothing behind.

The Pulsar client does not fit: it has no receipts, it acknowledges after a delay of its own, and its consumers
reconnect by themselves, which would recreate a subscription that was deleted meanwhile.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from pulsar_sidecar.adapters.pulsar_wire.binary_connections import (
    BinaryConnection,
    TopicOwners,
    request_id_of,
    server_error,
)
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotAuthenticatedError, OutcomeUnknownError, PermanentError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription, SubscriptionType
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

CONSUMER_NAME: Final = "pulsar-sidecar-cancelling"
_IDS_PER_COMMAND: Final = 2000
_COMMANDS_IN_FLIGHT: Final = 8
_ATTEMPTS: Final = 3

_TYPES: Final = {
    SubscriptionType.SHARED: api.CommandSubscribe.Shared,
    SubscriptionType.KEY_SHARED: api.CommandSubscribe.Key_Shared,
}


class ConsumerAcknowledger:
    """`delayed_messages.ports.Acknowledger`; safe for use by several threads."""

    def __init__(self, owners: TopicOwners, clock: Clock) -> None:
        self._owners = owners
        self._clock = clock

    @contextmanager
    def join(self, topic: TopicName, subscription: Subscription) -> Iterator["_Consumer"]:
        with ExitStack() as visit:
            consumer = self._join(topic, subscription, visit)
            yield consumer
            consumer.leave()

    def close(self) -> None:
        self._owners.close()

    def _join(self, topic: TopicName, subscription: Subscription, visit: ExitStack) -> "_Consumer":
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                connection = visit.enter_context(self._owners.using(topic))
                return _Consumer(connection, topic, subscription, self._clock)
            except (OSError, TemporaryError) as error:
                # Nothing was acknowledged. The topic may have moved to another broker, or the connection was stale.
                self._owners.forget(topic)
                failure = error
        raise TemporaryError(f"joining {topic}, subscription {subscription.name!r}: {failure}; try again") from failure


class _Consumer:
    def __init__(
        self, connection: BinaryConnection, topic: TopicName, subscription: Subscription, clock: Clock
    ) -> None:
        """Join the subscription; return once the broker has admitted the consumer."""
        self._connection = connection
        self._clock = clock
        self._place = f"{topic}, subscription {subscription.name!r}"
        self._consumer_id = connection.next_id()
        if subscription.type not in _TYPES:
            name, kind = subscription.name, subscription.type.value
            raise PermanentError(f"{name} is of type {kind}, which allows no second consumer")
        command = api.CommandSubscribe(
            topic=str(topic),
            subscription=subscription.name,
            subType=_TYPES[subscription.type],
            consumer_id=self._consumer_id,
            consumer_name=f"{CONSUMER_NAME}-{self._consumer_id}",
            durable=True,
            force_topic_creation=False,
        )
        if subscription.type is SubscriptionType.KEY_SHARED:
            command.keySharedMeta.keySharedMode = api.AUTO_SPLIT
            command.keySharedMeta.allowOutOfOrderDelivery = subscription.allow_out_of_order
        connection.request(command, api.BaseCommand.SUCCESS, f"joining {self._place}", self._check_open)

    def acknowledge(self, positions: Sequence[Position]) -> int:
        try:
            self._acknowledge(positions)
            return self._clock.now_ms()
        except (OSError, TemporaryError, NotAuthenticatedError) as error:
            # The broker drops the consumer with the connection, so leaving waits for no response.
            self._connection.close()
            raise OutcomeUnknownError(
                f"acknowledging on {self._place}: {error}; some may be acknowledged, read the state again"
            ) from error

    def leave(self) -> None:
        self._connection.leave(api.CommandCloseConsumer(consumer_id=self._consumer_id), f"leaving {self._place}")

    def _acknowledge(self, positions: Sequence[Position]) -> None:
        waiting: set[int] = set()
        for begin in range(0, len(positions), _IDS_PER_COMMAND):
            if len(waiting) >= _COMMANDS_IN_FLIGHT:
                self._take_receipt(waiting)
            ack = api.CommandAck(consumer_id=self._consumer_id, ack_type=api.CommandAck.Individual)
            add = ack.message_id.add
            for position in positions[begin : begin + _IDS_PER_COMMAND]:
                add(ledgerId=position.ledger_id, entryId=position.entry_id)
            waiting.add(self._connection.send_request(ack))
        while waiting:
            self._take_receipt(waiting)

    def _take_receipt(self, waiting: set[int]) -> None:
        answer, _ = self._connection.receive()
        self._check_open(answer)
        request_id = request_id_of(answer)
        if request_id not in waiting:
            return
        waiting.discard(request_id)
        if answer.type == api.BaseCommand.ERROR:
            raise TemporaryError(str(server_error("acknowledging", answer.error)))
        if answer.ackResponse.HasField("error"):
            raise TemporaryError(str(server_error("acknowledging", answer.ackResponse)))

    def _check_open(self, event: api.BaseCommand, message: bytes = b"") -> None:
        if event.type == api.BaseCommand.CLOSE_CONSUMER and event.close_consumer.consumer_id == self._consumer_id:
            raise TemporaryError("the broker closed the consumer; the topic is moving")
