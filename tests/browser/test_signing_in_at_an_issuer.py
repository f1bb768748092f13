"""Signing in at oidc-provider in a real browser: from the dashboard to the issuer's own page and back."""

import contextlib
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pulsar_sidecar.adapters.open_id_issuers import KeyCaching, OpenIdIssuers
from pulsar_sidecar.bootstrap.features import PAGES
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.authentication_open_id import OpenIdRules, OpenIdVerifier
from pulsar_sidecar.server.gate import Gate
from pulsar_sidecar.server.request_ids import RequestIds
from pulsar_sidecar.server.rights import Rights, Roles
from pulsar_sidecar.server.server import DrainingServer, listening_socket
from pulsar_sidecar.web.app import Dashboard
from pulsar_sidecar.web.open_id import CALLBACK, SignInIssuer
from pulsar_sidecar.web.peer_client import PeerClient

from tests.integration.test_open_id_issuer import Issuer, issuer

__all__ = ["issuer"]

pytestmark = pytest.mark.browser

CLOCK = SystemClock()
PEOPLE = "people"


@pytest.fixture
def url(issuer: Issuer) -> Iterator[str]:
    """Yield a sidecar without a cluster that takes the issuer's tokens."""
    rules = OpenIdRules({issuer.url}, {"pulsar"})
    keys = OpenIdIssuers({issuer.url}, CLOCK, KeyCaching(), None)
    gate = Gate(Authentication(None, OpenIdVerifier(rules, keys, CLOCK)), [], CLOCK, lambda: "nothing")
    rights = Rights(Roles(frozenset({"chief"})))
    gate.app = create_app([], lambda: None, CollectorRegistry(), Event(), rights)
    with listening_socket("127.0.0.1", 0) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        sign_in = SignInIssuer(issuer.url, PEOPLE, f"secret of {PEOPLE}", "openid", "pulsar", address)
        server = DrainingServer(
            RequestIds(Dashboard(gate, CLOCK, PeerClient(None), sign_in=True, issuer=sign_in, pages=PAGES)), Event()
        )
        thread = Thread(target=server.run, args=([listening],))
        issuer.start("first", address + CALLBACK)
        thread.start()
        with contextlib.closing(issuer):
            yield address
        server.should_exit = True
        thread.join(20)


def test_who_signs_in_at_the_issuer_comes_back_signed_in(launched: Any, url: str, issuer: Issuer) -> None:
    page = launched.new_page()
    page.goto(f"{url}/ui/?from=mail")
    page.click("text=Sign in at")
    assert page.url.startswith(issuer.url)
    page.fill("[name=login]", "chief")
    page.fill("[name=password]", "any")
    page.click("[type=submit]")
    page.click("[type=submit]")  # consent
    page.wait_for_url(f"{url}/ui/?from=mail")
    assert page.inner_text(".caller span") == "chief"
    (kept,) = [each for each in page.context.cookies() if each["name"] == "pulsar-sidecar-token-0"]
    assert (kept["httpOnly"], kept["sameSite"]) == (True, "Strict")
    assert kept["value"] not in page.content()
    page.click("text=Sign out")
    assert page.url == f"{url}/ui/sign-in"
    page.close()
