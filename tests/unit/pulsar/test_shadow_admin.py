"""Brokers' responses about shadow topics, as observed of 4.0.8."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server, json_answer, refusing

TOPIC = parse_topic_name("persistent://public/default/orders-shadow")
PATH = "/admin/v2/persistent/public/default/orders-shadow"
NOT_FOUND = refusing(404, "Topic persistent://public/default/orders-shadow not found")


@pytest.fixture
def broker() -> Iterator[HttpServer]:
    with http_server(lambda _: Answer(204)) as broker:
        yield broker


@pytest.fixture
def admin(broker: HttpServer) -> BrokerTopicAdmin:
    return BrokerTopicAdmin(AdminRest([broker.url]))


def answer(broker: HttpServer, document: object) -> None:
    broker.answer = lambda _: json_answer(document)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "forever"), [(-1, -1, True), (-1, 0, False), (0, -1, False), (60, 1, False)]
)
def test_only_infinite_retention_keeps_forever(
    broker: HttpServer, admin: BrokerTopicAdmin, minutes: int, megabytes: int, forever: bool
) -> None:
    answer(broker, {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})
    assert admin.keeps_forever(TOPIC) is forever


def test_topic_without_policies_keeps_nothing(broker: HttpServer, admin: BrokerTopicAdmin) -> None:
    broker.answer = lambda _: Answer(200)
    assert admin.keeps_forever(TOPIC) is False


def test_the_changes_are_pulsars_own_calls(broker: HttpServer, admin: BrokerTopicAdmin) -> None:
    admin.keep_forever(TOPIC)
    admin.set_shadow_topics(TOPIC, [parse_topic_name("persistent://a/b/c")])
    admin.set_shadow_topics(TOPIC, [])
    admin.unload(TOPIC)
    admin.delete_topic(TOPIC, partitioned=True, force=False)
    assert [(each.method, each.target) for each in broker.arrived] == [
        ("POST", f"{PATH}/retention"),
        ("PUT", f"{PATH}/shadowTopics"),
        ("DELETE", f"{PATH}/shadowTopics"),
        ("PUT", f"{PATH}/unload"),
        ("DELETE", f"{PATH}/partitions?force=false"),
    ]
    assert json.loads(broker.arrived[0].body) == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert json.loads(broker.arrived[1].body) == ["persistent://a/b/c"]


def _with(consumers: int) -> dict[str, object]:
    return {"consumers": [{}] * consumers, "msgOutCounter": 0}


def test_clients_and_replicators_are_distinguished(broker: HttpServer, admin: BrokerTopicAdmin) -> None:
    names = ["mine", f"pulsar.repl-persistent://public/default/orders-->{TOPIC}", "orders-->elsewhere"]
    answer(
        broker,
        {
            "publishers": [{"producerName": name} for name in names],
            "subscriptions": {"a": _with(2), "reader-1": _with(1), "idle": _with(0)},
        },
    )
    assert admin.clients(TOPIC) == ConnectedClients(consumers=3, producers=2, replicators=1)


def test_only_a_brokers_own_404_means_that_it_cannot_be_loaded(broker: HttpServer, admin: BrokerTopicAdmin) -> None:
    broker.answer = lambda _: NOT_FOUND
    assert admin.can_load(TOPIC) is False
    answer(broker, {"ledgers": []})
    assert admin.can_load(TOPIC) is True
    broker.answer = lambda _: Answer(500)
    with pytest.raises(TemporaryError):
        admin.can_load(TOPIC)


def test_an_unknown_topic_is_not_found(broker: HttpServer, admin: BrokerTopicAdmin) -> None:
    def not_found(_: Arrived) -> Answer:
        return NOT_FOUND

    broker.answer = not_found
    for call in (admin.keeps_forever, admin.keep_forever, admin.unload, admin.clients):
        with pytest.raises(NotFoundError):
            call(TOPIC)
