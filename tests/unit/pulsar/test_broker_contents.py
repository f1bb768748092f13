"""One broker's topics and their clients, from brokers behind real sockets."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pulsar_sidecar.adapters.pulsar_rest.broker_contents import RestBrokerContents
from pulsar_sidecar.features.rehearsal.ports import Clients
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import http_server
from tests.unit.pulsar.test_live_owners import OTHER, TOPIC, Broker, Cluster

LOSSY = parse_topic_name("non-persistent://public/default/lossy")
STATISTICS: dict[str, Any] = {
    "public/default": {
        "0x00000000_0x80000000": {
            "persistent": {
                str(TOPIC): {
                    "publishers": [{}, {}],
                    "subscriptions": {"s": {"consumers": [{}], "msgBacklog": 7}, "t": {"consumers": [{}, {}]}},
                }
            },
            "non-persistent": {str(LOSSY): {"publishers": [{}], "subscriptions": {}}},
        }
    }
}


@contextmanager
def broker(statistics: object, configuration: dict[str, str]) -> Iterator[tuple[Cluster, RestBrokerContents]]:
    with http_server() as http:
        made = Broker(http)
        made.loaded, made.owned = {str(TOPIC), str(OTHER)}, {"public/default/0x00000000_0x80000000"}
        asked = made._document
        answers = {"/broker-stats/topics": statistics, "/configuration/runtime": configuration}

        def document(path: str) -> Any:
            return next((answer for end, answer in answers.items() if path.endswith(end)), asked(path))

        made._document = document  # type: ignore[method-assign]
        cluster = Cluster([made])
        yield cluster, RestBrokerContents(cluster.store, cluster.owners)


def test_topics_with_their_clients() -> None:
    with broker(STATISTICS, {"metadataStoreSessionTimeoutMillis": "12000"}) as (cluster, brokers):
        found = brokers.contents(cluster.brokers[0].http.address)
        assert (found.broker, found.bundles, found.session_seconds, found.statistics_seconds) == (
            cluster.brokers[0].http.address,
            1,
            12.0,
            60,
        )
        assert found.topics == {TOPIC: Clients(2, 3, 7), OTHER: None}
        assert found.non_persistent == {LOSSY: Clients(1, 0)}
        with pytest.raises(NotFoundError, match=f"no broker else:1 .*: {cluster.brokers[0].http.address}"):
            brokers.contents("else:1")


def test_the_older_setting_of_the_session_counts_first() -> None:
    configuration = {"zooKeeperSessionTimeoutMillis": "7000", "statsUpdateFrequencyInSecs": "5"}
    with broker({}, configuration) as (cluster, brokers):
        found = brokers.contents(cluster.brokers[0].http.address)
        assert (found.session_seconds, found.statistics_seconds) == (7.0, 5)
        assert (found.load_seconds, found.topics) == (60, {TOPIC: None, OTHER: None})


def test_statistics_of_another_form_are_no_absence() -> None:
    with (
        broker({"public/default": []}, {}) as (cluster, brokers),
        pytest.raises(TemporaryError, match="unexpected statistics"),
    ):
        brokers.contents(cluster.brokers[0].http.address)


def test_a_broker_with_an_address_of_another_kind_only_cannot_be_asked() -> None:
    with broker({}, {}) as (cluster, brokers):
        registered = json.dumps({"webServiceUrl": "ftp://broker-2:8080"}).encode()
        cluster.store.put("/loadbalance/brokers/broker-2:8080", registered)
        with pytest.raises(TemporaryError, match="has no address that the sidecar may use"):
            brokers.contents("broker-2:8080")
