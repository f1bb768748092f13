from dataclasses import replace

from pulsar_sidecar.features.ledger_deletion.results import Control

from tests.fakes.clock import START_MS
from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import SIDECAR, deletion_status, watch_status

STATUS = "GET /admin/v2/ledger-deletion/status"
WATCH = "GET /admin/v2/ledger-deletion/watch"
DELAYED = "GET /admin/v2/delayed-delivery/status"
HOSTILE = "<script>alert(1)</script>\"'&{{ 7*7 }}"


def test_figures_lead_to_their_lists(browser: FakeBrowser) -> None:
    browser.api.answers[STATUS] = deletion_status(dead_letters=0)
    shown = browser.get("/ui/")
    assert shown.status == 200
    assert '<a href="/ui/deletions">100,000</a>' in shown.text
    assert "oldest 5 minutes, 1.5 GiB" in shown.words
    assert "Nothing is wrong" in shown.words
    assert "As of 2023-11-14 22:13:20 UTC" in shown.words


def test_records_that_were_given_up_are_wrong_and_an_unknown_number_is_not_left_out(browser: FakeBrowser) -> None:
    shown = browser.get("/ui/")
    assert "Nothing is wrong" not in shown.words
    assert '<a href="/ui/deletions/dead-letters">3 records given up</a>' in shown.text
    browser.api.answers[STATUS] = deletion_status(dead_letters=None)
    browser.clock.advance_ms(10_000)
    assert "Dead letters unknown" in browser.get("/ui/").words


def test_most_severe_problem_comes_first_and_text_is_escaped(browser: FakeBrowser) -> None:
    browser.api.answers[STATUS] = deletion_status(
        control=Control(paused=True, paused_reason=HOSTILE), stuck_topic_deletions=2
    )
    shown = browser.get("/ui/")
    assert "Nothing is wrong" not in shown.words
    assert shown.words.index("2 topic deletions cannot continue") < shown.words.index("Paused")
    assert "<script>alert" not in shown.text
    assert "&lt;script&gt;alert" in shown.text
    assert "{{ 7*7 }}" in shown.text


def test_an_error_is_wrong_for_ten_minutes(browser: FakeBrowser) -> None:
    since = {"last_error": "no broker answers", "last_error_at_ms": START_MS - 120_000}
    browser.api.answers[STATUS] = deletion_status(dead_letters=0, **since)
    assert "Ledger deletion last error: no broker answers (2 minutes ago)" in browser.get("/ui/").words
    browser.clock.advance_ms(600_000)
    assert "Nothing is wrong" in browser.get("/ui/").words


def test_a_sidecar_that_does_not_watch_does_not_call_nothing_wrong(browser: FakeBrowser) -> None:
    browser.api.answers[STATUS] = deletion_status(dead_letters=0)
    browser.api.answers[WATCH] = watch_status(leaks=None, leader=replace(SIDECAR, name="sidecar-2"))
    shown = browser.get("/ui/")
    assert "Nothing is wrong" not in shown.words
    assert "Leaks unknown here sidecar-2 watches for leaks, and lists them" in shown.words
    browser.api.answers[WATCH] = watch_status(leaks=None, leader=None)
    browser.clock.advance_ms(10_000)
    assert "no sidecar is watching at the moment" in browser.get("/ui/").words


def test_unreadable_parts_are_not_shown_as_empty(browser: FakeBrowser) -> None:
    browser.api.answers[WATCH] = (503, {"reason": "no broker answers"})
    shown = browser.get("/ui/")
    assert shown.status == 200
    assert "Leak watch: no broker answers" in shown.words
    assert "Nothing is wrong" not in shown.words


def test_an_older_reading_stays_with_its_time_when_brokers_are_gone(browser: FakeBrowser) -> None:
    browser.get("/ui/")
    browser.api.answers[STATUS] = (503, {"reason": "no broker answers"})
    browser.clock.advance_ms(10_000)
    shown = browser.get("/ui/")
    assert "100,000" in shown.words
    assert "As of 2023-11-14 22:13:20 UTC 10 seconds ago" in shown.words
    assert "Not up to date no broker answers" in shown.words


def test_a_sidecar_that_is_starting_is_shown_as_that(browser: FakeBrowser) -> None:
    starting = (503, {"reason": "the sidecar is starting: its features are being opened"})
    for name in (STATUS, WATCH, DELAYED, "GET /admin/v2/caller"):
        browser.api.answers[name] = starting
    shown = browser.get("/ui/")
    assert shown.status == 200
    assert "Ledger deletion, Leak watch, Delayed messages: the sidecar is starting" in shown.words
