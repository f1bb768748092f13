"""What brokers answer when a namespace is to be deleted: what is final, and what may pass."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar.rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar.rest.namespace_admin import BrokerNamespaceAdmin
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)

from tests.unit.pulsar.http_brokers import Answer, HttpBroker, http_broker


@pytest.fixture
def broker() -> Iterator[HttpBroker]:
    with http_broker(lambda _: Answer(204)) as broker:
        yield broker


@pytest.fixture
def admin(broker: HttpBroker) -> BrokerNamespaceAdmin:
    return BrokerNamespaceAdmin(AdminRest([broker.url]))


def reason(status: int, text: str) -> Answer:
    return Answer(status, json.dumps({"reason": text}).encode())


def test_the_calls_are_pulsars_own(broker: HttpBroker, admin: BrokerNamespaceAdmin) -> None:
    admin.delete_namespace("public/old", force=True)
    admin.delete_namespace("p/c/n", force=False)
    assert admin.namespace_exists("public/old")
    assert [(each.method, each.target) for each in broker.arrived] == [
        ("DELETE", "/admin/v2/namespaces/public/old?force=true"),
        ("DELETE", "/admin/namespaces/p/c/n?force=false"),
        ("GET", "/admin/v2/namespaces/public/old"),
    ]


def test_a_namespace_is_absent_only_where_a_broker_answers_so(broker: HttpBroker, admin: BrokerNamespaceAdmin) -> None:
    broker.answer = lambda _: reason(404, "Namespace does not exist")
    assert not admin.namespace_exists("public/old")
    broker.answer = lambda _: Answer(500)
    with pytest.raises(TemporaryError):
        admin.namespace_exists("public/old")


@pytest.mark.parametrize(("setting", "allowed"), [("true", True), ("false", False), (None, False)])
def test_the_brokers_setting(
    broker: HttpBroker, admin: BrokerNamespaceAdmin, setting: str | None, *, allowed: bool
) -> None:
    settings = {} if setting is None else {"forceDeleteNamespaceAllowed": setting}
    broker.answer = lambda _: Answer(200, json.dumps(settings).encode())
    assert admin.forced_deletion_allowed() is allowed


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (reason(404, "Namespace public/old does not exist."), NotFoundError),
        (reason(405, "Broker doesn't allow forced deletion of namespaces"), BrokerRefusedError),
        (reason(409, "Cannot delete non empty namespace"), BrokerRefusedError),
        (
            reason(412, "Cannot delete the global namespace public/old. There are still more than one"),
            BrokerRefusedError,
        ),
        (reason(403, "no admin"), NotAuthorizedError),
        (reason(409, "Cannot delete non empty bundle"), TemporaryError),
        (
            reason(409, "The broker still have in-flight topics created during namespace deletion (path x)"),
            TemporaryError,
        ),
        (reason(412, "Topic is fenced"), TemporaryError),
        (reason(500, "Subscription has active connected consumers"), OutcomeUnknownError),
    ],
)
def test_only_what_would_come_again_is_final(
    answer: Answer, error: type[SidecarError], broker: HttpBroker, admin: BrokerNamespaceAdmin
) -> None:
    broker.answer = lambda _: answer
    with pytest.raises(error):
        admin.delete_namespace("public/old", force=True)
