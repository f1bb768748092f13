"""Brokers' responses about shadow topics, as observed of 4.0.8."""

import json

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.http_servers import Answer, Arrived, HttpServer, json_answer, refusing

TOPIC = parse_topic_name("persistent://public/default/orders-shadow")
PATH = "/admin/v2/persistent/public/default/orders-shadow"
NOT_FOUND = refusing(404, "Topic persistent://public/default/orders-shadow not found")


@pytest.fixture
def admin(web: HttpServer) -> BrokerTopicAdmin:
    return BrokerTopicAdmin(AdminRest([web.url]))


def answer(web: HttpServer, document: object) -> None:
    web.answer = lambda _: json_answer(document)


@pytest.mark.parametrize(
    ("minutes", "megabytes", "forever"), [(-1, -1, True), (-1, 0, False), (0, -1, False), (60, 1, False)]
)
def test_only_infinite_retention_keeps_forever(
    web: HttpServer, admin: BrokerTopicAdmin, minutes: int, megabytes: int, forever: bool
) -> None:
    answer(web, {"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})
    assert admin.keeps_forever(TOPIC) is forever


def test_topic_without_policies_keeps_nothing(web: HttpServer, admin: BrokerTopicAdmin) -> None:
    web.answer = lambda _: Answer(200)
    assert admin.keeps_forever(TOPIC) is False


def test_the_changes_are_pulsars_own_calls(web: HttpServer, admin: BrokerTopicAdmin) -> None:
    admin.keep_forever(TOPIC)
    admin.set_shadow_topics(TOPIC, [parse_topic_name("persistent://a/b/c")])
    admin.set_shadow_topics(TOPIC, [])
    admin.unload(TOPIC)
    admin.delete_topic(TOPIC, partitioned=True, force=False)
    assert [(each.method, each.target) for each in web.arrived] == [
        ("POST", f"{PATH}/retention"),
        ("PUT", f"{PATH}/shadowTopics"),
        ("DELETE", f"{PATH}/shadowTopics"),
        ("PUT", f"{PATH}/unload"),
        ("DELETE", f"{PATH}/partitions?force=false"),
    ]
    assert json.loads(web.arrived[0].body) == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    assert json.loads(web.arrived[1].body) == ["persistent://a/b/c"]


def _with(consumers: int) -> dict[str, object]:
    return {"consumers": [{}] * consumers, "msgOutCounter": 0}


def test_clients_and_replicators_are_distinguished(web: HttpServer, admin: BrokerTopicAdmin) -> None:
    names = ["mine", f"pulsar.repl-persistent://public/default/orders-->{TOPIC}", "orders-->elsewhere"]
    answer(
        web,
        {
            "publishers": [{"producerName": name} for name in names],
            "subscriptions": {"a": _with(2), "reader-1": _with(1), "idle": _with(0)},
        },
    )
    assert admin.clients(TOPIC) == ConnectedClients(consumers=3, producers=2, replicators=1)


def test_only_a_brokers_own_404_means_that_it_cannot_be_loaded(web: HttpServer, admin: BrokerTopicAdmin) -> None:
    web.answer = lambda _: NOT_FOUND
    assert admin.can_load(TOPIC) is False
    answer(web, {"ledgers": []})
    assert admin.can_load(TOPIC) is True
    web.answer = lambda _: Answer(500)
    with pytest.raises(TemporaryError):
        admin.can_load(TOPIC)


def test_an_unknown_topic_is_not_found(web: HttpServer, admin: BrokerTopicAdmin) -> None:
    def not_found(_: Arrived) -> Answer:
        return NOT_FOUND

    web.answer = not_found
    for call in (admin.keeps_forever, admin.keep_forever, admin.unload, admin.clients):
        with pytest.raises(NotFoundError):
            call(TOPIC)
