"""Brokers' responses to the deletion of a namespace: final and transient ones."""

import json

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.namespace_admin import BrokerNamespaceAdmin
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import DeletionSettings, NamespaceClusters
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.model.pulsar_versions import line_of

from tests.fakes.http_servers import Answer, HttpServer, json_answer, refusing


@pytest.fixture
def admin(web: HttpServer) -> BrokerNamespaceAdmin:
    return BrokerNamespaceAdmin(AdminRest([web.url]))


def test_the_calls_are_pulsars_own(web: HttpServer, admin: BrokerNamespaceAdmin) -> None:
    admin.delete_namespace("public/old", force=True)
    admin.delete_namespace("p/c/n", force=False)
    assert admin.namespace_exists("public/old")
    assert [(each.method, each.target) for each in web.arrived] == [
        ("DELETE", "/admin/v2/namespaces/public/old?force=true"),
        ("DELETE", "/admin/namespaces/p/c/n?force=false"),
        ("GET", "/admin/v2/namespaces/public/old"),
    ]


def test_a_namespace_is_absent_only_where_a_broker_answers_so(web: HttpServer, admin: BrokerNamespaceAdmin) -> None:
    web.answer = lambda _: refusing(404, "Namespace does not exist")
    assert not admin.namespace_exists("public/old")
    web.answer = lambda _: Answer(500)
    with pytest.raises(TemporaryError):
        admin.namespace_exists("public/old")


@pytest.mark.parametrize(("setting", "allowed"), [("true", True), ("false", False), (None, False)])
@pytest.mark.parametrize("version", ["4.0.8", "4.2.4"])
def test_the_brokers_settings(
    web: HttpServer, admin: BrokerNamespaceAdmin, version: str, setting: str | None, *, allowed: bool
) -> None:
    settings = {"clusterName": "local", "forceDeleteNamespaceAllowed": setting, "authorizationEnabled": setting}
    web.answer = lambda request: Answer(
        200, version.encode() if request.target.endswith("/version") else json.dumps(settings).encode()
    )
    assert admin.deletion_settings() == DeletionSettings("local", line_of(version), allowed, allowed)


def test_settings_without_a_cluster_are_no_answer(web: HttpServer, admin: BrokerNamespaceAdmin) -> None:
    web.answer = lambda _: Answer(200, b"{}")
    with pytest.raises(TemporaryError, match="lacks clusterName"):
        admin.deletion_settings()


@pytest.mark.parametrize(
    ("namespace", "listings"),
    [
        ("public/old", ["/admin/v2/namespaces/public/old/topics?mode=ALL", "/admin/v2/non-persistent/public/old"]),
        ("p/c/n", ["/admin/namespaces/p/c/n/destinations?mode=ALL", "/admin/non-persistent/p/c/n"]),
    ],
)
def test_topics_that_another_broker_has_loaded_are_listed_too(
    web: HttpServer, admin: BrokerNamespaceAdmin, namespace: str, listings: list[str]
) -> None:
    loaded_elsewhere = b'["non-persistent://public/old/a"]'
    web.answer = lambda request: Answer(200, loaded_elsewhere if request.target == listings[1] else b"[]")
    assert admin.topics_in(namespace) == ["non-persistent://public/old/a"]
    assert [each.target for each in web.arrived] == listings
    web.answer = lambda _: Answer(200, b"{}")
    with pytest.raises(TemporaryError, match="did not list the topics"):
        admin.topics_in(namespace)


def test_its_clusters_and_theirs_addresses(web: HttpServer, admin: BrokerNamespaceAdmin) -> None:
    web.answer = lambda _: Answer(200, b'{"replication_clusters": ["b", "a"], "allowed_clusters": []}')
    assert admin.clusters_of("public/old") == NamespaceClusters(frozenset({"a", "b"}))
    for document, url in (
        ({"serviceUrl": "http://b:80", "serviceUrlTls": "https://b:1"}, "http://b:80"),
        ({"serviceUrlTls": "https://b:1"}, "https://b:1"),
        ({}, "an address that its cluster does not name"),
    ):
        web.answer = lambda _, found=document: json_answer(found)
        assert admin.cluster_url("b") == url


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusing(404, "Namespace public/old does not exist."), NotFoundError),
        (refusing(405, "Broker doesn't allow forced deletion of namespaces"), BrokerRefusedError),
        (refusing(409, "Cannot delete non empty namespace"), BrokerRefusedError),
        (
            refusing(412, "Cannot delete the global namespace public/old. There are still more than one"),
            BrokerRefusedError,
        ),
        (refusing(403, "no admin"), NotAuthorizedError),
        (refusing(409, "Cannot delete non empty bundle"), TemporaryError),
        (
            refusing(409, "The broker still have in-flight topics created during namespace deletion (path x)"),
            TemporaryError,
        ),
        (refusing(412, "Topic is fenced"), TemporaryError),
        (refusing(500, "Subscription has active connected consumers"), OutcomeUnknownError),
    ],
)
def test_only_what_would_come_again_is_final(
    answer: Answer, error: type[SidecarError], web: HttpServer, admin: BrokerNamespaceAdmin
) -> None:
    web.answer = lambda _: answer
    with pytest.raises(error):
        admin.delete_namespace("public/old", force=True)
