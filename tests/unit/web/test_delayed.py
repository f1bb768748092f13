"""The pages of delayed messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.delayed_index.results.inspection import DueTime, IndexView, Tracker, TrackerState
from pulsar_sidecar.features.delayed_messages import pages as cancelling
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    MessageOutcome,
    Preview,
    RescheduleResult,
    SelectedMessage,
    Verdict,
)
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.web.scopes import is_system

from tests.fakes.clock import START_MS
from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import HOSTILE, bucket, calendar, check_report, delayed_index, due_counts

ORDERS = "persistent://public/default/orders"
PLACE = "/admin/v2/persistent/public/default/orders"
CALENDAR = "GET /admin/v2/delayedCalendar"
PREVIEW = Preview(
    2,
    "ab" * 32,
    START_MS,
    START_MS + 60_000,
    0,
    0,
    {"dueFrom": START_MS, "key": "ü <b>", "publishedBefore": START_MS},
    (SelectedMessage(ORDERS, 7, 1, START_MS, "<b>"),),
)


def outcome(status: CancellationStatus, reason: str | None = None) -> MessageOutcome:
    cancelled = status is CancellationStatus.ACKED
    return MessageOutcome(None, "7:1", ORDERS, cancelled, (Verdict("billing", status, None, reason),), ())


@pytest.fixture
def topic(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers |= {
        f"GET {PLACE}/delayedCalendar": calendar(due_counts(ORDERS)),
        f"GET {PLACE}/delayedIndex": [delayed_index(ORDERS, bucket())],
        f"POST {PLACE}/delayedMessages/preview": PREVIEW,
    }
    browser.get("/ui/")
    return browser


def page_of(name: str, more: str = "") -> str:
    return f"/ui/delayed/topic?topic={name.replace('/', '%2F')}{more}"


def test_the_calendar_shows_when_and_where(browser: FakeBrowser) -> None:
    unknown = due_counts("persistent://public/default/gone", problem="no bookie answers")
    browser.api.answers[CALENDAR] = calendar(due_counts(ORDERS), unknown, due_counts(HOSTILE, delayed=0))
    shown = browser.get("/ui/delayed")
    assert shown.status == 200
    assert "Messages in 1 hour, UTC, due up to 5 minutes later than shown" in shown.words
    assert "12,000" in shown.words
    assert shown.words.index("no bookie answers") < shown.words.index(f"{ORDERS} billing 10 0")
    assert "<img" not in shown.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in shown.text
    assert "2023-11-14 22:14:20 UTC in 1 minute" in shown.words
    assert "pulsar-sidecar delayed-index calendar" in shown.words


@pytest.mark.parametrize("due_ms", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_due_time_that_no_calendar_has_breaks_no_page(browser: FakeBrowser, due_ms: int) -> None:
    """A producer may give any ``deliverAt``."""
    far = due_counts(ORDERS, first_due_ms=due_ms, last_due_ms=due_ms)
    browser.api.answers[CALENDAR] = calendar(far, times=(DueTime(due_ms, 1),))
    shown = browser.get("/ui/delayed")
    assert shown.status == 200
    assert f"{ORDERS} billing 10 0 {due_ms} ms" in shown.words
    assert f'aria-label="Messages by due time. {due_ms} ms: 1 message"' in shown.text


@pytest.mark.parametrize(
    ("scope", "path"),
    [
        ("public", "/admin/v2/tenants/public"),
        ("public/default", "/admin/v2/namespaces/public/default"),
        (ORDERS, PLACE),
        ("persistent://p/c/n/t", "/admin/persistent/p/c/n/t"),
        ("a%20b/c", "/admin/v2/namespaces/a%2520b/c"),
    ],
)
def test_the_address_has_the_scope(browser: FakeBrowser, scope: str, path: str) -> None:
    browser.api.answers[f"GET {path}/delayedCalendar"] = calendar()
    shown = browser.get(f"/ui/delayed?scope={scope.replace('%', '%25')}")
    assert (shown.status, "No subscriptions." in shown.words) == (200, True)


@pytest.mark.parametrize("scope", ["a//b", "/", "non-persistent://a/b/c", "a/..", "a/b/c/d/e://f"])
def test_invalid_scope_is_refused(browser: FakeBrowser, scope: str) -> None:
    assert browser.get(f"/ui/delayed?scope={scope}").status == 400


def test_rows_are_paged_and_only_read_once(browser: FakeBrowser) -> None:
    browser.api.answers[CALENDAR] = calendar(*(due_counts(f"{ORDERS}-{i:05}") for i in range(10_000)))
    first, last = browser.get("/ui/delayed"), browser.get("/ui/delayed?offset=9950")
    assert "1 to 50 of 10,000" in first.words
    assert "9,951 to 10,000 of 10,000" in last.words
    assert (first.text.count("<tr>"), last.text.count(f"{ORDERS}-0999")) > (50, 0)
    assert len([target for target, _ in browser.api.calls("GET") if "delayedCalendar" in target]) == 1


def test_unreadable_parts_are_shown(browser: FakeBrowser) -> None:
    browser.api.answers[CALENDAR] = (503, {"reason": "the metadata store does not respond"})
    shown = browser.get("/ui/delayed")
    assert (shown.status, "Could not be read the metadata store does not respond" in shown.words) == (200, True)


def test_a_topic_has_buckets_and_their_health(topic: FakeBrowser) -> None:
    shown = topic.get(page_of(ORDERS))
    assert "all buckets readable" in shown.words
    assert "7 to 8 100 CLOSED 0 2 1" in shown.words
    assert "Check the buckets" in shown.words
    assert not any("fsck" in target or "preview" in target for target, _ in topic.api.calls("GET"))


@pytest.mark.parametrize(
    ("index", "word"),
    [
        (delayed_index(ORDERS), "no buckets"),
        (
            delayed_index(ORDERS, bucket(problem="its ledger is gone", size_bytes=None, state=None)),
            "a bucket has a problem",
        ),
        (delayed_index(ORDERS, buckets=None, problem="the cursor cannot be read"), "the cursor cannot be read"),
        (delayed_index(ORDERS, next_load=TrackerState(Tracker.BROKEN, "r")), "would stop delivering"),
        (
            delayed_index(ORDERS, bucket(start_ledger_id=None, first_due_ms=None, segments=None)),
            "unknown 100",
        ),
    ],
)
def test_a_state_has_a_word(topic: FakeBrowser, index: IndexView, word: str) -> None:
    topic.api.answers[f"GET {PLACE}/delayedIndex"] = [index]
    assert word in topic.get(page_of(ORDERS)).words


def test_the_indexes_of_many_partitions_come_in_pages_those_with_problems_first(topic: FakeBrowser) -> None:
    broken = delayed_index(f"{ORDERS}-partition-40", buckets=None, problem="the cursor cannot be read")
    sound = [delayed_index(f"{ORDERS}-partition-{number}", bucket()) for number in range(40)]
    topic.api.answers[f"GET {PLACE}/delayedIndex"] = [*sound, broken]
    first, last = topic.get(page_of(ORDERS)), topic.get(f"{page_of(ORDERS)}&offset=40")
    assert first.words.index("partition-40 ✕ could not be read") < first.words.index("partition-0 ✓")
    assert "1 to 20 of 41" in first.words
    assert "partition-39" in last.words
    assert "partition-38" not in last.words


def test_forms_send_a_name_back_as_it_is(topic: FakeBrowser) -> None:
    name, place = f"{ORDERS}\u202e", f"{PLACE}%E2%80%AE"
    topic.api.answers |= {
        f"GET {place}/delayedCalendar": calendar(due_counts(name)),
        f"GET {place}/delayedIndex": [],
    }
    shown = topic.get(page_of(f"{ORDERS}%E2%80%AE"))
    assert shown.text.count(f'<input type="hidden" name="topic" value="{name}">') == 4  # three acts and a check
    assert "cancel-delayed-messages $&#39;persistent://public/default/orders\\u202e&#39; --due-from" in shown.text


def test_unreadable_index_is_not_shown_as_absent(topic: FakeBrowser) -> None:
    topic.api.answers[f"GET {PLACE}/delayedIndex"] = (503, {"reason": "no bookie answers"})
    shown = topic.get(page_of(ORDERS)).words
    assert "Could not be read no bookie answers" in shown
    assert "No durable subscription" not in shown


def test_the_buckets_are_compared_when_that_is_asked_for(topic: FakeBrowser) -> None:
    topic.api.answers[f"GET {PLACE}/delayedIndex/fsck"] = check_report(ORDERS, "<b>gone</b>")
    shown = topic.get(page_of(ORDERS, "&check=yes"))
    assert "1 finding 1 bucket, 200 messages compared" in shown.words
    assert "&lt;b&gt;gone&lt;/b&gt;" in shown.text


def test_a_topic_that_does_not_exist_is_a_page_with_the_reason(browser: FakeBrowser) -> None:
    browser.api.answers[f"GET {PLACE}/delayedCalendar"] = (404, {"reason": f"there is no topic {ORDERS}"})
    shown = browser.get(page_of(ORDERS))
    assert (shown.status, f"there is no topic {ORDERS}" in shown.words) == (404, True)


# --- acts ----------------------------------------------------------------------------------------------------------


def test_a_selection_is_previewed_and_then_cancelled_by_its_hash(topic: FakeBrowser) -> None:
    fields = {"topic": ORDERS, "due_from": "2023-11-14T22:13", "property": "customer=4711", "subscriptions": "a, b"}
    shown = topic.post("/ui/delayed/topic/preview", fields)
    assert topic.api.calls("POST")[-1][1] == {
        "dueFrom": 1_699_999_980_000,
        "properties": {"customer": "4711"},
        "subscriptionNames": ["a", "b"],
    }
    assert (shown.status, "Cancel these 2 messages" in shown.words) == (200, True)
    assert "cancel-delayed-messages persistent://public/default/orders --due-from 1699999980000" in shown.words
    topic.api.answers[f"POST {PLACE}/delayedMessages/cancel"] = [outcome(CancellationStatus.ACKED)] * 2
    selection = json.dumps(PREVIEW.selection, ensure_ascii=False)
    confirmed = {"topic": ORDERS, "hash": PREVIEW.hash, "selection": selection}
    done = topic.post("/ui/delayed/topic/cancel", confirmed)
    assert (done.status, done.header("location")) == (303, page_of(ORDERS).replace(":", "%3A"))
    assert topic.api.calls("POST")[-1][1] == {**PREVIEW.selection, "hash": PREVIEW.hash}
    assert "cancelled 2 of 2 messages" in topic.get(page_of(ORDERS)).words


def test_a_refused_selection_cancels_nothing(topic: FakeBrowser) -> None:
    topic.api.answers[f"POST {PLACE}/delayedMessages/cancel"] = (409, {"reason": "the selection finds 3 messages now"})
    topic.post("/ui/delayed/topic/cancel", {"topic": ORDERS, "hash": "x", "selection": "{}"})
    assert "the selection finds 3 messages now" in topic.get(page_of(ORDERS)).words
    topic.api.answers[f"POST {PLACE}/delayedMessages/preview"] = (403, {"reason": "role 'guest' may not do this"})
    assert topic.post("/ui/delayed/topic/preview", {"topic": ORDERS, "key": "k"}).status == 403


def test_a_selection_that_no_preview_made_is_refused(topic: FakeBrowser) -> None:
    for selection in ("", "[]", "{", "[" * 100_000):
        assert (
            topic.post("/ui/delayed/topic/cancel", {"topic": ORDERS, "hash": "x", "selection": selection}).status == 400
        )
    assert topic.api.calls("POST") == []


def test_a_long_refusal_in_any_script_is_short_enough_for_a_cookie(topic: FakeBrowser) -> None:
    topic.api.answers[f"POST {PLACE}/delayedMessages/cancel"] = (409, {"reason": "消息已被别的选择取消 " * 500})
    topic.post("/ui/delayed/topic/cancel", {"topic": ORDERS, "hash": "x", "selection": "{}"})
    assert all(len(name) + len(value) < 4_000 for name, value in topic.cookies.items())
    assert "消息已被别的选择取消" in topic.get(page_of(ORDERS)).words


def test_a_message_is_expedited_or_rescheduled(topic: FakeBrowser) -> None:
    done = outcome(CancellationStatus.ACKED)
    topic.api.answers[f"POST {PLACE}/expediteDelayedMessage"] = RescheduleResult("9:0:-1", None, done)
    topic.api.answers[f"POST {PLACE}/rescheduleDelayedMessage"] = RescheduleResult("9:1:-1", 1_798_135_200_000, done)
    topic.post("/ui/delayed/topic/expedite", {"topic": ORDERS, "message": "7:1"})
    assert "published again as 9:0:-1; the original is cancelled" in topic.get(page_of(ORDERS)).words
    topic.post("/ui/delayed/topic/reschedule", {"topic": ORDERS, "message": "7:1", "due": "2026-12-24T18:00"})
    assert [body for _, body in topic.api.calls("POST")] == [
        {"ledgerId": 7, "entryId": 1},
        {"ledgerId": 7, "entryId": 1, "newDeliverAt": 1_798_135_200_000},
    ]
    assert 'value="7:1"' in topic.get(page_of(ORDERS, "&message=7%3A1")).text


@pytest.mark.parametrize(
    ("act", "fields"),
    [
        ("preview", {"topic": ORDERS, "due_from": "tomorrow"}),
        ("preview", {"topic": ORDERS, "property": "customer"}),
        ("preview", {"topic": "a/b"}),
        ("expedite", {"topic": ORDERS, "message": "7"}),
        ("expedite", {"topic": ORDERS, "message": "7:-1"}),
        ("reschedule", {"topic": ORDERS, "message": "7:1", "due": ""}),
        ("reschedule", {"topic": ORDERS, "message": "7:1", "due": "soon"}),
    ],
)
def test_bad_input_changes_nothing(topic: FakeBrowser, act: str, fields: dict[str, str]) -> None:
    assert topic.post(f"/ui/delayed/topic/{act}", fields).status == 400
    assert topic.api.calls("POST") == []


def test_outcome_is_summarized_in_one_sentence() -> None:
    late = outcome(CancellationStatus.TOO_LATE, "too late")
    assert cancelling.cancelled_words([late]) == ("warn", "cancelled 0 of 1 message; the others not: too late")
    unpublished = RescheduleResult(None, None, late)
    assert cancelling.reissued_words(unpublished) == ("bad", "the sidecar knows of no copy: too late")


@given(st.text(max_size=30))
def test_any_text_is_a_time_or_an_error(text: str) -> None:
    try:
        assert isinstance(cancelling.utc_ms(text), int)
    except InvalidInputError:
        return


@given(st.dictionaries(st.sampled_from(["due_from", "due_to", "key", "property", "subscriptions"]), st.text()))
def test_any_form_is_a_selection_or_an_error(form: dict[str, str]) -> None:
    try:
        body, _ = cancelling.selection_of(parse_topic_name(ORDERS), form)
    except InvalidInputError:
        return
    assert set(body) <= {"dueFrom", "dueTo", "key", "properties", "subscriptionNames"}


def test_topics_of_brokers_are_behind_a_heading_after_those_of_users(browser: FakeBrowser) -> None:
    own = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
    browser.api.answers[CALENDAR] = calendar(due_counts(own, delayed=500), due_counts(ORDERS))
    shown = browser.get("/ui/delayed")
    assert shown.words.index(ORDERS) < shown.words.index("System topics (1)") < shown.words.index(own)
    assert '<details class="system">' in shown.text
    browser.api.answers[CALENDAR] = calendar(due_counts(own, problem="no bookie answers"), due_counts(ORDERS))
    browser.clock.advance_ms(60_000)
    assert '<details class="system" open>' in browser.get("/ui/delayed").text
    browser.api.answers[CALENDAR] = calendar(due_counts(own))
    browser.clock.advance_ms(60_000)
    assert '<details class="system" open>' in browser.get("/ui/delayed").text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("persistent://pulsar/system/__ledger_deletion-partition-3", True),
        ("persistent://public/default/__change_events", True),
        (ORDERS, False),
        ("pulsar/system", True),
        ("pulsar/127.0.0.1:8080", True),
        ("public/default", False),
        ("public", False),
        ("no topic://", False),
        (None, False),
    ],
)
def test_topics_and_namespaces_of_brokers_are_told_apart(name: str | None, expected: bool) -> None:
    assert is_system(name) is expected
