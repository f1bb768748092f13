"""The page of leaks, and that of one ledger."""

from uuid import UUID

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState, WatchMode, WatchOrders, WatchState

from tests.fakes.clock import START_MS
from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import HOSTILE, leak, leak_explanation, listed_leaks, watch_status

ATTEMPT = "5facb921-a29a-41f6-bc28-bf15d5273bac"
WATCH = "/admin/v2/ledger-deletion/watch"


@pytest.fixture
def leaks(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers |= {
        f"GET {WATCH}": watch_status(leaks={LeakState.LEAKED: 2}, holds=("public/default", "4711")),
        f"GET {WATCH}/leaks": listed_leaks(
            leak(7), leak(8, state=LeakState.DELETED, topic=HOSTILE, cause=None, ended_ms=START_MS - 60_000)
        ),
        f"GET {WATCH}/leaks/7": leak_explanation(7, leak(7)),
        f"GET {WATCH}/leaks/9": leak_explanation(9, None),
    }
    browser.get("/ui/")
    return browser


def test_page_shows_time_cause_and_state_of_leaks(leaks: FakeBrowser) -> None:
    shown = leaks.get("/ui/leaks")
    assert shown.status == 200
    assert "leaked trim 2023-11-14 21:13:20 UTC 1 hour ago 2.0 KiB" in shown.words
    assert "deleted not known yet" in shown.words
    assert "since 2023-11-14 22:12:20 UTC 1 minute ago" in shown.words
    assert "Leaked ledgers by time of their last reference (UTC) highest" in shown.words
    assert 'aria-label="Leaks by cause. trim: 3; schema: 1"' in shown.text
    assert '<a href="/ui/leaks/ledger?id=7">7</a>' in shown.text
    assert "<img" not in shown.text
    assert "Watched by one" in shown.words


def test_filters_and_pages_are_in_the_address(leaks: FakeBrowser) -> None:
    leaks.api.answers[f"GET {WATCH}/leaks"] = listed_leaks(leak(7), total=120)
    shown = leaks.get("/ui/leaks?state=leaked&cause=trim&ended=true&offset=50")
    assert leaks.api.calls("GET")[-1][0].startswith(f"{WATCH}/leaks?")
    asked = {
        part
        for target, _ in leaks.api.calls("GET")
        if "leaks?" in target
        for part in target[1:].split("?")[1].split("&")
    }
    assert asked == {"state=leaked", "cause=trim", "ended=true", "offset=50", "limit=50"}
    assert "51 to 100 of 120" in shown.words
    assert 'href="/ui/leaks?state=leaked&amp;cause=trim&amp;ended=true&amp;offset=100"' in shown.text
    assert "pulsar-sidecar ledger-deletion watch leaks --state=leaked --cause=trim --ended" in shown.words


def test_the_brake_is_shown_first_with_its_release(leaks: FakeBrowser) -> None:
    assert "Brake engaged" not in leaks.get("/ui/leaks").words
    leaks.api.answers[f"GET {WATCH}"] = watch_status(braked="1,200 references vanished <b>")
    leaks.clock.advance_ms(10_000)
    shown = leaks.get("/ui/leaks")
    assert "Brake engaged: 1,200 references vanished &lt;b&gt;" in shown.words
    assert "pulsar-sidecar ledger-deletion watch resume" in shown.words


def test_a_watch_that_is_off_is_shown_with_the_reason(leaks: FakeBrowser) -> None:
    leaks.api.answers[f"GET {WATCH}/leaks"] = (405, {"reason": "set ledgerDeletionWatch=report"})
    leaks.api.answers[f"GET {WATCH}"] = watch_status(mode=WatchMode.OFF, state=WatchState.OFF, leader=None, leaks=None)
    shown = leaks.get("/ui/leaks")
    assert shown.status == 200
    assert "Could not be read set ledgerDeletionWatch=report" in shown.words
    assert "No leaked ledgers" not in shown.words


@pytest.mark.parametrize(
    ("form", "fields", "asked", "back"),
    [
        ("resume", {}, ("POST", f"{WATCH}/resume", None), "/ui/leaks"),
        ("brake", {"reason": "maintenance"}, ("POST", f"{WATCH}/brake", {"reason": "maintenance"}), "/ui/leaks"),
        ("hold", {"hold": "public"}, ("POST", f"{WATCH}/holds", {"hold": "public"}), "/ui/leaks"),
        ("hold", {"hold": "7", "ledger": "7"}, ("POST", f"{WATCH}/holds", {"hold": "7"}), "/ui/leaks/ledger?id=7"),
        ("release-hold", {"hold": "a/b"}, ("DELETE", f"{WATCH}/holds?hold=a%2Fb", None), "/ui/leaks"),
        ("append", {"ledger": "7"}, ("POST", f"{WATCH}/leaks/7/append", None), "/ui/leaks/ledger?id=7"),
        (
            "append",
            {"ledger": "7", "attempt": ATTEMPT},
            ("POST", f"{WATCH}/leaks/7/append?offloadAttempt={ATTEMPT}", None),
            "/ui/leaks/ledger?id=7",
        ),
    ],
)
def test_each_action_asks_the_rest_api_once(
    form: str, fields: dict[str, str], asked: tuple[str, str, object], back: str, leaks: FakeBrowser
) -> None:
    method, target, body = asked
    leaks.api.answers[f"{method} {target.partition('?')[0]}"] = WatchOrders(None, ())
    answer = leaks.post(f"/ui/leaks/{form}", fields)
    assert (answer.status, answer.header("location")) == (303, back)
    assert leaks.api.calls(method) == [(target, body)]


def test_a_refused_action_is_shown_with_the_reason(leaks: FakeBrowser) -> None:
    leaks.api.answers[f"POST {WATCH}/leaks/7/append"] = (409, {"reason": "ledger 7 is kept, not leaked"})
    leaks.post("/ui/leaks/append", {"ledger": "7"})
    assert "Nothing was done (409): ledger 7 is kept, not leaked" in leaks.get("/ui/leaks/ledger?id=7").words
    assert leaks.post("/ui/leaks/append", {"ledger": "x"}).status == 400
    assert leaks.post("/ui/leaks/resume", {"form": "of another site"}).status == 403


def test_page_of_one_ledger(leaks: FakeBrowser) -> None:
    shown = leaks.get("/ui/leaks/ledger?id=7")
    assert "it may be deleted, and is not appended" in shown.words
    assert "pulsar-sidecar ledger-deletion watch append 7" in shown.words
    other = leaks.get("/ui/leaks/ledger?id=9")
    assert "not leaked" in other.words
    assert "watch append" not in other.words
    refused = leaks.get("/ui/leaks/ledger?id=seven")
    assert refused.status == 400
    assert "seven&#39; is no ledger id" in refused.text


def test_a_ledgers_copies_in_tiered_storage(leaks: FakeBrowser) -> None:
    copy = leak(9, offload_attempt=UUID(ATTEMPT))
    leaks.api.answers[f"GET {WATCH}/leaks/9"] = leak_explanation(9, None, copy)
    shown = leaks.get("/ui/leaks/ledger?id=9")
    assert "Copies in tiered storage" in shown.words
    assert f"{ATTEMPT} ▲ leaked trim" in shown.words
    assert f"watch append 9 --offload-attempt={ATTEMPT}" in shown.words
    leaks.api.answers[f"GET {WATCH}/leaks"] = listed_leaks(copy)
    leaks.api.answers[f"GET {WATCH}"] = watch_status(unsought_copies={"s3://b is not in offloadAllowedLocations": 3})
    leaks.clock.advance_ms(10_000)
    shown = leaks.get("/ui/leaks")
    assert "9 in tiered storage" in shown.words
    assert "Not searched for: 3 copies in tiered storage" in shown.words
    assert "s3://b is not in offloadAllowedLocations" in shown.words
