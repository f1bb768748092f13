"""A browser asks for a page of another site, and adds by itself what proves who its user is."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import structlog

from tests.unit.server.test_pass_through import ByCertificate, Front, bearer, by_token, front

PAUSE = "/admin/v2/ledger-deletion/pause"
CLEAR = "/admin/v2/namespaces/t/n/clearBacklog"
REQUESTS = [
    ("POST", PAUSE),
    ("GET", "/admin/v2/ledger-deletion/status"),
    ("DELETE", "/admin/v2/persistent/t/n/x"),
    ("OPTIONS", PAUSE),
    ("GET", "/no-such-path"),
    ("POST", CLEAR),
    ("POST", "/admin/v2/persistent/t/n/x/subscription/s/skip_all"),
    ("GET", "/admin/v2/brokers/health"),
    ("OPTIONS", CLEAR),
]
OF_ANOTHER_SITE = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://["},
    {"Origin": "http://localhost"},
    {"Origin": "http://localhost:8751"},
    {"Origin": "http://127.0.0.1:8750"},
    {"Origin": "http://localhost:8750.evil.example"},
    {"Origin": "http://localhost:8750@evil.example"},
    {"Origin": "http://evil.localhost:8750"},
    {"Origin": "ftp://localhost:8750"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": ""},
    {"Origin": "http://localhost:8750", "Sec-Fetch-Site": "same-site"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "same-origin"},
    {"Origin": "https://evil.example", "Authorization": "Basic YWRtaW46YWRtaW4="},
]
OF_OURS = [
    {},
    {"Sec-Fetch-Site": "none"},
    {"Sec-Fetch-Site": "same-origin"},
    {"Origin": "http://localhost:8750"},
    {"Origin": "http://LOCALHOST:8750"},
    {"Origin": "https://localhost:8750", "Sec-Fetch-Site": "same-origin"},
    {"Host": "sidecar.example", "Origin": "https://sidecar.example"},
    {"Host": "sidecar.example", "Origin": "http://sidecar.example:80"},
    {"Host": "Sidecar.example:443", "Origin": "https://sidecar.example"},
    {"Host": "[::1]:8750", "Origin": "http://[::1]:8750"},
]


@pytest.fixture(scope="module")
def fronts() -> Iterator[dict[str, Front]]:
    """Gates by the credentials that callers need."""
    with ExitStack() as stack:
        kinds = {"certificate": ByCertificate("admin"), "nothing": None, "token": by_token()}
        yield {kind: front(stack, authentication) for kind, authentication in kinds.items()}


def ask(opened: Front, method: str, path: str, headers: dict[str, str]) -> int:
    return opened.server.ask(method, path, headers={"Host": "localhost:8750", **headers}).status


def forget(opened: Front) -> None:
    opened.service.asked.clear()
    opened.brokers[0].arrived.clear()


@pytest.mark.parametrize("kind", ["certificate", "nothing", "token"])
@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_cross_site_requests_are_refused(fronts: dict[str, Front], kind: str, method: str, path: str) -> None:
    forget(fronts[kind])
    for headers in OF_ANOTHER_SITE:
        assert ask(fronts[kind], method, path, headers) == 403, headers
    assert fronts[kind].service.asked == fronts[kind].brokers[0].arrived == []


@pytest.mark.parametrize("kind", ["certificate", "nothing"])
@pytest.mark.parametrize("headers", OF_OURS, ids=str)
def test_same_origin_and_non_browser_requests_are_accepted(
    fronts: dict[str, Front], kind: str, headers: dict[str, str]
) -> None:
    forget(fronts[kind])
    assert ask(fronts[kind], "POST", PAUSE, headers) == 200
    assert len(fronts[kind].service.calls("pause")) == 1


@pytest.mark.parametrize("headers", OF_ANOTHER_SITE[:-1], ids=str)
def test_a_token_is_nothing_that_a_browser_adds_by_itself(fronts: dict[str, Front], headers: dict[str, str]) -> None:
    assert ask(fronts["token"], "POST", PAUSE, headers | bearer("admin")) == 200


@pytest.mark.parametrize("host", ["rebound.example", "127.0.0.1.evil.example", "", "[::1"])
@pytest.mark.parametrize("path", [PAUSE, CLEAR])
def test_a_name_that_was_rebound_to_this_address_reaches_nothing(
    fronts: dict[str, Front], host: str, path: str
) -> None:
    forget(fronts["nothing"])
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert ask(fronts["nothing"], "POST", path, headers) == 403
    assert fronts["nothing"].service.asked == fronts["nothing"].brokers[0].arrived == []


@pytest.mark.parametrize("headers", [{"Host": "localhost:1234"}, {"Host": "sidecar.example:8750"}], ids=str)
def test_the_sidecars_own_names_may_be_used(fronts: dict[str, Front], headers: dict[str, str]) -> None:
    assert ask(fronts["nothing"], "POST", PAUSE, headers) == 200


@pytest.mark.parametrize("path", [PAUSE, CLEAR])
def test_the_refusal_waits_for_no_body(fronts: dict[str, Front], path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", fronts["certificate"].server.port), timeout=10) as caller:
        caller.sendall(head.encode())
        assert caller.recv(65536).startswith(b"HTTP/1.1 403 ")


def test_a_refusal_has_its_reason_and_is_logged(fronts: dict[str, Front]) -> None:
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    with structlog.testing.capture_logs() as lines:
        reason = fronts["certificate"].server.ask("POST", PAUSE, headers=headers).reason
    assert "another site's page" in reason
    (refused,) = [line for line in lines if line["log_level"] == "warning"]
    assert (refused["origin"], refused["site"], refused["path"]) == ("https://evil.example", "cross-site", PAUSE)


def test_probes_and_metrics_answer_every_page(fronts: dict[str, Front]) -> None:
    for path in ("/livez", "/readyz", "/metrics"):
        assert ask(fronts["certificate"], "GET", path, {"Sec-Fetch-Site": "cross-site"}) == 200
