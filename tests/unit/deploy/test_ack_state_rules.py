"""The alerts on acknowledgement states are about metrics that a sidecar reports."""

import re

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.ack_state.metrics import AckStateMetrics
from pulsar_sidecar.model.names import parse_topic_name
from ruamel.yaml import YAML

from tests.cluster.choosing import PROJECT
from tests.fakes.ack_states import state_of

RULES = PROJECT / "deploy" / "prometheus" / "ack-state.rules.yml"


def test_alerts_are_about_metrics_that_a_sidecar_reports() -> None:
    registry = CollectorRegistry()
    state = state_of(parse_topic_name("persistent://t/n/a"), "s")
    registry.register(AckStateMetrics("east", lambda: [state]))
    reported = {family.name for family in text_string_to_metric_families(generate_latest(registry).decode())}
    (group,) = YAML(typ="safe").load(RULES)["groups"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) == 3
    for rule in group["rules"]:
        assert set(re.findall(r"pulsar_subscription_\w+", rule["expr"])) <= reported
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
