"""Names against what Java writes, and round trips over names that are hard to encode."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.names import (
    MAX_NAME_BYTES,
    TopicDomain,
    TopicName,
    encode_cursor,
    java_url_decode,
    java_url_encode,
    parse_topic_name,
    topic_of_managed_ledger,
)

ENTITIES = st.from_regex(r"\A[-=:.\w]{1,12}\Z", alphabet=st.characters(codec="ascii")).filter(
    lambda name: name not in (".", "..")
)
LOCAL_NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..") and "/" not in name
)
TOPICS = st.builds(
    TopicName, st.sampled_from(TopicDomain), ENTITIES, st.one_of(st.none(), ENTITIES), ENTITIES, LOCAL_NAMES
)


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("sub/a", "sub%2Fa"),
        ("a b", "a+b"),
        ("a+b", "a%2Bb"),
        ("50%", "50%25"),
        ("a*b-c_d.e", "a*b-c_d.e"),
        ("~", "%7E"),
        ("#", "%23"),
        ("grüße", "gr%C3%BC%C3%9Fe"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("😀", "%F0%9F%98%80"),
        ("\x00\n", "%00%0A"),
        ("a:b@c", "a%3Ab%40c"),
    ],
)
def test_encodes_as_java(text: str, encoded: str) -> None:
    assert java_url_encode(text) == encoded
    assert java_url_decode(encoded) == text
    assert encode_cursor(text) == encoded


@given(st.text(st.characters(codec="utf-8")))
def test_encoding_round_trips(text: str) -> None:
    encoded = java_url_encode(text)
    assert java_url_decode(encoded) == text
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-*_+%")


@given(TOPICS)
def test_topic_round_trips_through_every_spelling(topic: TopicName) -> None:
    assert topic_of_managed_ledger(topic.managed_ledger_name) == topic
    assert parse_topic_name(str(topic)) == topic


@given(TOPICS, st.integers(0, 2**31 - 1))
def test_a_partition_leads_back_to_its_base(topic: TopicName, index: int) -> None:
    partition = topic.partition(index)
    assert partition.partition_index == index
    assert partition.base == topic
    assert partition.schema_id == TopicName(*_fields(topic)).partition(0).schema_id


def _fields(topic: TopicName) -> tuple[TopicDomain, str, str | None, str, str]:
    return topic.domain, topic.tenant, topic.cluster, topic.namespace_portion, topic.local_name


@pytest.mark.parametrize(
    ("local_name", "index", "base"),
    [
        ("orders-partition-3", 3, "orders"),
        ("orders-partition-0", 0, "orders"),
        ("orders-partition-03", None, "orders-partition-03"),
        ("orders-partition-", None, "orders-partition-"),
        ("orders-partition-3x", None, "orders-partition-3x"),
        ("orders-partition--1", None, "orders-partition--1"),
        ("orders-partition-3\n", None, "orders-partition-3\n"),
        ("orders-partition-2147483647", 2147483647, "orders"),
        ("orders-partition-2147483648", None, "orders-partition-2147483648"),
        ("orders-partition-" + "9" * 5000, None, "orders-partition-" + "9" * 5000),
        ("orders-partition-1-partition-2", 2, "orders-partition-1"),
        ("a\nb-partition-1", 1, "a\nb"),
    ],
)
def test_partition_endings_as_java_reads_them(local_name: str, index: int | None, base: str) -> None:
    topic = TopicName(TopicDomain.PERSISTENT, "public", None, "default", local_name)
    assert topic.partition_index == index
    assert topic.base.local_name == base


def test_three_spellings_of_one_topic() -> None:
    topic = parse_topic_name("persistent://public/default/a b-partition-1")
    assert topic.managed_ledger_name == "public/default/persistent/a+b-partition-1"
    assert topic.schema_id == "public/default/a+b"


def test_a_v1_name_drops_its_cluster_from_the_schema_id_only() -> None:
    topic = parse_topic_name("persistent://pulsar/standalone/127.0.0.1:8080/healthcheck")
    assert topic.managed_ledger_name == "pulsar/standalone/127.0.0.1:8080/persistent/healthcheck"
    assert topic.schema_id == "pulsar/127.0.0.1:8080/healthcheck"
    assert topic_of_managed_ledger(topic.managed_ledger_name) == topic


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("orders", "persistent://public/default/orders"),
        ("t/n/orders", "persistent://t/n/orders"),
        ("non-persistent://t/n/orders", "non-persistent://t/n/orders"),
        ("persistent://t/n/a?b#c%d", "persistent://t/n/a?b#c%d"),
    ],
)
def test_accepts_pulsars_spellings(text: str, uri: str) -> None:
    assert str(parse_topic_name(text)) == uri


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a/b",
        "a/b/c/d",
        "http://t/n/x",
        "persistent://",
        "persistent://t/n",
        "persistent://t/n/",
        "persistent://t//x",
        "persistent://t\n/n/x",
        "persistent://../n/x",
        "persistent://t/./x",
        "persistent://t/n/..",
        "persistent://t ü/n/x",
        "persistent://t/n/\ud800",
        "persistent://t/n/" + "x" * MAX_NAME_BYTES,
    ],
)
def test_invalid_topic_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_topic_name(text)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ledger",
        "t/n/persistent",
        "t/n/queue/x",
        "t//n/persistent/x",
        "t/n/persistent/%2f",
        "t/n/persistent/100%",
        "t/n/persistent/%zz",
        "t/n/persistent/%ff",
        "t/n/persistent/~",
        "t/n/persistent/a b",
        "t/n/persistent/\ud800",
        "a/b/c/d/persistent/x",
    ],
)
def test_other_managed_ledger_names_have_no_topic(name: str) -> None:
    assert topic_of_managed_ledger(name) is None


@pytest.mark.parametrize(
    ("name", "is_system"),
    [
        ("persistent://public/default/orders", False),
        ("persistent://public/default/__change_events", True),
        ("persistent://public/default/__change_events-partition-0", True),
        ("persistent://public/default/__transaction_buffer_snapshot_segments", True),
        ("persistent://public/default/orders-s__transaction_pending_ack", True),
        ("persistent://pulsar/system/anything", True),
        ("persistent://pulsar/systems/anything", False),
        ("persistent://pulsar/broker-1:8080/healthcheck", True),
        ("persistent://pulsar/east/broker-1:8080/healthcheck", True),
        ("persistent://sla-monitor/east/broker-1:8080/t", True),
    ],
)
def test_system_topics_are_those_that_brokers_take_for_their_own(name: str, is_system: bool) -> None:
    assert parse_topic_name(name).is_system_topic is is_system
