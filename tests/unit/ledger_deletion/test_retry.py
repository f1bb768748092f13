"""``reconsumeLater`` property for property, as a Java consumer would write it and continue with it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, Delivery
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import (
    DELAY_TIME,
    IN_USE_SINCE,
    ORIGIN_MESSAGE_ID,
    ORIGIN_MESSAGE_IDY_TIME,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    REASON,
    RECONSUMETIMES,
    RetryPolicy,
    fresh,
    in_use_since_ms,
    reconsume,
    tries,
)

POLICY = RetryPolicy(reconsume_later_ms=600_000, max_redeliver_count=10)
PENDING = "persistent://pulsar/system/__ledger_deletion"
ORIGINAL = Delivery("handle", b"payload", "key", {"mine": "1"}, "28:0:2", f"{PENDING}-partition-2", 1_000)


def again(delivery: Delivery, policy: RetryPolicy = POLICY, delay_ms: int | None = None, since: int | None = None):
    return reconsume(delivery, policy, "why", delay_ms=delay_ms, in_use_since=since)


def delivered(delivery: Delivery, message: object, message_id: str = "300:5:-1") -> Delivery:
    """The copy as it comes back from the retry topic."""
    properties = message.properties
    return replace(delivery, properties=properties, message_id=message_id, topic=f"{PENDING}-RETRY")


def test_the_first_copy_has_every_property_of_java() -> None:
    next_copy = again(ORIGINAL)
    assert next_copy.destination is DeletionTopic.RETRY
    assert next_copy.message.payload == b"payload"
    assert next_copy.message.key == "key"
    assert next_copy.message.sequence_id is None
    assert next_copy.message.deliver_after_ms == 600_000
    assert next_copy.message.properties == {
        "mine": "1",
        "REAL_TOPIC": PENDING,
        "REAL_SUBSCRIPTION": "ledger-deletion-worker",
        "ORIGIN_MESSAGE_ID": "28:0:2",
        "ORIGIN_MESSAGE_IDY_TIME": "28:0:2",
        "RECONSUMETIMES": "1",
        "DELAY_TIME": "600000",
        REASON: "why",
    }


def test_properties_are_sorted_by_name_as_in_a_tree_map() -> None:
    names = list(again(replace(ORIGINAL, properties={"z": "1", "A": "2", "a": "3"})).message.properties)
    assert names == sorted(names)


def test_a_message_of_a_java_consumer_is_continued() -> None:
    javas = {
        RECONSUMETIMES: "3",
        DELAY_TIME: "600000",
        REAL_TOPIC: "persistent://pulsar/system/__ledger_deletion",
        REAL_SUBSCRIPTION: "another-worker",
        ORIGIN_MESSAGE_ID: "1:2:-1:0",
        ORIGIN_MESSAGE_IDY_TIME: "1:2:-1:0",
        "custom": "kept",
    }
    properties = again(replace(ORIGINAL, properties=javas)).message.properties
    assert properties == javas | {RECONSUMETIMES: "4", REASON: "why"}


def test_ten_retries_then_the_dead_letter_topic() -> None:
    delivery = ORIGINAL
    for number in range(1, 11):
        next_copy = again(delivery)
        assert next_copy.destination is DeletionTopic.RETRY
        assert next_copy.message.properties[RECONSUMETIMES] == str(number)
        delivery = delivered(delivery, next_copy.message)
    last = again(delivery)
    assert last.destination is DeletionTopic.DEAD_LETTER
    assert last.message.properties[RECONSUMETIMES] == "11"
    assert last.message.properties[DELAY_TIME] == "600000"
    assert last.message.deliver_after_ms is None


@pytest.mark.parametrize(("delay_ms", "written", "after_ms"), [(5, "5", 5), (0, "0", None), (-7, "0", None)])
def test_a_delay_of_its_own(delay_ms: int, written: str, after_ms: int | None) -> None:
    message = again(ORIGINAL, delay_ms=delay_ms).message
    assert message.properties[DELAY_TIME] == written
    assert message.deliver_after_ms == after_ms


@pytest.mark.parametrize(
    ("topic", "real"),
    [
        (PENDING, PENDING),
        (f"{PENDING}-partition-13", PENDING),
        (f"{PENDING}-partition-", f"{PENDING}-partition-"),
        (f"{PENDING}-partition-x", f"{PENDING}-partition-x"),
        (f"{PENDING}-partition-1-partition-2", f"{PENDING}-partition-1"),
    ],
)
def test_partition_suffix_is_removed_from_the_real_topic(topic: str, real: str) -> None:
    assert again(replace(ORIGINAL, topic=topic)).message.properties[REAL_TOPIC] == real


@pytest.mark.parametrize("text", ["", "x", "-5", "+5", " 5", "5.0", "٣", "9" * 10, "1e3"])
def test_non_numeric_attempt_count_defaults_to_zero(text: str) -> None:
    assert tries({RECONSUMETIMES: text}) == 0
    assert tries({}) == 0
    assert tries({RECONSUMETIMES: "7"}) == 7


def test_when_it_was_first_in_use_is_carried_on() -> None:
    first = again(ORIGINAL, since=123).message.properties
    assert in_use_since_ms(first) == 123
    second = again(delivered(ORIGINAL, again(ORIGINAL, since=123).message)).message.properties
    assert in_use_since_ms(second) == 123
    for text in ("x", "-1", "9" * 19, ""):
        assert in_use_since_ms({IN_USE_SINCE: text}) is None


def test_a_long_reason_is_cut() -> None:
    properties = reconsume(ORIGINAL, POLICY, "x" * 10_000, delay_ms=None, in_use_since=None).message.properties
    assert len(properties[REASON]) == 500


def test_a_redriven_record_starts_again_and_keeps_its_origin() -> None:
    dead = delivered(ORIGINAL, again(ORIGINAL, RetryPolicy(1, 0), since=5).message)
    message = fresh(dead)
    assert message.payload == ORIGINAL.payload
    assert message.key == ORIGINAL.key
    assert message.deliver_after_ms is None
    assert message.properties == {"mine": "1", ORIGIN_MESSAGE_ID: "28:0:2", ORIGIN_MESSAGE_IDY_TIME: "28:0:2"}
    restarted = again(replace(ORIGINAL, properties=message.properties)).message.properties
    assert restarted[RECONSUMETIMES] == "1"


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), st.integers(0, 20))
def test_the_callers_properties_survive_any_number_of_tries(mine: dict[str, str], times: int) -> None:
    ours = {RECONSUMETIMES, DELAY_TIME, REASON}
    properties = again(replace(ORIGINAL, properties=mine | {RECONSUMETIMES: str(times)})).message.properties
    assert {name: value for name, value in properties.items() if name in mine and name not in ours} == {
        name: value for name, value in mine.items() if name not in ours
    }
    assert properties[RECONSUMETIMES] == str(times + 1)


@pytest.mark.parametrize("event_time_ms", [None, 1_700_000_000_123])
def test_the_event_time_travels_on(event_time_ms: int | None) -> None:
    original = replace(ORIGINAL, event_time_ms=event_time_ms)
    assert again(original).message.event_time_ms == event_time_ms
    assert fresh(original).event_time_ms == event_time_ms
