"""Every route of all features with every kind of caller: who has not the right reaches nothing."""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, MutableMapping
from threading import Event
from typing import Any

import pytest
import structlog
from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from pulsar_sidecar.bootstrap.features import FEATURES
from pulsar_sidecar.features.ledger_deletion.http import routes as ledger_deletion
from pulsar_sidecar.features.ledger_deletion.results import FollowedDeletion, OperationState
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.gate import OPEN_PATHS, Gate
from pulsar_sidecar.server.guard import guarded_router, guarded_routes
from pulsar_sidecar.server.pass_through import PassThrough
from pulsar_sidecar.server.rights import Right, Rights
from starlette.routing import Match, Route

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.passed_requests import FakeBrokers
from tests.fakes.tenant_policies import FakeTenantPolicies
from tests.unit.server.test_authentication import NOW, SECRET, data_url, hs256
from tests.unit.server.test_rights import EVERY_ROLE, HOLDERS, ROLES, policies

REFUSED, UNKNOWN = 403, 401
CALLERS = {
    "nobody": None,
    "forged": hs256({"sub": "root"}, b"another key, of more than 32 bytes as well"),
    "expired": hs256({"sub": "root", "exp": NOW - 60}),
    **{role: hs256({"sub": role}) for role in sorted(EVERY_ROLE)},
}
IN_PATHS = {
    "tenant": "t",
    "property": "t",
    "cluster": "c",
    "namespace": "n",
    "topic": "x",
    "subscription": "s",
    "cancellation_id": "1%3A2",
    "operationId": "op-1",
    "ledgerId": "7",
    "auditId": "a-1",
    "table": "usage",
    "bookie": "b%3A3181",
    "broker": "b%3A8080",
}
OF_TENANTS = (Right.STATE, Right.MESSAGES, Right.POLICY, Right.CHANGE, Right.BROKERS)
_RECORD = {
    "topicName": "persistent://t/n/x",
    "ledgerId": 7,
    "ledgerType": "LEDGER",
    "ledgerComponent": "MANAGED_LEDGER",
}
BODIES: Mapping[str, object] = {
    "/admin/v2/ledger-deletion/pending": {"ledgers": [_RECORD]},
    "/admin/v2/ledger-deletion/watch/brake": {"reason": "maintenance"},
    "/admin/v2/ledger-deletion/undelete": {"ledgerId": 7},
    "/admin/v2/ledger-deletion/end-protection": {"ledgerId": 7},
    "/admin/v2/audits/{auditId}/application": {"plan": "0" * 64},
}


class ReachedError(Exception):
    """A caller came as far as a feature."""


class Owners:
    """A feature that only knows whose ledgers and deletions they are: tenant ``t``'s."""

    def __init__(self) -> None:
        self.owner: str | None = "t"

    def tenants_of(self, ledger_ids: list[int]) -> list[str | None]:
        return [self.owner] * len(ledger_ids)

    def tenant_of_deleted(self, ledger_id: int) -> str | None:
        del ledger_id
        return self.owner

    def topic_deletion(self, operation_id: OperationId) -> FollowedDeletion:
        topic = None if self.owner is None else parse_topic_name(f"persistent://{self.owner}/n/x")
        return FollowedDeletion(operation_id, str(topic), None, OperationState.RUNNING, 0, 0, 0)

    def __call__(self) -> object:
        raise ReachedError("called")

    def __getattr__(self, name: str) -> object:
        raise ReachedError(name)


class GatedApp:
    """The gate and the app, called without a server between."""

    def __init__(self, rights: Rights, routers: list[APIRouter]) -> None:
        self.app = create_app(routers, lambda: None, CollectorRegistry(), Event(), rights)
        tokens = TokenVerifier(secret_key(data_url(SECRET)), SystemClock())
        self.gate = Gate(Authentication(tokens), [], SystemClock(), lambda: "nothing")
        self.gate.app = self.app

    def ask(self, method: str, path: str, token: str | None, body: object = None, query: str = "") -> int | None:
        """The status, or None if a feature was reached."""
        sent = b"" if body is None else json.dumps(body).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(sent)).encode())]
        if token is not None:
            headers.append((b"authorization", f"Bearer {token}".encode()))
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
            "client": ("192.0.2.7", 4711),
            "server": ("127.0.0.1", 8750),
        }
        statuses: list[int] = []

        whole = iter([{"type": "http.request", "body": sent, "more_body": False}])

        async def receive() -> MutableMapping[str, Any]:
            for message in whole:
                return message
            await asyncio.Event().wait()  # the caller waits for its response
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        try:
            asyncio.run(self.gate(scope, receive, send))
        except ReachedError:
            return None
        return statuses[0]


@pytest.fixture(scope="module")
def owners() -> Owners:
    return Owners()


@pytest.fixture(scope="module")
def gated(owners: Owners) -> GatedApp:
    granted = policies()
    granted.granted["t/c/n"] = granted.granted["t/n"]
    routers = [routes for entry in FEATURES for routes in entry.routes([owners] * len(entry.routers))]
    return GatedApp(Rights(ROLES, granted), routers)


@pytest.fixture(autouse=True)
def _no_log() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def filled(path: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], path)


@pytest.mark.parametrize("name", CALLERS)
def test_a_caller_reaches_what_it_may(name: str, gated: GatedApp, owners: Owners) -> None:
    owners.owner = "t"
    wrong = []
    for method, path, right in guarded_routes(gated.app):
        status = gated.ask(method, filled(path, IN_PATHS), CALLERS[name], BODIES.get(path))
        if name in EVERY_ROLE:
            expected = status not in (REFUSED, UNKNOWN) if name in HOLDERS[right] else status == REFUSED
        else:
            expected = (status != UNKNOWN) if right is Right.OPEN else status == UNKNOWN
        if not expected:
            wrong.append((method, path, right, status))
    assert wrong == []


def test_an_admin_reaches_nothing_of_another_tenant(gated: GatedApp, owners: Owners) -> None:
    owners.owner = "u"
    others = {**IN_PATHS, "tenant": "u", "property": "u"}
    for method, path, right in guarded_routes(gated.app):
        if right not in (Right.OPEN, Right.ROLE):
            assert gated.ask(method, filled(path, others), CALLERS["admin"], BODIES.get(path)) == REFUSED, path


def test_unowned_resources_require_the_operator(gated: GatedApp, owners: Owners) -> None:
    owners.owner = None
    for method, path, right in guarded_routes(gated.app):
        if right is Right.OWNED_CHANGE:
            assert gated.ask(method, filled(path, IN_PATHS), CALLERS["admin"], BODIES.get(path)) == REFUSED, path
            assert gated.ask(method, filled(path, IN_PATHS), CALLERS["operator"], BODIES.get(path)) != REFUSED, path


def test_a_plain_path_has_the_route_that_its_patterns_would_find(gated: GatedApp) -> None:
    routes = [route for route in gated.app.routes if isinstance(route, Route)]
    plain = [(method, route) for route in routes if "{" not in route.path for method in route.methods or ()]
    assert len(plain) > 30
    for method, route in plain:
        scope = {"type": "http", "method": method, "path": route.path}
        assert next(each for each in routes if each.matches(scope)[0] is Match.FULL) is route


def test_the_rights_fit_the_routes(gated: GatedApp) -> None:
    """A second opinion on what routes declare, by their methods and paths."""
    for method, path, right in guarded_routes(gated.app):
        holders = right.value
        assert (right is Right.OPEN) == (path in OPEN_PATHS), path
        assert holders.changes == (method != "GET" and not path.endswith("/preview")), (method, path)
        of_tenant = "{tenant}" in path or "{property}" in path
        assert of_tenant == (right in OF_TENANTS), path
        assert not holders.changes or not holders.viewers, path


def test_an_encoded_name_is_the_topics_that_the_route_reads(gated: GatedApp) -> None:
    for path in (
        "/admin/v2/persistent/%75/n/x",
        "/admin/v2/persistent/u%2Fn/n/x",
        "/admin/persistent/t%2F..%2Fu/c/n/x",
    ):
        assert gated.ask("DELETE", path, CALLERS["admin"]) in (REFUSED, 400), path
    assert gated.ask("DELETE", "/admin/v2/persistent/%74/n/x", CALLERS["admin"]) is None


def test_rights_that_cannot_be_read_refuse_for_now() -> None:
    failing = FakeTenantPolicies(failure=TemporaryError("ZooKeeper does not respond"))
    routers = [routes for entry in FEATURES for routes in entry.routes([Owners()] * len(entry.routers))]
    gated = GatedApp(Rights(ROLES, failing), routers)
    assert gated.ask("DELETE", "/admin/v2/persistent/t/n/x", CALLERS["admin"]) == 503
    assert gated.ask("DELETE", "/admin/v2/persistent/t/n/x", CALLERS["root"]) is None


def test_a_route_that_nothing_guards_ends_the_start() -> None:
    plain = APIRouter()
    plain.add_api_route("/who", lambda: None)
    with pytest.raises(TypeError, match="/who is not guarded"):
        GatedApp(Rights(ROLES), [plain])
    guarded = guarded_router("test")
    with pytest.raises(TypeError, match="does not declare"):
        guarded.add_api_route("/who", lambda: None)


def test_without_the_right_no_body_is_read(gated: GatedApp) -> None:
    async def unread() -> MutableMapping[str, Any]:
        raise AssertionError

    statuses = []

    async def send(message: MutableMapping[str, Any]) -> None:
        statuses.append(message.get("status"))

    path = "/admin/v2/ledger-deletion/pause"
    headers = [(b"authorization", f"Bearer {CALLERS['viewer']}".encode())]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    asyncio.run(gated.gate({**scope, "headers": headers, "client": None}, unread, send))
    assert statuses[0] == REFUSED


@pytest.fixture(scope="module")
def brokers() -> FakeBrokers:
    return FakeBrokers()


@pytest.fixture(scope="module")
def passing(brokers: FakeBrokers) -> GatedApp:
    """A gated app that passes on what it does not serve."""
    gated = GatedApp(Rights(ROLES, policies()), [routes for entry in FEATURES for routes in entry.routes()])
    gated.gate.passing = PassThrough(brokers, gated.app.routes, gated.app.state.rights)
    return gated


@pytest.mark.parametrize("name", CALLERS)
def test_brokers_judge_what_is_passed_to_them(name: str, passing: GatedApp, brokers: FakeBrokers) -> None:
    assert passing.ask("POST", "/admin/v2/tenants/t", CALLERS[name], {"adminRoles": []}) == 200
    request = brokers.passed.pop()
    assert request.vouched == (name == "root")
    assert dict(request.headers).get("authorization") == (None if name == "nobody" else f"Bearer {CALLERS[name]}")


@pytest.mark.parametrize("name", ["nobody", "forged", "expired"])
def test_own_routes_stay_closed_when_brokers_authorize(name: str, passing: GatedApp, brokers: FakeBrokers) -> None:
    for method, path, right in guarded_routes(passing.app):
        if right not in (Right.OPEN, Right.BROKERS):
            assert passing.ask(method, filled(path, IN_PATHS), CALLERS[name], BODIES.get(path)) == UNKNOWN, path
    assert brokers.passed == []


# --- administrative log --------------------------------------------------------------------------------------------


def lines_of(gated: GatedApp, method: str, path: str, name: str, body: object = None, query: str = "") -> list[Any]:
    with structlog.testing.capture_logs() as lines:
        gated.ask(method, path, CALLERS[name], body, query)
    return [line for line in lines if line["event"] == "admin request"]


def test_a_change_leaves_one_line_with_who_from_where_what_and_how_it_ended(gated: GatedApp) -> None:
    (line,) = lines_of(gated, "PUT", "/admin/v2/ledger-deletion/rate", "viewer", {"ledgersPerSecond": 5})
    assert line.pop("milliseconds") >= 0
    assert line == {
        "event": "admin request",
        "log_level": "info",
        "role": "viewer",
        "authenticated_by": "token",
        "address": "192.0.2.7",
        "operation": "limit_ledger_deletion_rate",
        "method": "PUT",
        "path": "/admin/v2/ledger-deletion/rate",
        "query": None,
        "body": None,
        "status": 403,
        "reason": "role 'viewer' may not do this; it requires an operator's role",
    }


def test_accepted_changes_are_logged_with_query_and_body() -> None:
    gated = GatedApp(Rights(ROLES, policies()), [ledger_deletion.router(FakeDeletionService())])
    (line,) = lines_of(gated, "PUT", "/admin/v2/ledger-deletion/rate", "operator", {"ledgersPerSecond": 5})
    assert (line["status"], line["body"], line["reason"]) == (200, '{"ledgersPerSecond": 5}', None)
    (line,) = lines_of(gated, "DELETE", "/admin/v2/persistent/t/n/x", "admin", query="force=true")
    assert (line["status"], line["query"], line["body"]) == (204, "force=true", "")


def test_reading_leaves_none(gated: GatedApp) -> None:
    assert lines_of(gated, "GET", "/admin/v2/ledger-deletion/status", "viewer") == []
    assert lines_of(gated, "POST", "/admin/v2/persistent/t/n/x/delayedMessages/preview", "admin") == []


def test_a_change_that_is_passed_on_leaves_one_without_what_only_the_broker_understands(passing: GatedApp) -> None:
    body = {"configs": {"password": "s3cret"}}
    (line,) = lines_of(passing, "POST", "/admin/v3/sinks/t/n/x", "admin", body, "token=s3cret")
    assert (line["operation"], line["role"], line["status"]) == ("passed_to_a_broker", "admin", 200)
    assert (line["query"], line["body"]) == ("", "")
    assert lines_of(passing, "GET", "/admin/v2/clusters", "admin") == []


def test_invalid_query_and_body_are_not_logged(gated: GatedApp) -> None:
    secret = "eyJhbGciOi"
    path = "/admin/v2/ledger-deletion/pause"
    lines = lines_of(gated, "POST", path, "operator", {"token": secret}, f"token={secret}")
    assert [line["status"] for line in lines] == [400]
    assert secret not in str(lines)
