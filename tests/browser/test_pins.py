"""Pins in a real browser: each kind of answer, and a command that a click copies."""

from collections.abc import Iterator
from typing import Any

import pytest
from pulsar_sidecar.features.pins.results import PinCause
from pulsar_sidecar.model.names import java_url_encode

from tests.browser.looking import looking, served_dashboard
from tests.browser.test_frame import WINDOWS
from tests.fakes.rest_api import FakeRestApi
from tests.unit.web.test_pins import BASE, NO_FIGURES, TOPIC, bookie, namespace, pin, topic

pytestmark = pytest.mark.browser

HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
COMMAND = f"pulsar-admin topics clear-backlog -s billing {TOPIC}"


@pytest.fixture
def url() -> Iterator[str]:
    api = FakeRestApi()
    hostile = topic(topic=HOSTILE, pins=(pin(holder=HOSTILE, cause=PinCause.RETENTION, ends_ms=1_900_000_000_000),))
    api.answers |= {
        f"{BASE}/bookies": [bookie(), bookie(**NO_FIGURES, problem="no HTTP service")],
        f"{BASE}/bookies/bookie-1%3A3181": bookie(),
        f"{BASE}/persistent/public/default/orders": [topic(), hostile],
        f"{BASE}/namespaces/public/default": namespace(topic(), hostile),
    }
    with served_dashboard(api) as address:
        yield f"{address}/ui/pins"


@pytest.mark.parametrize("window", WINDOWS, ids=["light", "dark and narrow"])
@pytest.mark.parametrize("of", ["", "orders", "public/default", "bookie-1:3181", "not a/topic/x"])
def test_axe_finds_nothing_serious_and_nothing_is_cut_off(
    launched: Any, url: str, window: dict[str, Any], of: str
) -> None:
    with looking(launched, **window) as look:
        look.open(f"{url}?of={java_url_encode(of)}")
        assert look.serious() == []
        assert look.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert look.page.title() == "What pins this? · pulsar-sidecar"
        assert look.page.locator("main img").count() == 0


def test_a_click_copies_a_command(launched: Any, url: str) -> None:
    with looking(launched, permissions=["clipboard-read", "clipboard-write"]) as look:
        look.open(url)
        look.page.fill("[name=of]", "orders")
        look.page.keyboard.press("Enter")
        look.page.locator(f"code:text-is('{COMMAND}')").first.click()
        look.page.locator("code.copied").first.wait_for()
        assert look.page.evaluate("navigator.clipboard.readText()") == COMMAND


def test_without_a_script_everything_is_shown(launched: Any, url: str) -> None:
    with looking(launched, java_script_enabled=False) as look:
        look.open(f"{url}?of=orders")
        assert COMMAND in look.page.inner_text("main")
