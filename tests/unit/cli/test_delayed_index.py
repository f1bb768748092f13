"""``delayed-index``, as a person runs it."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.features.delayed_index import http
from pulsar_sidecar.features.delayed_index.inspection.counting import CalendarReader
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import encode_cursor, parse_topic_name
from pulsar_sidecar.ownership.paths import cursor_path

from tests.fakes.clock import FakeClock
from tests.fakes.delayed_index import FakeBucketEntries, FakeTopicEntries, IndexedTopic, index_service, stored_indexes
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

TOPIC = "persistent://public/default/orders"
V1_TOPIC = "persistent://old/east/default/orders"


@pytest.fixture(scope="module")
def store() -> FakeMetadataStore:
    return FakeMetadataStore()


@pytest.fixture(scope="module")
def server(store: FakeMetadataStore) -> Iterator[Served]:
    entries = FakeBucketEntries()
    topic = IndexedTopic(store, entries)
    topic.ledgers(7, 8, 9, 10)
    topic.seal("billing/eu", 100, 7, 8, [(1_000, 7, 1), (61_000, 8, 2)], [(62_000, 7, 0)])
    topic.seal("billing/eu", 101, 9, 9, [(3_000, 9, 4)])
    topic.cursor("billing/eu", (7, 0))
    del entries.payloads[101, 0]
    topic.cursor("empty")
    old = IndexedTopic(store, entries, parse_topic_name(V1_TOPIC))
    old.ledgers(7)
    old.cursor("billing")
    messages = FakeTopicEntries()
    messages.due([(3_000, 9, 4), (8_000, 10, 0)])
    calendar = CalendarReader(stored_indexes(store, entries), entries, messages, messages, FakeClock(500))
    routers = [http.index_router(index_service(store, entries)), http.calendar_router(calendar)]
    with served(routers=routers) as server:
        yield server


def test_the_table_shows_buckets(shell: Terminal) -> None:
    ran = shell.run("delayed-index", "show", TOPIC, "--segments")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "persistent://public/default/orders  billing/eu",
        "  marked delete 7:0",
        "  configured    buckets (a broker is configured with BucketDelayedDeliveryTrackerFactory)",
        "  runs on       none (no broker has the topic loaded)",
        "  next load     in memory (ledger 101 has no entry 0, so a broker falls back to the in-memory tracker)",
        "  buckets       2 with 3 messages, 2 left, 1 done, 161 B, not counting 1 unreadable",
        "  ledgers  segments  left  done  due from (UTC)        due to (UTC)          size   in ledger  state",
        "  7-8      2         2     1     1970-01-01T00:00:01Z  1970-01-01T00:01:02Z  120 B  100        CLOSED",
        "           entry 1   2     0     1970-01-01T00:00:01Z  1970-01-01T00:01:01Z",
        "           entry 2   0     1     1970-01-01T00:01:02Z  1970-01-01T00:01:02Z",
        "  9-9      ?         ?     ?     -                     -                     41 B   101        CLOSED",
        "  problem       #pulsar.internal.delayed.bucket_9_9: ledger 101 has no entry 0",
        "",
        "persistent://public/default/orders  empty",
        "  marked delete 0:-1",
        "  configured    buckets (a broker is configured with BucketDelayedDeliveryTrackerFactory)",
        "  runs on       none (no broker has the topic loaded)",
        "  next load     buckets (there is no bucket to recover)",
        "  buckets       none",
    ]


def test_a_cursor_that_cannot_be_read_has_unknown_buckets(shell: Terminal, store: FakeMetadataStore) -> None:
    node = cursor_path("public/default/persistent/orders", encode_cursor("odd"))
    store.put(node, b"\xff")
    assert shell.run("delayed-index", "show", TOPIC, "-s", "odd").out.splitlines()[-1] == "  buckets       unknown"
    store.remove(node)


@pytest.mark.parametrize("options", [(), ("-s", "billing")])
def test_a_topic_with_a_v1_name(shell: Terminal, options: tuple[str, ...]) -> None:
    ran = shell.run("delayed-index", "show", V1_TOPIC, *options)
    assert (ran.code, ran.out.splitlines()[0]) == (0, f"{V1_TOPIC}  billing")


def test_the_calendar_is_a_table_with_a_plot(shell: Terminal) -> None:
    ran = shell.run("delayed-index", "calendar", TOPIC, "-s", "billing/eu", "--rows", "4")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines() == [
        "4 delayed messages waiting, in 1 subscription of topics and partitions",
        "  2 of them and of those that are due counted in buckets",
        "  35 without a due time",
        "  due from (UTC)        messages in 5 s, due up to 1 min later than shown",
        "  1970-01-01T00:00:00Z           3  ########################################",
        "  1970-01-01T00:00:05Z           1  #############",
    ]


def test_a_calendar_does_not_count_what_it_could_not_read(shell: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = Unreadable("no bookie answers")
    monkeypatch.setattr(FakeTopicEntries, "measured", lambda *_: unreadable)
    ran = shell.run("delayed-index", "calendar", TOPIC)
    assert ran.code == 4
    assert ran.out.splitlines() == [
        "0 delayed messages waiting, in 0 subscriptions of topics and partitions, "
        "not counting 1 that could not be read",
        f"  {TOPIC} : no bookie answers",
    ]


@pytest.mark.parametrize("scope", ["public/default", "public"])
def test_calendars_of_many_topics(shell: Terminal, scope: str) -> None:
    ran = shell.run("delayed-index", "calendar", scope, "--output", "json", "--exact", "--limit", "5")
    assert ran.code == 4
    assert "--limit" in ran.err
    found = json.loads(ran.out)
    assert (found["exact"], found["fromBuckets"], found["resolutionMs"], found["unread"] > 0) == (True, 2, 0, True)
    assert [part["subscription"] for part in found["subscriptions"]] == ["billing/eu", "empty"]
    assert shell.run("delayed-index", "calendar", "nobody").code == 1


def test_a_calendar_without_a_scope_is_of_all_topics(shell: Terminal) -> None:
    found = json.loads(shell.run("delayed-index", "calendar", "--output", "json").out)
    assert {part["topic"] for part in found["subscriptions"]} == {TOPIC, V1_TOPIC}
