"""The pages of audits, in front of the real routes on audits on disk."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import pytest
from prometheus_client import CollectorRegistry
from pulsar_sidecar.features.audit.http import router
from pulsar_sidecar.features.audit.opening import NO_ARROW, NoAudits
from pulsar_sidecar.features.audit.plan_progress import progress_of
from pulsar_sidecar.features.audit.results.summaries import (
    AuditSummary,
    Count,
    GuardResult,
    HistoryEntry,
    OffloadSummary,
)
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.gate import Gate
from pulsar_sidecar.server.rights import Rights
from starlette.types import Receive, Scope, Send

from tests.cluster.patience import until
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.rest_api import FakeBrowser, FakeRestApi
from tests.unit.audit.findings import AUDIT_ID, DAY_MS, STORE_TIME_MS, missing, offloaded, orphan, unattributed, usage
from tests.unit.audit.sending import served_audits
from tests.unit.audit.written import write_audit
from tests.unit.web.answers import HOSTILE

PLACE = f"/ui/audits/{AUDIT_ID}"


class AuditApi(FakeRestApi):
    """The real routes of audits; everything else is as a test puts it in."""

    def __init__(self, service: object) -> None:
        super().__init__()
        self.gate = Gate(None, ["localhost"], FakeClock(), lambda: "nothing")
        open_to_all = Rights(enforced=False)
        self.gate.app = create_app(
            [router(service)],  # type: ignore[arg-type]
            lambda: None,
            CollectorRegistry(),
            Event(),
            open_to_all,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self.gate if scope["path"].startswith("/admin/v2/audits") else super().__call__)(scope, receive, send)


@dataclass
class Shelf:
    """Audits on disk and a browser that looks at them."""

    directory: Path
    store: FakeMetadataStore
    browser: FakeBrowser
    written: AuditSummary

    @property
    def plan(self) -> str:
        assert self.written.plan is not None
        return self.written.plan.sha256


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    orphans = [orphan(number) for number in range(60)]
    orphans += [
        orphan(100, topic=HOSTILE, tenant="acme", namespace="acme/eu", length_bytes=10**9, cause="unknown"),
        orphan(101, standing="too-young", kind="cursor", cursor_name="billing", length_bytes=None),
    ]
    history = tuple(
        HistoryEntry(f"a{day}", STORE_TIME_MS + day * DAY_MS, Count(9, 9), Count(day, 5), Count(), day, 0)
        for day in (0, 1)
    )
    written = write_audit(
        tmp_path / "monday",
        orphans,
        [missing(5)],
        [unattributed(7)],
        [usage("persistent://public/default/a"), usage("persistent://acme/eu/b", tenant="acme", namespace="acme/eu")],
        [offloaded(5, topic=HOSTILE)],
        history=history,
        offload=OffloadSummary(
            ("s3://tiered",), 1, {"lost": Count(1, 5)}, uses_by_tenant={"acme": {"referenced": Count(1, 5)}}
        ),
    )
    with served_audits(tmp_path) as audits:
        browser = FakeBrowser(api=AuditApi(audits.reviews))
        browser.get("/ui/sign-in")
        yield Shelf(tmp_path, audits.store, browser, written)
        browser.runner.close()


def test_audits_are_listed_with_verdict_and_trend(shelf: Shelf) -> None:
    shown = shelf.browser.get("/ui/audits")
    assert shown.status == 200
    assert f'<a href="{PLACE}">{AUDIT_ID}</a>' in shown.text
    assert "● plan 62 at least 953.7 MiB 61 1 1" in shown.words
    assert "Trend over 2 audits, UTC" in shown.words


def test_missing_audit_extra_names_the_package_to_install() -> None:
    browser = FakeBrowser(api=AuditApi(NoAudits(NO_ARROW)))
    shown = browser.get("/ui/audits")
    assert shown.status == 200
    assert "pip install &#39;pulsar-sidecar[audit]&#39;" in shown.text
    assert "No audit yet" not in shown.words
    browser.runner.close()


def test_an_audit_that_cannot_be_read_is_named(shelf: Shelf) -> None:
    (shelf.directory / "broken").mkdir()
    (shelf.directory / "broken" / "summary.json").write_text("{")
    assert "Unreadable audit:" in shelf.browser.get("/ui/audits").words


def test_audit_page_shows_verdict_guards_and_commands(shelf: Shelf) -> None:
    shown = shelf.browser.get(PLACE)
    assert shown.status == 200
    assert "Plan" in shown.words
    assert "passed same-cluster" in shown.words
    assert f'href="{PLACE}/tables/orphans"' in shown.text
    assert f'href="{PLACE}/tables/offloaded"' in shown.text
    assert "not-applied 0 of 61 ledgers sent to the deletion service" in shown.words
    assert f"audit apply {shelf.directory}/monday --execute --plan {shelf.plan}" in shown.words
    assert shelf.browser.get("/ui/audits/none").status == 404


def test_findings_are_drilled_into_from_tenant_to_ledger(shelf: Shelf) -> None:
    everything = shelf.browser.get(f"{PLACE}/tables/orphans")
    assert "By tenant" in everything.words
    assert "acme 1 953.7 MiB public 61 at least" in everything.words
    assert f'href="{PLACE}/tables/orphans?tenant=acme"' in everything.text
    assert "1 to 50 of 62" in everything.words
    assert "12 more" not in everything.words
    tenant = shelf.browser.get(f"{PLACE}/tables/orphans?tenant=acme")
    assert f'href="{PLACE}/tables/orphans?tenant=acme&amp;namespace=acme%2Feu"' in tenant.text
    namespace = shelf.browser.get(f"{PLACE}/tables/orphans?tenant=acme&namespace=acme%2Feu")
    assert "By topic" in namespace.words
    assert "<img" not in namespace.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in namespace.text
    assert f'<a href="{PLACE}/ledger?id=100">100</a>' in namespace.text
    assert "{{7*7}}" in namespace.text


def test_filters_and_pages_stay_in_the_address(shelf: Shelf) -> None:
    shown = shelf.browser.get(f"{PLACE}/tables/orphans?status=condemned&offset=50")
    assert "51 to 61 of 61" in shown.words
    assert 'name="status" value="condemned"' in shown.text
    narrowed = shelf.browser.get(f"{PLACE}/tables/orphans?tenant=public&kind=cursor")
    assert '<input type="hidden" name="tenant" value="public">' in narrowed.text
    assert "subscription billing" in narrowed.words
    assert "1 to 1 of 1" in narrowed.words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("missing", "cannot read 10 entries"),
        ("unattributed", "no component"),
        ("usage", "persistent://acme/eu/b"),
        ("offloaded", "lost"),
    ],
)
def test_every_table_is_shown(table: str, words: str, shelf: Shelf) -> None:
    shown = shelf.browser.get(f"{PLACE}/tables/{table}")
    assert (shown.status, words in shown.words) == (200, True)
    assert shelf.browser.get(f"{PLACE}/tables/nodes").status == 404


def test_a_damaged_table_is_not_an_empty_one(shelf: Shelf) -> None:
    (file,) = shelf.directory.rglob("orphan_ledgers/*/*.parquet")
    file.write_bytes(b"x")
    shown = shelf.browser.get(f"{PLACE}/tables/orphans")
    assert "does not match its SHA-256" in shown.words
    assert "None." not in shown.words


def test_any_ledger_is_explained(shelf: Shelf) -> None:
    shown = shelf.browser.get(f"{PLACE}/ledger?id=100")
    assert "It exists, and nothing in the dump references it." in shown.words
    assert "audit explain" in shown.words
    assert "dump is not kept" in shown.words
    assert shelf.browser.get(f"{PLACE}/ledger?id=x").status == 400


def test_a_plan_is_approved_by_its_hash_and_followed(shelf: Shelf) -> None:
    wrong = shelf.browser.post(f"{PLACE}/apply", {"plan": shelf.plan, "confirmed": "yes", "hours": "72"})
    assert wrong.status == 400
    other = shelf.browser.post(f"{PLACE}/apply", {"plan": "0" * 64, "confirmed": "0" * 64, "hours": "72"})
    assert other.status == 303
    assert "Nothing was done (400): the plan of this audit is" in shelf.browser.get(PLACE).words
    endless = shelf.browser.post(f"{PLACE}/apply", {"plan": shelf.plan, "confirmed": shelf.plan, "hours": "inf"})
    assert endless.status == 400
    assert progress_of(shelf.store, shelf.plan) is None

    sent = shelf.browser.post(f"{PLACE}/apply", {"plan": shelf.plan, "confirmed": shelf.plan, "hours": "72"})
    assert (sent.status, sent.header("location")) == (303, PLACE)
    until(lambda: "sent 61 of 61 ledgers" in shelf.browser.get(PLACE).words, "the plan is sent")
    shown = shelf.browser.get(PLACE)
    assert "Approve and send" not in shown.words
    assert "show the plan" not in shown.words
    assert '<a class="button" href="/ui/deletions">Follow the deletions</a>' in shown.text


def test_an_audit_without_a_plan_offers_none(shelf: Shelf) -> None:
    failed = GuardResult("share", False, "40 %", "10 %", "too many ledgers at once")
    write_audit(shelf.directory / "stopped", [orphan(1)], audit_id="stopped", plan=None, guards=(failed,))
    shown = shelf.browser.get("/ui/audits/stopped")
    assert "FAILED share" in shown.words
    assert "Approve and send" not in shown.words
    button = '<a class="button" href="/ui/audits/stopped/tables/orphans">Browse unreferenced ledgers</a>'
    assert shown.text.index(button) < shown.text.index("By command:")


def test_the_overview_leads_to_the_newest_audit(shelf: Shelf) -> None:
    shown = shelf.browser.get("/ui/")
    assert f'<a href="{PLACE}">61 ledgers (953.7 MiB) are unreferenced and deletable</a>' in shown.text
    assert "Newest audit" in shown.words
