"""Retention, the lag of offloading and the policies of loading, out of what brokers and the metadata store answer."""

import json
from typing import Any, cast

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.broker_configuration import RUNTIME_CONFIGURATION
from pulsar_sidecar.adapters.pulsar_rest.trim_policies import BrokerTrimPolicies
from pulsar_sidecar.features.pins.facts import Retention
from pulsar_sidecar.features.pins.obstacles import LoadingPolicies
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders-partition-3")
PATH = "/admin/v2/persistent/public/default/orders/retention"
HOUR: dict[str, object] = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}


def policies(answers: dict[str, object], namespace: dict[str, Any] | None = None) -> BrokerTrimPolicies:
    rest, store = FakeAdminRest(), FakeMetadataStore()
    rest.answers = answers
    store.put("/admin/policies/public/default", json.dumps(namespace or {}).encode())
    return BrokerTrimPolicies(cast("AdminRest", rest), store)


def test_a_partition_has_the_retention_of_its_topic() -> None:
    assert policies({PATH: HOUR}).retention(TOPIC) == Retention(60, -1)


@pytest.mark.parametrize(
    ("namespace", "retention"),
    [
        ({"retention_policies": HOUR}, Retention(60, -1)),
        ({"retention_policies": None}, Retention(7, 0)),
    ],
)
def test_retention_falls_back_to_namespace_and_broker(namespace: dict[str, Any], retention: Retention) -> None:
    answers = {PATH: None, RUNTIME_CONFIGURATION: {"defaultRetentionTimeInMinutes": "7"}}
    assert policies(answers, namespace).retention(TOPIC) == retention


REPLICATION = "/admin/v2/persistent/public/default/orders/replication"


@pytest.mark.parametrize(
    ("answers", "namespace", "clusters"),
    [
        ({REPLICATION: ["a", "b"]}, {"replication_clusters": ["c"]}, {"a", "b"}),
        ({REPLICATION: None}, {"replication_clusters": ["c"]}, {"c"}),
    ],
)
def test_clusters_are_the_topics_then_the_namespaces(
    answers: dict[str, object], namespace: dict[str, Any], clusters: set[str]
) -> None:
    assert policies(answers, namespace).replicated_to(TOPIC) == clusters
    assert isinstance(policies({REPLICATION: None}).replicated_to(TOPIC), Unreadable)
    assert isinstance(policies({}).replicated_to(TOPIC), Unreadable)


@pytest.mark.parametrize("answers", [{}, {PATH: {"retentionTimeInMinutes": 60}}, {PATH: "no"}])
def test_a_retention_that_cannot_be_read_is_not_none(answers: dict[str, object]) -> None:
    assert isinstance(policies(answers).retention(TOPIC), Unreadable)


@pytest.mark.parametrize(
    ("namespace", "lag_ms"),
    [
        ({"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": 5}, "offload_deletion_lag_ms": 6}, 5),
        ({"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": None}, "offload_deletion_lag_ms": 0}, 0),
        ({}, 9),
    ],
)
def test_the_lag_is_the_namespaces_then_the_brokers(namespace: dict[str, Any], lag_ms: int) -> None:
    answers: dict[str, object] = {RUNTIME_CONFIGURATION: {"managedLedgerOffloadDeletionLagMs": "9"}}
    assert policies(answers, namespace).offload_lag_ms("public/default") == lag_ms
    assert isinstance(policies({}, {}).offload_lag_ms("public/default"), Unreadable)


INACTIVE = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "deleteWhileInactive": False}
APPLIED: dict[str, object] = {
    f"/admin/v2/persistent/public/default/orders/{name}": answer
    for name, answer in {
        "inactiveTopicPolicies": INACTIVE,
        "messageTTL": 0,
        "backlogQuotaMap": {"message_age": {"policy": "producer_request_hold"}},
        "replication": ["here"],
    }.items()
} | {RUNTIME_CONFIGURATION: {"clusterName": "here", "subscriptionExpirationTimeMinutes": "0"}}


def applied(**others: object) -> dict[str, object]:
    return APPLIED | {f"/admin/v2/persistent/public/default/orders/{name}": value for name, value in others.items()}


@pytest.mark.parametrize(
    ("answers", "namespace", "found"),
    [
        (APPLIED, {}, LoadingPolicies()),
        (APPLIED, {"deleted": True}, LoadingPolicies(is_being_deleted=True)),
        (
            APPLIED,
            {"subscription_expiration_time_minutes": 5},
            LoadingPolicies(subscription_expiry_minutes=5),
        ),
        (
            applied(inactiveTopicPolicies={"deleteWhileInactive": True}),
            {},
            LoadingPolicies(deletes_inactive=True, spares_subscriptions=False),
        ),
        (applied(messageTTL=60), {}, LoadingPolicies(message_ttl_seconds=60)),
        (applied(replication=["there"]), {}, LoadingPolicies(is_of_this_cluster=False)),
        (
            applied(backlogQuotaMap={"message_age": {"policy": "consumer_backlog_eviction"}}),
            {},
            LoadingPolicies(evicts_backlog=True),
        ),
    ],
)
def test_what_brokers_do_to_a_loaded_topic(
    answers: dict[str, object], namespace: dict[str, Any], found: LoadingPolicies
) -> None:
    assert policies(answers, namespace).on_loading(TOPIC) == found


@pytest.mark.parametrize("missing", sorted(APPLIED))
def test_a_policy_that_brokers_do_not_answer_is_unreadable(missing: str) -> None:
    read = policies({path: answer for path, answer in APPLIED.items() if path != missing}).on_loading(TOPIC)
    assert isinstance(read, Unreadable)
    assert isinstance(policies(APPLIED | {missing: None}).on_loading(TOPIC), Unreadable)


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ({"partitions": 4, "deleted": True}, LoadingPolicies(is_being_deleted=True)),
        ({"partitions": 4, "properties": {SHADOW_SOURCE: "s"}}, LoadingPolicies(is_shadow=True)),
    ],
)
def test_a_partitions_topic_may_be_a_shadow_or_being_deleted(node: dict[str, Any], found: LoadingPolicies) -> None:
    rest, store = FakeAdminRest(), FakeMetadataStore()
    rest.answers = APPLIED
    store.put(partitioned_topic_path(TOPIC.base), json.dumps(node).encode())
    assert BrokerTrimPolicies(cast("AdminRest", rest), store).on_loading(TOPIC) == found
