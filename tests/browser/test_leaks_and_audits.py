"""The pages of leaks and audits with hostile names and thousands of findings, in every window; and the report."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.bootstrap.audit_review import report_audit
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState

from tests.browser.looking import HOSTILE, looking, served_dashboard
from tests.browser.test_frame import WINDOWS
from tests.unit.audit.findings import missing, orphan, unattributed, usage
from tests.unit.audit.sending import served_audits
from tests.unit.audit.written import write_audit
from tests.unit.web.answers import leak, leak_explanation, listed_leaks, watch_status
from tests.unit.web.test_audits import PLACE, AuditApi
from tests.unit.web.test_leaks import WATCH

pytestmark = pytest.mark.browser

ROWS = 10_000
ADDRESSES = (
    "/ui/leaks?state=leaked",
    "/ui/leaks/ledger?id=7",
    "/ui/audits",
    PLACE,
    f"{PLACE}/tables/orphans?tenant=public&namespace=public%2Fdefault",
    f"{PLACE}/tables/missing",
    f"{PLACE}/tables/unattributed",
    f"{PLACE}/tables/usage",
    f"{PLACE}/ledger?id=7",
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an audit with ten thousand findings."""
    directory = tmp_path_factory.mktemp("audits") / "monday"
    rows = [orphan(number, topic=f"{HOSTILE}-{number}", evidence=[HOSTILE]) for number in range(ROWS)]
    lost = [missing(ROWS + 1, affected=HOSTILE)]
    write_audit(directory, rows, lost, [unattributed(ROWS + 2, reason=HOSTILE)], [usage(HOSTILE)], rows_per_file=ROWS)
    return directory


@pytest.fixture(scope="module")
def url(directory: Path) -> Iterator[str]:
    with served_audits(directory.parent) as audits:
        api = AuditApi(audits.reviews)
        found = leak(7, topic=HOSTILE, detail=HOSTILE, path=HOSTILE)
        others = (LeakState.SETTLING, LeakState.KEPT, LeakState.DELETED)
        states = [leak(10 + place, state=state) for place, state in enumerate(others)]
        api.answers |= {
            f"GET {WATCH}": watch_status(
                braked=HOSTILE, holds=(HOSTILE,), unreadable_nodes=(HOSTILE,), leaks={LeakState.LEAKED: 1}
            ),
            f"GET {WATCH}/leaks": listed_leaks(found, *states),
            f"GET {WATCH}/leaks/7": leak_explanation(7, found),
        }
        with served_dashboard(api) as address:
            yield address


@pytest.mark.parametrize("window", WINDOWS, ids=["light", "dark and narrow"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_usable_and_shows_hostile_names_as_text(
    launched: Any, url: str, window: dict[str, Any], address: str
) -> None:
    with looking(launched, **window) as look:
        look.open(url + address)
        assert look.serious() == []
        assert look.page.title() != "taken"
        assert look.page.locator("main img").count() == 0


def test_the_way_down_is_gone_without_a_script(launched: Any, url: str) -> None:
    with looking(launched, java_script_enabled=False) as look:
        look.open(f"{url}{PLACE}/tables/orphans")
        look.page.click("a:text-is('public')")
        look.page.click("a:text-is('public/default')")
        look.page.locator("section", has_text="By topic").locator("a").first.click()
        look.page.locator("section", has_text="The largest first").locator("td.number a").first.click()
        assert "nothing in the dump references it" in look.page.inner_text(".sentences")


def test_a_report_sent_by_mail_opens_down_to_a_ledger(launched: Any, tmp_path: Path) -> None:
    write_audit(tmp_path / "few", [orphan(number, topic=f"{HOSTILE}-{number}") for number in range(3)])
    report = report_audit(tmp_path / "few")
    with looking(launched) as look:
        look.page.goto(report.as_uri())
        assert look.serious() == []
        assert look.page.title() != "taken"
        row = look.page.locator("details.owner table tbody tr").first
        assert not row.is_visible()
        for depth in range(3):
            look.page.locator("details.owner:visible > summary").nth(depth).click()
        assert row.is_visible()
