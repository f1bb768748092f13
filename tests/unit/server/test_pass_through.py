"""Pass-through of requests over real sockets, from the caller to brokers and back."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import quote

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import MAX_REDIRECTS, AdminRest
from pulsar_sidecar.adapters.pulsar_rest.pass_through import PassThrough, ProxyIdentity
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.identity.credentials import TlsOptions, parse_credentials
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.server.callers import Caller
from pulsar_sidecar.server.server import Limits
from starlette.types import Scope

from tests.cluster.tokens import TOKEN_CONF, token
from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server, json_answer, refusing, register_broker
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.pulsar.test_admin_rest import closed_port, redirect_to
from tests.unit.server.serving import Served, asked, served

TENANTS = "/admin/v2/tenants"
TOPIC = "/admin/v2/persistent/t/n/x"
RUNTIME = "/admin/v2/brokers/configuration/runtime"
OURS = parse_credentials("token", "token:the-sidecar's-own")
PROXY = parse_credentials("basic", '{"userId": "sidecar", "password": "s3cret"}')
MIB = 1024 * 1024


@dataclass(slots=True)
class Front:
    """A sidecar before two brokers, the second of which only the metadata store names."""

    server: Served
    brokers: list[HttpServer]
    store: FakeMetadataStore
    service: FakeDeletionService

    def arrived(self, broker: int = 0) -> list[Arrived]:
        """Return the requests that reached a broker, without the sidecar's own."""
        return [one for one in self.brokers[broker].arrived if one.target != RUNTIME]


def front(
    stack: ExitStack, authentication: Authentication | None = None, *bases: str, check_after_seconds: float = 10.0
) -> Front:
    store = FakeMetadataStore()
    brokers = [stack.enter_context(http_server(lambda arrived: Answer(200, b'["t"]'))) for _ in range(2)]
    for broker in brokers:
        register_broker(store, broker.url)
    rest = AdminRest(bases or [brokers[0].url], OURS, store=store, read_seconds=1.0)
    passing = PassThrough(rest, TlsOptions(), store, ProxyIdentity(PROXY, "sidecar"), check_after_seconds)
    service = FakeDeletionService()
    lines = delayed_delivery.router(FakeDelayedDelivery())
    limits = Limits(body_seconds=1.0)
    server = stack.enter_context(served(service, authentication, [lines], brokers=passing, limits=limits))
    return Front(server, brokers, store, service)


@pytest.fixture(scope="module")
def _opened() -> Iterator[Front]:
    with ExitStack() as stack:
        yield front(stack)


@pytest.fixture
def opened(_opened: Front) -> Front:
    for broker in _opened.brokers:
        broker.arrived.clear()
        broker.answer = lambda arrived: Answer(200, b'["t"]')
    return _opened


@pytest.fixture(scope="module")
def _guarded() -> Iterator[Front]:
    with ExitStack() as stack:
        yield front(stack, by_token())


@pytest.fixture
def guarded(_guarded: Front) -> Front:
    _guarded.brokers[0].arrived.clear()
    return _guarded


def by_token() -> Authentication:
    return Authentication(TokenVerifier(secret_key(TOKEN_CONF["tokenSecretKey"]), SystemClock()))


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token(role)}"}


def test_request_arrives_unchanged(opened: Front) -> None:
    target = f"/admin/v2/persistent/t/n/{quote('a/b ü', safe='')}/stats?getPreciseBacklog=true&x=%2F"
    headers = {"Authorization": "Basic b3RoZXI6czNjcmV0", "X-Pulsar-Auth-Method-Name": "basic", "Accept": "text/plain"}
    answer = opened.server.ask("POST", target, b"{}", headers)
    assert (answer.status, answer.body) == (200, b'["t"]')
    (arrived,) = opened.arrived()
    assert (arrived.method, arrived.target, arrived.body) == ("POST", target, b"{}")
    sent = {name.lower(): value for name, value in arrived.headers.items()}
    assert sent["host"] == opened.brokers[0].address
    assert headers.items() <= {name.title(): value for name, value in arrived.headers.items()}.items()
    assert sent["x-forwarded-for"] == "127.0.0.1"
    assert set(sent) == {
        *("host", "authorization", "x-pulsar-auth-method-name", "accept", "accept-encoding"),
        *("content-type", "content-length", "x-forwarded-for"),
    }


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 405, 409, 412, 500, 503])
def test_response_is_returned_unchanged(opened: Front, status: int) -> None:
    body = b"" if status == 204 else b'{"reason":"in its own words"}'
    headers = {"Content-Type": "application/json", "broker-address": "b", "Connection": "x-own", "x-own": "1"}
    opened.brokers[0].answer = lambda arrived: Answer(status, body, headers)
    answer = opened.server.ask("DELETE", "/admin/v2/clusters/east")
    assert (answer.status, answer.body, answer.headers.get("broker-address")) == (status, body, "b")
    assert "x-own" not in answer.headers
    assert len(opened.arrived()) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/v2/persistent/t/n/x/stats"),
        ("PUT", TOPIC),
        ("DELETE", "/admin/v2/non-persistent/t/n/x"),
        ("GET", f"{TOPIC}/partitions"),
        ("PUT", "/admin/v2/namespaces/t/n"),
        ("GET", "/admin/persistent/t/c/n/x/stats"),
        ("POST", "/admin/v3/functions/t/n/f"),
        ("GET", "/lookup/v2/topic/persistent/t/n/x"),
    ],
)
def test_unknown_routes_are_passed_to_a_broker(opened: Front, method: str, path: str) -> None:
    assert opened.server.ask(method, path).status == 200
    assert [(one.method, one.target) for one in opened.arrived()] == [(method, path)]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v2/ledger-deletion/status", 200),
        ("GET", "/metrics", 200),
        ("GET", "/elsewhere", 404),
        ("PATCH", "/admin/v2/ledger-deletion/status", 405),
        ("GET", f"{TOPIC}/deleteLedger", 405),
        ("DELETE", f"{TOPIC}/", 404),
        ("DELETE", "/admin/v2/%70ersistent/t/n/x", 404),
        ("DELETE", "/admin/v2/persistent/t/n/../n/x", 400),
        ("DELETE", "/admin/v2/persistent/t/n/%2e%2E/x/y", 400),
        ("DELETE", "/admin/v2//persistent/t/n/x", 400),
        ("DELETE", "/admin/v2;a=b/persistent/t/n/x", 400),
        ("GET", "/admin/../metrics", 400),
    ],
)
def test_own_routes_are_never_passed_to_a_broker(opened: Front, method: str, path: str, status: int) -> None:
    assert opened.server.ask(method, path).status == status
    assert opened.arrived() == []


FORGED = (
    *("X-Original-Principal", "X_Original_Principal", "x-original_principal", "X.Original.Principal"),
    *("X-Original-Auth", "X-Original-Auth-Method", "X-Original-URL"),
    *("X-Forwarded-For", "X_Forwarded_For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "Forwarded"),
    *("X-Forwarded", "Via", "X-Real-IP", "X_Real_IP", "X-Proxied-Https", "Proxy-auth-cert", "Proxy-ssl-id"),
    *("Cookie", "TE", "X-Secret"),
)


def test_proxy_headers_of_callers_are_removed(opened: Front) -> None:
    forged = dict.fromkeys(FORGED, "forged") | {"Connection": "keep-alive, X-Secret", "X-Kept": "1"}
    opened.server.ask("GET", TENANTS, headers=forged)
    (arrived,) = opened.arrived()
    sent = {name.lower(): value for name, value in arrived.headers.items()}
    assert sent.keys() == {"host", "accept-encoding", "x-forwarded-for", "x-kept"}
    assert "forged" not in sent.values()


PAGE = b"<!doctype html><script>alert(document.domain)</script>"


@pytest.mark.parametrize("kind", ["text/html", "application/xhtml+xml", "image/svg+xml", "text/xml", ""])
def test_passed_page_is_not_active_content_of_this_origin(opened: Front, kind: str) -> None:
    of_the_origin = {
        "Set-Cookie": "pulsar-sidecar-token-0=x; Path=/",
        "Access-Control-Allow-Origin": "*",
        "Access-Control-Allow-Credentials": "true",
        "Clear-Site-Data": '"*"',
        "Strict-Transport-Security": "max-age=1",
        "Content-Security-Policy": "default-src *",
        "X-Content-Type-Options": "none",
        "Service-Worker-Allowed": "/",
        "Refresh": "0;url=https://evil.example",
    }
    headers = of_the_origin | {"X-Pulsar-Message-ID": "1:2"} | ({"Content-Type": kind} if kind else {})
    opened.brokers[0].answer = lambda arrived: Answer(200, PAGE, headers)
    answer = opened.server.ask("GET", TENANTS)
    got = {name.lower(): value for name, value in answer.headers.items()}
    assert (answer.body, got["x-pulsar-message-id"], got.get("content-type", "")) == (PAGE, "1:2", kind)
    assert (got["x-content-type-options"], got["content-security-policy"].split(";")[0]) == ("nosniff", "sandbox")
    assert not got.keys() & ({name.lower() for name in of_the_origin} - INERT)


INERT = {"x-content-type-options", "content-security-policy"}


def test_the_sidecars_own_credential_is_never_lent(guarded: Front) -> None:
    guarded.brokers[0].answer = lambda arrived: Answer(200, b'{"authenticationEnabled": "true"}')
    for headers in ({}, bearer("other"), {"Authorization": "Bearer forged"}, bearer("admin")):
        guarded.server.ask("GET", TENANTS, headers=headers)
    assert [one.authorization for one in guarded.arrived()] == [
        *(None, bearer("other")["Authorization"], "Bearer forged", bearer("admin")["Authorization"])
    ]


def test_a_broker_that_asks_for_no_credential_gets_only_what_the_sidecar_admits() -> None:
    with ExitStack() as stack:
        opened = front(stack, by_token())
        opened.brokers[0].answer = lambda arrived: Answer(200, b'{"authenticationEnabled": "false"}')
        answers = [opened.server.ask("GET", TENANTS, headers=one) for one in ({}, bearer("other"), bearer("admin"))]
        assert [answer.status for answer in answers] == [401, 401, 200]
        assert len(opened.arrived()) == 1


def test_a_look_that_failed_admits_no_request() -> None:
    with ExitStack() as stack:
        opened = front(stack, by_token())
        opened.brokers[0].answer = lambda arrived: refusing(403, "no superuser")
        answer = opened.server.ask("GET", TENANTS, headers=bearer("other"))
        assert (answer.status, opened.arrived()) == (503, [])
        assert "could not be read" in answer.reason


class ByCertificate(Authentication):
    """Every caller has shown the certificate of one role."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    async def caller(self, scope: Scope) -> Caller:
        return Caller(self._role, "certificate", "127.0.0.1")


def looked_at(configuration: dict[str, str], obeys: int) -> Callable[[Arrived], Answer]:
    """A broker of this configuration, which answers so when another role asks for it."""

    def answer(arrived: Arrived) -> Answer:
        if arrived.target != RUNTIME:
            return Answer(200)
        if "X-Original-Principal" in arrived.headers:
            assert arrived.headers["X-Original-Principal"].startswith("no-such-role-")
            return Answer(obeys)
        assert arrived.authorization == "Bearer the-sidecar's-own"
        return json_answer({"authenticationEnabled": "true", **configuration})

    return answer


def test_a_caller_known_by_certificate_is_spoken_for_where_the_broker_names_the_sidecar_a_proxy() -> None:
    with ExitStack() as stack:
        opened = front(stack, ByCertificate("reader"))
        opened.brokers[0].answer = looked_at({"proxyRoles": "[other, sidecar]"}, 401)
        forged = {"X-Original-Principal": "admin", "X-Pulsar-Auth-Method-Name": "token", "Cookie": "a=b"}
        assert opened.server.ask("PUT", TENANTS, b"{}", forged).status == 200
        (arrived,) = opened.arrived()
        sent = {name.lower(): value for name, value in arrived.headers.items()}
        assert (sent["x-original-principal"], sent["x-pulsar-auth-method-name"]) == ("reader", "basic")
        assert sent["authorization"] == PROXY.http_headers()["Authorization"]
        assert "cookie" not in sent
        assert opened.server.ask("GET", TENANTS).status == 200
        assert len([one for one in opened.brokers[0].arrived if one.target == RUNTIME]) == 2


@pytest.mark.parametrize(
    ("configuration", "obeys", "status"),
    [
        ({}, 401, 403),
        ({"proxyRoles": ""}, 401, 403),
        ({"proxyRoles": "[other]"}, 401, 403),
        ({"proxyRoles": "[sidecar]"}, 200, 403),
        ({"proxyRoles": "[sidecar]"}, 500, 503),
    ],
)
def test_a_broker_that_would_lend_the_sidecars_rights_gets_nothing(
    configuration: dict[str, str], obeys: int, status: int
) -> None:
    with ExitStack() as stack:
        opened = front(stack, ByCertificate("reader"))
        opened.brokers[0].answer = looked_at(configuration, obeys)
        answer = opened.server.ask("GET", TENANTS)
        assert (answer.status, opened.arrived()) == (status, [])
        if status == 403:
            assert "Send a token" in answer.reason


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_redirect_to_a_broker_of_the_cluster_is_followed_with_body_and_credential(opened: Front, method: str) -> None:
    target = "/admin/v2/owner?authoritative=true" if method == "GET" else f"{TENANTS}?authoritative=true"
    opened.brokers[0].answer = lambda arrived: redirect_to(f"{opened.brokers[1].url}{target}")
    body = None if method == "GET" else b"x" * 1000
    answer = opened.server.ask(method, TENANTS, body, bearer("other"))
    assert answer.status == 200
    (arrived,) = opened.arrived(1)
    assert (arrived.method, arrived.target) == (method, target)
    assert (arrived.body, arrived.authorization) == (body or b"", bearer("other")["Authorization"])


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/admin/v2/clusters/a%2Fb?x=%2F&force=true&authoritative=false", 200),
        ("/admin/v2/clusters/a%2fb?force=true&x=/", 200),
        ("/admin/v2/clusters/a/b?force=true&x=/", 502),
        ("/admin/v2/clusters/a%2Fb?x=%2F", 502),
        ("/admin/v2/clusters/a%2Fb?force=true&x=%2F&deleteSchema=true", 502),
        ("/admin/v2/clusters/other?force=true&x=%2F", 502),
        ("/admin/v2/clusters/a%2Fb/../other?force=true&x=%2F", 502),
        ("/admin/v2/clusters/a%2Fb/?force=true&x=%2F", 502),
    ],
)
def test_a_redirect_that_changes_what_a_change_asks_for_is_refused(opened: Front, target: str, status: int) -> None:
    opened.brokers[0].answer = lambda arrived: redirect_to(f"{opened.brokers[1].url}{target}")
    answer = opened.server.ask("DELETE", "/admin/v2/clusters/a%2Fb?force=true&x=%2F")
    assert (answer.status, len(opened.arrived(1))) == (status, status == 200)
    assert status == 200 or "another path or query" in answer.reason


def test_a_redirect_to_another_host_is_refused_and_gets_nothing(opened: Front) -> None:
    with http_server(lambda arrived: Answer(200)) as stranger:
        opened.brokers[0].answer = lambda arrived: redirect_to(f"{stranger.url}/admin/v2/tenants")
        answer = opened.server.ask("GET", TENANTS, headers=bearer("other"))
        assert (answer.status, stranger.arrived) == (502, [])
    assert "webServiceUrl" in answer.reason


def test_redirects_in_a_circle_end(opened: Front) -> None:
    opened.brokers[0].answer = lambda arrived: redirect_to(TENANTS)
    assert opened.server.ask("GET", TENANTS).status == 503
    assert len(opened.arrived()) == MAX_REDIRECTS + 1


def test_a_large_body_that_is_redirected_is_refused_with_the_address(opened: Front) -> None:
    opened.brokers[0].answer = lambda arrived: redirect_to(f"{opened.brokers[1].url}{TENANTS}")
    answer = opened.server.ask("POST", TENANTS, bytes(3 * MIB))
    assert (answer.status, opened.arrived(1)) == (400, [])
    assert opened.brokers[1].url in answer.reason


def test_a_large_body_arrives_whole(opened: Front) -> None:
    body = bytes(range(256)) * 48 * 1024
    assert opened.server.ask("POST", "/admin/v3/functions/t/n/f", body).status == 200
    assert opened.arrived()[0].body == body


def test_a_body_may_take_long_if_none_of_its_pauses_does(opened: Front) -> None:
    piece = bytes(MIB // 2)
    pauses = threading.Event()

    def body() -> Iterator[bytes]:
        for _ in range(6):
            pauses.wait(0.3)
            yield piece

    connection = http.client.HTTPConnection("127.0.0.1", opened.server.port, timeout=20)
    connection.request("POST", "/admin/v3/functions/t/n/f", body(), {"Content-Length": str(6 * len(piece))})
    assert connection.getresponse().status == 200
    connection.close()
    assert len(opened.arrived()[0].body) == 6 * len(piece)


def test_a_broken_connection_is_an_unknown_outcome_for_a_change_which_is_sent_once(opened: Front) -> None:
    opened.server.ask("GET", TENANTS)  # there is a connection that a library might not trust
    opened.brokers[0].answer = lambda arrived: Answer(0)
    for method in ("PUT", "POST", "DELETE"):
        answer = opened.server.ask(method, TENANTS)
        assert answer.status == 502
        assert "may have taken effect" in answer.reason
    assert [one.method for one in opened.arrived()] == ["GET", "PUT", "POST", "DELETE"]
    assert opened.arrived(1) == []


def test_a_read_whose_connection_broke_is_asked_of_another_broker(opened: Front) -> None:
    opened.brokers[0].answer = lambda arrived: Answer(0)
    assert opened.server.ask("GET", TENANTS).status == 200
    assert len(opened.arrived(1)) == 1


def test_a_broker_that_is_away_is_replaced_also_for_a_change() -> None:
    with ExitStack() as stack:
        opened = front(stack, None, closed_port())
        assert opened.server.ask("PUT", TENANTS, b"{}").status == 200


def test_a_read_does_not_wait_for_a_broker_that_hangs() -> None:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listening:
        opened = front(stack, None, f"http://127.0.0.1:{listening.getsockname()[1]}", check_after_seconds=0.1)
        assert opened.server.ask("GET", TENANTS).status == 200
        assert opened.server.ask("PUT", TENANTS, b"{}").status == 200
        assert [one.method for broker in (0, 1) for one in opened.arrived(broker)] == ["GET", "PUT"]


def test_a_read_waits_for_a_broker_that_is_only_slow() -> None:
    def slowly(arrived: Arrived) -> Answer:
        if arrived.target == TENANTS:
            time.sleep(0.3)
        return Answer(200, b'["late"]')

    with ExitStack() as stack:
        opened = front(stack, check_after_seconds=0.1)
        opened.brokers[0].answer = slowly
        assert opened.server.ask("GET", TENANTS).body == b'["late"]'
        assert opened.arrived(1) == []


def test_requests_that_must_know_how_a_broker_treats_clients_share_one_look() -> None:
    with ExitStack() as stack:
        opened = front(stack, by_token())
        opened.brokers[0].answer = lambda arrived: Answer(200, b'{"authenticationEnabled": "true"}')
        with asked(opened.server, TENANTS, 20, bearer("other")):
            pass
        assert [one.target for one in opened.brokers[0].arrived].count(RUNTIME) == 1


def test_without_any_broker_the_answer_is_503() -> None:
    with ExitStack() as stack:
        opened = front(stack, None, closed_port())
        for broker in opened.brokers:
            opened.store.remove(f"/loadbalance/brokers/{broker.address}")
        answer = opened.server.ask("PUT", TENANTS, b"{}")
        assert (answer.status, answer.headers.get("retry-after")) == (503, "1")


def test_an_answer_that_breaks_off_is_not_ended_as_if_it_were_whole() -> None:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_half() -> None:
            accepted, _ = listening.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")

        thread = threading.Thread(target=answer_half, daemon=True)
        thread.start()
        opened = front(stack, None, f"http://127.0.0.1:{listening.getsockname()[1]}")
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            opened.server.ask("GET", TENANTS)
        thread.join()


def test_a_caller_who_leaves_ends_the_exchange() -> None:
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as listening:
        opened = front(stack, None, f"http://127.0.0.1:{listening.getsockname()[1]}")
        with socket.create_connection(("127.0.0.1", opened.server.port)) as caller:
            caller.sendall(f"POST {TENANTS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
            accepted, _ = listening.accept()
            accepted.settimeout(10)
            assert accepted.recv(65536)
        with accepted:
            assert accepted.recv(65536) == b""


def test_other_callers_do_not_wait(opened: Front) -> None:
    several = threading.Barrier(40)

    def together(arrived: Arrived) -> Answer:
        several.wait(10)
        return Answer(200)

    opened.brokers[0].answer = together
    with asked(opened.server, TENANTS, 40) as answers:
        pass
    assert [answer.status for answer in answers] == [200] * 40
