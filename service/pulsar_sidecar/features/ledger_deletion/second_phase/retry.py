"""``reconsumeLater`` with exactly the Java client's properties.

Source: ``ConsumerImpl.doReconsumeLater`` and ``RetryMessageUtil`` of pulsar-client 4.0.8. A Java consumer with
``enableRetry`` can continue messages written here, and this module continues its messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Delivery, OutgoingMessage

RECONSUMETIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"
REAL_TOPIC = "REAL_TOPIC"
REAL_SUBSCRIPTION = "REAL_SUBSCRIPTION"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_MESSAGE_IDY_TIME = "ORIGIN_MESSAGE_IDY_TIME"
"""Java's own misspelling, on the wire since 2.x."""

REASON = "PULSAR_SIDECAR_REASON"
IN_USE_SINCE = "PULSAR_SIDECAR_IN_USE_SINCE_MS"

SUBSCRIPTION = "ledger-deletion-worker"
"""The subscription that all sidecars share on the pending and the retry topic."""

MAX_EARLY_MS = 2_000
"""Brokers may deliver up to a tick early (``delayedDeliveryTickTimeMillis``, a second); and clocks differ."""
_MAX_REASON_LENGTH = 500


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """PIP-186 "The deletion backoff": ``twoPhaseDeletionReconsumeLaterInSeconds`` and ``...MaxRetryDeleteCount``."""

    reconsume_later_ms: int
    max_redeliver_count: int


@dataclass(frozen=True, slots=True)
class Reconsumption:
    """Next destination of a record, and the message to send there."""

    destination: DeletionTopic
    message: OutgoingMessage


def tries(properties: Mapping[str, str]) -> int:
    """Return the number of retries of the record so far, 0 for the original; a non-number counts as 0."""
    text = properties.get(RECONSUMETIMES, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def due_ms(delivery: Delivery) -> int:
    """Return the retry's due time: its publish time plus ``DELAY_TIME``, which counts as 0 if it is not a number."""
    delay = delivery.properties.get(DELAY_TIME, "0")
    usable = delay.isascii() and delay.isdigit() and len(delay) < 19
    return delivery.publish_time_ms + (int(delay) if usable else 0)


def in_use_since_ms(properties: Mapping[str, str]) -> int | None:
    """Return the time at which the record was first seen in use, on the store's clock."""
    text = properties.get(IN_USE_SINCE, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def reconsume(
    delivery: Delivery,
    policy: RetryPolicy,
    reason: str,
    *,
    delay_ms: int | None = None,
    in_use_since: int | None = None,
    give_up: bool = False,
) -> Reconsumption:
    """Return the next copy of a record: for the retry topic, or for the dead-letter topic after the last retry.

    With ``give_up`` there are no more retries.
    """
    delay = policy.reconsume_later_ms if delay_ms is None else max(0, delay_ms)
    times = tries(delivery.properties) + 1
    properties = {
        REAL_TOPIC: _without_partition(delivery.topic),
        REAL_SUBSCRIPTION: SUBSCRIPTION,
        ORIGIN_MESSAGE_IDY_TIME: delivery.message_id,
        ORIGIN_MESSAGE_ID: delivery.message_id,
        **delivery.properties,
        REASON: reason[:_MAX_REASON_LENGTH],
        RECONSUMETIMES: str(times),
        DELAY_TIME: str(delay),
    }
    if in_use_since is not None:
        properties[IN_USE_SINCE] = str(in_use_since)
    exhausted = give_up or times > policy.max_redeliver_count
    message = OutgoingMessage(
        payload=delivery.payload,
        key=delivery.key,
        properties=dict(sorted(properties.items())),
        deliver_after_ms=None if exhausted or delay == 0 else delay,
        event_time_ms=delivery.event_time_ms,
    )
    return Reconsumption(DeletionTopic.DEAD_LETTER if exhausted else DeletionTopic.RETRY, message)


def fresh(dead: Delivery) -> OutgoingMessage:
    """Return a dead letter as a new record: its retry count starts again, its origin stays known."""
    dropped = (RECONSUMETIMES, DELAY_TIME, REASON, IN_USE_SINCE, REAL_TOPIC, REAL_SUBSCRIPTION)
    kept = {name: value for name, value in dead.properties.items() if name not in dropped}
    return OutgoingMessage(payload=dead.payload, key=dead.key, properties=kept, event_time_ms=dead.event_time_ms)


def _without_partition(topic: str) -> str:
    base, separator, index = topic.rpartition("-partition-")
    return base if separator and index.isdigit() else topic
