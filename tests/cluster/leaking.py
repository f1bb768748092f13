"""Deletions that go straight to brokers, and brokers killed in the middle: what they leave behind, by cause.

A volley is many calls at once. Both brokers are killed when the first references are seen to vanish, so that the
ledgers of the others are not deleted any more. What was referenced at any time, ZooKeeper's transaction log tells.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pulsar
import requests
from pulsar_sidecar.adapters.metadata.zookeeper_changes import ZooKeeperChanges
from pulsar_sidecar.ledger_deletion.watch.evidence import LeakCause
from pulsar_sidecar.ledger_deletion.watch.ports import Changes
from pulsar_sidecar.ledger_ownership.claims import NotPulsars, Unrecognised, owner_path, read_claim
from pulsar_sidecar.ledger_ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS, SCHEMAS
from pulsar_sidecar.local_cluster.planning import render
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName

from tests.cluster.clients import PatientClient
from tests.cluster.cursor_switches import CURSOR_SWITCHES_CONF
from tests.cluster.deletion import Scene
from tests.cluster.topics import numbered_topics, unique
from tests.cluster.transaction_log import TransactionLog

BROKERS = ("broker-1", "broker-2")
ROLLOVER = "rollover"
LEAST_LEAKS = 5
"""Of each cause, or a run does not count."""

_ZOOKEEPER = "zookeeper"
_STORED_AT_ONCE = {"managedLedgerDefaultMarkDeleteRateLimit": "0"}
_CALLS_AT_ONCE = 32
_TRIES = 6
_VOLLEY_SECONDS = 60
_LOOK_SECONDS = 0.05
_AWAKE_SECONDS = 0.01
_ASLEEP_SECONDS = 0.5
_RACED_TOPICS, _RACERS = 4, 6
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
        slow: ZooKeeper answers for a moment now and then, so that what was asked comes to each of its steps together,
            and dies with the brokers; then the calls' effect comes after their answers.
        closing: ledgers that were closed when ZooKeeper slept last count, not nodes that change.
        afterwards: what is to be done when the brokers are back.
    """

    namespace: str
    calls: Sequence[Callable[[], object]]
    vanishing: int = 3
    slow: bool = False
    closing: bool = False
    afterwards: Sequence[Callable[[], object]] = ()


class LeakingBrokers:
    """Makes brokers leak ledgers, by each cause that a client of theirs can bring about."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._workload = scene.workload
        self._log = TransactionLog(scene.cluster)
        self._confs: dict[str, str] = {}

    @property
    def ways(self) -> Mapping[str, Callable[[], Volley]]:
        """What `leak` knows to do, by name: a cause, or ``rollover``, a loaded cursor's switch to its next ledger."""
        return {
            LeakCause.TRIM: self._trims,
            LeakCause.CURSOR_SWITCH: self._cursor_switches,
            ROLLOVER: self._rollovers,
            LeakCause.COMPACTION: self._compactions,
            LeakCause.SUBSCRIPTION: self._unsubscribes,
            LeakCause.TOPIC_DELETION: self._topic_deletions,
            LeakCause.NAMESPACE_DELETION: self._namespace_deletions,
        }

    def leak(self, way: str) -> frozenset[LedgerId]:
        """At least `LEAST_LEAKS` ledgers that were referenced and that brokers left behind, by the oracles' count."""
        left = frozenset[LedgerId]()
        for _ in range(_TRIES):
            volley = self.ways[way]()
            self._fire(volley)
            left |= self._left_below(f"{MANAGED_LEDGERS}/{volley.namespace}/") & self._log.ever_named()
            if len(left) >= LEAST_LEAKS:
                return left
        raise AssertionError(f"brokers that were killed {_TRIES} times left only {len(left)} ledgers behind by a {way}")

    def lose_schema_races(self) -> frozenset[LedgerId]:
        """At least `LEAST_LEAKS` ledgers of schemas that no node ever named: the losers of concurrent first publishes.

        Brokers of 4.0.8 write a schema's ledger first and name it then, and only one such ledger wins.
        """
        namespace = self._namespace("schema-race")
        topics = numbered_topics(namespace, _RACED_TOPICS)
        for topic in topics:
            self._workload.fill(topic, 1)
        # The same schema and different ones.
        _all_at_once(
            [partial(self._workload.store_schemas, topic, 1 + n % 2) for topic in topics for n in range(_RACERS)],
            _CALLS_AT_ONCE,
        )
        left = self._left_below(f"{SCHEMAS}/{namespace}/")
        lost = left - self._log.ever_named()
        assert len(lost) >= LEAST_LEAKS, f"only {len(lost)} of {len(topics) * _RACERS} publishers lost a race"
        return lost

    def _left_below(self, path: str) -> frozenset[LedgerId]:
        """The ledgers of owners below a path that nothing references, by the oracles' count."""
        nodes = self._workload.ledger_nodes(self._scene.oracles.census().orphans)
        claims = {id_: read_claim(decode_ledger_metadata(node.data).custom_metadata) for id_, node in nodes.items()}
        return frozenset(
            ledger_id
            for ledger_id, claim in claims.items()
            if not isinstance(claim, NotPulsars | Unrecognised) and owner_path(claim).startswith(path)
        )

    # --- what is asked of brokers ----------------------------------------------------------------------------------

    def _namespace(self, what: str) -> str:
        namespace = f"{self._scene.namespace}-{what}-{unique()}"
        self._workload.admin("PUT", f"namespaces/{namespace}", {"retention_policies": _KEEP_ALL})
        self._scene.oracles.expect_damage_in(namespace)
        return namespace

    def _trims(self) -> Volley:
        namespace = self._namespace(LeakCause.TRIM.value)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        self._workload.admin("POST", f"namespaces/{namespace}/retention", _KEEP_NOTHING)
        return Volley(namespace, [partial(self._ask, "POST", topic, "trim") for topic in topics])

    def _cursor_switches(self) -> Volley:
        """A cursor whose topic is closed keeps its position in its node, and its ledger is deleted."""
        namespace = self._namespace(LeakCause.CURSOR_SWITCH.value)
        topics = self._subscribed(namespace, topics=8)
        return Volley(namespace, [partial(self._ask, "PUT", topic, "unload") for topic in topics], vanishing=1)

    def _rollovers(self) -> Volley:
        """Each acknowledgement begins another ledger, and every cursor does at about the same time."""
        self._kill_brokers()
        self._start_brokers(CURSOR_SWITCHES_CONF)
        namespace = self._namespace(ROLLOVER)
        client = PatientClient(self._scene.cluster.addresses)
        topics = numbered_topics(namespace, 4)
        consumers = [each for topic in topics for each in self._consumers(client, topic, ledgers=2)]
        second = [(each, each.receive(timeout_millis=_VOLLEY_SECONDS * 1000)) for each in consumers]
        calls = [partial(consumer.acknowledge, message) for consumer, message in second]
        return Volley(namespace, calls, LEAST_LEAKS + 1, slow=True, afterwards=[client.shutdown])

    def _unsubscribes(self) -> Volley:
        namespace = self._namespace(LeakCause.SUBSCRIPTION.value)
        topics = self._subscribed(namespace, topics=4)
        verbs = [f"subscription/{name}" for name in _NAMES]
        calls = [partial(self._ask, "DELETE", topic, verb) for topic in topics for verb in verbs]
        return Volley(namespace, calls, vanishing=8)

    def _subscribed(self, namespace: str, topics: int) -> Sequence[TopicName]:
        names = numbered_topics(namespace, topics)
        _all_at_once([partial(self._subscribe, topic) for topic in names])
        return names

    def _compactions(self) -> Volley:
        """Of topics that were closed since they were compacted first: then their cursors' nodes name the old ledger.

        A broker closes the new one and reads its metadata, writes its name into the cursor's ledger (at once: by
        default another time within a second stays in memory) and deletes the old one. Nodes show the new name when the
        topic was closed again.
        """
        self._kill_brokers()
        self._start_brokers(_STORED_AT_ONCE)
        namespace = self._namespace(LeakCause.COMPACTION.value)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._compacted, topic) for topic in topics])
        calls = [partial(self._ask, "PUT", topic, "compaction") for topic in topics]
        afterwards = [partial(self._load_and_close, topic) for topic in topics]
        return Volley(namespace, calls, LEAST_LEAKS + 1, slow=True, closing=True, afterwards=afterwards)

    def _compacted(self, topic: TopicName) -> None:
        self._write_keys(topic)
        self._workload.compact(topic)
        self._workload.unload(topic)
        self._write_keys(topic)

    def _load_and_close(self, topic: TopicName) -> None:
        self._write_keys(topic)
        self._workload.unload(topic)

    def _write_keys(self, topic: TopicName) -> None:
        self._workload.produce(topic, [b"value"] * 2, key="key")

    def _topic_deletions(self) -> Volley:
        namespace = self._namespace(LeakCause.TOPIC_DELETION.value)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        return Volley(namespace, [partial(self._ask, "DELETE", topic, force="true") for topic in topics])

    def _namespace_deletions(self) -> Volley:
        namespace = self._namespace(LeakCause.NAMESPACE_DELETION.value)
        topics = numbered_topics(namespace, _TOPICS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        return Volley(namespace, [partial(self._workload.request, "DELETE", f"namespaces/{namespace}", force="true")])

    def _subscribe(self, topic: TopicName) -> None:
        for consumer in self._consumers(self._workload.client, topic, ledgers=1):
            consumer.close()

    def _consumers(self, client: PatientClient, topic: TopicName, ledgers: int) -> Sequence[pulsar.Consumer]:
        """One for each name, with the topic's first message acknowledged."""
        self._workload.fill(topic, ledgers)
        earliest = pulsar.InitialPosition.Earliest
        consumers = [
            client.subscribe(str(topic), name, initial_position=earliest, receiver_queue_size=1) for name in _NAMES
        ]
        for consumer in consumers:
            consumer.acknowledge(consumer.receive(timeout_millis=_VOLLEY_SECONDS * 1000))
        return consumers

    def _ask(self, method: str, topic: TopicName, verb: str = "", **params: str) -> None:
        self._workload.request(method, self._workload.of_topic(topic, verb), **params)

    # --- and how they die of it ------------------------------------------------------------------------------------

    def _fire(self, volley: Volley) -> None:
        cluster, clock = self._scene.cluster, SystemClock()
        url = cluster.addresses.metadata_store_url
        with closing(ZooKeeperChanges(url, clock)) as changes, ThreadPoolExecutor(_CALLS_AT_ONCE) as pool:
            changes.arm()
            asked = [pool.submit(_quietly, call) for call in volley.calls]
            ends = clock.monotonic_seconds() + _VOLLEY_SECONDS
            progress = Progress(volley, self._log)
            while not progress.is_enough() and clock.monotonic_seconds() < ends:
                if volley.slow:
                    progress.note(self._wake_zookeeper(changes))
                progress.note(changes.take(_LOOK_SECONDS))
                if not volley.slow and all(each.done() for each in asked):
                    break
            if volley.slow:
                # What brokers have sent since it slept, nobody ever hears.
                cluster.kill(_ZOOKEEPER)
            self._kill_brokers()
            if volley.slow:
                cluster.restart(_ZOOKEEPER)
            self._start_brokers()
        _all_at_once([partial(_quietly, each) for each in volley.afterwards])

    def _wake_zookeeper(self, changes: ZooKeeperChanges) -> Changes:
        """What changed while it was awake."""
        cluster = self._scene.cluster
        cluster.cont(_ZOOKEEPER)
        heard = changes.take(_AWAKE_SECONDS)
        cluster.stop(_ZOOKEEPER)
        # Brokers ask on, now that they were answered.
        time.sleep(_ASLEEP_SECONDS)
        return heard

    def _kill_brokers(self) -> None:
        """Both at the same moment."""
        cluster = self._scene.cluster
        for pid in [cluster.addresses.members[name] for name in BROKERS]:
            os.kill(pid, signal.SIGKILL)
        for broker in BROKERS:
            if cluster.is_running(broker):
                cluster.kill(broker)

    def _start_brokers(self, conf: Mapping[str, str] | None = None) -> None:
        """With these settings over their own."""
        cluster = self._scene.cluster
        directory = cluster.addresses.directory
        assert directory is not None
        for broker in BROKERS:
            file = directory / broker / "broker.conf"
            self._confs.setdefault(broker, file.read_text())
            file.write_text(render(self._confs[broker], conf or {}))
        with ThreadPoolExecutor(len(BROKERS)) as pool:
            list(pool.map(cluster.restart, BROKERS))


class Progress:
    """How far a volley has come."""

    def __init__(self, volley: Volley, log: TransactionLog) -> None:
        log.read_on()
        self._volley, self._log = volley, log
        self._below = f"{MANAGED_LEDGERS}/{volley.namespace}/"
        # At the volley's beginning, after the last but one look, after the last.
        self._closed = [log.closed] * 3
        self._nodes: set[str] = set()
        self._deleted = 0

    def note(self, heard: Changes) -> None:
        """What has changed since."""
        self._nodes.update(path for path in heard.nodes if path.startswith(self._below))
        self._deleted += sum(not exists for exists in heard.ledgers.values())

    def is_enough(self) -> bool:
        """Whether the brokers are to die now; where they wait for ZooKeeper, ledgers that are gone do not count."""
        begun = len(self._nodes)
        if self._volley.closing:
            self._log.read_on()
            self._closed = [self._closed[0], self._closed[2], self._log.closed]
            begun = self._closed[1] - self._closed[0]
        return begun - (self._deleted if self._volley.slow else 0) >= self._volley.vanishing


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except (requests.RequestException, pulsar.PulsarException):
        return  # the broker died


def _all_at_once(calls: Sequence[Callable[[], object]], most: int = 8) -> None:
    with ThreadPoolExecutor(most) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
