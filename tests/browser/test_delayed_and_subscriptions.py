"""The pages of delayed messages and of subscriptions with hostile names, thousands of rows, and every window."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.looking import Look, looking, served_dashboard
from tests.browser.test_frame import WINDOWS
from tests.fakes.rest_door import FakeRestDoor
from tests.unit.web.answers import (
    bucket,
    calendar,
    delayed_index,
    due_counts,
    slowest_loads,
    stored_state,
    stored_states,
    stuck_cursors,
)
from tests.unit.web.conftest import DELAYED
from tests.unit.web.test_delayed import PREVIEW
from tests.unit.web.test_subscriptions import CURSOR, LOAD, state

pytestmark = pytest.mark.browser

LOCAL = "<img src=x onerror=\"document.title='taken'\">'&{{7*7}}\u202egnp" + "long" * 60
HOSTILE = f"persistent://public/default/{LOCAL}"
TOPIC = f"/admin/v2/persistent/public/default/{quote(LOCAL, safe='')}"
ADDRESSES = (
    "/ui/delayed",
    f"/ui/delayed/topic?topic={quote(HOSTILE, safe='')}&check=yes",
    "/ui/subscriptions?show=holes",
    f"/ui/subscriptions/topic?topic={quote(HOSTILE, safe='')}&ask=broker",
)
ROWS = 10_000


@pytest.fixture(scope="module")
def door() -> FakeRestDoor:
    places = [due_counts(f"{HOSTILE}-{number}", "<b>billing</b>") for number in range(ROWS)]
    finding = {
        "kind": "missing-ledger",
        "subscription": "<b>",
        "ledgerId": 100,
        "cause": HOSTILE,
        "consequence": HOSTILE,
        "remedy": HOSTILE,
    }
    kinds = [("full", True), ("full", False), ("nearly full", True), ("fits", False)]
    states = [stored_state(HOSTILE, fullness=fullness, pauseEnabled=pauses) for fullness, pauses in kinds]
    door = FakeRestDoor()
    door.answers |= {
        "GET /admin/v2/delayed-delivery/status": {**DELAYED, "lastError": HOSTILE, "lastErrorAtMs": 1},
        "GET /admin/v2/delayedCalendar": calendar(due_counts(HOSTILE, problem=HOSTILE), *places),
        f"GET {TOPIC}/delayedCalendar": calendar(due_counts(HOSTILE), unread=7),
        f"GET {TOPIC}/delayedIndex": [delayed_index(HOSTILE, bucket(), bucket(problem=HOSTILE))],
        f"GET {TOPIC}/delayedIndex/fsck": {"findings": [finding], "checked": {"buckets": 2, "entries": 400}},
        f"POST {TOPIC}/delayedMessages/preview": {**PREVIEW, "sample": [{**PREVIEW["sample"][0], "key": HOSTILE}]},
        "GET /admin/v2/storedAckStates": stored_states(*states, unreadable=1, reasons=[HOSTILE]),
        "GET /admin/v2/deduplication/stuck": stuck_cursors({**CURSOR, "topic": HOSTILE}),
        "GET /admin/v2/deduplication/forecast": slowest_loads({**LOAD, "topic": HOSTILE}),
        f"GET {TOPIC}/storedAckStates": stored_states(*states),
        f"GET {TOPIC}/ackState": [state(topic=HOSTILE), state(pause="unknown")],
        f"GET {TOPIC}/deduplication": [],
    }
    return door


@pytest.fixture(scope="module")
def url(door: FakeRestDoor) -> Iterator[str]:
    with served_dashboard(door) as address:
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


def test_a_selection_is_previewed_by_keyboard_and_without_scripts(launched: Any, door: FakeRestDoor, url: str) -> None:
    with looking(launched, java_script_enabled=False) as look:
        look.open(url + ADDRESSES[1])
        look.page.focus("summary:text-is('Preview a selection to cancel')")
        look.page.keyboard.press("Enter")
        look.page.keyboard.press("Tab")
        assert look.page.locator(":focus").get_attribute("name") == "due_from"
        look.page.fill("form [name=key]", "k<b>")
        look.page.press("form [name=key]", "Enter")
        assert "selected messages" in look.page.inner_text("main")
        assert door.calls("POST")[-1][1] == {"key": "k<b>"}


def test_ten_thousand_rows_are_paged(look: Look, url: str) -> None:
    look.open(f"{url}/ui/delayed?offset=9950")
    assert f"9,951 to 10,000 of {ROWS + 1:,}" in look.page.inner_text(".pager")
    look.page.click("a[rel=next]")
    look.page.wait_for_selector(f"text=10,001 to 10,001 of {ROWS + 1:,}")
    assert look.page.locator("section:last-of-type tbody tr").count() == 1
