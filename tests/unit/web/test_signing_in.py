"""Signing in and out, and what keeps other sites' pages away."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fakes.rest_door import OPERATOR, FakeBrowser

TOKEN = "e30." + "a" * 9_000 + ".sig"


@pytest.fixture
def signed_out(browser: FakeBrowser) -> FakeBrowser:
    browser.sign_in = True
    browser.door.token = TOKEN
    browser.door.answers["GET /admin/v2/caller"] = OPERATOR | {"role": "ops", "authenticatedBy": "token"}
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
    signed_out.door.token = TOKEN
    (form,) = [value for name, value in signed_out.get("/ui/sign-in").headers if name == "set-cookie"]
    assert form.startswith("__Host-pulsar-sidecar-form=")
    assert form.endswith("; HttpOnly; Path=/; SameSite=strict; Secure")
    answer = signed_out.post("/ui/sign-in", {"token": TOKEN})
    kept = [value for name, value in answer.headers if name == "set-cookie"]
    assert len(kept) == 3
    for each in kept:
        assert each.startswith("__Host-pulsar-sidecar-token-")
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
    "onward", ["https://evil.example/", "//evil.example", "/ui/\\evil", "/ui", "/ui/sign-in?next=/ui/", "/ui/\r\nx: y"]
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


def test_without_authentication_there_is_no_sign_in(browser: FakeBrowser) -> None:
    answer = browser.get("/ui/sign-in?next=/ui/")
    assert (answer.status, answer.header("location")) == (303, "/ui/")
    assert "Sign out" not in browser.get("/ui/").text
