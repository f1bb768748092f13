"""Retention and the lag of offloading, out of what brokers and the metadata store answer."""

import json
from typing import Any, cast

import pytest
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.broker_configuration import RUNTIME_CONFIGURATION
from pulsar_sidecar.adapters.pulsar.rest.trim_policies import BrokerTrimPolicies
from pulsar_sidecar.ledger_ownership.pins.facts import Retention
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import parse_topic_name

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
def test_where_topics_have_no_policies_the_namespaces_counts_then_the_brokers(
    namespace: dict[str, Any], retention: Retention
) -> None:
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
