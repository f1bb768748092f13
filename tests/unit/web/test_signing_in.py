"""Signing in and out, and what keeps other sites' pages away."""

from dataclasses import replace
from typing import Any

import pytest
import structlog
from fastapi import Request
from pulsar_sidecar.web.pages.sign_in import own_page
from pulsar_sidecar.web.sign_in_rate_limit import SignInRateLimit

from tests.fakes.rest_api import OPERATOR, FakeBrowser

TOKEN = "e30." + "a" * 9_000 + ".sig"


@pytest.fixture
def signed_out(browser: FakeBrowser) -> FakeBrowser:
    browser.sign_in = True
    browser.api.token = TOKEN
    browser.api.answers["GET /admin/v2/caller"] = replace(OPERATOR, role="ops", authenticated_by="token")
    browser.get("/ui/sign-in")
    return browser


def sign_in(browser: FakeBrowser, onward: str = "/ui/") -> None:
    assert browser.post("/ui/sign-in", {"token": TOKEN, "next": onward}).status == 303


def test_a_page_leads_to_the_sign_in_and_back(signed_out: FakeBrowser) -> None:
    away = signed_out.get("/ui/?x=a%20b")
    assert (away.status, away.header("location")) == (303, "/ui/sign-in?next=%2Fui%2F%3Fx%3Da%2520b")
    shown = signed_out.get(str(away.header("location")))
    assert 'value="/ui/?x=a%20b"' in shown.text
    back = signed_out.post("/ui/sign-in", {"token": f"Bearer {TOKEN}", "next": "/ui/?x=a%20b"})
    assert (back.status, back.header("location")) == (303, "/ui/?x=a%20b")
    page = signed_out.get("/ui/")
    assert page.status == 200
    assert "Sign out" in page.text
    assert TOKEN not in page.text
    assert "a" * 100 not in page.text


@pytest.mark.parametrize("options", [{"scheme": "https"}, {"behind_tls": True}], ids=str)
def test_a_token_is_in_cookies_that_no_script_reads(browser: FakeBrowser, options: dict[str, Any]) -> None:
    signed_out = replace(browser, sign_in=True, **options)
    signed_out.api.token = TOKEN
    (form,) = [value for name, value in signed_out.get("/ui/sign-in").headers if name == "set-cookie"]
    assert form.startswith("__Host-pulsar-sidecar-form=")
    assert form.endswith("; HttpOnly; Path=/; SameSite=strict; Secure")
    answer = signed_out.post("/ui/sign-in", {"token": TOKEN})
    kept = [value for name, value in answer.headers if name == "set-cookie"]
    assert [each.partition("=")[0].rpartition("sidecar-")[2] for each in kept] == [
        "token-0",
        "token-1",
        "token-2",
        "form",
    ]
    for each in kept:
        assert each.startswith("__Host-pulsar-sidecar-")
        assert each.endswith("; HttpOnly; Path=/; SameSite=strict; Secure")
        assert len(each) < 4_096


def test_signing_out_forgets_the_token(signed_out: FakeBrowser) -> None:
    sign_in(signed_out)
    assert any("token" in name for name in signed_out.cookies)
    assert signed_out.post("/ui/sign-out").header("location") == "/ui/sign-in"
    assert not any("token" in name for name in signed_out.cookies)


@pytest.mark.parametrize("token", ["", "wrong.token.here", "two words", "a\nb", "é"])
def test_a_token_that_does_not_verify_is_not_kept(signed_out: FakeBrowser, token: str) -> None:
    answer = signed_out.post("/ui/sign-in", {"token": token})
    assert answer.status in (400, 401)
    assert "Not signed in" in answer.text
    assert "pulsar-sidecar-token-0" not in signed_out.cookies
    assert not token or token not in answer.text


@pytest.mark.parametrize(
    "onward",
    [
        *("https://evil.example/", "//evil.example", "/ui/\\evil", "/ui", "/ui/sign-in?next=/ui/", "/ui/\r\nx: y"),
        *("/ui//evil.example", "/ui/../admin/v2/caller", "/ui/..", "/ui/./..//evil", "/ui/a/../../x", "/ui/."),
        *("/ui/%2e%2e/x", "/ui/%2E./x", "/ui/.%2e", "/ui/%2f%2e%2e/x", "/ui/%5c..%5cx", "/ui/%2fevil.example"),
        *("/ui/\tx", "/ui/\x7f", "/ui/%0d%0ax", "/ui/%00", "/ui/\u2028", "/ui/%73ign-in", "/ui/..;/x", "%2fui/x"),
        *("javascript:alert(1)", " /ui/", "/UI/", "/ui/..#", "/ui/..?x", "ui/", ""),
    ],
)
def test_signing_in_leads_to_our_own_pages_only(signed_out: FakeBrowser, onward: str) -> None:
    answer = signed_out.post("/ui/sign-in", {"token": TOKEN, "next": onward})
    assert (answer.status, answer.header("location")) == (303, "/ui/")


def test_a_link_on_another_site_leads_to_the_page_of_who_is_signed_in(signed_out: FakeBrowser) -> None:
    """The browser keeps a Strict cookie back until our own page asks."""
    shown = signed_out.get("/ui/?x=1&y=2", sec_fetch_site="cross-site")
    assert shown.status == 200
    assert '<meta http-equiv="refresh" content="0;url=/ui/?x=1&amp;y=2">' in shown.text


def test_a_part_that_is_read_again_makes_the_page_load(signed_out: FakeBrowser) -> None:
    shown = signed_out.get("/ui/", hx_request="true")
    assert (shown.status, shown.header("hx-refresh")) == (204, "true")


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({"origin": "http://evil.example"}, {}),
        ({"origin": "null"}, {}),
        ({"sec_fetch_site": "cross-site"}, {}),
        ({"sec_fetch_site": "same-site"}, {}),
        ({}, {"form": "x" * 43}),
        ({}, {"form": ""}),
    ],
)
def test_a_form_that_is_not_our_own_changes_nothing(
    signed_out: FakeBrowser, headers: dict[str, str], fields: dict[str, str]
) -> None:
    sign_in(signed_out)
    sent = {"origin": "http://localhost:8750", **headers}
    answer = signed_out.post("/ui/sign-out", fields, **{name.replace("_", "-"): value for name, value in sent.items()})
    assert answer.status == 403
    assert any("token" in name for name in signed_out.cookies)


def test_a_form_without_a_cookie_is_refused(signed_out: FakeBrowser) -> None:
    signed_out.cookies.clear()
    assert signed_out.post("/ui/sign-in", {"token": TOKEN, "form": ""}).status == 403


def test_sign_in_redirects_without_authentication(browser: FakeBrowser) -> None:
    answer = browser.get("/ui/sign-in?next=/ui/")
    assert (answer.status, answer.header("location")) == (303, "/ui/")
    assert "Sign out" not in browser.get("/ui/").text


@pytest.mark.parametrize("onward", ["/ui/pins?topic=a//b/..\\c", "/ui/audits/a%20b#x", "/ui/leaks?x=%2e%2e/%0a"])
def test_pages_with_any_filter_are_our_own(signed_out: FakeBrowser, onward: str) -> None:
    assert signed_out.post("/ui/sign-in", {"token": TOKEN, "next": onward}).status == 303
    assert own_page(onward) == onward


def form_secret(browser: FakeBrowser) -> str:
    return browser.cookies["pulsar-sidecar-form"]


def test_forms_from_before_signing_in_or_out_are_refused(signed_out: FakeBrowser) -> None:
    before = form_secret(signed_out)
    sign_in(signed_out)
    between = form_secret(signed_out)
    assert signed_out.post("/ui/sign-out", {"form": before}).status == 403
    assert f'value="{between}"' in signed_out.get("/ui/").text
    assert signed_out.post("/ui/sign-out").status == 303
    assert len({before, between, form_secret(signed_out)}) == 3
    assert signed_out.post("/ui/sign-in", {"token": TOKEN, "form": between}).status == 403


def fail(browser: FakeBrowser, **headers: str) -> int:
    return browser.post("/ui/sign-in", {"token": "wrong.token.here"}, **headers).status


def test_after_ten_tries_a_minute_nothing_is_looked_at(signed_out: FakeBrowser) -> None:
    assert [fail(signed_out) for _ in range(10)] == [401] * 10
    asked = len(signed_out.api.asked)
    refused = signed_out.post("/ui/sign-in", {"token": TOKEN})
    assert (refused.status, refused.header("retry-after"), len(signed_out.api.asked)) == (429, "61", asked)
    assert "try again in 61 seconds" in refused.text
    signed_out.clock.advance_ms(60_000)
    assert signed_out.post("/ui/sign-in", {"token": TOKEN}).status == 303


def test_successful_sign_in_resets_the_limit(signed_out: FakeBrowser) -> None:
    for _ in range(3):
        assert [fail(signed_out) for _ in range(9)] == [401] * 9
        sign_in(signed_out)


def test_behind_a_proxy_each_browser_has_tries_of_its_own(browser: FakeBrowser) -> None:
    proxied = replace(browser, sign_in=True, behind_tls=True)
    proxied.api.token = TOKEN
    proxied.get("/ui/sign-in")
    assert [fail(proxied, x_forwarded_for="10.0.0.9, 10.0.0.1") for _ in range(11)] == [*[401] * 10, 429]
    assert fail(proxied, x_forwarded_for="10.0.0.1, 10.0.0.2") == 401
    assert [fail(proxied, x_forwarded_for=f"2001:db8::{last}") for last in range(11)] == [*[401] * 10, 429]
    assert fail(proxied, x_forwarded_for="2001:db8:0:1::1") == 401


def test_without_a_proxy_the_connections_address_counts(signed_out: FakeBrowser) -> None:
    assert [fail(signed_out, x_forwarded_for=f"10.0.0.{last}") for last in range(11)] == [*[401] * 10, 429]


def test_many_failures_do_not_lock_out_other_addresses(browser: FakeBrowser) -> None:
    proxied = replace(browser, sign_in=True, behind_tls=True)
    proxied.api.token = TOKEN
    proxied.get("/ui/sign-in")
    for number in range(100):
        assert fail(proxied, x_forwarded_for=f"10.0.1.{number}") == 401
    assert fail(proxied, x_forwarded_for="10.0.1.7") == 429
    assert proxied.post("/ui/sign-in", {"token": TOKEN}, x_forwarded_for="10.0.2.1").status == 303


def test_attackers_of_many_addresses_take_no_more_room(signed_out: FakeBrowser) -> None:
    limit = SignInRateLimit(signed_out.clock)
    for number in range(20_000):
        scope = {"type": "http", "client": (f"client-{number}", 1), "headers": [], "state": {"behind_proxy": False}}
        limit.wait_seconds(Request(scope))
    assert len(limit._attempts) == 10_000


def test_aborted_form_upload_is_not_logged(signed_out: FakeBrowser) -> None:
    signed_out.leaves = True
    with structlog.testing.capture_logs() as lines:
        assert signed_out.post("/ui/sign-in", {"token": TOKEN}).status == 400
    assert lines == []
