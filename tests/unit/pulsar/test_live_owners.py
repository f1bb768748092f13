"""Asking live owners when brokers move, lie, refuse or vanish."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.live_owners import BrokerLiveOwners, owned_bundles, owning_url
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.metadata import FakeMetadataStore
from tests.unit.pulsar.http_brokers import Answer, Arrived, HttpBroker, http_broker
from tests.unit.pulsar.test_topic_stats import internal_stats

TOPIC = parse_topic_name("persistent://public/default/t")
OTHER = parse_topic_name("persistent://public/default/other")


class Broker:
    """A broker with loaded topics, behind a real socket."""

    def __init__(self, http: HttpBroker) -> None:
        self.http = http
        self.loaded: set[str] = set()
        self.owned: set[str] = set()
        self.failing: dict[str, Answer] = {}
        http.answer = self._answer

    def _answer(self, arrived: Arrived) -> Answer:
        path = arrived.target.partition("?")[0]
        for part, answer in self.failing.items():
            if part in path:
                return answer
        return Answer(200, json.dumps(self._document(path)).encode())

    def _document(self, path: str) -> Any:
        if path.endswith("/bookieops"):
            return {"public/default": {name: {} for name in self.loaded}}
        if path.endswith("/clusters"):
            return ["local"]
        if path.endswith("/ownedNamespaces"):
            return {name: {"is_active": True} for name in self.owned}
        return internal_stats()


class Cluster:
    def __init__(self, brokers: list[Broker], *, load_manager: str | None = None) -> None:
        self.brokers = brokers
        self.store = FakeMetadataStore()
        for broker in brokers:
            registration = {"webServiceUrl": broker.http.url, "loadManagerClassName": load_manager}
            self.store.put(self.path(broker), json.dumps(registration).encode())
        rest = AdminRest([brokers[0].http.url], store=self.store, read_seconds=5.0)
        self.owners = BrokerLiveOwners(rest, self.store)

    def path(self, broker: Broker) -> str:
        return f"/loadbalance/brokers/{broker.http.address}"

    def requests(self, part: str) -> int:
        return sum(part in arrived.target for broker in self.brokers for arrived in broker.http.arrived)


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        yield [Broker(stack.enter_context(http_broker(lambda arrived: Answer(500)))) for _ in range(2)]


@pytest.fixture
def cluster(brokers: list[Broker]) -> Cluster:
    return Cluster(brokers)


def test_only_the_listing_broker_is_asked_about_a_topic(cluster: Cluster) -> None:
    cluster.brokers[1].loaded = {str(TOPIC)}
    views = cluster.owners.views([TOPIC, OTHER])
    assert views.keys() == {TOPIC}
    assert views[TOPIC].broker == cluster.brokers[1].http.address
    [asked] = [arrived for arrived in cluster.brokers[1].http.arrived if "internalStats" in arrived.target]
    assert asked.target == "/admin/v2/persistent/public/default/t/internalStats?authoritative=true"
    assert not any("internalStats" in arrived.target for arrived in cluster.brokers[0].http.arrived)


def test_one_listing_serves_a_batch(cluster: Cluster) -> None:
    topics = [parse_topic_name(f"persistent://public/default/{number}") for number in range(50)]
    cluster.brokers[0].loaded = {str(topic) for topic in topics}
    assert cluster.owners.views(topics).keys() == set(topics)
    assert cluster.requests("bookieops") == 2
    assert cluster.requests("internalStats") == 50


def test_nothing_is_asked_for_nothing(cluster: Cluster) -> None:
    assert cluster.owners.views([]) == {}
    assert cluster.requests("") == 0


def test_a_topic_that_moves_while_brokers_are_asked_is_seen(cluster: Cluster) -> None:
    first, second = cluster.brokers
    answer = second._answer

    def load_after_asking(arrived: Arrived) -> Answer:
        answered = answer(arrived)
        second.loaded = {str(TOPIC)}
        return answered

    second.http.answer = load_after_asking
    assert cluster.owners.views([TOPIC]).keys() == {TOPIC}
    assert not first.loaded


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500),
        Answer(0),
        Answer(401),
        Answer(404),
        Answer(404, b'{"reason": "KeeperErrorCode = NoNode for /namespace/public/default"}'),
        Answer(200, b"[]"),
        Answer(200, b'{"a": 1}'),
    ],
)
@pytest.mark.parametrize("part", ["bookieops", "internalStats"])
def test_no_answer_is_no_absence(cluster: Cluster, part: str, answer: Answer) -> None:
    cluster.brokers[0].loaded = {str(TOPIC)}
    for broker in cluster.brokers:
        broker.failing = {part: answer}
    with pytest.raises(TemporaryError):
        cluster.owners.views([TOPIC])


def test_a_broker_that_does_not_list_is_no_absence(cluster: Cluster) -> None:
    cluster.brokers[1].failing = {"bookieops": Answer(404, b'{"reason": "x"}')}
    with pytest.raises(TemporaryError):
        cluster.owners.views([TOPIC])


@pytest.mark.parametrize("reason", ["Topic persistent://public/default/t not found", "Namespace is deleted"])
def test_a_topic_that_vanished_since_it_was_listed_is_loaded_nowhere(cluster: Cluster, reason: str) -> None:
    cluster.brokers[0].loaded = {str(TOPIC), str(OTHER)}
    cluster.brokers[0].failing = {"/t/internalStats": Answer(404, json.dumps({"reason": reason}).encode())}
    assert cluster.owners.views([TOPIC, OTHER]).keys() == {OTHER}


def test_a_redirect_means_that_the_topic_moved(cluster: Cluster) -> None:
    first, second = cluster.brokers
    first.loaded = {str(TOPIC)}
    first.failing = {"internalStats": Answer(307, headers={"Location": f"{second.http.url}/x"})}
    with pytest.raises(TemporaryError, match="not the owner"):
        cluster.owners.views([TOPIC])
    assert not any("/x" in arrived.target for arrived in second.http.arrived)


def test_brokers_that_come_or_go_leave_nothing_certain(cluster: Cluster) -> None:
    registration = cluster.store.peek(cluster.path(cluster.brokers[1]))
    assert registration is not None
    asked = 0

    def restart(path: str, data: bytes) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            cluster.store.remove(path)
            cluster.store.put(path, data)

    cluster.store.before("children", lambda: restart(registration.path, registration.data), times=-1)
    with pytest.raises(TemporaryError, match="came or went"):
        cluster.owners.views([TOPIC])


def test_without_a_registered_broker_nothing_is_certain(cluster: Cluster) -> None:
    for broker in cluster.brokers:
        cluster.store.remove(cluster.path(broker))
    with pytest.raises(TemporaryError, match="no broker is registered"):
        cluster.owners.views([TOPIC])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"webServiceUrl": null}'])
def test_a_registration_that_cannot_be_read_is_a_broker_that_was_not_asked(cluster: Cluster, data: bytes) -> None:
    cluster.store.put("/loadbalance/brokers/strange:8080", data)
    with pytest.raises(TemporaryError):
        cluster.owners.views([TOPIC])


def test_the_owner_comes_from_the_metadata(cluster: Cluster) -> None:
    cluster.store.put("/admin/local-policies/public/default", b"{}")
    assert cluster.owners.owner_url(TOPIC) is None
    cluster.store.put("/namespace/public/default/0x00000000_0xffffffff", b'{"httpUrl": "http://owner:8080"}')
    assert cluster.owners.owner_url(TOPIC) == "http://owner:8080"
    assert cluster.requests("") == 0


def test_brokers_of_the_extensible_load_manager_are_asked_for_what_they_own(brokers: list[Broker]) -> None:
    cluster = Cluster(brokers, load_manager="org.apache.pulsar...ExtensibleLoadManagerImpl")
    cluster.store.put("/admin/local-policies/public/default", b"{}")
    assert cluster.owners.owner_url(TOPIC) is None
    brokers[1].owned = {"public/default/0x00000000_0xffffffff"}
    assert cluster.owners.owner_url(TOPIC) == brokers[1].http.url
    brokers[0].failing = {"ownedNamespaces": Answer(500)}
    with pytest.raises(TemporaryError):
        cluster.owners.owner_url(TOPIC)


def test_the_owner_s_address() -> None:
    assert owning_url(b'{"httpUrl": "http://b:8080/", "httpUrlTls": "https://b:8443"}', TOPIC) == "http://b:8080"
    assert owning_url(b'{"httpUrl": null, "httpUrlTls": "https://b:8443"}', TOPIC) == "https://b:8443"
    for data in (b"", b"[]", b"{}", b"{"):
        with pytest.raises(TemporaryError):
            owning_url(data, TOPIC)


def test_owned_bundles_are_the_active_ones() -> None:
    document = {"a/b/0x0_0x1": {"is_active": True}, "a/b/0x1_0x2": {"is_active": False}, "c": json.loads("null")}
    assert owned_bundles(document, "b") == {"a/b/0x0_0x1"}
    with pytest.raises(TemporaryError):
        owned_bundles(None, "b")
