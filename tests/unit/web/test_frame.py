"""Guarantees of every page to the browser, and the dashboard's paths."""

import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from tests.fakes.rest_api import FakeBrowser

STATIC = Path(str(files("pulsar_sidecar.web").joinpath("static")))
PACKAGE = Path(str(files("pulsar_sidecar")))
TEMPLATES = [*PACKAGE.glob("web/templates/*.j2"), *PACKAGE.glob("features/*/templates/*.j2")]


@pytest.mark.parametrize("path", ["/ui/", "/ui/nothing", "/ui/sign-in", "/ui/static/htmx.min.js", "/ui/static/nothing"])
def test_pages_cannot_be_framed_or_run_foreign_scripts(browser: FakeBrowser, path: str) -> None:
    shown = browser.get(path)
    policy = str(shown.header("content-security-policy"))
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert shown.header("x-content-type-options") == "nosniff"
    assert shown.header("referrer-policy") == "same-origin"


def test_pages_are_not_stored_and_files_are_by_their_content(browser: FakeBrowser) -> None:
    page = browser.get("/ui/")
    assert page.header("cache-control") == "no-store"
    for address in set(re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', page.text)):
        file = browser.get(address)
        assert file.status == 200
        assert file.header("cache-control") == "public, max-age=31536000, immutable"
        assert browser.get(address.partition("?")[0]).header("cache-control") == "no-cache"


def test_the_root_leads_to_the_dashboard_and_all_else_to_the_rest_api(browser: FakeBrowser) -> None:
    for path in ("/", "/ui"):
        assert (browser.get(path).status, browser.get(path).header("location")) == (303, "/ui/")
    browser.api.answers["GET /uim"] = {"rest": True}
    assert browser.get("/uim").text == '{"rest": true}'
    assert browser.get("/livez").status == 404
    assert browser.api.asked[-1].target == "/livez"


def test_a_request_that_no_page_takes_is_refused_with_a_page(browser: FakeBrowser) -> None:
    assert browser.post("/ui/").status == 405
    assert "the dashboard has no such page" in browser.get("/ui/nothing").words


def test_templates_hold_no_inline_script_style_or_foreign_address() -> None:
    assert "pins.html.j2" in {template.name for template in TEMPLATES}
    for template in TEMPLATES:
        text = template.read_text()
        assert not re.search(r"<style|<script(?! src=\"{{ static)|\sstyle=|\son[a-z]+=|javascript:|https?:", text), (
            template
        )


def test_vendored_files_are_what_the_manifest_names() -> None:
    manifest = json.loads((STATIC / "vendored.json").read_text())
    listed = {name: digest for each in manifest.values() for name, digest in each["files"].items()}
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name
    for each in manifest.values():
        assert each["licence"] in ("0BSD", "MIT")
        assert each["version"]
        assert any(name.endswith(".LICENSE.txt") for name in each["files"])
    own = {"dashboard.css", "dashboard.js", "icon.svg", "vendored.json"}
    assert {file.name for file in STATIC.iterdir()} == own | set(listed)
