"""Pins of a topic, a namespace or a ledger, read from a store, brokers and bookies in memory."""

from collections.abc import Mapping

import pytest
from pulsar_sidecar.features.pins.facts import DueSpan, Retention
from pulsar_sidecar.features.pins.ports import StoredCopies
from pulsar_sidecar.features.pins.results import LedgerPins, Pin, PinCause, TopicPins
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState, OffloadContext
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.model.position_ranges import EntryRange, PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor, TopicInternalStats
from pulsar_sidecar.ownership.paths import (
    DEFAULT_LEDGERS_ROOT,
    ledger_path,
    managed_ledger_path,
    partitioned_topic_path,
    schema_path,
)
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.fakes.pins import FIGURES, TOPIC, PinnedCluster

BUCKET = "#pulsar.internal.delayed.bucket_1_2"
BOOKIES = (BookieId("bookie-1:3181"), BookieId("bookie-2:3181"))


@pytest.fixture
def cluster() -> PinnedCluster:
    return PinnedCluster()


def position(ledger_id: int, entry_id: int) -> Position:
    return Position(LedgerId(ledger_id), EntryId(entry_id))


def view(acknowledged: PositionRanges, subscription: str = "s", compacted: int | None = None) -> TopicInternalStats:
    cursor = Cursor(acknowledged, acknowledged.range_count, acknowledged.mark_delete, None, EntryId(-1))
    return TopicInternalStats(
        {LedgerId(one): 10 for one in (1, 2, 3)},
        position(3, 9),
        {subscription: cursor},
        compacted_ledger=None if compacted is None else LedgerId(compacted),
        broker="broker-1:8080",
    )


def size(found: TopicPins | LedgerPins) -> tuple[int, int]:
    return found.bytes, found.on_bookies_bytes


def frees(pin: Pin) -> tuple[int, int]:
    return pin.frees_bytes, pin.frees_on_bookies_bytes


def named(cluster: PinnedCluster, cause: PinCause) -> set[int]:
    (found,) = cluster.reader.topic(TOPIC)
    return {ledger_id for pin in found.pins if pin.cause is cause for ledger_id in pin.ledger_ids}


def test_a_topic_that_is_not_loaded_is_read_as_it_is_stored_and_stays_so(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(1, 9))
    (found,) = cluster.reader.topic(TOPIC)
    assert (found.loaded_by, found.ledgers, size(found)) == (None, 3, (3000, 6000))
    assert {pin.cause: pin.ledger_ids for pin in found.pins} == {PinCause.BACKLOG: (2, 3), PinCause.NOT_LOADED: (1,)}
    assert cluster.owners.asked == [{TOPIC}]


def test_of_a_loaded_topic_its_broker_knows_best(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("s", cursor_ledger=9)  # what is stored has nothing acknowledged
    holes = PositionRanges(position(1, 2), [EntryRange(LedgerId(1), EntryId(5), EntryId(9))])
    cluster.owners.load(TOPIC, view(holes))
    (found,) = cluster.reader.topic(TOPIC)
    assert found.loaded_by == "broker-1:8080"
    assert named(cluster, PinCause.ACKNOWLEDGEMENT_HOLES) == {1, 2, 3}
    assert cluster.cursors.asked == 0


def test_a_cursor_that_cannot_be_read_may_hold_everything(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("s")
    cluster.cursors.unreadable = "no bookie answered"
    assert named(cluster, PinCause.UNREADABLE_CURSOR) == {1, 2, 3}


def test_a_last_ledger_that_cannot_be_measured_is_named_and_not_taken_for_empty(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.lengths.unreadable = "ledger 3 cannot be measured: no bookie answered"
    (found,) = cluster.reader.topic(TOPIC)
    details = {pin.cause: (pin.ledger_ids, pin.detail) for pin in found.pins}
    assert details[PinCause.UNREADABLE_LENGTH] == (
        (3,),
        "not among the bytes: ledger 3 cannot be measured: no bookie answered",
    )


def test_messages_that_are_not_due_name_their_buckets(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(1, 4), buckets={BUCKET: 20})
    cluster.ledger(20, bucket_custom_metadata(str(TOPIC), "s", BUCKET))
    cluster.owners.load(TOPIC, view(PositionRanges(position(1, 4))))
    due = cluster.clock.now_ms() + 60_000
    cluster.dues.firsts[position(1, 5)] = due
    cluster.dues.held[LedgerId(20)] = (DueSpan(frozenset({LedgerId(1), LedgerId(2)}), due + 5),)
    (found,) = cluster.reader.topic(TOPIC)
    ends = {pin.cause: (pin.ledger_ids, pin.ends_ms) for pin in found.pins}
    assert ends == {
        PinCause.DELAYED_MESSAGES: ((1, 2, 3), due + 5),
        PinCause.LAST_LEDGER: ((3,), None),
        PinCause.DELAYED_INDEX: ((20,), due + 5),
    }
    assert size(found) == (4000, 8000)


def test_each_partition_is_answered_for_itself(cluster: PinnedCluster) -> None:
    path = "/admin/partitioned-topics/public/default/persistent/orders"
    cluster.store.put(path, b'{"partitions": 3, "deleted": false}')
    for index in (0, 2):
        cluster.topic(10 * index + 1, 10 * index + 2, topic=TOPIC.partition(index))
    assert [found.topic for found in cluster.reader.topic(TOPIC)] == [str(TOPIC.partition(0)), str(TOPIC.partition(2))]
    assert cluster.policies.asked == [TOPIC]  # once: partitions share it


def test_a_shadow_has_no_ledgers_of_its_own(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3, properties={SHADOW_SOURCE: "persistent://public/default/source"})
    cluster.cursor("s")
    (found,) = cluster.reader.topic(TOPIC)
    assert (found.shadow_of, size(found), found.pins) == ("persistent://public/default/source", (0, 0), ())


def test_missing_topic_is_not_found_and_failed_read_is_an_error(cluster: PinnedCluster) -> None:
    with pytest.raises(NotFoundError):
        cluster.reader.topic(TOPIC)
    cluster.topic(1, 2)
    cluster.store.fail_next("read_many", TemporaryError("ZooKeeper does not respond"))
    with pytest.raises(TemporaryError):
        cluster.reader.topic(TOPIC)


# --- a namespace ---------------------------------------------------------------------------------------------------


def other(name: str) -> TopicName:
    return parse_topic_name(f"persistent://public/default/{name}")


def test_a_namespace_shows_its_largest_topics_page_by_page(cluster: PinnedCluster) -> None:
    for number in range(1, 5):
        first = number * 100
        cluster.topic(*range(first, first + number + 1), topic=other(f"t{number}"))
    broken = other("broken")
    cluster.store.put(managed_ledger_path(broken.managed_ledger_name), b"\xff\xff")
    first, second = (cluster.reader.namespace("public/default", offset, 2) for offset in (0, 2))
    assert [found.topic for found in (*first.largest, *second.largest)] == [str(other(f"t{n}")) for n in (4, 3, 2, 1)]
    assert (first.topics, first.listed_bytes, first.unreadable_topics) == (5, 10_000, (str(broken),))
    assert first.read_ms == cluster.clock.now_ms()
    assert cluster.owners.asked[0] == {other("t4"), other("t3")}
    assert len(cluster.reader.namespace("public/default", 0, 20).largest) == 4
    with pytest.raises(NotFoundError):
        cluster.reader.namespace("public/none", 0, 2)


def test_pages_of_very_many_topics_share_a_reading_for_nine_times_as_long_as_it_took(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    path = managed_ledger_path(TOPIC.managed_ledger_name)
    cluster.store.before("read_many", lambda: cluster.clock.advance_ms(11_000), path=path)
    first = cluster.reader.namespace("public/default", 0, 1)
    cluster.clock.advance_ms(90_000 - 1)
    assert cluster.reader.namespace("public/default", 0, 1).read_ms == first.read_ms
    cluster.clock.advance_ms(1)
    assert cluster.reader.namespace("public/default", 0, 1).read_ms == cluster.clock.now_ms()
    cluster.topic(4, 5, 6)
    assert cluster.reader.namespace("public/default", 0, 1).listed_bytes == 2_000


def test_a_ledger_that_cannot_be_read_is_named_and_the_rest_is_answered(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.topic(11, 12, topic=other("bills"))
    cluster.store.put(ledger_path(LedgerId(2), DEFAULT_LEDGERS_ROOT), b"broken")
    orders, bills = cluster.reader.namespace("public/default", 0, 9).largest
    assert {pin.name: pin.ledger_ids for pin in orders.pins} == {
        "unreadable-metadata ledger 2": (2,),
        "not-loaded": (1, 3),
    }
    assert (size(orders), bills.topic) == ((3_000, 4_000), str(other("bills")))
    cluster.store.put(managed_ledger_path(TOPIC.managed_ledger_name), b"\xff\xff")
    with pytest.raises(UndecodableError, match="orders"):
        cluster.reader.topic(TOPIC)


def test_the_clusters_and_the_connection_of_a_replicator_that_is_behind_are_asked(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("pulsar.repl.west")
    cluster.policies.clusters = frozenset({"west", "here"})
    cluster.owners.connections = {"west": True}
    stop = "set-replication-clusters -c here "
    for entry_id, details in ((3, [("connected to west", True)]), (9, [])):
        acknowledged = PositionRanges(position(3 if entry_id == 9 else 1, entry_id))
        cluster.owners.load(TOPIC, view(acknowledged, "pulsar.repl.west"))
        (found,) = cluster.reader.topic(TOPIC)
        seen = [
            (pin.detail.rpartition("; ")[2], stop in str(pin.remedies[-1].command))
            for pin in found.pins
            if pin.cause is PinCause.REPLICATION
        ]
        assert (seen, cluster.owners.hooks.journal.count("replicators")) == (details, 1)


@pytest.mark.parametrize("partitions", [None, 2])
def test_no_policy_is_asked_for_where_the_answer_would_load_a_bundle(
    cluster: PinnedCluster, partitions: int | None
) -> None:
    cluster.topic(1, 2)
    cluster.cursor("pulsar.repl.west", mark_delete=(2, 9))
    events = parse_topic_name(f"{TOPIC.namespace}/__change_events")
    if partitions is not None:
        cluster.store.put(partitioned_topic_path(events), b'{"partitions":%d}' % partitions)
        cluster.owners.own(events.partition(0), "http://broker-1:8080")
    cluster.owners.own(events, None)
    (found,) = cluster.reader.topic(TOPIC)
    (pin,) = (pin for pin in found.pins if pin.cause is PinCause.UNREADABLE_RETENTION)
    assert "pulsar-admin topics lookup persistent://public/default/__change_events" in pin.detail
    assert (pin.ledger_ids, cluster.policies.asked) == ((1, 2), [])


# --- a ledger ------------------------------------------------------------------------------------------------------


def test_a_ledger_of_a_list_has_the_pins_of_its_topic(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3)
    cluster.cursor("s", mark_delete=(1, 9))
    cluster.policies.found = Retention(-1, -1)
    found = cluster.reader.ledger(LedgerId(2))
    assert (found.topic, found.kind, size(found)) == (str(TOPIC), "data", (1000, 2000))
    assert {pin.cause for pin in found.pins} == {PinCause.BACKLOG, PinCause.RETENTION}
    (retention,) = cluster.reader.ledger(LedgerId(1)).pins
    assert (retention.cause, frees(retention)) == (PinCause.RETENTION, (1000, 2000))


def test_ledgers_of_cursors_schemas_and_views_have_the_node_that_names_them(cluster: PinnedCluster) -> None:
    name = TOPIC.managed_ledger_name
    cluster.topic(1, 2)
    cluster.cursor("s", cursor_ledger=30, mark_delete=(2, 9), buckets={BUCKET: 31})
    cluster.cursor("__compaction", mark_delete=(2, 9), compacted_ledger=32)
    cluster.store.put(schema_path(TOPIC.schema_id), schema_locator_bytes([33]))
    cluster.ledger(30, cursor_custom_metadata(name, "s"))
    cluster.ledger(31, bucket_custom_metadata(str(TOPIC), "s", BUCKET))
    cluster.ledger(32, compacted_custom_metadata(str(TOPIC)))
    cluster.ledger(33, schema_custom_metadata(TOPIC.schema_id))
    causes = {}
    for ledger_id in (30, 31, 32, 33):
        (pin,) = cluster.reader.ledger(LedgerId(ledger_id)).pins
        causes[ledger_id] = pin.cause, pin.holder
    assert causes == {
        30: (PinCause.CURSOR_LEDGER, "s"),
        31: (PinCause.DELAYED_INDEX, "s"),
        32: (PinCause.COMPACTED_LEDGER, ""),
        33: (PinCause.SCHEMA, ""),
    }


NAME = TOPIC.managed_ledger_name


@pytest.mark.parametrize(
    ("stamp", "options"),
    [
        (data_custom_metadata(NAME), f"{TOPIC} -l 40"),
        (data_custom_metadata(TOPIC.partition(1).managed_ledger_name), f"{TOPIC}-partition-1 -l 40"),
        (cursor_custom_metadata(NAME, "gone"), f"{TOPIC} -l 40 --component MANAGED_CURSOR --cursor-name gone"),
        (
            schema_custom_metadata(TOPIC.schema_id),
            f"{TOPIC} -l 40 --component SCHEMA_STORAGE --schema-id {TOPIC.schema_id}",
        ),
        (compacted_custom_metadata(str(TOPIC)), f"{TOPIC} -l 40 --component COMPACTED_LEDGER"),
        (
            bucket_custom_metadata(str(TOPIC), "s", BUCKET),
            f"{TOPIC} -l 40 --component DELAYED_INDEX_BUCKET --cursor-name s",
        ),
    ],
)
def test_a_ledger_that_nothing_references_may_have_leaked(
    cluster: PinnedCluster, stamp: Mapping[str, bytes], options: str
) -> None:
    cluster.topic(1, 2)
    cluster.ledger(40, stamp)
    (pin,) = cluster.reader.ledger(LedgerId(40)).pins
    assert (pin.cause, frees(pin)) == (PinCause.UNREFERENCED, (1000, 2000))
    assert [remedy.command for remedy in pin.remedies] == [f"pulsar-sidecar topics delete-ledger {options}"]


def test_a_ledger_that_is_written_to_has_the_bytes_that_bookies_have(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2)
    cluster.cursor("s", cursor_ledger=30, mark_delete=(2, 9))
    cluster.ledger(30, cursor_custom_metadata(TOPIC.managed_ledger_name, "s"), LedgerState.OPEN)
    found = cluster.reader.ledger(LedgerId(30))
    assert (size(found), frees(found.pins[0])) == ((1000, 2000), (1000, 2000))
    cluster.lengths.unreadable = "ledger 30 cannot be measured: no bookie answered"
    with pytest.raises(TemporaryError, match="ledger 30 cannot be measured"):
        cluster.reader.ledger(LedgerId(30))


def test_a_ledger_without_pulsars_stamp_has_no_owner(cluster: PinnedCluster) -> None:
    cluster.ledger(50)
    (pin,) = cluster.reader.ledger(LedgerId(50)).pins
    cluster.topic(1)
    assert pin.cause is PinCause.NOT_PULSARS
    assert cluster.reader.tenants_of([LedgerId(50), LedgerId(1), LedgerId(99)]) == [None, "public", None]


def test_a_deleted_ledger_is_where_bookies_have_not_collected_it(cluster: PinnedCluster) -> None:
    cluster.bookies.stored[LedgerId(60)] = StoredCopies(700, BOOKIES)
    found = cluster.reader.ledger(LedgerId(60))
    assert (found.bookies, size(found)) == (BOOKIES, (700, 1400))
    assert found.pins[0].cause is PinCause.NOT_COLLECTED
    assert [remedy.command for remedy in found.pins[0].remedies] == []  # no bookie's service is known
    cluster.bookies.read[BOOKIES[0]] = FIGURES
    _, forcing = cluster.reader.ledger(LedgerId(60)).pins[0].remedies
    assert "forceMajor" in str(forcing.command)
    cluster.bookies.stored[LedgerId(61)] = StoredCopies(700, BOOKIES[:1], BOOKIES[1:])
    assert "no answer from bookie-2:3181" in cluster.reader.ledger(LedgerId(61)).pins[0].detail
    cluster.bookies.stored[LedgerId(63)] = StoredCopies(0, (), BOOKIES[:1])
    with pytest.raises(TemporaryError, match="no answer from bookie-1:3181"):
        cluster.reader.ledger(LedgerId(63))
    with pytest.raises(NotFoundError):
        cluster.reader.ledger(LedgerId(62))


def test_a_namespace_counts_bytes_in_tiered_storage_by_its_lists(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2, 3, 4)
    copies = {
        1: OffloadContext(1, 2, "S3", {}, bookkeeper_deleted=True),
        2: OffloadContext(1, 3, "S3", {}),
        3: OffloadContext(1, 4, "S3", {}, complete=False),
    }
    path = managed_ledger_path(TOPIC.managed_ledger_name)
    cluster.store.put(path, managed_ledger_bytes((1, 2, 3, 4), offloaded=copies))
    found = cluster.reader.namespace("public/default", 0, 20)
    assert (found.tiered_bytes, found.tiered_alone_bytes) == (2_000, 1_000)
    (topic,) = found.largest
    assert (topic.tiered_bytes, topic.tiered_alone_bytes, topic.tiered_alone_ledgers) == (2_000, 1_000, 1)


def test_the_lag_of_offloading_is_asked_where_there_is_a_copy(cluster: PinnedCluster) -> None:
    cluster.topic(1, 2)
    copy = {1: OffloadContext(1, 2, "S3", {})}
    cluster.store.put(managed_ledger_path(TOPIC.managed_ledger_name), managed_ledger_bytes((1, 2), offloaded=copy))
    cluster.policies.lag_ms = 60_000
    (found,) = cluster.reader.topic(TOPIC)
    assert (found.tiered_bytes, named(cluster, PinCause.OFFLOAD_LAG)) == (1000, {1})
    cluster.policies.lag_ms = Unreadable("no broker answered")
    (found,) = cluster.reader.topic(TOPIC)
    assert any("no broker answered" in pin.detail for pin in found.pins)
