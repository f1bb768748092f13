"""Effects on a Key_Shared subscription's own consumers while the sidecar's helper consumer comes and goes.

Messages without a delay are published at a steady rate over many keys; three consumers acknowledge them at once. In one
phase no client cancels; in the others a delayed message of the same subscription is cancelled so many times a second,
each by a visit of its own.
"""

import argparse
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pulsar
import requests
from pulsar_sidecar.model.names import parse_topic_name

from tests.benchmarks.clusters import add_cluster_argument, benchmark_sidecars, wait_until_quiet
from tests.cluster.delays import KEY_SHARED, SHARED, DelayedTopic, Sent, now_ms
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import unique
from tests.reporting import Table

NAME = "visits"
_DELAY_MS = 3_600_000
_KEYS = 100
_CONSUMERS = 3
_SETTINGS = {"delayed_message_cancelling_enabled": "true", "log_level": "WARNING"}
_SUBSCRIPTION = "s"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=int, default=10, help="how long each phase takes")
    parser.add_argument("--rate", type=int, default=500, help="messages published a second")
    add_cluster_argument(parser)


def run(arguments: argparse.Namespace) -> Sequence[Table]:
    with benchmark_sidecars(arguments.cluster) as (addresses, sidecars):
        sidecar = sidecars.start_with_defaults(**_SETTINGS)
        rows = []
        for kind in (KEY_SHARED, SHARED):
            name = f"persistent://public/default/visits-{unique()}"
            topic = DelayedTopic(addresses, parse_topic_name(name))
            try:
                topic.subscribe(_SUBSCRIPTION, kind)
                delayed = topic.send(arguments.seconds * 60, now_ms() + _DELAY_MS)[::2]
                wait_until_quiet(addresses)
                rows += _phases(arguments, topic, sidecar, kind, delayed)
            finally:
                topic.close()
    header = ("", "visits", "messages", "p50", "p99", "longest", "out of order for their key", "twice")
    title = f"From publishing to delivery, {arguments.rate} messages/s over {_KEYS} keys, {_CONSUMERS} consumers"
    return [Table(title, header, rows)]


def _phases(
    arguments: argparse.Namespace,
    topic: DelayedTopic,
    sidecar: SidecarProcess,
    kind: pulsar.ConsumerType,
    delayed: Sequence[Sent],
) -> Iterator[list[str]]:
    left = iter(delayed)
    for visits_a_second in (0, 1, 10):
        seen = _Seen()
        with topic.noting(_SUBSCRIPTION, kind, seen.note, _CONSUMERS):
            _publish(topic, arguments, 1)
            seen.clear()
            visiting = threading.Thread(
                target=_visit, args=(topic, sidecar, left, visits_a_second, arguments.seconds), daemon=True
            )
            visiting.start()
            count = _publish(topic, arguments, arguments.seconds)
            visiting.join()
            seen.wait_for(count)
            yield [
                f"{kind.name}, {visits_a_second} visits a second",
                str(visits_a_second * arguments.seconds),
                *seen.row(),
            ]


def _visit(
    topic: DelayedTopic, sidecar: SidecarProcess, left: Iterator[Sent], visits_a_second: int, seconds: int
) -> None:
    session = requests.Session()
    url = f"{sidecar.url}{topic.path}/cancelDelayedMessage"
    begin = time.monotonic()
    for number in range(visits_a_second * seconds):
        time.sleep(max(0.0, begin + number / visits_a_second - time.monotonic()))
        answer = session.post(url, params={**next(left).line, "subscriptionNames": _SUBSCRIPTION}, timeout=30)
        assert answer.status_code == 204, answer.text


def _publish(topic: DelayedTopic, arguments: argparse.Namespace, seconds: int) -> int:
    producer = topic.client.create_producer(str(topic.topic), batching_enabled=False)
    begin, count = time.monotonic(), arguments.rate * seconds
    for number in range(count):
        time.sleep(max(0.0, begin + number / arguments.rate - time.monotonic()))
        content = f"{number} {time.perf_counter_ns()}".encode()
        producer.send_async(content, lambda result, found: None, partition_key=f"key-{number % _KEYS}")
    producer.flush()
    producer.close()
    return count


@dataclass(slots=True)
class _Seen:
    """Messages that the consumers received: for each key the numbers in order, with their latencies."""

    numbers: dict[str, list[int]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, message: pulsar.Message) -> None:
        number, sent_at = message.data().split()
        took = (time.perf_counter_ns() - int(sent_at)) / 1e9
        with self.lock:
            self.numbers.setdefault(message.partition_key(), []).append(int(number))
            self.seconds.append(took)

    def clear(self) -> None:
        time.sleep(1)
        with self.lock:
            self.numbers.clear()
            self.seconds.clear()

    def wait_for(self, count: int) -> None:
        give_up = time.monotonic() + 30
        while time.monotonic() < give_up and len({one for found in self.numbers.values() for one in found}) < count:
            time.sleep(0.2)

    def row(self) -> list[str]:
        ordered = sorted(self.seconds)
        given = [one for found in self.numbers.values() for one in found]
        late = sum(found[index] < found[index - 1] for found in self.numbers.values() for index in range(1, len(found)))
        times = (statistics.median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1])
        shown = [f"{value * 1000:.1f} ms" for value in times]
        return [f"{len(set(given)):,}", *shown, str(late), str(len(given) - len(set(given)))]
