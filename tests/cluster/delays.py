"""Delayed messages on a real cluster as their owners see them: producers, live consumers, and times of delivery.

Invariant: separate clients count deliveries, never the code under test, and a consumer continues after a lost
connection.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import _pulsar
import pulsar
import requests
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.names import TopicName, java_url_encode

from tests.cluster.background import running_until
from tests.cluster.clients import PatientClient
from tests.cluster.patience import OPERATION_SECONDS, PATIENCE_SECONDS, NotInTime, until
from tests.cluster.sidecars import SidecarProcess

SHARED: Final = pulsar.ConsumerType.Shared
KEY_SHARED: Final = pulsar.ConsumerType.KeyShared
Prepared = TypeVar("Prepared")

_IN_FLIGHT: Final = 5_000


@dataclass(frozen=True, slots=True)
class Sent:
    """A message as its producer knows it; ``number`` is its payload."""

    number: int
    ledger_id: int
    entry_id: int
    partition: int
    deliver_at: int

    @property
    def line(self) -> dict[str, int]:
        return {"ledgerId": self.ledger_id, "entryId": self.entry_id, "deliverAt": self.deliver_at}


@dataclass(slots=True)
class Deliveries:
    """Deliveries to the consumers of a subscription: times in milliseconds by the messages' numbers."""

    times: dict[int, list[int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, number: int) -> None:
        with self.lock:
            self.times.setdefault(number, []).append(now_ms())

    @property
    def numbers(self) -> set[int]:
        with self.lock:
            return set(self.times)

    @property
    def repeated(self) -> dict[int, int]:
        with self.lock:
            return {number: len(times) for number, times in self.times.items() if len(times) > 1}


class DelayedTopic:
    """A topic with delayed messages, whose clients belong to the test."""

    def __init__(self, addresses: ClusterAddresses, topic: TopicName) -> None:
        self.topic = topic
        self.urls = addresses.web_service_urls
        self.client = PatientClient(addresses)
        self.sent: list[Sent] = []

    def close(self) -> None:
        self.client.close()

    @property
    def path(self) -> str:
        version = "" if self.topic.cluster else "/v2"
        return f"/admin{version}/persistent/{self.topic.namespace}/{java_url_encode(self.topic.local_name)}"

    def subscribe(self, name: str, kind: pulsar.ConsumerType) -> None:
        """Create the subscription, without a connected consumer."""
        self.client.subscribe(str(self.topic), name, consumer_type=kind).close()

    def send(self, count: int, deliver_at: int | Sequence[int], keys: int = 50) -> list[Sent]:
        """Publish messages with their numbers as payloads, and ids from the broker's receipts."""
        producer: Any = self.client.create_producer(
            str(self.topic), batching_enabled=False, block_if_queue_full=True, max_pending_messages=_IN_FLIGHT
        )
        ids: dict[int, _pulsar.MessageId] = {}
        first = len(self.sent)
        for number in range(first, first + count):
            due = deliver_at if isinstance(deliver_at, int) else deliver_at[number - first]
            builder = _pulsar.MessageBuilder().content(b"%d" % number).partition_key(f"key-{number % keys}")
            builder.property("group", str(number % 10)).deliver_at(due)

            def receipt(result: pulsar.Result, found: _pulsar.MessageId, number: int = number) -> None:
                assert result == pulsar.Result.Ok
                ids[number] = found

            producer._producer.send_async(builder.build(), receipt)
        until(lambda: len(ids) == count, "every message was stored")
        producer.close()
        sent = [
            Sent(
                number,
                ids[number].ledger_id(),
                ids[number].entry_id(),
                ids[number].partition(),
                deliver_at if isinstance(deliver_at, int) else deliver_at[number - first],
            )
            for number in sorted(ids)
        ]
        self.sent += sent
        return sent

    @contextmanager
    def consuming(self, name: str, kind: pulsar.ConsumerType, consumers: int = 2) -> Iterator[Deliveries]:
        """Run live consumers that acknowledge everything."""
        deliveries = Deliveries()
        with self.noting(name, kind, lambda message: deliveries.note(int(message.data())), consumers):
            yield deliveries

    @contextmanager
    def noting(
        self, name: str, kind: pulsar.ConsumerType, note: Callable[[pulsar.Message], None], consumers: int
    ) -> Iterator[None]:
        """Run live consumers that acknowledge everything, and call ``note`` for each message."""
        stop = threading.Event()
        opened = [
            self.client.subscribe(str(self.topic), name, consumer_type=kind, receiver_queue_size=200)
            for _ in range(consumers)
        ]
        try:
            with running_until(stop, [partial(_consume, one, note, stop) for one in opened]):
                yield
        finally:
            for consumer in opened:
                consumer.close()

    def unload(self) -> None:
        self._admin("PUT", "/unload")

    def delete_subscription(self, name: str) -> None:
        self._admin("DELETE", f"/subscription/{name}")

    def move_cursor(self, name: str, to_ms: int) -> None:
        """Move the cursor like ``pulsar-admin topics reset-cursor``."""
        self._admin("POST", f"/subscription/{name}/resetcursor/{to_ms}")

    def limit_consumers(self, most: int) -> None:
        """Limit the consumers of each subscription of the topic."""
        self._admin("POST", "/maxConsumersPerSubscription", most)

    def backlogs(self) -> dict[str, int]:
        """Return the numbers of unacknowledged messages by subscription."""
        return {name: int(stats["msgBacklog"]) for name, stats in self.stats()["subscriptions"].items()}

    def stats(self) -> dict[str, Any]:
        """Return the broker's stats of the topic."""
        return requests.get(f"{self.urls[0]}{self.path}/stats", timeout=OPERATION_SECONDS).json()

    def owner(self, addresses: ClusterAddresses) -> str:
        """Return the member that serves the topic."""
        place = f"{self.urls[0]}/lookup/v2/topic/persistent/{self.topic.namespace}/{self.topic.local_name}"
        url = requests.get(place, timeout=OPERATION_SECONDS).json()["httpUrl"]
        return next(name for name, at in addresses.member_urls.items() if at == url)

    def _admin(self, method: str, verb: str, body: object = None) -> None:
        answer = requests.request(method, self.urls[0] + self.path + verb, json=body, timeout=OPERATION_SECONDS)
        assert answer.ok, answer.text[:300]

    # --- cancelling ------------------------------------------------------------------------------------------------

    def cancel(self, sidecar: SidecarProcess, sent: Sent, **params: str) -> requests.Response:
        """Cancel a message by PIP-423's call."""
        line = {name: str(value) for name, value in sent.line.items()}
        return sidecar.request("POST", f"{self.path}/cancelDelayedMessage", None, **line, **params)

    def cancel_all(self, sidecar: SidecarProcess, sent: Iterable[Sent], **params: str) -> list[dict[str, Any]]:
        """Cancel messages by the bulk call and return a verdict for each, in order."""
        body = "\n".join(_line(one) for one in sent)
        answer = requests.post(f"{sidecar.url}{self.path}/cancelDelayedMessages", data=body, params=params, timeout=300)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}\n{sidecar.log()}"
        return [_parsed(line) for line in answer.text.splitlines()]

    def statuses(self, sidecar: SidecarProcess, sent: Sent) -> Counter[str]:
        """Return the number of subscriptions at each level of a cancellation."""
        return Counter(self.statuses_by_subscription(sidecar, sent).values())

    def statuses_by_subscription(self, sidecar: SidecarProcess, sent: Sent) -> dict[str, str]:
        """Return the level of a cancellation by subscription."""
        answer = sidecar.request("GET", f"{self.path}/cancellations/{sent.ledger_id}:{sent.entry_id}")
        return {one["subscription"]: one["proof"] for one in answer.json()} if answer.ok else {}

    def open_statuses(self, sidecar: SidecarProcess, sent: Sent) -> set[str]:
        """Return the levels of a cancellation that are not final."""
        return set(self.statuses(sidecar, sent)) & {"ACCEPTED", "ACKED", "PERSISTED"}


def before_due(prepare: Callable[[int], Prepared], delays_ms: Sequence[int] = (24_000, 72_000, 216_000)) -> Prepared:
    """Return the result of ``prepare`` with messages due at a given time; retry with a later one if it took too long.

    A quarter of the time must be left, so that brokers load the topic before the first message is due. A ``prepare``
    that raises `NotInTime` also took too long.
    """
    for delay_ms in delays_ms:
        due = now_ms() + delay_ms
        with suppress(NotInTime):
            prepared = prepare(due)
            if now_ms() < due - delay_ms // 4:
                return prepared
    raise NotInTime(f"not within {delays_ms[-1]} ms: everything is prepared before the first message is due")


def await_rest(
    deliveries: Deliveries, expected: set[int], last_due_ms: int, grace_seconds: float = PATIENCE_SECONDS
) -> None:
    """Wait for all expected deliveries, and some seconds more for unexpected ones."""
    left = max(0.0, (last_due_ms - now_ms()) / 1000) + grace_seconds
    until(lambda: expected <= deliveries.numbers, f"{len(expected)} messages are delivered", left)
    time.sleep(max(0.0, (last_due_ms + 2_000 - now_ms()) / 1000))


def now_ms() -> int:
    return SystemClock().now_ms()


def _consume(consumer: pulsar.Consumer, note: Callable[[pulsar.Message], None], stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            message = consumer.receive(timeout_millis=500)
        except pulsar.exceptions.Timeout:
            continue
        note(message)
        try:
            consumer.acknowledge(message.message_id())
        except pulsar.PulsarException:
            continue  # the broker redelivers the message, which counts again


def _line(sent: Sent) -> str:
    return f'{{"ledgerId":{sent.ledger_id},"entryId":{sent.entry_id},"deliverAt":{sent.deliver_at}}}'


def _parsed(line: str) -> dict[str, Any]:
    return json.loads(line)
