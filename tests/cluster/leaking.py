"""Ledgers that killed brokers leave behind after direct deletions, by cause.

A volley is a set of concurrent calls of several causes. Until both brokers are killed, ZooKeeper refuses to delete
ledgers' nodes: so brokers remove references, and die before they retry the deletion of the ledgers. The speed of the
machine does not matter.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import pulsar
import requests
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from pulsar_sidecar.adapters.zookeeper.addressing import parse_metadata_store_url
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.local_cluster.planning import render
from pulsar_sidecar.local_cluster.spec import ClusterNotFoundError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.claims import ForeignLedger, UnknownClaim, owner_path, read_claim
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.paths import SCHEMAS, ledger_path

from tests.cluster.background import in_parallel
from tests.cluster.clients import PatientClient
from tests.cluster.cursor_rollovers import CURSOR_ROLLOVERS_CONF
from tests.cluster.deletion import Scene
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.running import BROKERS
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.cluster.topics import KEEP_ALL, KEEP_NOTHING, TopicLedgers, numbered_topics, unique
from tests.cluster.transaction_log import TransactionLog

ROLLOVER = "rollover"
LEAST_LEAKS = 5
"""Fewest leaked ledgers of each cause in a valid run."""

_RECEIVE_MS = OPERATION_SECONDS * 1000
_CALLS_AT_ONCE = 32
_PREPARED_AT_ONCE = 8
_RACED_TOPICS, _RACERS = 4, 6
_LISTS, _LEDGERS = 2, 6
_COMPACTED_TOPICS = 6
_SUBSCRIBED_TOPICS = 2
_NAMES = [f"sub-{number}" for number in range(6)]
_STORED_AT_ONCE = {
    **dict.fromkeys(("bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum"), 1),
    "managedLedgerMaxMarkDeleteRate": 0,
}


@dataclass(frozen=True, slots=True)
class Volley:
    """Calls that remove references of topics in their own namespace.

    Attributes:
        afterwards: calls to make after the restart of the brokers.
    """

    topics: Sequence[TopicName]
    calls: Sequence[Callable[[], object]]
    afterwards: Sequence[Callable[[], object]] = ()


class LeakingBrokers:
    """Brokers that leak ledgers by each cause that a client can trigger."""

    def __init__(self, scene: Scene, watching: SidecarProcess) -> None:
        """Initialise; ``watching`` must see a reference before its removal, to notice the removal at all."""
        self._scene = scene
        self._workload = scene.workload
        self._watching = watching
        self._confs: dict[str, str] = {}

    @property
    def ways(self) -> Mapping[str, Callable[[], Volley]]:
        """Ways of `leak` by name: a cause, or ``rollover``, a loaded cursor's switch to its next ledger."""
        return {
            LeakCause.TRIM: self._trims,
            LeakCause.CURSOR_SWITCH: self._cursor_rollovers,
            ROLLOVER: self._rollovers,
            LeakCause.COMPACTION: self._compactions,
            LeakCause.SUBSCRIPTION: self._unsubscribes,
            LeakCause.SCHEMA: self._schema_deletions,
            LeakCause.TOPIC_DELETION: self._topic_deletions,
            LeakCause.NAMESPACE_DELETION: self._namespace_deletions,
        }

    def leak(self, ways: Iterable[str]) -> Mapping[str, frozenset[LedgerId]]:
        """Leak at least `LEAST_LEAKS` ledgers of each way, seen referenced before, by the oracles' count."""
        chosen = list(ways)
        if ROLLOVER in chosen:
            self._kill_brokers()
            self._start_brokers(CURSOR_ROLLOVERS_CONF)
        with ThreadPoolExecutor(_PREPARED_AT_ONCE) as pool:
            volleys = dict(zip(chosen, pool.map(lambda way: self.ways[way](), chosen), strict=True))
        before = {
            way: until(lambda volley=volley: self._seen(volley), f"the watch has seen what is referenced for a {way}")
            for way, volley in volleys.items()
        }
        named = {way: _all_of(ledgers) for way, ledgers in before.items()}
        self._fire(volleys, before)
        orphans = self._scene.oracles.reference_scan().orphans
        left = {way: ledger_ids & orphans for way, ledger_ids in named.items()}
        assert min(map(len, left.values())) >= LEAST_LEAKS, f"brokers that were killed left too little behind: {left}"
        return left

    def lose_schema_races(self) -> frozenset[LedgerId]:
        """Leak at least `LEAST_LEAKS` ledgers of schemas without a reference: losers of concurrent first publishes.

        Brokers of 4.0.8 write a schema's ledger before its reference, and only one such ledger wins.
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
        lost = self._left_below(f"{SCHEMAS}/{namespace}/") - TransactionLog(self._scene.cluster).ever_named()
        assert len(lost) >= LEAST_LEAKS, f"only {len(lost)} of {len(topics) * _RACERS} publishers lost a race"
        return lost

    def _left_below(self, path: str) -> frozenset[LedgerId]:
        """Return unreferenced ledgers of owners below a path, by the oracles' count."""
        nodes = self._workload.ledger_nodes(self._scene.oracles.reference_scan().orphans)
        claims = {id_: read_claim(decode_ledger_metadata(node.data).custom_metadata) for id_, node in nodes.items()}
        return frozenset(
            ledger_id
            for ledger_id, claim in claims.items()
            if not isinstance(claim, ForeignLedger | UnknownClaim) and owner_path(claim).startswith(path)
        )

    def _ledgers(self, volley: Volley) -> Sequence[TopicLedgers]:
        return [self._workload.ledgers(topic) for topic in volley.topics]

    def _seen(self, volley: Volley) -> Sequence[TopicLedgers] | None:
        """Return the volley's ledgers if the watch has seen all references; None if a cursor switched meanwhile."""
        ledgers = self._ledgers(volley)
        seen = (self._watching.call("GET", f"{BASE}/watch/leaks/{each}")["namedBy"] for each in _all_of(ledgers))
        return ledgers if all(seen) else None

    # --- requests to brokers ---------------------------------------------------------------------------------------

    def _namespace(self, what: str, **policies: object) -> str:
        namespace = f"{self._scene.namespace}-{what}-{unique()}"
        self._workload.admin("PUT", f"namespaces/{namespace}", {"retention_policies": KEEP_ALL, **policies})
        self._scene.oracles.expect_broken_topics_in(namespace)
        return namespace

    def _filled(self, namespace: str) -> Sequence[TopicName]:
        topics = numbered_topics(namespace, _LISTS)
        _all_at_once([partial(self._workload.fill, topic, _LEDGERS) for topic in topics])
        return topics

    def _trims(self) -> Volley:
        namespace = self._namespace(LeakCause.TRIM.value)
        topics = self._filled(namespace)
        self._workload.admin("POST", f"namespaces/{namespace}/retention", KEEP_NOTHING)
        return Volley(topics, [partial(self._ask, "POST", topic, "trim") for topic in topics])

    def _cursor_rollovers(self) -> Volley:
        """Return unloads of topics, after which brokers store cursors in nodes and delete cursors' ledgers."""
        topics = self._subscribed(LeakCause.CURSOR_SWITCH)
        return Volley(topics, [partial(self._ask, "PUT", topic, "unload") for topic in topics])

    def _rollovers(self) -> Volley:
        """Return acknowledgements, each of which begins another ledger, of all cursors at about the same time."""
        client = PatientClient(self._scene.cluster.addresses)
        topics = numbered_topics(self._namespace(ROLLOVER), _SUBSCRIBED_TOPICS)
        consumers = [each for topic in topics for each in self._consumers(client, topic, ledgers=2)]
        second = [(each, each.receive(timeout_millis=_RECEIVE_MS)) for each in consumers]
        calls = [partial(consumer.acknowledge, message) for consumer, message in second]
        return Volley(topics, calls, afterwards=[client.shutdown])

    def _unsubscribes(self) -> Volley:
        topics = self._subscribed(LeakCause.SUBSCRIPTION)
        verbs = [f"subscription/{name}" for name in _NAMES]
        return Volley(topics, [partial(self._ask, "DELETE", topic, verb) for topic in topics for verb in verbs])

    def _subscribed(self, cause: LeakCause) -> Sequence[TopicName]:
        topics = numbered_topics(self._namespace(cause.value), _SUBSCRIBED_TOPICS)
        _all_at_once([partial(self._subscribe, topic) for topic in topics])
        return topics

    def _compactions(self) -> Volley:
        """Return compactions of topics closed since the first one, whose cursors' nodes name the old ledger.

        A broker closes the new ledger, writes its id into the cursor's ledger (at once here; by default a second write
        within a second stays in memory) and deletes the old one. Nodes show the new id after the topic closes again.
        """
        namespace = self._namespace(LeakCause.COMPACTION.value, persistence=_STORED_AT_ONCE)
        topics = numbered_topics(namespace, _COMPACTED_TOPICS)
        _all_at_once([partial(self._compacted, topic) for topic in topics])
        calls = [partial(self._ask, "PUT", topic, "compaction") for topic in topics]
        return Volley(topics, calls, afterwards=[partial(self._load_and_close, topic) for topic in topics])

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

    def _schema_deletions(self) -> Volley:
        """Return deletions of schemas: brokers delete the node after the ledgers, even if that deletion failed."""
        topics = numbered_topics(self._namespace(LeakCause.SCHEMA.value), _LISTS)
        _all_at_once([partial(self._workload.store_schemas, topic, _LEDGERS) for topic in topics])
        return Volley(topics, [partial(self._workload.delete_schemas, topic) for topic in topics])

    def _topic_deletions(self) -> Volley:
        topics = self._filled(self._namespace(LeakCause.TOPIC_DELETION.value))
        return Volley(topics, [partial(self._ask, "DELETE", topic, force="true") for topic in topics])

    def _namespace_deletions(self) -> Volley:
        namespace = self._namespace(LeakCause.NAMESPACE_DELETION.value)
        topics = self._filled(namespace)
        return Volley(topics, [partial(self._workload.request, "DELETE", f"namespaces/{namespace}", force="true")])

    def _subscribe(self, topic: TopicName) -> None:
        for consumer in self._consumers(self._workload.client, topic, ledgers=1):
            consumer.close()

    def _consumers(self, client: PatientClient, topic: TopicName, ledgers: int) -> Sequence[pulsar.Consumer]:
        """Return a consumer for each name, with the topic's first message acknowledged."""
        self._workload.fill(topic, ledgers)
        earliest = pulsar.InitialPosition.Earliest
        consumers = [
            client.subscribe(str(topic), name, initial_position=earliest, receiver_queue_size=1) for name in _NAMES
        ]
        for consumer in consumers:
            consumer.acknowledge(consumer.receive(timeout_millis=_RECEIVE_MS))
        until(
            lambda: self._workload.ledgers(topic).cursors.keys() >= set(_NAMES), f"the cursors of {topic} have ledgers"
        )
        return consumers

    def _ask(self, method: str, topic: TopicName, verb: str = "", **params: str) -> None:
        self._workload.request(method, self._workload.of_topic(topic, verb), **params)

    # --- kills of brokers ------------------------------------------------------------------------------------------

    def _fire(self, volleys: Mapping[str, Volley], before: Mapping[str, Sequence[TopicLedgers]]) -> None:
        calls = [call for volley in volleys.values() for call in volley.calls]
        everything = frozenset().union(*map(_all_of, before.values()))
        url = self._scene.cluster.addresses.metadata_store_url
        with ThreadPoolExecutor(_CALLS_AT_ONCE) as pool, no_deletion_of(url, everything):
            for call in calls:
                pool.submit(_quietly, call)
            for way, volley in volleys.items():
                until(
                    lambda way=way, volley=volley: _vanished(before[way], self._ledgers(volley)) >= LEAST_LEAKS,
                    f"the first references vanish by a {way}",
                )
            self._kill_brokers()
        self._start_brokers()
        _all_at_once([partial(_quietly, each) for volley in volleys.values() for each in volley.afterwards])

    def _kill_brokers(self) -> None:
        """Kill both brokers at the same moment."""
        cluster = self._scene.cluster
        for pid in [cluster.addresses.members[name] for name in BROKERS]:
            os.kill(pid, signal.SIGKILL)
        for broker in BROKERS:
            with suppress(ClusterNotFoundError):  # the broker has ended already; otherwise this waits for its end
                cluster.kill(broker)

    def _start_brokers(self, conf: Mapping[str, str] | None = None) -> None:
        """Start both brokers with these settings on top of their own."""
        cluster = self._scene.cluster
        directory = cluster.addresses.directory
        assert directory is not None
        for broker in BROKERS:
            file = directory / broker / "broker.conf"
            self._confs.setdefault(broker, file.read_text())
            file.write_text(render(self._confs[broker], conf or {}))
        in_parallel(cluster.restart, BROKERS, len(BROKERS))


@contextmanager
def no_deletion_of(metadata_store_url: str, ledger_ids: Iterable[LedgerId]) -> Iterator[None]:
    """Keep clients from deleting the nodes of these ledgers and their neighbours (up to 10,000) meanwhile."""
    parents = {ledger_path(ledger_id).rpartition("/")[0] for ledger_id in ledger_ids}
    client = KazooClient(parse_metadata_store_url(metadata_store_url).hosts)
    client.start()
    try:
        for parent in parents:
            client.set_acls(parent, [make_acl("world", "anyone", read=True, write=True, create=True, admin=True)])
        yield
    finally:
        for parent in parents:
            client.set_acls(parent, OPEN_ACL_UNSAFE)
        client.stop()
        client.close()


def _all_of(ledgers: Iterable[TopicLedgers]) -> frozenset[LedgerId]:
    return frozenset[LedgerId]().union(*(each.all for each in ledgers))


def _vanished(before: Sequence[TopicLedgers], now: Sequence[TopicLedgers]) -> int:
    """Return the number of ledgers to delete, including replaced compacted ones that a cursor's ledger still names."""
    vanished = _all_of(before) - _all_of(now)
    replaced = [old.compacted for old, new in zip(before, now, strict=True) if new.compacted - old.compacted]
    return len(vanished.union(*replaced))


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except (requests.RequestException, pulsar.PulsarException):
        return  # the broker died


def _all_at_once(calls: Sequence[Callable[[], object]], most: int = 8) -> None:
    with ThreadPoolExecutor(most) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()
