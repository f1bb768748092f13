"""Delayed messages on a real cluster as their owners see them: producers, live consumers, and what was delivered when.

Invariant: deliveries are counted by clients of their own, never by the code under test, and a consumer that loses its
connection goes on.
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
    """One message as its producer knows it; ``number`` is its payload."""

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
    """What the consumers of one subscription were given: the messages' numbers, and when (milliseconds)."""

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
    """A topic with delayed messages; every client here belongs to the test."""

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
        """Make the subscription, with no consumer left."""
        self.client.subscribe(str(self.topic), name, consumer_type=kind).close()

    def send(self, count: int, deliver_at: int | Sequence[int], keys: int = 50) -> list[Sent]:
        """Publish; each message's payload is its number. The broker's receipts give the ids."""
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
        """Live consumers that acknowledge everything they are given."""
        deliveries = Deliveries()
        with self.noting(name, kind, lambda message: deliveries.note(int(message.data())), consumers):
            yield deliveries

    @contextmanager
    def noting(
        self, name: str, kind: pulsar.ConsumerType, note: Callable[[pulsar.Message], None], consumers: int
    ) -> Iterator[None]:
        """The same, with something else to be done with each message."""
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
        """As ``pulsar-admin topics reset-cursor``."""
        self._admin("POST", f"/subscription/{name}/resetcursor/{to_ms}")

    def limit_consumers(self, most: int) -> None:
        """Of each subscription of the topic."""
        self._admin("POST", "/maxConsumersPerSubscription", most)

    def backlogs(self) -> dict[str, int]:
        """Messages that are not acknowledged, by subscription."""
        return {name: int(stats["msgBacklog"]) for name, stats in self.stats()["subscriptions"].items()}

    def stats(self) -> dict[str, Any]:
        """What its broker counts."""
        found: dict[str, Any] = requests.get(f"{self.urls[0]}{self.path}/stats", timeout=OPERATION_SECONDS).json()
        return found

    def owner(self, addresses: ClusterAddresses) -> str:
        """The member that serves the topic."""
        place = f"{self.urls[0]}/lookup/v2/topic/persistent/{self.topic.namespace}/{self.topic.local_name}"
        url = requests.get(place, timeout=OPERATION_SECONDS).json()["httpUrl"]
        return next(name for name, at in addresses.member_urls.items() if at == url)

    def _admin(self, method: str, verb: str, body: object = None) -> None:
        answer = requests.request(method, self.urls[0] + self.path + verb, json=body, timeout=OPERATION_SECONDS)
        assert answer.ok, answer.text[:300]

    # --- cancelling ------------------------------------------------------------------------------------------------

    def cancel(self, sidecar: SidecarProcess, sent: Sent, **params: str) -> requests.Response:
        """PIP-423's call."""
        line = {name: str(value) for name, value in sent.line.items()}
        return sidecar.request("POST", f"{self.path}/cancelDelayedMessage", None, **line, **params)

    def cancel_all(self, sidecar: SidecarProcess, sent: Iterable[Sent], **params: str) -> list[dict[str, Any]]:
        """The bulk call; a verdict for each, in order."""
        body = "\n".join(_line(one) for one in sent)
        answer = requests.post(f"{sidecar.url}{self.path}/cancelDelayedMessages", data=body, params=params, timeout=300)
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}\n{sidecar.log()}"
        return [_parsed(line) for line in answer.text.splitlines()]

    def statuses(self, sidecar: SidecarProcess, sent: Sent) -> Counter[str]:
        """What is known of one cancellation, by level."""
        return Counter(self.statuses_by_subscription(sidecar, sent).values())

    def statuses_by_subscription(self, sidecar: SidecarProcess, sent: Sent) -> dict[str, str]:
        """What is known of one cancellation."""
        answer = sidecar.request("GET", f"{self.path}/cancellations/{sent.ledger_id}:{sent.entry_id}")
        return {one["subscription"]: one["proof"] for one in answer.json()} if answer.ok else {}

    def open_statuses(self, sidecar: SidecarProcess, sent: Sent) -> set[str]:
        """The levels that are not the end of a cancellation."""
        return set(self.statuses(sidecar, sent)) & {"ACCEPTED", "ACKED", "PERSISTED"}


def before_due(prepare: Callable[[int], Prepared], delays_ms: Sequence[int] = (24_000, 72_000, 216_000)) -> Prepared:
    """What ``prepare`` made of messages that are due at a given time; once more, due later, if it took nearly as long.

    A quarter of the time is left, so that brokers load the topic before the first message is due. A ``prepare`` that
    raises `NotInTime` took too long, too.
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
    """Wait until everything expected was delivered, and some seconds more for what must not come."""
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
            continue  # it comes again, and is counted again


def _line(sent: Sent) -> str:
    return f'{{"ledgerId":{sent.ledger_id},"entryId":{sent.entry_id},"deliverAt":{sent.deliver_at}}}'


def _parsed(line: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(line)
    return document
