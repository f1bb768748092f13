"""Survey of full subscriptions, from stored state."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.acknowledgements.results import Fullness, StoredAckState
from pulsar_sidecar.features.acknowledgements.survey import fullness_of, percentage
from pulsar_sidecar.features.acknowledgements.workflow import SURVEYED_SECONDS
from pulsar_sidecar.model.names import TopicName, encode_cursor, parse_topic_name
from pulsar_sidecar.model.topic_stats import DEDUPLICATION_CURSOR
from pulsar_sidecar.ownership.paths import cursor_path

from tests.fakes.stored_ack_states import FOUR, ORDERS, StoredHoles

ELSEWHERE = parse_topic_name("persistent://public/elsewhere/bills")
OTHER_TENANT = parse_topic_name("persistent://shop/front/carts")


@pytest.fixture
def holes() -> StoredHoles:
    return StoredHoles()


def only(holes: StoredHoles) -> StoredAckState:
    (state,) = holes.surveyor.survey(None).states
    return state


def test_the_namespace_overrides_the_brokers(holes: StoredHoles) -> None:
    holes.cursor("billing", (1, 0))
    holes.pauses["public/default"] = False
    state = only(holes)
    assert (state.fullness, state.pause_enabled, state.ranges) == (Fullness.FITS, False, 0)


def test_the_fullest_come_first_and_brokers_own_cursors_are_left_out(holes: StoredHoles) -> None:
    holes.cursor("none", (2, 9))
    holes.cursor("behind", (1, -1))
    holes.cursor("some", (1, 1), FOUR[1:3])
    holes.cursor("full", (1, 0), FOUR)
    for own in (DEDUPLICATION_CURSOR, "pulsar.repl.west"):
        holes.cursor(own, (1, 3))
    names = [state.subscription for state in holes.surveyor.survey("public/default").states]
    assert names == ["full", "some", "behind", "none"]


@pytest.mark.parametrize(
    ("scope", "topics"),
    [
        (None, [ORDERS, ELSEWHERE, OTHER_TENANT]),
        ("public", [ORDERS, ELSEWHERE]),
        ("public/elsewhere", [ELSEWHERE]),
        (OTHER_TENANT, [OTHER_TENANT]),
    ],
)
def test_the_scope_is_a_topic_a_namespace_a_tenant_or_all(
    holes: StoredHoles, scope: TopicName | str | None, topics: list[TopicName]
) -> None:
    for topic in (ORDERS, ELSEWHERE, OTHER_TENANT):
        holes.cursor("s", (1, 0), of=topic)
    found = holes.surveyor.survey(scope)
    assert {state.topic for state in found.states} == {str(topic) for topic in topics}
    assert (found.topics, found.limit, found.as_of_ms) == (len(topics), 3, 5_000)


def test_unreadable_states_are_named(holes: StoredHoles) -> None:
    holes.cursor("billing", (1, 0), FOUR)
    holes.cursors.unreadable = "the bookie does not respond"
    found = holes.surveyor.survey(None)
    assert (found.states, found.unreadable) == ((), (f"{ORDERS} billing: the bookie does not respond",))
    assert holes.cursors.asked == 3, "a cursor may just have moved to another ledger"
    holes.cursors.unreadable, holes.lengths.unreadable = None, "ledger 2 cannot be measured"
    assert holes.surveyor.survey(None).unreadable == (f"{ORDERS}: ledger 2 cannot be measured",)


def test_bytes_that_cannot_be_understood_are_named(holes: StoredHoles) -> None:
    holes.topic()
    holes.store.put(cursor_path(ORDERS.managed_ledger_name, encode_cursor("billing")), b"\xff")
    (reason,) = holes.surveyor.survey(None).unreadable
    assert reason.startswith(f"{ORDERS} billing: ")


def test_a_survey_is_remembered_for_some_seconds(holes: StoredHoles) -> None:
    holes.cursor("billing", (1, 0))
    first = holes.surveys.survey("public")
    holes.cursor("other", (1, 1))
    holes.clock.advance_ms(int(SURVEYED_SECONDS * 1000) - 1)
    assert holes.surveys.survey("public") is first
    assert len(holes.surveys.survey(None).states) == 2, "another scope is another survey"
    holes.clock.advance_ms(1)
    assert len(holes.surveys.survey("public").states) == 2


@pytest.mark.parametrize(
    ("ranges", "limit", "fullness"),
    [
        (0, 0, Fullness.FITS),
        (1, 0, Fullness.FULL),
        (79, 100, Fullness.FITS),
        (80, 100, Fullness.NEARLY_FULL),
        (100, 100, Fullness.NEARLY_FULL),
        (101, 100, Fullness.FULL),
    ],
)
def test_fullness(ranges: int, limit: int, fullness: Fullness) -> None:
    assert fullness_of(ranges, limit) is fullness


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_a_percentage_never_shows_something_as_nothing_or_a_part_as_all(part: int, whole: int) -> None:
    shown = percentage(part, whole)
    assert 0 <= shown <= 100
    assert (shown == 0) == (part == 0)
    assert (shown == 100) == (part >= whole)
