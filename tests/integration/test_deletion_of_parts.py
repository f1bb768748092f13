"""Subscriptions and schemas on a real cluster: recorded first, deleted and refused as by brokers themselves."""

from urllib.parse import quote

import pytest
import requests
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    PartOperation,
    encode_operation,
    incarnations,
    operation_path,
)
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import TopicName, encode_cursor, java_url_encode, parse_topic_name
from pulsar_sidecar.ownership.paths import SCHEMAS, cursor_path, ledger_path

from tests.cluster.choosing import line_under_test
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE
from tests.cluster.topics import TopicLedgers, connected_consumer

SUBSCRIPTION = "billing/a b"
ENDED = {("deleted", "unreferenced"), ("kept", "already-gone")}


def path_of(topic: TopicName, verb: str) -> str:
    root = "/admin" if topic.cluster else "/admin/v2"
    return f"{root}/persistent/{topic.namespace}/{java_url_encode(topic.local_name)}/{verb}"


def unsubscribing(topic: TopicName, subscription: str = SUBSCRIPTION) -> str:
    return path_of(topic, f"subscription/{java_url_encode(subscription)}")


def schema_of(topic: TopicName) -> str:
    root = "/admin" if topic.cluster else "/admin/v2"
    return f"{root}/schemas/{topic.namespace}/{java_url_encode(topic.local_name)}/schema"


def by_broker(scene: Scene, path: str, **params: str) -> requests.Response:
    return requests.delete(f"{scene.workload.cluster.addresses.web_service_urls[0]}{path}", params=params, timeout=60)


def demand_gone(scene: Scene, gone: frozenset[int]) -> None:
    finals = scene.oracles.wait_for_finals(gone)
    assert {(final.decision, final.reason) for final in finals.values()} <= ENDED
    assert not scene.workload.existing(gone)


def subscribed(scene: Scene, topic: TopicName) -> TopicLedgers:
    """Create a topic with a neighbour's subscription, and one with acknowledgements and a delayed index."""
    scene.workload.fill(topic, 2)
    scene.workload.subscribe(topic, "neighbour", acknowledge=1)
    scene.workload.subscribe(topic, SUBSCRIPTION, acknowledge=1)
    scene.workload.delay(topic, SUBSCRIPTION)
    return scene.workload.ledgers(topic)


@pytest.mark.parametrize("version", ["V2", "V1"])
def test_a_subscription_goes_with_its_cursor_and_its_delayed_index(scene: Scene, version: str) -> None:
    topic = scene.topic("orders")
    if version == "V1":
        if line_under_test() >= (4, 2):
            pytest.skip("brokers from 4.2 on have no names with a cluster")
        namespace = f"public/local/{scene.namespace.partition('/')[2]}"
        requests.put(f"{scene.workload.cluster.addresses.web_service_urls[0]}/admin/namespaces/{namespace}", timeout=60)
        topic = parse_topic_name(f"persistent://{namespace}/orders")
    before = subscribed(scene, topic)
    gone = frozenset({before.cursors[SUBSCRIPTION], *before.buckets[SUBSCRIPTION]})
    assert len(gone) > 1
    scene.oracles.add_accepted(gone)
    assert scene.sidecar.request("DELETE", unsubscribing(topic)).status_code == 204
    demand_gone(scene, gone)
    after = scene.workload.ledgers(topic)
    assert after.cursors == {"neighbour": before.cursors["neighbour"]}
    assert after.data == before.data


def without_a_bucket(scene: Scene, topic: TopicName, path: str) -> TopicLedgers:
    """Create a topic whose subscription points to a missing bucket, so that no broker deletes what ``path`` names."""
    before = subscribed(scene, topic)
    bucket = min(before.buckets[SUBSCRIPTION])
    scene.workload.store.delete(ledger_path(bucket))
    own = by_broker(scene, path, force="true")
    assert (own.status_code, "No such ledger exists" in own.text) == (500, True)
    left = scene.workload.ledgers(topic)
    assert bucket in left.buckets[SUBSCRIPTION]
    return left


def test_a_promised_subscription_goes_although_a_bucket_is_gone(scene: Scene) -> None:
    topic, store = scene.topic("dangling"), scene.workload.store
    left = without_a_bucket(scene, topic, unsubscribing(topic))
    gone = frozenset({left.cursors[SUBSCRIPTION], *left.buckets[SUBSCRIPTION]})
    scene.oracles.add_accepted(gone)
    cursor = cursor_path(topic.managed_ledger_name, encode_cursor(SUBSCRIPTION))
    promise = PartOperation(
        operation_id=OperationId("0" * 32),
        topic_name=str(topic),
        subscription=SUBSCRIPTION,
        partitions=None,
        force=False,
        requested_by=None,
        requested_ms=store.now_ms(),
        incarnations=incarnations(store, [cursor]),
        recorded=(),
        attempts=1,
        last_reason="its broker died",
        not_before_ms=0,
    )
    store.create(operation_path(promise.operation_id), encode_operation(promise))
    until(lambda: not scene.sidecar.call("GET", f"{BASE}/topic-deletions"), "the promise is kept")
    demand_gone(scene, gone)
    assert set(scene.workload.ledgers(topic).cursors) == {"neighbour"}


def test_a_topic_goes_although_a_bucket_is_gone(scene: Scene) -> None:
    topic = scene.topic("dangling")
    path = path_of(topic, "").rstrip("/")
    left = without_a_bucket(scene, topic, path)
    scene.oracles.add_accepted(left.all)
    assert scene.sidecar.request("DELETE", path, force="true").status_code == 204
    demand_gone(scene, left.all)


def test_a_subscription_of_all_partitions_goes(scene: Scene) -> None:
    topic, workload = scene.topic("parts"), scene.workload
    workload.admin("PUT", workload.of_topic(topic, "partitions"), 2)
    found = [subscribed(scene, topic.partition(index)) for index in range(2)]
    gone = frozenset(
        ledger_id for each in found for ledger_id in (each.cursors[SUBSCRIPTION], *each.buckets[SUBSCRIPTION])
    )
    scene.oracles.add_accepted(gone)
    assert scene.sidecar.request("DELETE", unsubscribing(topic), force="true").status_code == 204
    demand_gone(scene, gone)
    assert all(set(workload.ledgers(topic.partition(index)).cursors) == {"neighbour"} for index in range(2))


def test_the_compaction_subscription_goes_with_what_it_compacted(scene: Scene) -> None:
    topic, workload = scene.topic("compacted"), scene.workload
    workload.produce(topic, [b"a", b"b", b"c"], key="key")
    workload.compact(topic)
    before = workload.ledgers(topic)
    gone = frozenset(before.of(LedgerComponent.COMPACTED_LEDGER) | before.of(LedgerComponent.MANAGED_CURSOR))
    assert before.compacted
    scene.oracles.add_accepted(gone)
    assert scene.sidecar.request("DELETE", unsubscribing(topic, "__compaction")).status_code == 204
    demand_gone(scene, gone)


def test_a_schema_goes_with_all_its_versions(scene: Scene) -> None:
    topic, workload = scene.topic("typed"), scene.workload
    workload.fill(topic, 1)
    workload.store_schemas(topic, 3)
    before = workload.ledgers(topic)
    assert len(before.schema) == 3
    # Without force brokers add a version that marks it as deleted; nothing is unreferenced, and nothing recorded.
    own = scene.sidecar.request("DELETE", schema_of(topic))
    assert (own.status_code, set(own.json())) == (200, {"version"})
    versions = workload.ledgers(topic).schema
    assert versions > before.schema
    assert scene.sidecar.inflight() == 0
    scene.oracles.add_accepted(versions)
    assert scene.sidecar.request("DELETE", schema_of(topic), force="true").status_code == 200
    demand_gone(scene, versions)
    assert workload.store.read(f"{SCHEMAS}/{topic.schema_id}") is None
    assert workload.ledgers(topic).data == before.data


def test_brokers_refusals_are_repeated_and_nothing_is_deleted(scene: Scene) -> None:
    topic, workload, sidecar = scene.topic("busy"), scene.workload, scene.sidecar
    parts = scene.topic("busy-parts")
    workload.admin("PUT", workload.of_topic(parts, "partitions"), 2)
    before = subscribed(scene, topic)
    for path in (
        unsubscribing(topic, "no-such"),
        unsubscribing(scene.topic("no-such"), "s"),
        unsubscribing(parts, "no-such"),
        unsubscribing(parse_topic_name("persistent://public/no-such-namespace/x"), "s"),
        path_of(topic, "subscription/").rstrip("/"),
        f"/admin/v2/non-persistent/{scene.namespace}/x/subscription/s",
        schema_of(parse_topic_name("persistent://no-such-tenant/n/x")),
    ):
        own, passed = by_broker(scene, path), sidecar.request("DELETE", path)
        assert (passed.status_code, passed.text) == (own.status_code, own.text), path
        assert own.status_code >= 400, path
    assert sidecar.inflight() == 0
    scene.oracles.add_accepted({before.cursors[SUBSCRIPTION], *before.buckets[SUBSCRIPTION]})
    with connected_consumer(workload, topic, SUBSCRIPTION):
        own, passed = by_broker(scene, unsubscribing(topic)), sidecar.request("DELETE", unsubscribing(topic))
        assert (passed.status_code, passed.json()) == (own.status_code, own.json())
        assert passed.status_code == 412
        recorded = workload.ledgers(topic)
        finals = scene.oracles.wait_for_finals({recorded.cursors[SUBSCRIPTION], *recorded.buckets[SUBSCRIPTION]})
    assert {final.reason for final in finals.values()} == {"ledger-still-in-use"}
    assert workload.existing(before.all) == before.all


def test_a_subscription_without_ledgers_is_not_recorded(scene: Scene) -> None:
    topic, workload = scene.topic("simple"), scene.workload
    workload.fill(topic, 1)
    workload.subscribe(topic, "simple")
    workload.unload(topic)
    assert workload.ledgers(topic).cursors == {}
    assert scene.sidecar.request("DELETE", unsubscribing(topic, "simple")).status_code == 204
    assert scene.sidecar.inflight() == 0
    assert quote("simple") not in (workload.store.children(f"/managed-ledgers/{topic.managed_ledger_name}") or ())
