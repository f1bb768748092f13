"""Deletions that go straight to brokers, and brokers killed in the middle: what they leave behind, by cause.

A volley is many calls at once. Both brokers are killed when the first references are seen to vanish, so that the
ledgers of the others are not deleted any more.
"""

import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pulsar
import requests
from pulsar_sidecar.adapters.metadata.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_ownership.claims import NotPulsars, Unrecognised, owner_path, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

from tests.cluster.deletion import Scene
from tests.cluster.topics import numbered_topics, unique

BROKERS = ("broker-1", "broker-2")
LEAST_LEAKS = 5
"""Of each cause, or a run does not count."""

_CALLS_AT_ONCE = 32
_TRIES = 6
_VOLLEY_SECONDS = 60
_TOPICS = 24
_LEDGERS = 6
_NAMES = [f"sub-{number}" for number in range(16)]
_KEEP_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_KEEP_NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@dataclass(frozen=True, slots=True)
class Volley:
    """Calls that take references away, in a namespace of their own.

    Attributes:
        vanishing: how many of its nodes must have changed before the brokers are killed.
        deleted: how many ledgers must have been deleted instead, where no node tells.
    """

    namespace: str
    calls: Sequence[Callable[[], object]]
    vanishing: int = 3
    deleted: int | None = None

    def is_under_way(self, nodes: int, ledgers: int) -> bool:
        """Whether enough has happened."""
        return nodes >= self.vanishing if self.deleted is None else ledgers >= self.deleted


class LeakingBrokers:
    """Makes brokers leak ledgers, by each cause that a client of theirs can bring about."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._workload = scene.workload

    def leak(self, cause: LeakCause) -> frozenset[LedgerId]:
        """At least `LEAST_LEAKS` ledgers that were referenced and that brokers left behind, by the oracles' count."""
        volleys = {
            LeakCause.TRIM: self._trims,
            LeakCause.CURSOR_SWITCH: self._cursor_switches,
            LeakCause.COMPACTION: self._compactions,
            LeakCause.SUBSCRIPTION: self._unsubscribes,
            LeakCause.TOPIC_DELETION: self._topic_deletions,
            LeakCause.NAMESPACE_DELETION: self._namespace_deletions,
        }
        left = frozenset[LedgerId]()
        for _ in range(_TRIES):
            volley = volleys[cause]()
            before = self._scene.oracles.census()
            self._fire(volley)
            left |= self._left_in(volley.namespace) & before.references.keys()
            if len(left) >= LEAST_LEAKS:
                return left
        raise AssertionError(
            f"brokers that were killed {_TRIES} times left only {len(left)} ledgers behind by a {cause}"
        )

    def _left_in(self, namespace: str) -> frozenset[LedgerId]:
        """The namespace's ledgers that nothing references, of any kind but schemas, by the oracles' count."""
        nodes = self._workload.ledger_nodes(self._scene.oracles.census().orphans)
        claims = {id_: read_claim(decode_ledger_metadata(node.data).custom_metadata) for id_, node in nodes.items()}
        below = f"{MANAGED_LEDGERS}/{namespace}/"
        return frozenset(
            ledger_id
            for ledger_id, claim in claims.items()
            if not isinstance(claim, NotPulsars | Unrecognised) and owner_path(claim).startswith(below)
        )

    # --- what is asked of brokers ----------------------------------------------------------------------------------

    def _namespace(self, cause: LeakCause) -> str:
        namespace = f"{self._scene.namespace}-{cause.value}-{unique()}"
        self._workload.admin("PUT", f"namespaces/{namespace}", {"retention_policies": _KEEP_ALL})
        self._scene.oracles.expect_damage_in(namespace)
        return namespace

    def _trims(self) -> Volley:
        namespace = self._namespace(LeakCause.TRIM)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        self._workload.admin("POST", f"namespaces/{namespace}/retention", _KEEP_NOTHING)
        return Volley(namespace, [partial(self._ask, "POST", topic, "trim") for topic in topics])

    def _cursor_switches(self) -> Volley:
        """A cursor whose topic is closed keeps its position in its node, and its ledger is deleted."""
        namespace = self._namespace(LeakCause.CURSOR_SWITCH)
        topics = self._subscribed(namespace, topics=8)
        return Volley(namespace, [partial(self._ask, "PUT", topic, "unload") for topic in topics], vanishing=1)

    def _unsubscribes(self) -> Volley:
        namespace = self._namespace(LeakCause.SUBSCRIPTION)
        topics = self._subscribed(namespace, topics=4)
        verbs = [f"subscription/{name}" for name in _NAMES]
        calls = [partial(self._ask, "DELETE", topic, verb) for topic in topics for verb in verbs]
        return Volley(namespace, calls, vanishing=8)

    def _subscribed(self, namespace: str, topics: int) -> Sequence[TopicName]:
        names = numbered_topics(namespace, topics)
        _all_at_once([partial(self._subscribe, topic) for topic in names])
        return names

    def _compactions(self) -> Volley:
        """Of topics that were closed since they were compacted first: then their cursors' nodes have named it."""
        namespace = self._namespace(LeakCause.COMPACTION)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._compacted, topic) for topic in topics])
        calls = [partial(self._ask, "PUT", topic, "compaction") for topic in topics]
        return Volley(namespace, calls, deleted=1)

    def _compacted(self, topic: TopicName) -> None:
        self._write_keys(topic)
        self._workload.compact(topic)
        self._write_keys(topic)
        self._workload.unload(topic)

    def _write_keys(self, topic: TopicName) -> None:
        self._workload.produce(topic, [b"value"] * 2, key="key")

    def _topic_deletions(self) -> Volley:
        namespace = self._namespace(LeakCause.TOPIC_DELETION)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        return Volley(namespace, [partial(self._ask, "DELETE", topic, force="true") for topic in topics])

    def _namespace_deletions(self) -> Volley:
        namespace = self._namespace(LeakCause.NAMESPACE_DELETION)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        return Volley(namespace, [partial(self._workload.request, "DELETE", f"namespaces/{namespace}", force="true")])

    def _subscribe(self, topic: TopicName) -> None:
        self._workload.fill(topic, 1)
        for name in _NAMES:
            consumer = self._workload.client.subscribe(
                str(topic), name, initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=1
            )
            consumer.acknowledge(consumer.receive(timeout_millis=_VOLLEY_SECONDS * 1000))
            consumer.close()

    def _ask(self, method: str, topic: TopicName, verb: str = "", **params: str) -> None:
        self._workload.request(method, self._workload.of_topic(topic, verb), **params)

    # --- and how they die of it ------------------------------------------------------------------------------------

    def _fire(self, volley: Volley) -> None:
        cluster, clock = self._scene.cluster, SystemClock()
        pids = [cluster.addresses.members[name] for name in BROKERS]
        below = f"{MANAGED_LEDGERS}/{volley.namespace}/"
        url = cluster.addresses.metadata_store_url
        with closing(ZooKeeperChanges(url, clock)) as changes, ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            changes.arm()
            asked = [pool.submit(_quietly, call) for call in volley.calls]
            seen: set[str] = set()
            deleted = 0
            ends = clock.monotonic_seconds() + _VOLLEY_SECONDS
            while not volley.is_under_way(len(seen), deleted) and clock.monotonic_seconds() < ends:
                heard = changes.take(0.05)
                seen.update(path for path in heard.nodes if path.startswith(below))
                deleted += sum(not exists for exists in heard.ledgers.values())
                if all(each.done() for each in asked):
                    break
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            for broker in BROKERS:
                if cluster.is_running(broker):
                    cluster.kill(broker)
            list(pool.map(cluster.restart, BROKERS))


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except requests.RequestException:
        return  # the broker died


def _all_at_once(calls: Sequence[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
