"""The policies of deduplication, out of what brokers and the store answer."""

import json

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.deduplication_policies import BrokerDeduplicationPolicies
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.features.deduplication.policies import BrokerDeduplication, DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import PolicyValue, PolicyValues
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import NO_CLIENTS, Answer, Arrived, HttpServer, json_answer, refusing, register_broker
from tests.fakes.metadata import FakeMetadataStore

ENABLED, INTERVAL = DeduplicationPolicy.ENABLED, DeduplicationPolicy.SNAPSHOT_INTERVAL
TOPIC = parse_topic_name("persistent://public/default/orders")
RUNTIME = {"brokerDeduplicationEnabled": "true", "brokerDeduplicationEntriesInterval": "7"}
POLICIES = {"deduplicationEnabled": False, "deduplicationSnapshotIntervalSeconds": 30}


class Broker:
    """A broker with policies of topics, which knows one loaded topic."""

    def __init__(self, http: HttpServer) -> None:
        self.http = http
        self.values: dict[str, object] = {}
        self.refusal: Answer | None = None
        self.stats: object = {"deduplicationStatus": "Enabled", **NO_CLIENTS}
        http.answer = self._answer
        self.store = FakeMetadataStore()
        register_broker(self.store, http.url)
        self.store.put("/admin/policies/public/default", json.dumps(POLICIES).encode())
        self.rest = AdminRest([http.url], store=self.store)
        self.owners = BrokerLiveOwners(self.rest, self.store)
        self.policies = BrokerDeduplicationPolicies(self.rest, self.store, self.owners)

    def _answer(self, arrived: Arrived) -> Answer:
        path = arrived.target.partition("?")[0]
        if arrived.method != "GET":
            return Answer(204)
        if "/deduplication" in path:
            return self.refusal or json_answer(self.values.get(arrived.target))
        return json_answer(self._document(path))

    def _document(self, path: str) -> object:
        if path.endswith("/runtime"):
            return RUNTIME
        if path.endswith("/bookieops"):
            return {"public/default": {str(TOPIC): {}}}
        return self.stats if path.endswith("/stats") else {}

    @property
    def changes(self) -> list[tuple[str, str, bytes]]:
        return [(one.method, one.target, one.body) for one in self.http.arrived if one.method != "GET"]


@pytest.fixture
def broker(web: HttpServer) -> Broker:
    return Broker(web)


def test_a_topics_policy_comes_from_four_places(broker: Broker) -> None:
    path = "/admin/v2/persistent/public/default/orders/deduplicationEnabled?isGlobal="
    broker.values = {f"{path}false": None, f"{path}true": True}
    assert broker.policies.of_topic(ENABLED, TOPIC) == PolicyValues.of(True, False, topic=None, topic_global=True)
    assert broker.policies.of_namespace(INTERVAL, "public/default") == PolicyValues.of(120, 30)
    assert broker.policies.configured(TOPIC) == BrokerDeduplication(enabled=True, entries_interval=7)


def test_disabled_topic_policies_set_nothing(broker: Broker) -> None:
    broker.refusal = refusing(405, "Topic level policies is disabled")
    assert broker.policies.of_topic(ENABLED, TOPIC) == PolicyValues.of(True, False)
    broker.refusal = refusing(412, "no")
    with pytest.raises(BrokerRefusedError):
        broker.policies.of_topic(ENABLED, TOPIC)


def test_unreadable_policy_is_not_treated_as_unset(broker: Broker) -> None:
    with pytest.raises(NotFoundError):
        broker.policies.of_namespace(ENABLED, "public/missing")
    broker.store.put("/admin/policies/public/odd", b'{"deduplicationEnabled": "yes"}')
    with pytest.raises(TemporaryError, match="is not a deduplication policy"):
        broker.policies.of_namespace(ENABLED, "public/odd")


@pytest.mark.parametrize(
    ("policy", "value", "of_topic", "of_namespace"),
    [
        (ENABLED, True, ("POST", "deduplicationEnabled", b"true"), ("POST", "deduplication", b"true")),
        (ENABLED, False, ("POST", "deduplicationEnabled", b"false"), ("POST", "deduplication", b"false")),
        (ENABLED, None, ("DELETE", "deduplicationEnabled", b""), ("DELETE", "deduplication", b"")),
        (
            INTERVAL,
            60,
            ("POST", "deduplicationSnapshotInterval", b"60"),
            ("POST", "deduplicationSnapshotInterval", b"60"),
        ),
        (
            INTERVAL,
            None,
            ("DELETE", "deduplicationSnapshotInterval", b""),
            ("POST", "deduplicationSnapshotInterval", b""),
        ),
    ],
)
def test_a_change_goes_where_brokers_take_it(
    broker: Broker,
    policy: DeduplicationPolicy,
    value: PolicyValue | None,
    of_topic: tuple[str, str, bytes],
    of_namespace: tuple[str, str, bytes],
) -> None:
    broker.policies.change_topic(policy, TOPIC, value)
    broker.policies.change_namespace(policy, "public/default", value)
    topic, namespace = "/admin/v2/persistent/public/default/orders/", "/admin/v2/namespaces/public/default/"
    assert broker.changes == [
        (of_topic[0], topic + of_topic[1], of_topic[2]),
        (of_namespace[0], namespace + of_namespace[1], of_namespace[2]),
    ]


def test_only_loaded_topics_have_a_status(broker: Broker) -> None:
    topics = [parse_topic_name("persistent://public/default/unloaded"), TOPIC]
    assert broker.owners.statuses(topics, 5) == {TOPIC: "Enabled"}
    assert broker.owners.statuses(topics, 0) == {}
    assert not any("unloaded" in arrived.target for arrived in broker.http.arrived)
    broker.stats = NO_CLIENTS
    with pytest.raises(TemporaryError, match="deduplicationStatus"):
        broker.owners.statuses(topics, 5)
