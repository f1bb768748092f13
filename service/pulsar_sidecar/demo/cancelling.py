"""The step of the delayed messages: some are cancelled, both brokers are killed, and the rest is delivered.

Every number is counted on the cluster in this run, by a client that is not a part of the sidecar.
"""

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import requests

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.demo.environment import ClusterInspector, DemoEnvironment
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError

_TOPIC: Final = "reminders"
_SUBSCRIPTION: Final = "senders"
_MESSAGES: Final = 60
_DELAY_SECONDS: Final = 30.0
_PATIENCE_SECONDS: Final = 180.0
_REQUEST_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class CancellationResult:
    """What became of the delayed messages.

    Attributes:
        statuses: how many cancellations were answered with which proof.
        delivered: cancelled ones that were delivered all the same.
        lost: others that were not delivered.
        repeated: others that were delivered more than once.
    """

    sent: int
    cancelled: int
    statuses: dict[str, int]
    delivered: int
    lost: int
    repeated: int

    @property
    def kept_its_promise(self) -> bool:
        """Exactly the others were delivered."""
        return not (self.delivered or self.lost) and self.statuses == {"PERSISTED": self.cancelled}


def cancel_half(environment: DemoEnvironment, inspector: ClusterInspector, sidecar_url: str) -> CancellationResult:
    """Send, cancel a random half, kill the brokers, and see what is delivered."""
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
    """What is delivered, until everything expected has been, and two seconds more."""
    give_up = clock.monotonic_seconds() + _PATIENCE_SECONDS
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
    """A consumer, as soon as brokers that just started serve the topic."""
    while True:
        try:
            return inspector.client.subscribe(topic, _SUBSCRIPTION, consumer_type=inspector.shared)
        except Exception as error:
            if not _of_the_client(error) or clock.monotonic_seconds() >= give_up:
                raise


def _of_the_client(error: Exception) -> bool:
    # The client's exceptions have one home, which is not here.
    return type(error).__module__ == "_pulsar"


def _next(consumer: Any) -> int | None:
    try:
        message = consumer.receive(timeout_millis=500)
    except Exception as error:
        if not (_of_the_client(error) and type(error).__name__ == "Timeout"):
            raise
        return None
    consumer.acknowledge(message)
    return int(message.data())
