"""The frame of every page in a real browser: live parts, forms, keyboard, dark, narrow, hostile names, no script."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pulsar_sidecar.features.delayed_messages.results import CancelStatus
from pulsar_sidecar.features.ledger_deletion.results import InflightEstimate

from tests.browser.looking import Look, looking, served_dashboard, wait_for
from tests.fakes.rest_api import OPERATOR, FakeRestApi
from tests.unit.web.answers import calendar, deletion_status, due_counts, watch_status
from tests.unit.web.test_deletions import running

pytestmark = pytest.mark.browser

STATUS = "GET /admin/v2/ledger-deletion/status"
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
WINDOWS = [
    {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"},
]


@pytest.fixture
def api() -> FakeRestApi:
    api = FakeRestApi()
    api.answers |= {
        STATUS: deletion_status(warnings=(HOSTILE,)),
        "GET /admin/v2/ledger-deletion/watch": watch_status(),
        "GET /admin/v2/delayed-delivery/status": CancelStatus(False, False, 0, False, None, None),
    }
    return api


@pytest.fixture
def url(api: FakeRestApi) -> Iterator[str]:
    with served_dashboard(api) as address:
        yield address


def test_a_live_part_reads_itself_again_and_shows_that_the_cluster_is_gone(
    look: Look, api: FakeRestApi, url: str
) -> None:
    look.open(f"{url}/")
    assert look.page.url == f"{url}/ui/"
    assert "100,000" in look.page.inner_text("#overview")
    api.answers[STATUS] = deletion_status(inflight=InflightEstimate(7, 0, 1, 1))
    look.page.wait_for_selector("#overview :text-is('7')", timeout=12_000)
    api.answers[STATUS] = (503, {"reason": "no broker answers"})
    look.page.wait_for_selector("text=Not up to date", timeout=12_000)
    assert "no broker answers" in look.page.inner_text("#overview")
    assert look.page.locator("#overview :text-is('7')").count() == 1


def test_a_live_part_that_cannot_be_read_again_stays_and_is_named_as_old(look: Look, api: FakeRestApi) -> None:
    path = "GET /admin/v2/ledger-deletion/topic-deletions/op-1"
    followed = running(1).followed(driver="one", left_nodes=(), left=())
    api.answers[path] = followed
    with served_dashboard(api) as url:
        look.open(f"{url}/ui/deletions/topic?id=op-1")
        api.answers[path] = (404, {"reason": "it does not run, and its end is not known"})
        wait_for(look, "#deletion", "Not up to date the sidecar answered with status 404")
        assert "topic-1" in look.page.inner_text("#deletion")
        api.answers[path] = followed
        look.page.locator("#deletion", has_text="Not up to date").wait_for(state="detached")
    wait_for(look, "#deletion", "Not up to date the sidecar does not respond")
    assert "topic-1" in look.page.inner_text("#deletion")
    look.complaints.clear()  # of the responses that failed


def test_what_one_has_unfolded_stays_open_while_its_part_is_read_again(look: Look, api: FakeRestApi, url: str) -> None:
    topics = ("persistent://public/default/orders", "persistent://public/default/__change_events")
    api.answers["GET /admin/v2/delayedCalendar"] = calendar(*map(due_counts, topics))
    look.open(f"{url}/ui/delayed")
    shown = look.page.locator("#calendar details.system tr", has_text=topics[1])
    assert not shown.is_visible()
    look.page.click("summary:text-is('System topics (1)')")
    assert shown.is_visible()
    look.page.evaluate("document.querySelector('#calendar h2').textContent = 'older'")
    look.page.evaluate("document.querySelector('#calendar').dispatchEvent(new CustomEvent('refresh'))")
    wait_for(look, "#calendar h2", "Messages by due time")
    assert shown.is_visible()


def test_hostile_names_are_text(look: Look, url: str) -> None:
    look.open(f"{url}/ui/")
    assert HOSTILE in look.page.inner_text("#overview")
    assert look.page.title() == "Overview · pulsar-sidecar"
    assert look.page.locator("main img").count() == 0


@pytest.mark.parametrize("window", WINDOWS, ids=["light", "dark and narrow"])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(launched: Any, url: str, window: dict[str, Any]) -> None:
    with looking(launched, **window) as look:
        look.open(f"{url}/ui/")
        assert look.serious() == []
        assert look.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_first_key_leads_past_the_navigation(look: Look, url: str) -> None:
    look.open(f"{url}/ui/")
    look.page.keyboard.press("Tab")
    assert look.page.evaluate("document.activeElement.textContent") == "Skip to the content"
    look.page.keyboard.press("Enter")
    assert look.page.evaluate("document.activeElement.id") == "content"


def test_without_scripts_a_token_signs_in_and_out(launched: Any, api: FakeRestApi) -> None:
    api.token = "right.token.here"
    api.answers["GET /admin/v2/caller"] = replace(OPERATOR, role="ops", authenticated_by="token")
    with served_dashboard(api, sign_in=True) as url, looking(launched, java_script_enabled=False) as look:
        look.open(f"{url}/ui/?x=1")
        assert look.page.url == f"{url}/ui/sign-in?next=%2Fui%2F%3Fx%3D1"
        look.page.fill("#token", "right.token.here")
        look.page.click("main button")
        assert look.page.url == f"{url}/ui/?x=1"
        assert "right.token.here" not in look.page.content()
        look.page.click("text=Sign out")
        assert look.page.url == f"{url}/ui/sign-in"
