"""Asking live owners when brokers move, lie, refuse or vanish."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.bundles import Ownership, owned_bundles, owning_url
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners, usage_in
from pulsar_sidecar.features.pins.ports import BrokerUsage
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server, json_answer, refusing
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.pulsar.test_topic_stats import internal_stats

TOPIC = parse_topic_name("persistent://public/default/t")
OTHER = parse_topic_name("persistent://public/default/other")
BUNDLE = "/namespace/public/default/0x00000000_0xffffffff"


class Broker:
    """A broker with loaded topics, behind a real socket."""

    def __init__(self, http: HttpServer) -> None:
        self.http = http
        self.loaded: set[str] = set()
        self.owned: set[str] = set()
        self.failing: dict[str, Answer] = {}
        http.answer = self._answer

    def requests(self, part: str) -> int:
        return sum(part in arrived.target for arrived in self.http.arrived)

    def _answer(self, arrived: Arrived) -> Answer:
        path = arrived.target.partition("?")[0]
        for part, answer in self.failing.items():
            if part in path:
                return answer
        return json_answer(self._document(path))

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

    def own(self, owner: Broker | None) -> None:
        """Make a broker, or none, the owner of the namespace's only bundle."""
        self.store.put(f"/admin/local-policies/{TOPIC.namespace}", b"{}")
        if self.store.peek(BUNDLE) is not None:
            self.store.remove(BUNDLE)
        if owner is not None:
            self.store.put(BUNDLE, json.dumps({"httpUrl": owner.http.url}).encode())

    def path(self, broker: Broker) -> str:
        return f"/loadbalance/brokers/{broker.http.address}"

    def requests(self, part: str) -> int:
        return sum(broker.requests(part) for broker in self.brokers)


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    with ExitStack() as stack:
        yield [Broker(stack.enter_context(http_server(lambda arrived: Answer(500)))) for _ in range(2)]


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


def test_only_the_owner_of_the_bundle_is_asked(cluster: Cluster) -> None:
    first, second = cluster.brokers
    cluster.own(second)
    second.loaded = {str(TOPIC)}
    assert cluster.owners.views([TOPIC, OTHER]).keys() == {TOPIC}
    assert [broker.requests("bookieops") for broker in (first, second)] == [0, 1]


def test_all_brokers_are_asked_once_where_none_owns_the_bundle(cluster: Cluster) -> None:
    cluster.own(None)
    assert cluster.owners.views([TOPIC]) == {}
    assert cluster.requests("bookieops") == 2


def test_an_owner_that_is_not_registered_proves_nothing(cluster: Cluster) -> None:
    first, second = cluster.brokers
    cluster.own(first)
    cluster.store.remove(cluster.path(first))
    second.loaded = {str(TOPIC)}
    assert cluster.owners.views([TOPIC]).keys() == {TOPIC}


def missed_at(brokers: list[Broker]) -> list[int]:
    """Move the bundle, and the topic with it, before each read of the store and each listing; where it is missed."""
    missed = []
    for number in range(20):
        cluster = Cluster(brokers)
        first, second = brokers
        steps = 0

        def step(cluster: Cluster = cluster, number: int = number) -> None:
            nonlocal steps
            steps += 1
            if steps == number + 1:
                cluster.own(brokers[1])
                brokers[0].loaded, brokers[1].loaded = set(), {str(TOPIC)}

        def answer(arrived: Arrived, broker: Broker, step: Callable[[], None] = step) -> Answer:
            if "bookieops" in arrived.target:
                step()
            return broker._answer(arrived)

        cluster.own(first)
        first.loaded, second.loaded = {str(TOPIC)}, set()
        for broker in brokers:
            broker.http.answer = partial(answer, broker=broker)
        cluster.store.before("read_many", step, times=-1)
        if cluster.owners.views([TOPIC]).keys() != {TOPIC}:
            missed.append(number)
        if steps <= number:
            return missed
    pytest.fail("there are more steps than were tried")


def test_a_bundle_that_moves_at_any_step_is_seen(brokers: list[Broker]) -> None:
    assert missed_at(brokers) == []


def test_without_reading_the_owners_again_a_bundle_that_moves_is_missed(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ownership, "changed", lambda self, store: False)
    assert missed_at(brokers)


def test_one_listing_serves_a_batch(cluster: Cluster) -> None:
    topics = [parse_topic_name(f"persistent://public/default/{number}") for number in range(50)]
    cluster.brokers[0].loaded = {str(topic) for topic in topics}
    assert cluster.owners.views(topics).keys() == set(topics)
    assert cluster.requests("bookieops") == 2
    assert cluster.requests("internalStats") == 50


def test_empty_batch_calls_no_broker(cluster: Cluster) -> None:
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
        refusing(404, "KeeperErrorCode = NoNode for /namespace/public/default"),
        Answer(200, b"[]"),
        Answer(200, b'{"a": 1}'),
    ],
)
@pytest.mark.parametrize("part", ["bookieops", "internalStats"])
def test_failed_response_is_not_absence(cluster: Cluster, part: str, answer: Answer) -> None:
    cluster.brokers[0].loaded = {str(TOPIC)}
    for broker in cluster.brokers:
        broker.failing = {part: answer}
    with pytest.raises(TemporaryError):
        cluster.owners.views([TOPIC])


def test_failed_listing_is_not_absence(cluster: Cluster) -> None:
    cluster.brokers[1].failing = {"bookieops": refusing(404, "x")}
    with pytest.raises(TemporaryError):
        cluster.owners.views([TOPIC])


@pytest.mark.parametrize("reason", ["Topic persistent://public/default/t not found", "Namespace is deleted"])
def test_a_topic_that_vanished_since_it_was_listed_is_loaded_nowhere(cluster: Cluster, reason: str) -> None:
    cluster.brokers[0].loaded = {str(TOPIC), str(OTHER)}
    cluster.brokers[0].failing = {"/t/internalStats": refusing(404, reason)}
    assert cluster.owners.views([TOPIC, OTHER]).keys() == {OTHER}


def test_a_redirect_means_that_the_topic_moved(cluster: Cluster) -> None:
    first, second = cluster.brokers
    first.loaded = {str(TOPIC)}
    first.failing = {"internalStats": Answer(307, headers={"Location": f"{second.http.url}/x"})}
    with pytest.raises(TemporaryError, match="no longer the owner"):
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
    with pytest.raises(TemporaryError, match="joined or left"):
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


USAGES = {"cpu": 12.5, "directMemory": 6.25, "bandwidth_in": 0.0, "bandwidth_out": 30.0, "memory": 99.0}


def reported(**usages: float) -> object:
    load = {f"brk_lb_{name}_usage": percent for name, percent in usages.items()}
    return [{"metrics": {"brk_ml_count": 1.0}}, {"metrics": load, "dimensions": {"metric": "loadBalancing"}}]


def test_a_brokers_load_is_its_most_used_resource_but_not_its_heap() -> None:
    assert usage_in(reported(**USAGES), "b") == BrokerUsage("b", "outgoing bandwidth", 30.0)


@pytest.mark.parametrize("document", [None, [], "text", [{}], reported(cpu=1.0)])
def test_a_broker_that_does_not_report_its_load_is_not_an_idle_one(document: object) -> None:
    with pytest.raises(TemporaryError, match="does not report its load"):
        usage_in(document, "b")
