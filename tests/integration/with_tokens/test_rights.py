"""The sidecar gives each role the rights that brokers with authorization give it, and no more."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import requests
from pulsar_sidecar.adapters.zookeeper.zookeeper import ZooKeeperMetadataStore
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path

from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.tokens import TOKEN_CONF, token

TOPIC = "/admin/v2/persistent/acme/shop/orders"
OTHER_TOPIC = "/admin/v2/persistent/acme/shop/returns"
NAMESPACE = "/admin/v2/namespaces/acme/shop"
ROLES = ("admin", "acme-admin", "rival-admin", "reader", "writer", "stranger", "watcher", "operator")
REFUSED = 403


@dataclass(frozen=True, slots=True)
class BrokerAndSidecar:
    """A broker and a sidecar that know the same tokens."""

    broker_url: str
    metadata_store_url: str
    sidecar: SidecarProcess

    def at_broker(self, role: str, method: str, path: str, body: object = None) -> requests.Response:
        return self._ask(self.broker_url, role, method, path, body)

    def at_sidecar(self, role: str, method: str, path: str, body: object = None) -> requests.Response:
        return self._ask(self.sidecar.url, role, method, path, body)

    def arrange(self, method: str, path: str, body: object = None) -> Any:
        """Make a call to the broker as superuser, and return its response."""
        answer = self.at_broker("admin", method, path, body)
        assert answer.ok, answer.text
        return answer.json() if answer.content else None

    def ledgers(self, topic: str) -> list[int]:
        return [each["ledgerId"] for each in self.arrange("GET", f"{topic}/internalStats")["ledgers"]]

    @staticmethod
    def _ask(url: str, role: str, method: str, path: str, body: object) -> requests.Response:
        headers = {"Authorization": f"Bearer {token(role)}"}
        return requests.request(method, f"{url}{path}", json=body, headers=headers, timeout=60)


@pytest.fixture(scope="module")
def servers(guarded: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerAndSidecar]:
    addresses = guarded.addresses
    with closing(Sidecars(addresses, tmp_path_factory.mktemp("sidecars"))) as sidecars:
        sidecar = sidecars.start(
            authentication_enabled="true",
            token_secret_key=TOKEN_CONF["tokenSecretKey"],
            super_user_roles="admin",
            viewer_roles="watcher",
            operator_roles="operator",
            auth_plugin="token",
            auth_params=f"token:{token('admin')}",
            log_format="json",
        )
        servers = BrokerAndSidecar(addresses.web_service_urls[0], addresses.metadata_store_url, sidecar)
        clusters = servers.arrange("GET", "/admin/v2/clusters")
        for tenant in ("acme", "rival"):
            tenant_info = {"adminRoles": [f"{tenant}-admin"], "allowedClusters": clusters}
            servers.arrange("PUT", f"/admin/v2/tenants/{tenant}", tenant_info)
        servers.arrange("PUT", NAMESPACE)
        servers.arrange("PUT", TOPIC)
        servers.arrange("PUT", OTHER_TOPIC)
        servers.arrange("POST", f"{NAMESPACE}/permissions/reader", ["consume"])
        servers.arrange("POST", f"{TOPIC}/permissions/writer", ["produce"])
        yield servers


@pytest.mark.parametrize(
    ("method", "at_broker", "at_sidecar", "body"),
    [
        ("GET", f"{TOPIC}/stats", f"{TOPIC}/deduplication", None),
        ("GET", f"{TOPIC}/internalStats", f"{TOPIC}/ackState", None),
        ("GET", f"{OTHER_TOPIC}/stats", f"{OTHER_TOPIC}/deduplication", None),
        ("GET", f"{TOPIC}/deduplicationEnabled", f"{TOPIC}/deduplicationEnabled", None),
        ("POST", f"{TOPIC}/deduplicationEnabled", f"{TOPIC}/deduplicationEnabled", True),
        ("GET", f"{NAMESPACE}/deduplication", f"{NAMESPACE}/deduplication", None),
        ("POST", f"{NAMESPACE}/deduplication", f"{NAMESPACE}/deduplication", True),
        ("DELETE", f"{NAMESPACE}/deduplication", f"{NAMESPACE}/deduplication", None),
    ],
)
def test_roles_refused_by_the_broker_are_refused_by_the_sidecar(
    servers: BrokerAndSidecar, method: str, at_broker: str, at_sidecar: str, body: object
) -> None:
    for role in ROLES:
        brokers = servers.at_broker(role, method, at_broker, body)
        own = servers.at_sidecar(role, method, at_sidecar, body)
        assert brokers.ok or brokers.status_code in (401, REFUSED), brokers.text
        if role in ("watcher", "operator") and method == "GET":
            assert own.ok  # the sidecar's own roles
        else:
            assert own.ok == brokers.ok, (role, own.status_code, own.text, brokers.status_code, brokers.text)
        assert own.ok or own.status_code == REFUSED


def test_a_change_of_a_tenant_s_admin_roles_is_seen_soon(servers: BrokerAndSidecar) -> None:
    tenant = servers.arrange("GET", "/admin/v2/tenants/acme")
    assert servers.at_sidecar("deputy", "GET", f"{NAMESPACE}/deduplication").status_code == REFUSED
    for admins, answer in ((["acme-admin", "deputy"], 200), (["acme-admin"], REFUSED)):
        servers.arrange("POST", "/admin/v2/tenants/acme", tenant | {"adminRoles": admins})

        def is_seen(answer: int = answer) -> bool:
            return servers.at_sidecar("deputy", "GET", f"{NAMESPACE}/deduplication").status_code == answer

        until(is_seen, f"the sidecar answers {answer}")


def test_a_ledger_s_id_alone_is_no_right(servers: BrokerAndSidecar) -> None:
    topic = "/admin/v2/persistent/acme/shop/ledgers"
    servers.arrange("PUT", topic)
    (ledger_id,) = servers.ledgers(topic)
    record = {
        "topicName": "persistent://rival/shop/own",
        "ledgerId": ledger_id,
        "ledgerType": "LEDGER",
        "ledgerComponent": "MANAGED_LEDGER",
    }
    append = {"ledgers": [record]}
    for role in ("rival-admin", "reader", "stranger", "watcher"):
        refused = servers.at_sidecar(role, "POST", f"{BASE}/pending", append)
        assert (refused.status_code, "owns it" in refused.text) == (REFUSED, True)
    assert servers.at_sidecar("rival-admin", "GET", f"{BASE}/watch/leaks/{ledger_id}").status_code == REFUSED

    node = ledger_path(LedgerId(ledger_id))
    with ZooKeeperMetadataStore(servers.metadata_store_url, SystemClock()) as store:
        stored = store.read(node)
        assert stored is not None
        assert servers.at_sidecar("rival-admin", "DELETE", topic).status_code == REFUSED
        assert servers.ledgers(topic) == [ledger_id]
        assert servers.at_sidecar("acme-admin", "DELETE", topic).ok
        store.create(node, stored.data)  # as a broker leaves it that dies before it deletes it
        own = {"ledgers": [record | {"topicName": "persistent://acme/shop/ledgers"}]}
        assert servers.at_sidecar("acme-admin", "POST", f"{BASE}/pending", own).json()["sent"] == [ledger_id]
        until(lambda: store.read(node) is None, "the second phase deletes it")

    restored = {"ledgerId": ledger_id}
    for verb, body in (("undelete", restored | {"force": True}), ("end-protection", restored)):
        assert servers.at_sidecar("rival-admin", "POST", f"{BASE}/{verb}", body).status_code == REFUSED
        allowed = servers.at_sidecar("acme-admin", "POST", f"{BASE}/{verb}", body)
        assert allowed.ok, allowed.text


def test_cluster_wide_changes_need_an_operator(servers: BrokerAndSidecar) -> None:
    for role in ROLES:
        allowed = role in ("admin", "operator")
        assert servers.at_sidecar(role, "PUT", f"{BASE}/rate", {"ledgersPerSecond": None}).ok == allowed
        assert servers.at_sidecar(role, "GET", f"{BASE}/status").ok == (allowed or role == "watcher")


def test_each_change_has_one_line_in_the_log(servers: BrokerAndSidecar) -> None:
    before = len(servers.sidecar.changes())
    path = "/admin/v2/persistent/acme/shop/logged"
    servers.arrange("PUT", path)
    servers.at_sidecar("rival-admin", "DELETE", path)
    servers.at_sidecar("acme-admin", "DELETE", f"{path}?force=true")
    until(lambda: len(servers.sidecar.changes()) >= before + 2, "both are in the log")
    lines = servers.sidecar.changes()[before:]
    names = ("role", "authenticated_by", "address", "operation", "query", "status")
    assert [tuple(line[name] for name in names) for line in lines] == [
        ("rival-admin", "token", "127.0.0.1", "delete_topic", None, REFUSED),
        ("acme-admin", "token", "127.0.0.1", "delete_topic", "force=true", 204),
    ]
    assert token("acme-admin") not in servers.sidecar.whole_log
