"""The alerts on acknowledgement states are about metrics that a sidecar reports."""

import re

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.observability.metrics import AckStateGauges, AckStateReading, DeletionMetrics
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT

RULES = PROJECT / "deploy" / "prometheus" / "ack-state.rules.yml"


def test_alerts_are_about_metrics_that_a_sidecar_reports() -> None:
    registry = CollectorRegistry()
    registry.register(AckStateGauges("east", lambda: [AckStateReading("t", "s", True, 9, 10, 3)]))
    metrics = DeletionMetrics(registry, cluster="east", instance="i", version="1")
    reported = {family.name for family in text_string_to_metric_families(metrics.exposition().decode())}
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 3
    for rule in group["rules"]:
        assert set(re.findall(r"pulsar_subscription_\w+", rule["expr"])) <= reported
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
