"""The pages of subscriptions."""

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.pages import strip_of
from pulsar_sidecar.features.acknowledgements.results import AckState, Fullness, PauseState, Redelivery, StoredPlace
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.acknowledging_broker import state_of
from tests.fakes.rest_api import FakeBrowser
from tests.unit.web.answers import HOSTILE, stored_state, stored_states
from tests.unit.web.test_delayed import ORDERS, PLACE

STORED = "GET /admin/v2/storedAckStates"
PAGE = f"/ui/subscriptions/topic?topic={quote(ORDERS, safe='')}"


@pytest.fixture
def many(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers |= {
        STORED: stored_states(
            stored_state(HOSTILE, fullness=Fullness.FULL, ranges=10_001, subscription="<b>"),
            stored_state(ORDERS, fullness=Fullness.NEARLY_FULL, pause_enabled=True),
        ),
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
    many.api.answers["GET /admin/v2/tenants/public/storedAckStates"] = stored_states()
    assert many.get(f"/ui/subscriptions{query}").status == 200
    assert asked in [target for target, _ in many.api.calls("GET")]


def test_the_command_has_the_filters_of_the_page(many: FakeBrowser) -> None:
    shown = many.get("/ui/subscriptions?show=holes&contains=it%27s&offset=50").words
    assert (
        "pulsar-sidecar subscriptions fullest &#39;--contains=it&#39;&#34;&#39;&#34;&#39;s&#39; --holes --offset=50"
        in shown
    )


def test_unreadable_subscriptions_are_shown_as_unreadable(many: FakeBrowser) -> None:
    many.api.answers[STORED] = (503, {"reason": "the metadata store does not respond"})
    shown = many.get("/ui/subscriptions")
    assert shown.status == 200
    assert "the metadata store does not respond" in shown.words


@pytest.fixture
def topic(browser: FakeBrowser) -> FakeBrowser:
    browser.api.answers[f"GET {PLACE}/storedAckStates"] = stored_states(stored_state(ORDERS))
    return browser


def asked_broker(browser: FakeBrowser) -> bool:
    return any(target.endswith("stretches=60") for target, _ in browser.api.calls("GET"))


def test_a_topic_is_shown_without_loading_it(topic: FakeBrowser) -> None:
    shown = topic.get(PAGE)
    assert (shown.status, asked_broker(topic)) == (200, False)
    assert "This loads the topic" in shown.words


def test_the_subscriptions_of_many_partitions_come_in_pages(topic: FakeBrowser) -> None:
    shown = topic.get(f"{PAGE}&offset=9950")
    assert f"{PLACE}/storedAckStates?offset=9950&limit=50" in [target for target, _ in topic.api.calls("GET")]
    assert "9,951 to 10,000 of 10,000" in shown.words
    assert "offset=9900" in shown.text


def state(**changed: Any) -> AckState:
    found = state_of(parse_topic_name(ORDERS), "billing")
    return replace(found, **{"after_crash": Redelivery(9, 9, ("6:43", "6:45", "6:47")), **changed})


def test_the_broker_is_asked_only_on_request(topic: FakeBrowser) -> None:
    topic.api.answers[f"GET {PLACE}/ackState"] = [
        state(entry_bytes=6_000_000, next_write=StoredPlace.METADATA_STORE),
        state(pause=PauseState.UNKNOWN, next_write=None),
        state(pause=PauseState.ARMED, loadable=False),
    ]
    shown = topic.get(f"{PAGE}&ask=broker")
    assert asked_broker(topic)
    for words in ("paused 30 of 20", "may be paused", "continues (pause: armed)", "6:43, 6:45, 6:47, ..."):
        assert words in shown.words
    for words in ("too large for an entry 5.7 MiB of 5.0 MiB", "fits nowhere", "cannot be loaded again"):
        assert words in shown.words


def test_a_topic_that_does_not_exist_is_a_page_with_the_reason(browser: FakeBrowser) -> None:
    browser.api.answers[f"GET {PLACE}/storedAckStates"] = (404, {"reason": f"there is no topic {ORDERS}"})
    assert browser.get(PAGE).status == 404


@given(st.lists(st.integers(0, 100), max_size=60))
def test_a_strip_shows_each_part_that_is_not_nothing(percentages: list[int]) -> None:
    strip = strip_of(percentages, 1, 1)
    assert strip.path.count("M") == sum(1 for share in percentages if share)
    assert strip.width >= 1


def test_subscriptions_of_brokers_topics_are_behind_a_heading(many: FakeBrowser) -> None:
    own = "persistent://public/default/__change_events"
    many.api.answers[STORED] = stored_states(stored_state(own), stored_state(ORDERS, fullness=Fullness.NEARLY_FULL))
    shown = many.get("/ui/subscriptions")
    assert shown.words.count("System topics (1)") == 1
    assert shown.words.index(f"{ORDERS} billing") < shown.words.index(f"{own} billing")
