"""Another sidecar over HTTP: its responses as they are, with the caller's token, and no redirect followed."""

import asyncio
from collections.abc import Iterator

import pytest
import structlog
from pulsar_sidecar.features.ledger_deletion.results import Redirect
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.web.in_process import Answer
from pulsar_sidecar.web.peer_client import PeerClient

from tests.cluster.tokens import TOKEN_CONF, token
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.server.serving import Served, served

BASE = "/admin/v2/ledger-deletion"


@pytest.fixture
def other() -> Iterator[tuple[FakeDeletionService, Served]]:
    structlog.configure(processors=[lambda *_: (_ for _ in ()).throw(structlog.DropEvent())])
    service = FakeDeletionService()
    authentication = Authentication(TokenVerifier(secret_key(TOKEN_CONF["tokenSecretKey"]), SystemClock()))
    with served(service, authentication) as server:
        yield service, server
    structlog.reset_defaults()


def ask(method: str, url: str, authorization: str | None = None, body: object = None) -> Answer:
    return asyncio.run(PeerClient(None)(method, url, authorization, body))


def test_another_sidecar_judges_the_caller_by_the_token(other: tuple[FakeDeletionService, Served]) -> None:
    service, server = other
    assert ask("POST", f"{server.url}{BASE}/pause").status == 401
    assert ask("POST", f"{server.url}{BASE}/pause", f"Bearer {token('guest')}").status == 403
    done = ask("POST", f"{server.url}{BASE}/pause", f"Bearer {token('admin')}", {"reason": "elsewhere"})
    assert (done.status, done.value["pausedReason"]) == (200, "elsewhere")
    service.watch.redirect = Redirect("http://127.0.0.1:1")
    assert ask("GET", f"{server.url}{BASE}/watch/leaks", f"Bearer {token('admin')}").status == 307


def test_unreachable_peer_is_reported_without_its_query() -> None:
    with pytest.raises(UnreachableError, match=r"does not respond at http://127\.0\.0\.1:1/x \("):
        ask("GET", "http://127.0.0.1:1/x?secret=1")
