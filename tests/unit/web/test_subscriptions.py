"""The pages of subscriptions."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.web.pages.subscription_views import strip_of

from tests.fakes.clock import START_MS
from tests.fakes.rest_door import FakeBrowser
from tests.unit.web.answers import slowest_loads, stored_state, stored_states, stuck_cursors
from tests.unit.web.test_delayed import HOSTILE, ORDERS, PLACE

STORED = "GET /admin/v2/storedAckStates"
STUCK = "GET /admin/v2/deduplication/stuck"
LOADS = "GET /admin/v2/deduplication/forecast"
PAGE = f"/ui/subscriptions/topic?topic={quote(ORDERS, safe='')}"
CURSOR = {
    "topic": HOSTILE,
    "reason": "lags",
    "because": "no snapshot was taken for long",
    "certain": False,
    "since": {"entries": 25_000, "sizeBytes": 2048},
    "heldBytes": 4096,
    "freedBytes": None,
    "remedy": "pulsar-admin topics stats '<x>'",
}
LOAD = {"topic": ORDERS, "replay": {"entries": 900_000, "sizeBytes": 2**30}, "seconds": 75.04, "timesOut": True}


@pytest.fixture
def many(browser: FakeBrowser) -> FakeBrowser:
    browser.door.answers |= {
        STORED: stored_states(
            stored_state(HOSTILE, fullness="full", ranges=10_001, subscription="<b>"),
            stored_state(ORDERS, fullness="nearly full", pauseEnabled=True),
        ),
        STUCK: stuck_cursors(CURSOR),
        LOADS: slowest_loads(LOAD),
    }
    return browser


def test_the_full_ones_come_with_a_word_and_a_strip(many: FakeBrowser) -> None:
    shown = many.get("/ui/subscriptions")
    assert shown.status == 200
    assert "full: acknowledgements are lost 10,001 0 12" in shown.words
    assert "nearly full: dispatch will pause 4 9,996 12" in shown.words
    assert "1 to 50 of 10,000" in shown.words
    assert 'd="M1 100v-100h1v100zM2 100v-8h1v8z"' in shown.text
    assert "7 of 19 entries beyond the position are acknowledged" in shown.text
    assert "&lt;img src=x" in shown.text
    assert "<img" not in shown.text
    assert "<b>" not in shown.text


def test_deduplication_is_beside_it(many: FakeBrowser) -> None:
    shown = many.get("/ui/subscriptions").words
    assert "1 stuck They hold 2.0 KiB" in shown
    assert "lags (no snapshot was taken for long, not certain) 25,000 4.0 KiB unknown" in shown
    assert "900,000 1.0 GiB 75.0 s ✕ times out" in shown
    assert "Brokers give a load 60 seconds" in shown


@pytest.mark.parametrize(
    ("query", "asked"),
    [
        ("", "/admin/v2/storedAckStates?offset=0&limit=50"),
        ("?show=full", "/admin/v2/storedAckStates?fullness=full&offset=0&limit=50"),
        ("?show=nearly+full&offset=100", "/admin/v2/storedAckStates?fullness=nearly+full&offset=100&limit=50"),
        ("?show=holes&contains=%3Cb%3E", "/admin/v2/storedAckStates?holes=true&contains=%3Cb%3E&offset=0&limit=50"),
        ("?scope=public", "/admin/v2/tenants/public/storedAckStates?offset=0&limit=50"),
        ("?show=other&offset=x", "/admin/v2/storedAckStates?offset=0&limit=50"),
    ],
)
def test_filters_and_pages_live_in_the_address(many: FakeBrowser, query: str, asked: str) -> None:
    many.door.answers["GET /admin/v2/tenants/public/storedAckStates"] = stored_states()
    assert many.get(f"/ui/subscriptions{query}").status == 200
    assert asked in [target for target, _ in many.door.calls("GET")]


def test_the_command_has_the_filters_of_the_page(many: FakeBrowser) -> None:
    shown = many.get("/ui/subscriptions?show=holes&contains=it%27s&offset=50").words
    assert (
        "pulsar-sidecar subscriptions fullest &#39;--contains=it&#39;&#34;&#39;&#34;&#39;s&#39; --holes --offset=50"
        in shown
    )


def test_what_cannot_be_read_is_shown_as_that(many: FakeBrowser) -> None:
    many.door.answers[STORED] = (503, {"reason": "the metadata store does not answer"})
    many.door.answers[STUCK] = (503, {"reason": "no broker answers"})
    many.door.answers[LOADS] = {**slowest_loads(), "unreadable": ["orders: <i>"] * 30}
    shown = many.get("/ui/subscriptions")
    assert shown.status == 200
    for words in ("the metadata store does not answer", "no broker answers", "not read orders:", "20 of 30"):
        assert words in shown.words


@pytest.fixture
def topic(browser: FakeBrowser) -> FakeBrowser:
    snapshot = {"position": "7:3", "coveredUntilMs": START_MS, "names": 2}
    amount = {"entries": 12, "sizeBytes": 100}
    deduplication = {
        "topic": ORDERS,
        "decision": {"enabled": True, "reason": "by the broker"},
        "snapshot": snapshot,
        "since": amount,
        "replaySeconds": 0.04,
        "held": {"ledgers": [1], "sizeBytes": 2048},
        "problem": None,
    }
    unknown = {**deduplication, "snapshot": None, "since": None, "replaySeconds": None, "held": None, "problem": "<i>"}
    unknown["decision"] = {"enabled": None, "reason": "no broker answers"}
    browser.door.answers |= {
        f"GET {PLACE}/storedAckStates": stored_states(stored_state(ORDERS)),
        f"GET {PLACE}/deduplication": [deduplication, unknown],
    }
    return browser


def asked_broker(browser: FakeBrowser) -> bool:
    return any(target.endswith("stretches=60") for target, _ in browser.door.calls("GET"))


def test_a_topic_is_shown_without_loading_it(topic: FakeBrowser) -> None:
    shown = topic.get(PAGE)
    assert (shown.status, asked_broker(topic)) == (200, False)
    assert "This loads the topic" in shown.words
    assert "7:3 2023-11-14 22:13:20 UTC" in shown.words
    assert "&lt;i&gt;" in shown.text


def test_the_subscriptions_of_many_partitions_come_in_pages(topic: FakeBrowser) -> None:
    shown = topic.get(f"{PAGE}&offset=9950")
    assert f"{PLACE}/storedAckStates?offset=9950&limit=50" in [target for target, _ in topic.door.calls("GET")]
    assert "9,951 to 10,000 of 10,000" in shown.words
    assert "offset=9900" in shown.text


def state(**changed: Any) -> dict[str, Any]:
    lost = {"entries": 9, "rangeCount": 4, "ranges": ["6:43", "6:45", "6:47"]}
    return {
        "topic": ORDERS,
        "subscription": "billing",
        "type": None,
        "pause": "in force",
        "nonContiguousDeletedMessagesRanges": 12_000,
        "entryBytes": 6_000_000,
        "maxEntryBytes": 5_253_056,
        "nextWrite": "metadata store",
        "loadable": True,
        "maxUnackedRangesToPersist": 10_000,
        "afterCrash": lost,
        "afterUnload": {"entries": 0, "rangeCount": 0, "ranges": []},
        "unackedMessages": 4,
        **changed,
    }


def test_the_broker_is_asked_only_on_request(topic: FakeBrowser) -> None:
    topic.door.answers[f"GET {PLACE}/ackState"] = [
        state(),
        state(pause="unknown", nextWrite=None),
        state(pause="armed", type="Shared", loadable=False),
    ]
    shown = topic.get(f"{PAGE}&ask=broker")
    assert asked_broker(topic)
    for words in ("paused 12,000 of 10,000", "may be paused", "continues (pause: armed)", "6:43, 6:45, 6:47, ..."):
        assert words in shown.words
    for words in ("too large for an entry 5.7 MiB of 5.0 MiB", "fits nowhere", "cannot be loaded again"):
        assert words in shown.words


def test_a_topic_that_does_not_exist_is_a_page_with_the_reason(browser: FakeBrowser) -> None:
    browser.door.answers[f"GET {PLACE}/storedAckStates"] = (404, {"reason": f"there is no topic {ORDERS}"})
    assert browser.get(PAGE).status == 404


@given(st.lists(st.integers(0, 100), max_size=60))
def test_a_strip_shows_each_part_that_is_not_nothing(percentages: list[int]) -> None:
    strip = strip_of(percentages, 1, 1)
    assert strip.path.count("M") == sum(1 for share in percentages if share)
    assert strip.width >= 1


def test_subscriptions_and_cursors_of_brokers_topics_are_behind_headings(many: FakeBrowser) -> None:
    own = "persistent://public/default/__change_events"
    many.door.answers[STORED] = stored_states(stored_state(own), stored_state(ORDERS, fullness="nearly full"))
    many.door.answers[STUCK] = stuck_cursors({**CURSOR, "topic": own}, CURSOR)
    many.door.answers[LOADS] = slowest_loads({**LOAD, "topic": own, "timesOut": False}, {**LOAD, "timesOut": False})
    shown = many.get("/ui/subscriptions")
    assert shown.words.count("System topics (1)") == 3
    assert shown.text.count('<details class="system" open>') == 1  # what is stuck
    assert shown.words.index(f"{ORDERS} billing") < shown.words.index(f"{own} billing")
