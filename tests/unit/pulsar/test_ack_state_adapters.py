"""Cursors, limits and policies, out of what brokers and the store answer."""

import json

import pytest
from pulsar_sidecar.adapters.bookkeeper.bookie_entries import BookieEntries
from pulsar_sidecar.adapters.bookkeeper.stored_cursors import BookieStoredCursors
from pulsar_sidecar.adapters.pulsar_rest.ack_states import BrokerAckStates
from pulsar_sidecar.features.acknowledgements.results import StoredPlace, TopicPolicy
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import BookieId, EntryId, LedgerId
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.names import CursorName, parse_topic_name
from pulsar_sidecar.model.position_ranges import PositionRanges
from pulsar_sidecar.model.topic_stats import Cursor
from pulsar_sidecar.ownership.paths import cursor_path, ledger_path
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes.admin_answers import FakeAdminRest
from tests.fakes.bookie_servers import FakeBookies, stored_entry
from tests.fakes.bookkeeper import ledger_metadata_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.http_servers import register_broker
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.positions import with_positions
from tests.unit.acknowledgements.test_stored import at, sparse

TOPIC = parse_topic_name("persistent://public/default/orders")
PLACE = "/admin/v2/persistent/public/default/orders"
POLICY = "dispatcherPauseOnAckStatePersistent"
RUNTIME = "/admin/v2/brokers/configuration/runtime"
POLICIES = "/admin/policies/public/default"
CURSOR = cursor_path(TOPIC.managed_ledger_name, CursorName("a+sub%2F"))
SUB = "a sub/"
LENGTHS = {LedgerId(6): 50}


def configuration(**more: str) -> dict[str, str]:
    return {
        "managedLedgerMaxUnackedRangesToPersist": "20",
        "managedLedgerMaxBatchDeletedIndexToPersist": "30",
        "managedLedgerPersistIndividualAckAsLongArray": "true",
        "managedLedgerUnackedRangesOpenCacheSetEnabled": "true",
        "dispatcherPauseOnAckStatePersistentEnabled": "true",
        **more,
    }


@pytest.fixture
def rest() -> FakeAdminRest:
    rest = FakeAdminRest()
    rest.answers = {f"{PLACE}/{POLICY}": False, RUNTIME: configuration()}
    return rest


@pytest.fixture
def store() -> FakeMetadataStore:
    store = FakeMetadataStore()
    store.put(POLICIES, json.dumps({"bundles": {"numBundles": 4}, "ratio": 1.0, "big": 2**60}).encode())
    return store


@pytest.fixture
def brokers(rest: FakeAdminRest, store: FakeMetadataStore) -> BrokerAckStates:
    return BrokerAckStates(rest, store, FakeClock())  # type: ignore[arg-type]


# --- limits --------------------------------------------------------------------------------------------------------


def test_limits_are_the_owners_and_are_remembered_for_a_while(rest: FakeAdminRest, store: FakeMetadataStore) -> None:
    clock = FakeClock()
    brokers = BrokerAckStates(rest, store, clock)  # type: ignore[arg-type]
    register_broker(store, "http://b:8080")
    rest.answers[f"http://b:8080{RUNTIME}"] = configuration(managedLedgerMaxUnackedRangesToPersist="7")
    assert brokers.limits("b:8080").max_unacked_ranges == 7
    assert brokers.limits("gone:8080").max_unacked_ranges == 20, "another broker's is the best guess"
    limits = brokers.limits(None)
    assert (limits.max_batch_deleted_indexes, limits.as_long_array, limits.pause_enabled) == (30, True, True)
    rest.answers[RUNTIME] = configuration(managedLedgerUnackedRangesOpenCacheSetEnabled="false")
    assert brokers.limits(None) == limits
    clock.advance_ms(31_000)
    assert brokers.limits(None).as_long_array is False, "long arrays need the open cache set"


def test_limits_are_in_bytes_too(rest: FakeAdminRest, store: FakeMetadataStore) -> None:
    brokers = BrokerAckStates(rest, store, FakeClock(), jute_max_buffer=100_000)  # type: ignore[arg-type]
    in_zookeeper = {"managedLedgerMaxUnackedRangesToPersistInZooKeeper": "-1"}
    rest.answers[RUNTIME] = configuration(maxMessageSize="20480", **in_zookeeper)
    limits = brokers.limits(None)
    assert (limits.max_entry_bytes, limits.max_node_bytes, limits.max_node_ranges) == (30_656, 98_976, 1_000)
    rest.answers[f"http://b:8080{RUNTIME}"] = configuration(
        managedLedgerMaxUnackedRangesToPersistInZooKeeper="7", managedLedgerMaxUnackedRangesToPersistInMetadataStore="5"
    )
    register_broker(store, "http://b:8080")
    assert brokers.limits("b:8080").max_node_ranges == 7, "the deprecated name goes before the other"


def test_missing_limit_in_the_configuration_is_an_error(rest: FakeAdminRest, brokers: BrokerAckStates) -> None:
    rest.answers[RUNTIME] = {}
    with pytest.raises(TemporaryError, match="managedLedgerMaxUnackedRangesToPersist"):
        brokers.limits(None)


def test_brokers_without_a_setting_for_batch_indexes_have_the_default(
    rest: FakeAdminRest, brokers: BrokerAckStates
) -> None:
    rest.answers[RUNTIME] = {"managedLedgerMaxUnackedRangesToPersist": "20"}  # as 3.3.6
    assert brokers.limits(None).max_batch_deleted_indexes == 10_000


# --- what is stored ------------------------------------------------------------------------------------------------


def stored_cursors(store: FakeMetadataStore, payload: bytes | None = None) -> BookieStoredCursors:
    bookies = FakeBookies()
    bookies.silence = TemporaryError("silent")
    if payload is not None:
        bookies.held[BookieId("127.0.0.1:3181")] = {EntryId(5): stored_entry(7, 5, payload)}
        bookies.held[BookieId("127.0.0.1:3182")] = {EntryId(5): stored_entry(7, 5, payload)}
        metadata = ledger_metadata_bytes(LedgerState.OPEN, ensemble=("127.0.0.1:3181", "127.0.0.1:3182"))
        store.put(ledger_path(LedgerId(7)), metadata)
    return BookieStoredCursors(store, BookieEntries(bookies), "/ledgers")


def cursor(ledger_id: LedgerId | None, last_entry: int = -1) -> Cursor:
    return Cursor(PositionRanges(at(6, 0)), 0, at(6, 1), ledger_id, EntryId(last_entry))


def node(ledger_id: int) -> bytes:
    ranges = with_positions(PositionRanges(at(6, 0)), [at(6, 2)])
    return ml.ManagedCursorInfo(
        cursorsLedgerId=ledger_id, markDeleteLedgerId=6, markDeleteEntryId=0, individualDeletedMessages=sparse(ranges)
    ).SerializeToString()


def test_a_cursor_in_its_node(store: FakeMetadataStore) -> None:
    store.put(CURSOR, node(-1))
    found = stored_cursors(store).stored(TOPIC, SUB, LENGTHS, cursor(None))
    assert found is not None
    assert (found.place, found.acknowledged) == (
        StoredPlace.METADATA_STORE,
        with_positions(PositionRanges(at(6, 0)), [at(6, 2)]),
    )


def test_a_cursor_in_its_ledger_is_the_entry_that_the_broker_knows(store: FakeMetadataStore) -> None:
    store.put(CURSOR, node(7))
    ranges = with_positions(PositionRanges(at(6, 4)), [at(6, 8)])
    payload = ml.PositionInfo(ledgerId=6, entryId=4, individualDeletedMessages=sparse(ranges)).SerializeToString()
    cursors = stored_cursors(store, payload)
    found = cursors.stored(TOPIC, SUB, LENGTHS, cursor(LedgerId(7), 5))
    assert found is not None
    assert (found.acknowledged, found.ledger_id, found.entry_id) == (ranges, 7, 5)
    assert cursors.read(TOPIC, SUB, LedgerId(7), 5) == ranges


def test_a_cursor_that_moved_or_went_is_looked_at_again(store: FakeMetadataStore) -> None:
    store.put(CURSOR, node(7))
    cursors = stored_cursors(store)
    for known in (cursor(None), cursor(LedgerId(8), 0), cursor(LedgerId(7), 5)):
        with pytest.raises(TemporaryError):
            cursors.stored(TOPIC, SUB, LENGTHS, known)
    empty = cursors.stored(TOPIC, SUB, LENGTHS, cursor(LedgerId(7)))
    assert empty is not None
    assert empty.acknowledged.mark_delete == at(6, 0)


def test_a_subscription_that_is_not_in_the_store_has_nothing_stored(store: FakeMetadataStore) -> None:
    assert stored_cursors(store).stored(TOPIC, "nobody", LENGTHS, cursor(None)) is None
    assert stored_cursors(store).read(TOPIC, "nobody", None, -1) is None


# --- policies ------------------------------------------------------------------------------------------------------


def test_each_level_is_asked(rest: FakeAdminRest, store: FakeMetadataStore, brokers: BrokerAckStates) -> None:
    found = brokers.policies(TOPIC.partition(3), None)
    assert (found.topic, found.namespace, found.broker, found.enabled) == (TopicPolicy.FALSE_OR_UNSET, None, True, None)
    rest.answers[f"{PLACE}/{POLICY}"] = True
    assert brokers.policies(TOPIC, None).topic is TopicPolicy.TRUE
    with pytest.raises(NotFoundError):
        brokers.of_namespace("public/nowhere")


def test_a_namespaces_policy_is_taken_out_and_nothing_else(
    rest: FakeAdminRest, store: FakeMetadataStore, brokers: BrokerAckStates
) -> None:
    before = store.read(POLICIES)
    assert before is not None
    document = {**json.loads(before.data), "dispatcherPauseOnAckStatePersistentEnabled": False}
    rest.on_change = lambda method, path: store.put(POLICIES, json.dumps(document).encode()) and None
    assert brokers.remove_from_namespace("public/default") is None
    after = store.read(POLICIES)
    assert after is not None
    assert json.loads(after.data) == json.loads(before.data)
    assert rest.changed == [("DELETE", f"/admin/v2/namespaces/public/default/{POLICY}")]


def test_a_change_by_another_writer_is_never_overwritten(store: FakeMetadataStore, brokers: BrokerAckStates) -> None:
    changes = iter(range(3))

    def another_client() -> None:
        if (number := next(changes, None)) is not None:
            content = {"dispatcherPauseOnAckStatePersistentEnabled": False, "theirs": number}
            store.put(POLICIES, json.dumps(content).encode())

    another_client()
    store.before("write", another_client, path=POLICIES, times=2)
    assert brokers.remove_from_namespace("public/default") is None
    after = store.read(POLICIES)
    assert after is not None
    assert json.loads(after.data) == {"theirs": 2}


def test_policies_that_cannot_be_read_are_not_written(store: FakeMetadataStore, brokers: BrokerAckStates) -> None:
    for content in (b"{", b"[]"):
        store.put(POLICIES, content)
        with pytest.raises(TemporaryError):
            brokers.remove_from_namespace("public/default")
        after = store.read(POLICIES)
        assert after is not None
        assert after.data == content
