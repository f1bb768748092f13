"""A real Chromium that looks at the dashboard, and what must hold for every page that it opens."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import pytest
from pulsar_sidecar.bootstrap.features import PAGES
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.server.request_ids import RequestIds
from pulsar_sidecar.server.server import DrainingServer, listening_socket
from pulsar_sidecar.web.app import Dashboard
from starlette.types import ASGIApp

from tests.cluster.needs import browser

NO_PLAYWRIGHT = "no Playwright: pip install --require-hashes -r deploy/requirements-tools.lock (`make test-browser`)"
SCREENSHOTS_VARIABLE = "PULSAR_SIDECAR_SCREENSHOTS"
LOCAL = "<img src=x onerror=\"document.title='taken'\">'&{{7*7}}\u202egnp" + "long" * 60
HOSTILE = f"persistent://public/default/{LOCAL}"
_AXE = Path(__file__).with_name("axe") / "axe.min.js"
SHOWN_WITHIN_MS = 30_000
"""So long may a page take to show what has happened, on a busy machine."""
_RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}


@dataclass(slots=True)
class Look:
    """A tab; ``complaints`` are the browser's own errors about its pages."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        answer = self.page.goto(url)
        assert answer is not None
        assert answer.status == 200, f"{url}: {answer.status} {self.page.inner_text('body')[:500]}"

    def serious(self) -> list[str]:
        """Return the violations on the page that axe rates serious or critical."""
        self.page.evaluate(_AXE.read_text())
        found = self.page.evaluate("rules => axe.run(document, rules)", _RULES)["violations"]
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes'][:3]]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]


def screenshot(look: Look, name: str) -> None:
    """Take a picture of the window, if a directory is named for pictures."""
    directory = os.environ.get(SCREENSHOTS_VARIABLE)
    if directory:
        look.page.screenshot(path=Path(directory) / f"{name}.png")


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser for the tests of one module: while Playwright runs, its thread can run no other event loop."""
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_PLAYWRIGHT)
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=browser(), args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@contextmanager
def looking(launched: Any, **context: Any) -> Iterator[Look]:
    """Yield a tab without cookies; at its end the browser must have had no complaint, and called one host only."""
    opened = launched.new_context(**context)
    look = Look(opened.new_page())
    hosts: set[str] = set()
    look.page.on(
        "console", lambda each: look.complaints.append(each.text) if each.type in ("error", "warning") else None
    )
    look.page.on("pageerror", lambda error: look.complaints.append(str(error)))
    look.page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    try:
        yield look
    finally:
        opened.close()
    assert not look.complaints, look.complaints
    assert len(hosts) <= 1, hosts


def act(look: Look, label: str, **fields: str) -> str:
    """Open the form behind a label, fill it and send it; the message of the page that follows."""
    send(look, label, **fields)
    message = look.page.inner_text("p[role=status]")
    assert isinstance(message, str)
    return message


def send(look: Look, label: str, **fields: str) -> None:
    """Open the form behind a label, fill it and send it."""
    form = look.page.locator("details.action", has=look.page.locator(f"summary:text-is({label!r})")).first
    if form.get_attribute("open") is None:
        form.locator("summary").click()
    for name, value in fields.items():
        form.locator(f"[name={name}]").fill(value)
    form.locator("button").click()


def wait_for(look: Look, part: str, text: str) -> None:
    look.page.locator(part, has_text=text).first.wait_for(timeout=SHOWN_WITHIN_MS)


@contextmanager
def served_dashboard(api: ASGIApp, **options: Any) -> Iterator[str]:
    """Serve the dashboard before a test's REST API, and yield its address."""

    async def elsewhere(*_: Any) -> Any:
        raise AssertionError("no other sidecar is registered")

    dashboard = Dashboard(api, SystemClock(), elsewhere, **{"sign_in": False, "pages": PAGES, **options})
    with served(RequestIds(dashboard)) as address:
        yield address


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an app from this process, and yield its address."""
    with listening_socket("127.0.0.1", 0) as listening:
        server = DrainingServer(app, Event())
        thread = Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
