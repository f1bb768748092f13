"""Hundreds of subscriptions with delayed indexes in buckets, and of schemas with several versions, to delete.

Invariant: a deletion counts as done only if its response says so, or its object is gone.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta

import pulsar
import requests
from pulsar_sidecar.features.audit.reference_scan import ReferenceScan, scan_references
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import Workload

VERSIONS = 3
_SUBSCRIPTIONS_OF_A_TOPIC = 20
_DELAYED = 12
_RECEIVE_MS = 60_000
_AT_ONCE = 16
_MAKERS = 4
_REQUEST_SECONDS = 120
_DONE = frozenset({200, 202, 204, 404})


@dataclass(frozen=True, slots=True)
class Parts:
    """Created subscriptions and schemas.

    Attributes:
        subscriptions: subscriptions with their topics, by the path of their deletion below ``/admin/v2``.
        schemas: paths of the schemas.
    """

    subscriptions: Mapping[str, tuple[TopicName, str]]
    schemas: Sequence[str]
    ledgers: frozenset[LedgerId]

    @property
    def paths(self) -> list[str]:
        return [*self.subscriptions, *self.schemas]

    def broken(self, workload: Workload) -> set[str]:
        """Return subscriptions that 4.0.8 brokers can no longer delete.

        A broker deletes a bucket's ledger before its pointer; if it dies between the two, it leaves a dangling
        reference, and the next broker always returns 500.
        """
        left = {topic: workload.ledgers(topic).buckets for topic in {topic for topic, _ in self.subscriptions.values()}}
        listed = {path: left[topic].get(name, frozenset()) for path, (topic, name) in self.subscriptions.items()}
        existing = workload.existing(frozenset().union(*listed.values()))
        return {path for path, ledgers in listed.items() if not ledgers <= existing}


def make_parts(workload: Workload, namespace: str, subscriptions: int, schemas: int) -> Parts:
    """Create subscriptions and schemas; each subscription has buckets, and most have a cursor ledger."""
    counts = [
        min(_SUBSCRIPTIONS_OF_A_TOPIC, subscriptions - start)
        for start in range(0, subscriptions, _SUBSCRIPTIONS_OF_A_TOPIC)
    ]
    delayed = [parse_topic_name(f"persistent://{namespace}/delayed-{number}") for number in range(len(counts))]
    typed = [parse_topic_name(f"persistent://{namespace}/typed-{number}") for number in range(schemas)]
    with ThreadPoolExecutor(_MAKERS) as pool:
        list(pool.map(lambda topic, count: _subscribe(workload, topic, count), delayed, counts))
        list(pool.map(lambda topic: workload.store_schemas(topic, VERSIONS), typed))
    paths = {
        workload.of_topic(topic, f"subscription/s-{number}"): (topic, f"s-{number}")
        for topic, count in zip(delayed, counts, strict=True)
        for number in range(count)
    }
    schema_paths = [f"schemas/{topic.namespace}/{topic.local_name}/schema" for topic in typed]
    return Parts(paths, schema_paths, _ledgers(workload, delayed, typed))


def _ledgers(workload: Workload, delayed: Sequence[TopicName], typed: Sequence[TopicName]) -> frozenset[LedgerId]:
    found = set[LedgerId]()
    for topic in delayed:
        references = workload.ledgers(topic)
        found |= {*references.cursors.values(), *(each for some in references.buckets.values() for each in some)}
    return frozenset(found.union(*(workload.ledgers(topic).schema for topic in typed)))


def _subscribe(workload: Workload, topic: TopicName, count: int) -> None:
    names = [f"s-{number}" for number in range(count)]
    consumers = [
        workload.client.subscribe(str(topic), name, consumer_type=pulsar.ConsumerType.Shared) for name in names
    ]
    producer = workload.client.create_producer(str(topic), batching_enabled=False)
    producer.send(b"now")
    for number in range(_DELAYED):
        producer.send(b"later", deliver_after=timedelta(hours=1, seconds=number))
    for consumer in consumers:
        consumer.acknowledge(consumer.receive(timeout_millis=_RECEIVE_MS))
    until(lambda: workload.ledgers(topic).buckets.keys() >= set(names), f"each subscription of {topic} has buckets")
    producer.close()
    for consumer in consumers:
        consumer.close()


def delete_parts(url: str, paths: Sequence[str], answered: Callable[[], object] = lambda: None) -> list[str]:
    """Delete parts, several at a time, and return those that were not deleted."""
    local = threading.local()

    def is_deleted(path: str) -> bool:
        session = local.__dict__.setdefault("session", requests.Session())
        try:
            answer = session.delete(f"{url}/admin/v2/{path}", params={"force": "true"}, timeout=_REQUEST_SECONDS)
        except requests.RequestException:
            return False
        finally:
            answered()
        return answer.status_code in _DONE

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [path for path, deleted in zip(paths, pool.map(is_deleted, paths), strict=True) if not deleted]


def delete_rest(workload: Workload, url: str, parts: Parts, paths: Sequence[str]) -> None:
    """Retry deletions that failed while brokers were down, except those that no broker can complete now."""
    left = set(paths)

    def is_done() -> bool:
        left.intersection_update(delete_parts(url, sorted(left)))
        return left <= parts.broken(workload)

    until(is_done, "what was refused while brokers were away is deleted")


def end_promises(workload: Workload, sidecar: SidecarProcess, parts: Parts) -> set[str]:
    """Wait until the sidecars have finished accepted deletions, and return subscriptions that no broker can delete."""
    until(lambda: not sidecar.call("GET", f"{BASE}/topic-deletions"), "the sidecar has finished what it promised")
    return parts.broken(workload)


@contextlib.contextmanager
def killing_after(answers: int, kill: Callable[[], object]) -> Iterator[Callable[[], object]]:
    """Call ``kill`` in a thread after ``answers`` calls, and wait for its return at the end."""
    came = threading.Semaphore(0)

    def wait_and_kill() -> None:
        for _ in range(answers):
            came.acquire()
        kill()

    killer = threading.Thread(target=wait_and_kill)
    killer.start()
    yield came.release
    killer.join()


def unreferenced(workload: Workload) -> frozenset[LedgerId]:
    """Return all unreferenced ledgers of the cluster, of every kind."""

    def look() -> ReferenceScan | None:
        try:
            return scan_references(workload.tree, workload.compacted)
        except TemporaryError:
            return None

    return frozenset(until(look, "a scan of all references is complete").orphans)
