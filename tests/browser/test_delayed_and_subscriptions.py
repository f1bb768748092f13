"""Pages of delayed messages, subscriptions and deduplication: hostile names, thousands of rows, every window."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from pulsar_sidecar.features.acknowledgements.results import Fullness, PauseState

from tests.browser.looking import HOSTILE, LOCAL, Look, looking, served_dashboard
from tests.browser.test_frame import WINDOWS
from tests.fakes.rest_api import FakeRestApi
from tests.unit.web.answers import (
    bucket,
    calendar,
    check_report,
    delayed_index,
    due_counts,
    stored_state,
    stored_states,
)
from tests.unit.web.conftest import DELAYED
from tests.unit.web.test_deduplication import CURSOR, LOAD, STATE, forecasts, stuck_report
from tests.unit.web.test_delayed import PREVIEW
from tests.unit.web.test_subscriptions import state

pytestmark = pytest.mark.browser

TOPIC = f"/admin/v2/persistent/public/default/{quote(LOCAL, safe='')}"
ADDRESSES = (
    "/ui/delayed",
    f"/ui/delayed/topic?topic={quote(HOSTILE, safe='')}&check=yes",
    "/ui/subscriptions?show=holes",
    f"/ui/subscriptions/topic?topic={quote(HOSTILE, safe='')}&ask=broker",
    "/ui/deduplication",
    f"/ui/deduplication?scope={quote(HOSTILE, safe='')}",
)
ROWS = 10_000


@pytest.fixture(scope="module")
def api() -> FakeRestApi:
    places = [due_counts(f"{HOSTILE}-{number}", "<b>billing</b>") for number in range(ROWS)]
    kinds = [(Fullness.FULL, True), (Fullness.FULL, False), (Fullness.NEARLY_FULL, True), (Fullness.FITS, False)]
    states = [stored_state(HOSTILE, fullness=fullness, pause_enabled=pauses) for fullness, pauses in kinds]
    api = FakeRestApi()
    api.answers |= {
        "GET /admin/v2/delayed-delivery/status": replace(DELAYED, last_error=HOSTILE, last_error_at_ms=1),
        "GET /admin/v2/delayedCalendar": calendar(due_counts(HOSTILE, problem=HOSTILE), *places),
        f"GET {TOPIC}/delayedCalendar": calendar(due_counts(HOSTILE), unread=7),
        f"GET {TOPIC}/delayedIndex": [delayed_index(HOSTILE, bucket(), bucket(problem=HOSTILE))],
        f"GET {TOPIC}/delayedIndex/fsck": check_report(HOSTILE, HOSTILE),
        f"POST {TOPIC}/delayedMessages/preview": replace(PREVIEW, sample=(replace(PREVIEW.sample[0], key=HOSTILE),)),
        "GET /admin/v2/storedAckStates": stored_states(*states, unreadable=1, reasons=(HOSTILE,)),
        "GET /admin/v2/deduplication/stuck": stuck_report(replace(CURSOR, topic=HOSTILE)),
        "GET /admin/v2/deduplication/forecast": forecasts(replace(LOAD, topic=HOSTILE)),
        f"GET {TOPIC}/storedAckStates": stored_states(*states),
        f"GET {TOPIC}/ackState": [state(topic=HOSTILE), state(pause=PauseState.UNKNOWN)],
        f"GET {TOPIC}/deduplication": [replace(STATE, topic=HOSTILE)],
    }
    return api


@pytest.fixture(scope="module")
def url(api: FakeRestApi) -> Iterator[str]:
    with served_dashboard(api) as address:
        yield address


@pytest.mark.parametrize("window", WINDOWS, ids=["light", "dark and narrow"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_axe_finds_nothing_serious_and_hostile_names_are_text(
    launched: Any, url: str, window: dict[str, Any], address: str
) -> None:
    with looking(launched, **window) as look:
        look.open(url + address)
        assert look.serious() == []
        assert "onerror" in look.page.inner_text("main")
        assert look.page.title().endswith("· pulsar-sidecar")
        assert look.page.locator("main img, main b").count() == 0
        assert look.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing is cut off"


def test_a_selection_is_previewed_by_keyboard_and_without_scripts(launched: Any, api: FakeRestApi, url: str) -> None:
    with looking(launched, java_script_enabled=False) as look:
        look.open(url + ADDRESSES[1])
        look.page.focus("summary:text-is('Preview a selection to cancel')")
        look.page.keyboard.press("Enter")
        look.page.keyboard.press("Tab")
        assert look.page.locator(":focus").get_attribute("name") == "due_from"
        look.page.fill("form [name=key]", "k<b>")
        look.page.press("form [name=key]", "Enter")
        assert "selected messages" in look.page.inner_text("main")
        assert api.calls("POST")[-1][1] == {"key": "k<b>"}


def test_ten_thousand_rows_are_paged(look: Look, url: str) -> None:
    look.open(f"{url}/ui/delayed?offset=9950")
    assert f"9,951 to 10,000 of {ROWS + 1:,}" in look.page.inner_text(".pager")
    look.page.click("a[rel=next]")
    look.page.wait_for_selector(f"text=10,001 to 10,001 of {ROWS + 1:,}")
    assert look.page.locator("section:last-of-type tbody tr").count() == 1
