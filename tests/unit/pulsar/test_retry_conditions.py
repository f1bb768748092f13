"""Cluster settings that stop retries or let subscriptions expire: what is set, what is left alone, what is reported."""

import json
from urllib.parse import urlsplit

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import TopicsSettings, TopicsSetup
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock
from tests.fakes.http_servers import Answer, Arrived, HttpServer, json_answer, refusing

RETRY = parse_topic_name("persistent://pulsar/system/retry")
DELAYS = "/admin/v2/persistent/pulsar/system/retry/delayedDelivery"
EXPIRATION = "/admin/v2/namespaces/pulsar/system/subscriptionExpirationTime"
RUNTIME = "/admin/v2/brokers/configuration/runtime"


class Policies:
    """A broker that keeps policies; ``refused`` paths may not be changed, ``over`` is what holds whatever is set."""

    def __init__(self, broker: HttpServer) -> None:
        self.kept: dict[str, object] = {RUNTIME: {"subscriptionExpirationTimeMinutes": "0"}}
        self.refused: set[str] = set()
        self.over: dict[str, object] | None = None
        self.changed: list[str] = []
        broker.answer = self.answer
        admin = BrokerTopicAdmin(AdminRest([broker.url]))
        self.conditions = TopicsSetup(admin, lambda topic: RETRY, TopicsSettings(), FakeClock())

    def answer(self, arrived: Arrived) -> Answer:
        parts = urlsplit(arrived.target)
        if arrived.method == "POST":
            if parts.path in self.refused:
                return refusing(403, "not yours")
            self.changed.append(parts.path)
            self.kept[parts.path] = json.loads(arrived.body)
            return Answer(204)
        found = self.over if "applied=true" in parts.query and self.over is not None else self.kept.get(parts.path)
        return Answer(204) if found is None else json_answer(found)

    def apply(self) -> list[str]:
        self.conditions.set_conditions()
        return self.conditions.warnings


@pytest.fixture
def policies(web: HttpServer) -> Policies:
    return Policies(web)


def test_any_delay_is_allowed_on_the_retry_topic_once(policies: Policies) -> None:
    assert policies.apply() == []
    assert policies.apply() == []
    assert policies.changed == [DELAYS], "and nothing of the namespace is touched where subscriptions do not expire"
    assert policies.kept[DELAYS] == {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    assert policies.conditions.most_delay_ms is None


@pytest.mark.parametrize(
    ("holds", "most_delay_ms", "expected"),
    [
        ({"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}, 0, "delayedDeliveryEnabled"),
        ({"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 500}, 500, "refuse delays over 500 ms"),
    ],
)
def test_effective_policy_is_reported_if_setting_it_fails(
    policies: Policies, holds: dict[str, object], most_delay_ms: int, expected: str
) -> None:
    policies.refused, policies.over = {DELAYS}, holds
    refused, warning = policies.apply()
    assert "not yours" in refused
    assert expected in warning
    assert policies.conditions.most_delay_ms == most_delay_ms


def test_subscriptions_of_the_namespace_never_expire_where_no_time_is_set(policies: Policies) -> None:
    policies.kept[RUNTIME] = {"subscriptionExpirationTimeMinutes": "30"}
    assert policies.apply() == []
    assert policies.kept[EXPIRATION] == 0
    assert policies.changed == [DELAYS, EXPIRATION]


def test_an_expiry_that_an_operator_set_is_left_and_reported(policies: Policies) -> None:
    policies.kept[EXPIRATION] = 30
    (warning,) = policies.apply()
    assert "expire after 30 minutes" in warning
    assert "set-subscription-expiration-time pulsar/system --time 0" in warning
    assert policies.changed == [DELAYS]


def test_an_expiry_that_may_not_be_changed_is_reported(policies: Policies) -> None:
    policies.kept[RUNTIME] = {"subscriptionExpirationTimeMinutes": "30"}
    policies.refused = {EXPIRATION}
    (warning,) = policies.apply()
    assert warning.startswith("expiry of subscriptions")
    assert "not yours" in warning


def test_a_look_reports_the_same_and_changes_nothing(policies: Policies) -> None:
    policies.kept[EXPIRATION] = 30
    policies.over = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 500}
    policies.conditions.check_conditions()
    delays, expiry = policies.conditions.warnings
    assert "refuse delays over 500 ms" in delays
    assert "expire after 30 minutes" in expiry
    assert policies.changed == []
