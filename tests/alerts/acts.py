"""Real faults on a cluster, for a recorder: ``python -m pytest tests/alerts/acts.py``.

Not part of ``make test``: it writes ``tests/alerts/recorded``, which `tests.unit.deploy.test_alerts_fire` plays to
promtool. Each act brings about what some alerts are for, in seconds instead of hours.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pulsar
import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE, make_acl
from pulsar_sidecar.features.delayed_messages.workflow.service import LEADER_NODE
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path, managed_ledger_path

from tests.alerts.recording import recording
from tests.cluster.acknowledging import Holes, every_other
from tests.cluster.audits import IMPATIENT, Audits
from tests.cluster.cancelling import CANCELLING
from tests.cluster.choosing import FAST_BOOKIE_SESSIONS
from tests.cluster.delays import SHARED, DelayedTopic, now_ms
from tests.cluster.deletion import BROKER_CONF, Scene
from tests.cluster.leaking import no_deletion_of
from tests.cluster.oracles import Oracles, OutcomeLog
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.shadows import Shadows
from tests.cluster.sidecars import BASE, WATCH, Sidecars
from tests.cluster.topics import KEEP_NOTHING, Workload, unique

QUIET_SECONDS = 5
"""Before and after what happens."""
FULL = {"managedLedgerMaxUnackedRangesToPersist": "20", "brokerDeduplicationEntriesInterval": "1000"}
DAMAGED = b"not proto\xff"


@pytest.fixture(scope="session")
def deletion_cluster(special_cluster: ClusterFactory) -> Iterator[ClusterUnderTest]:
    conf = {**BROKER_CONF, **FULL}
    with special_cluster(brokers=2, bookies=2, broker_conf=conf, bookie_conf=FAST_BOOKIE_SESSIONS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def oracles(workload: Workload, outcome_log: OutcomeLog) -> Oracles:
    """Return oracles that have read everything once, which later faults would prevent."""
    return Oracles(workload, outcome_log)


@pytest.fixture
def scene(
    deletion_cluster: ClusterUnderTest, workload: Workload, sidecars: Sidecars, oracles: Oracles
) -> Iterator[Scene]:
    """Yield a scene in a namespace of its own, without oracles afterwards: what is broken here stays so."""
    namespace = f"public/t-{unique()}"
    workload.create_namespace(namespace)
    yield Scene(deletion_cluster, workload, sidecars, oracles, namespace)
    sidecars.end_all()


def quiet() -> None:
    time.sleep(QUIET_SECONDS)


@contextlib.contextmanager
def unreadable(scene: Scene, topic: TopicName) -> Iterator[None]:
    """A topic with a node that cannot be read, until the end of the block."""
    scene.workload.fill(topic)
    scene.workload.unload(topic)
    path = managed_ledger_path(topic.managed_ledger_name)
    node = scene.workload.store.read(path)
    assert node is not None
    version = scene.workload.store.write(path, DAMAGED, node.version)
    yield
    scene.workload.store.write(path, node.data, version)


def test_sidecars_end(scene: Scene) -> None:
    first, second = scene.start_together({}, {})
    with recording("sidecars-end", first, second):
        quiet()
        first.kill()
        quiet()
        second.kill()
        quiet()


def test_an_audit_finds_what_is_wrong(scene: Scene, tmp_path: Path) -> None:
    workload = scene.workload
    source, missing = scene.topic("source"), scene.topic("missing")
    workload.admin("POST", f"namespaces/{scene.namespace}/retention", KEEP_NOTHING)
    Shadows(workload, scene.cluster.addresses.web_service_urls).pair(source, kept=False)
    workload.fill(missing)
    workload.unload(missing)
    scene.orphans(scene.topic("orphans"), 3)
    audits = Audits(scene.cluster.addresses, tmp_path / "audits", IMPATIENT)
    audits.look()
    audits.wait_between_looks()
    planned = audits.look()
    (lost, *_) = workload.ledgers(missing).data
    node = workload.store.read(ledger_path(lost))
    assert node is not None
    metrics = tmp_path / "metrics.prom"
    sidecar = scene.sidecar
    with recording("audits", sidecar, files=[metrics]):
        quiet()
        metrics.write_bytes((planned.directory / "metrics.prom").read_bytes())
        quiet()
        workload.store.delete(node.path)
        audits.policy = replace(IMPATIENT, max_share=0.0)
        with contextlib.suppress(AssertionError):  # the guard fails, and metrics are left all the same
            audits.look()
        (last,) = (tmp_path / "audits").glob("look-2/audit/metrics.prom")
        metrics.write_bytes(last.read_bytes())
        quiet()


def test_a_pause(scene: Scene) -> None:
    left = scene.orphans(scene.topic("paused"), 10)
    (sidecar,) = scene.start_together({})
    with recording("pause", sidecar):
        quiet()
        sidecar.call("POST", f"{BASE}/pause", {"reason": "bookies are being replaced"})
        sidecar.append(left.records())
        quiet()
    sidecar.call("POST", f"{BASE}/resume")


def test_a_rate_far_too_low(scene: Scene) -> None:
    left = scene.orphans(scene.topic("slow"), 20)
    (sidecar,) = scene.start_together({})
    with recording("lag", sidecar):
        quiet()
        sidecar.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": 0.02})
        sidecar.append(left.records())
        time.sleep(15)
    sidecar.call("PUT", f"{BASE}/rate", {"ledgersPerSecond": None})


def test_records_are_given_up(scene: Scene) -> None:
    topics = [scene.topic(f"unreadable-{number}") for number in range(10)]
    left = [scene.orphans(topic, 1) for topic in topics]
    (sidecar,) = scene.start_together({"two_phase_deletion_max_retry_delete_count": 5})
    for topic in topics:
        scene.workload.store.create(managed_ledger_path(topic.managed_ledger_name), DAMAGED)
    with recording("dead-letters", sidecar):
        quiet()
        sidecar.append([record for each in left for record in each.records()])
        until(lambda: sidecar.metrics()["pulsar_ledger_deletion_max_retry_reached_total"] == 10, "they are given up")
        quiet()
    for topic in topics:
        scene.workload.store.delete(managed_ledger_path(topic.managed_ledger_name))


def test_a_topic_deletion_is_stuck(scene: Scene) -> None:
    topic = scene.topic("damaged")
    (sidecar,) = scene.start_together({})
    with unreadable(scene, topic), recording("stuck-deletion", sidecar):
        quiet()
        sidecar.request("DELETE", f"/admin/v2/{scene.workload.of_topic(topic)}")
        until(lambda: sidecar.metrics()["pulsar_ledger_deletion_topic_deletions_stuck"] == 1, "it is stuck")
        quiet()


def test_the_store_refuses_deletions(scene: Scene) -> None:
    left = scene.orphans(scene.topic("refused"), 20)
    (sidecar,) = scene.start_together({})
    with recording("refused-deletions", sidecar), no_deletion_of(scene.cluster.addresses.metadata_store_url, left.data):
        quiet()
        sidecar.append(left.records())
        time.sleep(15)


def test_references_vanish(scene: Scene) -> None:
    topics = [scene.topic(f"vanish-{number}") for number in range(12)]
    for topic in topics:
        scene.workload.fill(topic, 6)
        scene.workload.unload(topic)
    settings = {"ledger_deletion_watch_settle_in_seconds": 10, "ledger_deletion_watch_brake_references": 50}
    (sidecar,) = scene.start_together({"ledger_deletion_watch": "append", **settings})
    until(lambda: sidecar.call("GET", WATCH)["state"] == "watching", "the sidecar watches")
    with recording("brake", sidecar):
        quiet()
        for topic in topics:
            node = scene.workload.store.read(managed_ledger_path(topic.managed_ledger_name))
            assert node is not None
            scene.workload.store.delete(node.path)
        until(lambda: sidecar.call("GET", WATCH)["braked"], "the watch brakes")
        until(lambda: "leaked" in str(sidecar.call("GET", f"{WATCH}/leaks", limit="10000")), "they are reported")
        quiet()


def test_a_node_is_hidden_and_one_is_damaged(scene: Scene) -> None:
    hidden, damaged = scene.topic("hidden"), scene.topic("damaged")
    scene.workload.fill(hidden)
    scene.workload.unload(hidden)
    path = managed_ledger_path(hidden.managed_ledger_name)
    client = KazooClient(scene.cluster.addresses.metadata_store_url.removeprefix("zk:"))
    client.start()
    try:
        client.set_acls(path, [make_acl("world", "anyone", admin=True)])
        sidecar = scene.sidecars.launch(ledger_deletion_watch="report")
        with unreadable(scene, damaged), recording("walks-in-turns", sidecar):
            sidecar.wait_until_ready()
            until(lambda: sidecar.call("GET", WATCH)["state"] == "walking", "it walks in turns")
            quiet()
    finally:
        client.set_acls(path, OPEN_ACL_UNSAFE)
        client.stop()
        client.close()
    sidecar.kill()
    off = scene.sidecars.start(ledger_deletion_watch="off")
    with recording("watch-is-off", off):
        quiet()


def test_cancellations(scene: Scene) -> None:
    leader = scene.sidecars.start(**CANCELLING)
    name = f"persistent://{scene.namespace}/delays"
    with contextlib.closing(DelayedTopic(scene.cluster.addresses, parse_topic_name(name))) as topic:
        for subscription in ("moved", "held"):
            topic.subscribe(subscription, SHARED)
        due = now_ms() + 20_000
        sent = topic.send(60, due)
        with recording("cancellations", leader), topic.noting("moved", SHARED, lambda _: None, 2):
            held = topic.client.subscribe(name, "held", consumer_type=pulsar.ConsumerType.Shared)
            quiet()
            topic.cancel_all(leader, sent[:10], wait="persisted")
            topic.cancel_all(leader, sent[11::2])
            time.sleep(max(0, due - 2_000 - now_ms()) / 1000)
            leader.freeze()
            for subscription in ("moved", "held"):
                topic.move_cursor(subscription, to_ms=1)
            time.sleep(max(0, due + 2_000 - now_ms()) / 1000)
            leader.thaw()
            until(lambda: not topic.open_statuses(leader, sent[0]), "they are seen to their end")
            quiet()
        held.close()


def test_no_sidecar_leads(scene: Scene) -> None:
    client = KazooClient(scene.cluster.addresses.metadata_store_url.removeprefix("zk:"))
    client.start()
    client.ensure_path(LEADER_NODE.rpartition("/")[0])
    client.create(LEADER_NODE, b"a sidecar that hangs", ephemeral=True)
    try:
        (sidecar,) = scene.start_together({"delayed_message_cancelling_enabled": "true"})
        with recording("no-leader", sidecar):
            time.sleep(2 * QUIET_SECONDS)
    finally:
        client.stop()
        client.close()


def test_watched_topics(scene: Scene) -> None:
    workload = scene.workload
    holes, indexed = scene.topic("holes"), scene.topic("indexed")
    left_over, unreadable = scene.topic("left-over"), scene.topic("unreadable")
    for topic in (holes, indexed, left_over, unreadable):
        workload.admin("PUT", workload.of_topic(topic))
    for topic in (left_over, unreadable):
        workload.admin("POST", workload.of_topic(topic, "deduplicationEnabled"), True)
        until(
            lambda topic=topic: (
                workload.admin("GET", workload.of_topic(topic, "stats"))["deduplicationStatus"] == "Enabled"
            ),
            "it is deduplicated",
        )
        workload.produce(topic, [b"x" * 100] * 30)
        workload.unload(topic)
    workload.admin("POST", workload.of_topic(holes, "dispatcherPauseOnAckStatePersistent"))
    workload.delay(indexed, "s")
    workload.unload(indexed)
    sidecar = scene.sidecars.start(
        ack_state_watched_topics=str(holes),
        ack_state_watch_interval_in_seconds=1,
        delayed_index_watched_topics=str(indexed),
        delayed_index_watch_interval_in_seconds=1,
        deduplication_watched_topics=f"{left_over},{unreadable}",
        deduplication_watch_interval_in_seconds=1,
    )
    (bucket, *_) = workload.ledgers(indexed).buckets["s"]
    with recording("watched-topics", sidecar):
        quiet()
        workload.admin("POST", workload.of_topic(left_over, "deduplicationEnabled"), False)
        cursor = workload.store.read(cursor_path(unreadable.managed_ledger_name, DEDUPLICATION_CURSOR))
        assert cursor is not None
        workload.store.write(cursor.path, DAMAGED, cursor.version)
        node = workload.store.read(ledger_path(bucket))
        assert node is not None
        workload.store.delete(node.path)
        subscribed = Holes(workload.client, holes, 10)
        with subscribed.consumer() as consumer:
            subscribed.produce(200)
            subscribed.acknowledge(consumer, every_other, 2_000)
            quiet()


def test_the_brokers_hang_and_die(scene: Scene) -> None:
    """The last act: no broker is left."""
    sidecar = scene.sidecars.start(**CANCELLING)
    name = f"persistent://{scene.namespace}/delays"
    with contextlib.closing(DelayedTopic(scene.cluster.addresses, parse_topic_name(name))) as topic:
        topic.subscribe("s", SHARED)
        topic.cancel_all(sidecar, topic.send(10, now_ms() + 600_000))
        with recording("brokers-hang", sidecar):
            quiet()
            for broker in ("broker-1", "broker-2"):
                scene.cluster.stop(broker)
            time.sleep(20)
            for broker in ("broker-1", "broker-2"):
                scene.cluster.kill(broker)
            time.sleep(20)
