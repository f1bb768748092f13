"""The authorization code flow with PKCE, against an issuer of this process."""

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from pulsar_sidecar.web.open_id import Flow, SignInIssuer

from tests.fakes.issuer import FakeIssuer, running_issuer
from tests.fakes.rest_api import OPERATOR, FakeBrowser

ACCEPTED = "token.of.issuer"


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    with running_issuer() as found:
        found.changes["authorization_endpoint"] = f"{found.url}/authorize?tenant=1"
        answer = {"access_token": "opaque", "id_token": ACCEPTED}
        found.answers["/token"] = json.dumps(answer).encode()
        yield found


@pytest.fixture
def leaving(browser: FakeBrowser, issuer: FakeIssuer) -> FakeBrowser:
    browser.sign_in = True
    browser.api.token = ACCEPTED
    browser.api.answers["GET /admin/v2/caller"] = replace(OPERATOR, role="ops", authenticated_by="token")
    url = "https://dashboard.example"
    browser.issuer = SignInIssuer(issuer.url, "sidecar", "hush", "openid", "pulsar", url)
    return browser


def asked(browser: FakeBrowser) -> dict[str, str]:
    away = browser.get("/ui/sign-in/issuer?next=/ui/%3Fx%3D1")
    assert away.status == 303
    address = urlsplit(str(away.header("location")))
    assert address.path == "/authorize"
    return {name: values[0] for name, values in parse_qs(address.query).items()}


def test_a_code_is_redeemed_for_a_token_that_the_sidecar_accepts(leaving: FakeBrowser, issuer: FakeIssuer) -> None:
    assert "/ui/sign-in/issuer?next=" in leaving.get("/ui/sign-in").text
    sent = asked(leaving)
    assert sent["tenant"] == "1"
    assert sent["redirect_uri"] == "https://dashboard.example/ui/sign-in/callback"
    assert (sent["response_type"], sent["code_challenge_method"], sent["audience"]) == ("code", "S256", "pulsar")
    back = leaving.get(f"/ui/sign-in/callback?code=c-1&state={sent['state']}", sec_fetch_site="cross-site")
    assert back.status == 200
    assert '<meta http-equiv="refresh" content="0;url=/ui/?x=1">' in back.text
    assert leaving.cookies["pulsar-sidecar-token-0"] == ACCEPTED
    assert ACCEPTED not in back.text
    (form,) = issuer.forms
    digest = hashlib.sha256(form["code_verifier"].encode()).digest()
    assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == sent["code_challenge"]
    assert (form["code"], form["client_id"], form["client_secret"]) == ("c-1", "sidecar", "hush")
    assert leaving.get("/ui/").status == 200
    again = leaving.get(f"/ui/sign-in/callback?code=c-1&state={sent['state']}")
    assert again.status == 401


@pytest.mark.parametrize("query", ["code=c-1&state=other", "code=c-1", "", "code=c-1&state="])
def test_a_code_that_this_browser_did_not_ask_for_is_not_redeemed(
    leaving: FakeBrowser, issuer: FakeIssuer, query: str
) -> None:
    asked(leaving)
    assert leaving.get(f"/ui/sign-in/callback?{query}").status == 401
    assert issuer.forms == []
    assert "pulsar-sidecar-token-0" not in leaving.cookies


def test_refusal_by_the_issuer_is_shown_escaped(leaving: FakeBrowser, issuer: FakeIssuer) -> None:
    state = asked(leaving)["state"]
    shown = leaving.get(f"/ui/sign-in/callback?error=access_denied&error_description=%3Cb%3Eno&state={state}")
    assert shown.status == 401
    assert "&lt;b&gt;no" in shown.text
    issuer.answers["/token"] = b'{"error": "invalid_grant"}'
    issuer.statuses["/token"] = 400
    shown = leaving.get(f"/ui/sign-in/callback?code=c-1&state={state}")
    assert (shown.status, "invalid_grant" in shown.text) == (401, True)


def test_a_token_that_the_sidecar_refuses_is_not_kept(leaving: FakeBrowser) -> None:
    leaving.api.token = "another"
    shown = leaving.get(f"/ui/sign-in/callback?code=c-1&state={asked(leaving)['state']}")
    assert (shown.status, "does not accept the issuer" in shown.text) == (401, True)
    assert "pulsar-sidecar-token-0" not in leaving.cookies


def test_an_issuer_that_is_away_is_a_page_with_the_reason(leaving: FakeBrowser, issuer: FakeIssuer) -> None:
    issuer.statuses["/.well-known/openid-configuration"] = 500
    assert leaving.get("/ui/sign-in/issuer").status == 503


def test_without_a_client_there_is_only_the_token(browser: FakeBrowser) -> None:
    browser.sign_in = True
    assert "/ui/sign-in/issuer" not in browser.get("/ui/sign-in").text
    assert browser.get("/ui/sign-in/issuer").status == 404


@pytest.mark.parametrize("text", [None, "", "a b", "a  c", " b c"])
def test_malformed_flow_cookie_is_ignored(text: str | None) -> None:
    assert Flow.read(text) is None
    begun = Flow.begun("/ui/?x=a b")
    assert Flow.read(begun.text) == begun


def test_codes_are_not_redeemed_without_end(leaving: FakeBrowser, issuer: FakeIssuer) -> None:
    issuer.answers["/token"] = b'{"error": "invalid_grant"}'
    state = asked(leaving)["state"]
    answers = [leaving.get(f"/ui/sign-in/callback?code=c&state={state}").status for _ in range(10)]
    assert answers == [*[401] * 9, 429]
    assert leaving.get("/ui/sign-in/issuer").status == 429
    assert len(issuer.forms) == 9


def test_forms_from_before_signing_in_are_refused(leaving: FakeBrowser) -> None:
    leaving.get("/ui/sign-in")
    before = leaving.cookies["pulsar-sidecar-form"]
    leaving.get(f"/ui/sign-in/callback?code=c&state={asked(leaving)['state']}")
    assert leaving.cookies["pulsar-sidecar-form"] != before
    assert leaving.post("/ui/sign-out", {"form": before}).status == 403
