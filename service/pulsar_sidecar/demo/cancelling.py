"""The step of delayed messages: the demo cancels some, kills both brokers, and the brokers deliver the rest.

A client apart from the sidecar counts every number on the cluster in this run.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import requests

from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.reports.formatting import format_count

_TOPIC: Final = "reminders"
_SUBSCRIPTION: Final = "senders"
_MESSAGES: Final = 60
_DELAY_SECONDS: Final = 30.0
_TIMEOUT_SECONDS: Final = 180.0
_REQUEST_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class CancellationResult:
    """Outcome of the delayed messages.

    Attributes:
        statuses: number of cancellations by proof.
        delivered: cancelled messages that were delivered nevertheless.
        lost: other messages that were not delivered.
        repeated: other messages that were delivered more than once.
    """

    sent: int
    cancelled: int
    statuses: dict[str, int]
    delivered: int
    lost: int
    repeated: int

    @property
    def succeeded(self) -> bool:
        """True if the brokers delivered exactly the other messages."""
        return not (self.delivered or self.lost) and self.statuses == {"PERSISTED": self.cancelled}


def cancel_half(environment: DemoEnvironment, inspector: ClusterInspector, sidecar_url: str) -> CancellationResult:
    """Send messages, cancel a random half, kill the brokers, and count the deliveries."""
    topic, report = f"persistent://public/default/{_TOPIC}", environment.report
    inspector.client.subscribe(topic, _SUBSCRIPTION, consumer_type=inspector.shared).close()
    report(f"   {_MESSAGES} messages for {_DELAY_SECONDS:.0f} seconds from now, and a random half is cancelled")
    ids = _send(inspector.client, topic)
    chosen = set(random.sample(range(_MESSAGES), _MESSAGES // 2))
    statuses = _cancel(sidecar_url, [ids[number] for number in sorted(chosen)])
    answers = ", ".join(f"{count} {status}" for status, count in statuses.items())
    report(f"   {answers}; killing both brokers (kill -9)")
    environment.kill_brokers()
    others = set(range(_MESSAGES)) - chosen
    counts = _receive(inspector, environment.clock, topic, others)
    report(f"   delivered when due: {format_count(len(counts), 'message')}")
    return CancellationResult(
        sent=_MESSAGES,
        cancelled=len(chosen),
        statuses=dict(statuses),
        delivered=len(chosen & counts.keys()),
        lost=len(others - counts.keys()),
        repeated=sum(count > 1 for number, count in counts.items() if number not in chosen),
    )


def _send(client: Any, topic: str) -> list[Any]:
    producer = client.create_producer(topic, batching_enabled=False)
    after = timedelta(seconds=_DELAY_SECONDS)
    ids = [producer.send(str(number).encode(), deliver_after=after) for number in range(_MESSAGES)]
    producer.close()
    return ids


def _cancel(sidecar_url: str, ids: Sequence[Any]) -> Counter[str]:
    lines = "\n".join(json.dumps({"ledgerId": one.ledger_id(), "entryId": one.entry_id()}) for one in ids)
    answer = requests.post(
        f"{sidecar_url}/admin/v2/persistent/public/default/{_TOPIC}/cancelDelayedMessages",
        data=lines,
        params={"wait": "persisted"},
        timeout=_REQUEST_SECONDS,
    )
    if not answer.ok:
        raise TemporaryError(f"the sidecar did not cancel: {answer.text[:300]}")
    return Counter(one["proof"] for line in answer.text.splitlines() for one in json.loads(line)["verdicts"])


def _receive(inspector: ClusterInspector, clock: Clock, topic: str, expected: set[int]) -> Counter[int]:
    """Return the counts of deliveries, up to two seconds after every expected message."""
    give_up = clock.monotonic_seconds() + _TIMEOUT_SECONDS
    consumer = _subscribed(inspector, clock, topic, give_up)
    counts: Counter[int] = Counter()
    missing_since: float | None = None
    while clock.monotonic_seconds() < give_up:
        number = _next(consumer)
        if number is not None:
            counts[number] += 1
        if expected <= counts.keys():
            missing_since = missing_since or clock.monotonic_seconds()
            if clock.monotonic_seconds() - missing_since > 2:
                break
    consumer.close()
    return counts


def _subscribed(inspector: ClusterInspector, clock: Clock, topic: str, give_up: float) -> Any:
    """Return a consumer, as soon as brokers that just started serve the topic."""
    while True:
        try:
            return inspector.client.subscribe(topic, _SUBSCRIPTION, consumer_type=inspector.shared)
        except Exception as error:
            if not _is_client_error(error) or clock.monotonic_seconds() >= give_up:
                raise


def _is_client_error(error: Exception) -> bool:
    # Only the client's adapter imports its exceptions.
    return type(error).__module__ == "_pulsar"


def _next(consumer: Any) -> int | None:
    try:
        message = consumer.receive(timeout_millis=500)
    except Exception as error:
        if not (_is_client_error(error) and type(error).__name__ == "Timeout"):
            raise
        return None
    consumer.acknowledge(message)
    return int(message.data())
