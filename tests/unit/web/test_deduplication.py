"""The pages of deduplication."""

from dataclasses import replace
from urllib.parse import quote

import pytest
from pulsar_sidecar.features.deduplication.results import (
    Amount,
    DeduplicationDecision,
    DeduplicationView,
    HeldLedgers,
    LoadForecast,
    LoadForecasts,
    PolicyLevel,
    SnapshotLimits,
    SnapshotView,
    StuckCursor,
    StuckReason,
    StuckReport,
)

from tests.fakes.clock import START_MS
from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import HOSTILE
from tests.unit.web.test_delayed import ORDERS, PLACE

STUCK = "GET /admin/v2/deduplication/stuck"
LOADS = "GET /admin/v2/deduplication/forecast"
PAGE = f"/ui/deduplication?scope={quote(ORDERS, safe='')}"
OWN = "persistent://public/default/__change_events"
CURSOR = StuckCursor(
    topic=HOSTILE,
    reason=StuckReason.LAGS,
    because="no recent snapshot",
    certain=False,
    position="7:3",
    since=Amount(25_000, 2048),
    held_ledgers=1,
    held_bytes=4096,
    freed_bytes=None,
    status=None,
    remedy="pulsar-admin topics stats '<x>'",
)
LOAD = LoadForecast(ORDERS, "7:3", Amount(900_000, 2**30), 75.04, deduplicated=True, times_out=True)
STATE = DeduplicationView(
    topic=ORDERS,
    decision=DeduplicationDecision(enabled=True, level=PolicyLevel.BROKER, reason="by the broker"),
    status=None,
    snapshot=SnapshotView("7:3", START_MS, 0, 2, 100, 5, 1, None, (), ()),
    limits=SnapshotLimits(None, None),
    since=Amount(12, 100),
    replay_seconds=0.04,
    replay_seconds_by="measured",
    held=HeldLedgers((1,), 2048),
    held_alone=None,
    replay=None,
    remarks=(),
    problem=None,
)


def stuck_report(*stuck: StuckCursor) -> StuckReport:
    return StuckReport(9, 4, len(stuck), 2048, stuck, ())


def forecasts(*slowest: LoadForecast) -> LoadForecasts:
    return LoadForecasts(9, 4, 60, slowest, (), "a broker replays 12,000 entries a second")


@pytest.fixture
def many(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers |= {STUCK: stuck_report(CURSOR), LOADS: forecasts(LOAD)}
    return browser


def test_stuck_cursors_and_slow_loads(many: FakeBrowser) -> None:
    shown = many.get("/ui/deduplication")
    assert "1 stuck They hold 2.0 KiB" in shown.words
    assert "lags (no recent snapshot, not certain) 25,000 4.0 KiB unknown" in shown.words
    assert "900,000 1.0 GiB 75.0 s ✕ times out" in shown.words
    assert "Brokers time out a topic load after 60 seconds" in shown.words
    assert "<img" not in shown.text


def test_unreadable_answers_are_shown_as_unreadable(many: FakeBrowser) -> None:
    many.api.answers[STUCK] = (503, {"reason": "no broker answers"})
    many.api.answers[LOADS] = replace(forecasts(), unreadable=("orders: <i>",) * 30)
    shown = many.get("/ui/deduplication")
    assert shown.status == 200
    for words in ("no broker answers", "not read orders:", "20 of 30"):
        assert words in shown.words


def test_a_tenant_is_no_scope_of_it(many: FakeBrowser) -> None:
    shown = many.get("/ui/deduplication?scope=public")
    assert shown.status == 400
    assert "is a tenant; write one of its namespaces" in shown.words


def test_brokers_topics_are_behind_headings(many: FakeBrowser) -> None:
    many.api.answers[STUCK] = stuck_report(replace(CURSOR, topic=OWN), CURSOR)
    mine = replace(LOAD, times_out=False)
    many.api.answers[LOADS] = forecasts(replace(mine, topic=OWN), mine)
    shown = many.get("/ui/deduplication")
    assert shown.words.count("System topics (1)") == 2
    assert shown.text.count('<details class="system" open>') == 1  # what is stuck


def test_one_topic(browser: FakeBrowser) -> None:
    decision = replace(STATE.decision, enabled=None, reason="no broker answers")
    unknown = replace(
        STATE, decision=decision, snapshot=None, since=None, replay_seconds=None, held=None, problem="<i>"
    )
    browser.api.answers[f"GET {PLACE}/deduplication"] = [STATE, unknown]
    shown = browser.get(PAGE)
    assert "7:3 2023-11-14 22:13:20 UTC" in shown.words
    assert "unknown no broker answers" in shown.words
    assert "&lt;i&gt;" in shown.text


def test_a_topic_that_does_not_exist_is_a_page_with_the_reason(browser: FakeBrowser) -> None:
    browser.api.answers[f"GET {PLACE}/deduplication"] = (404, {"reason": f"there is no topic {ORDERS}"})
    assert browser.get(PAGE).status == 404
