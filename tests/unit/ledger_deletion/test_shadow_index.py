"""The index of shadow topics: complete, or an error; the cost of a check does not grow with the topics."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_index import ShadowIndex
from pulsar_sidecar.model.errors import DataLossError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE, Shadow

from tests.cluster.patience import until
from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.clock import FakeClock
from tests.fakes.metadata import Method
from tests.fakes.pulsar import FakePulsar
from tests.fakes.watched_store import FakeTopicChanges, FakeWholeStore
from tests.unit.ledger_deletion.sidecars import Sidecar

SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://other/space/orders-shadow"
OTHER = "persistent://third/space/orders-shadow"
SECONDS = 30.0


class Indexed:
    """An index over a fake Pulsar; `running` has its loop run."""

    def __init__(self, *, patience_seconds: float = SECONDS, is_watched: bool = True) -> None:
        self.fake_pulsar = FakePulsar()
        self.store = self.fake_pulsar.store
        self.source = self.fake_pulsar.topic(SOURCE)
        self.clock = FakeClock()
        self.whole = FakeWholeStore(self.store)
        self.changes = FakeTopicChanges(self.store.other_session(), self.clock)
        self.stop = threading.Event()
        self.index = ShadowIndex(
            self.store,
            self.whole,
            self.changes if is_watched else None,
            self.clock,
            self.stop,
            patience_seconds=patience_seconds,
        )

    @contextmanager
    def running(self) -> Iterator["Indexed"]:
        with ThreadPoolExecutor(1) as pool:
            loop = pool.submit(self.index.run)
            try:
                yield self
            finally:
                self.stop.set()
                self.index.wake()
                loop.result(SECONDS)

    def shadow(self, name: str) -> TopicName:
        return self.fake_pulsar.shadow(name, self.source)

    def found(self) -> list[str]:
        return [str(shadow.topic) for shadow in self.index.shadows_of({self.source})]

    def walks(self) -> int:
        """Number of walks over all topics."""
        return sum(call.method == "children" and call.paths == ("/managed-ledgers",) for call in self.store.journal)

    def reads(self) -> list[str]:
        return [path for call in self.store.journal if call.method == "read_many" for path in call.paths]


@pytest.fixture
def indexed() -> Iterator[Indexed]:
    with Indexed().running() as running:
        yield running


def several(indexed: Indexed, count: int, pool: ThreadPoolExecutor) -> Sequence[Future[Sequence[Shadow]]]:
    """Start this many concurrent calls; return once all of them wait."""
    waiting = [pool.submit(indexed.index.shadows_of, {indexed.source}) for _ in range(count)]
    until(lambda: indexed.index._deletions_waiting == count, "all calls wait", SECONDS)
    return waiting


def held(indexed: Indexed, method: Method) -> tuple[threading.Event, threading.Event]:
    """Hold the next call of the store: an event that it is held, and one that releases it."""
    is_held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        go_on.wait(SECONDS)

    indexed.store.before(method, hold)
    return is_held, go_on


# What is found ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "persistent://public/default/a-shadow",
        SHADOW,
        "persistent://tenant/east/space/shadow",
        "persistent://tenant/persistent/shadow",
        "persistent://tenant/east/persistent/shadow",
        "persistent://tenant/space/persistent",
        "persistent://tenant/space/sh%C3%A4 dow",
    ],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_a_shadow_is_found_in_any_namespace(name: str, is_there: bool) -> None:
    indexed = Indexed()
    if is_there:
        indexed.shadow(name)
    with indexed.running():
        assert indexed.found() == ([name] if is_there else [])
        indexed.shadow(name)
        assert indexed.found() == [name]
        indexed.store.remove(managed_ledger_path(parse_topic_name(name).managed_ledger_name))
        assert indexed.found() == []
    assert indexed.changes.times_armed == 1


def test_a_topic_that_becomes_a_shadow_and_one_that_stops_being_one(indexed: Indexed) -> None:
    topic = indexed.fake_pulsar.topic(SHADOW)
    assert indexed.found() == []
    path = managed_ledger_path(topic.managed_ledger_name)
    indexed.store.put(path, managed_ledger_bytes([1], properties={SHADOW_SOURCE: "public/default/orders"}))
    assert indexed.found() == [SHADOW]
    indexed.store.put(path, managed_ledger_bytes([1], properties={SHADOW_SOURCE: OTHER}))
    assert indexed.found() == []
    assert indexed.index.shadows_of({parse_topic_name(OTHER)}) == [Shadow(topic, OTHER)]


def test_a_partitioned_shadow_is_found_before_it_has_a_managed_ledger(indexed: Indexed) -> None:
    indexed.fake_pulsar.partitioned_shadow(SHADOW, indexed.source, 2)
    assert indexed.found() == [SHADOW]


def test_everything_is_listed_with_what_cannot_be_read(indexed: Indexed) -> None:
    for name in (SHADOW, OTHER):
        indexed.shadow(name)
    indexed.store.put("/managed-ledgers/a/b/persistent/damaged", b"\x47\x78\x00")
    shadows, unread = indexed.index.all_shadows()
    assert [str(shadow.topic) for shadow in shadows] == [SHADOW, OTHER]
    assert [node.path for node in unread] == ["/managed-ledgers/a/b/persistent/damaged"]
    assert indexed.found() == [SHADOW, OTHER]
    with pytest.raises(UndecodableError, match="a/b/persistent/damaged"):
        indexed.index.shadows_of({parse_topic_name("persistent://a/b/c")})


def test_a_deletion_is_refused_for_a_shadow_in_another_namespace_that_no_broker_lists(indexed: Indexed) -> None:
    sidecar = Sidecar(indexed.fake_pulsar)
    deleter = replace(sidecar.deleter, shadows=indexed.index)
    indexed.shadow(SHADOW)
    with pytest.raises(DataLossError, match=f"source of the shadow {SHADOW}"):
        deleter.begin(OperationId("op-1"), indexed.source, partitioned=False, force=True, requested_by=None)
    assert indexed.fake_pulsar.admin.hooks.journal == []


# What it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [100, 20_000])
def test_a_look_reads_what_changed_however_many_topics_there_are(topics: int) -> None:
    indexed = Indexed()
    for number in range(topics):
        namespace = f"t/n-{number % 10}"
        indexed.store.put(f"/managed-ledgers/{namespace}/persistent/{number}", managed_ledger_bytes([1]))
    with indexed.running():
        assert indexed.found() == []
        indexed.store.journal.clear()
        assert indexed.found() == []
        assert indexed.store.journal == []
        shadow = indexed.shadow(SHADOW)
        assert indexed.found() == [SHADOW]
        assert indexed.reads() == [managed_ledger_path(shadow.managed_ledger_name)]
        assert len(indexed.store.journal) == 1


def test_cursors_ledgers_and_directories_are_not_read(indexed: Indexed) -> None:
    assert indexed.found() == []
    indexed.store.journal.clear()
    indexed.fake_pulsar.cursor(indexed.source, "another")
    indexed.store.put("/managed-ledgers/tenant/space/persistent")
    indexed.store.put("/admin/policies/tenant/space")
    assert indexed.found() == []
    assert indexed.store.journal == []


def test_all_who_wait_share_one_look(indexed: Indexed) -> None:
    assert indexed.found() == []
    is_held, go_on = held(indexed, "read_many")
    indexed.shadow(SHADOW)
    with ThreadPoolExecutor(11) as pool:
        first = pool.submit(indexed.found)
        assert is_held.wait(SECONDS)
        # The look under way began before these calls, so it is not theirs.
        waiting = [pool.submit(indexed.found) for _ in range(10)]
        until(lambda: indexed.index._deletions_waiting >= 10, "all calls wait", SECONDS)
        indexed.shadow(OTHER)
        before = indexed.changes.times_caught_up
        go_on.set()
        assert SHADOW in first.result(SECONDS)
        assert [each.result(SECONDS) for each in waiting] == [[SHADOW, OTHER]] * 10
    # A second one may follow because a second has passed.
    assert indexed.changes.times_caught_up - before in (1, 2)


@pytest.mark.parametrize("is_for_deletion", [False, True])
def test_only_a_deletion_that_waits_hurries_the_reading(is_for_deletion: bool) -> None:
    indexed = Indexed(is_watched=False)
    for number in range(1_200):
        indexed.store.put(f"/managed-ledgers/public/default/persistent/plain-{number}", managed_ledger_bytes([1]))
    with indexed.running():
        indexed.index.all_shadows(for_deletion=is_for_deletion)
        assert indexed.whole.hurried == 13 * is_for_deletion


def test_after_the_start_and_a_loss_the_first_reading_hurries_and_others_do_not() -> None:
    indexed = Indexed()
    pieces = 3
    for number in range(pieces * indexed.whole.pieces_of):
        indexed.store.put(f"/managed-ledgers/t/n/persistent/{number:03}", managed_ledger_bytes([1]))
    indexed.store.remove(managed_ledger_path(indexed.source.managed_ledger_name))

    def hurried_reading(cause: Callable[[], object]) -> int:
        before, walks = indexed.whole.hurried, indexed.walks()
        cause()
        until(lambda: indexed.walks() > walks and indexed.index._is_complete, "all topics are read", SECONDS)
        return indexed.whole.hurried - before

    def lose_connection_and_fail() -> None:
        indexed.whole.fail_next(TemporaryError("a server that fell behind"))
        indexed.changes.lose_connection()

    start = indexed.whole.hurried
    with indexed.running():
        until(lambda: indexed.index._is_complete, "all topics are read", SECONDS)
        assert indexed.whole.hurried - start == pieces
        assert hurried_reading(lambda: indexed.clock.advance_ms(6 * 3_600_000)) == 0
        assert hurried_reading(indexed.changes.lose_connection) == pieces
        # Only once: the first attempt stops at its first piece, the second one does not hurry.
        assert hurried_reading(lose_connection_and_fail) == 1


# While it is not complete ----------------------------------------------------------------------------------------


def test_while_topics_are_read_for_the_first_time_nothing_is_concluded() -> None:
    indexed = Indexed(patience_seconds=0.05)
    go_on = threading.Event()
    indexed.store.before("children", lambda: go_on.wait(SECONDS))
    indexed.shadow(SHADOW)
    with indexed.running():
        for _ in range(2):
            with pytest.raises(TemporaryError, match="not known yet"):
                indexed.found()
        go_on.set()
        until(lambda: indexed.index._is_complete, "the index is complete", SECONDS)
        indexed.index.patience_seconds = SECONDS
        assert indexed.found() == [SHADOW]
        assert indexed.walks() == 1


@pytest.mark.parametrize("is_watched", [False, True])
def test_others_learn_that_deletions_wait_for_the_reading_of_all_topics(is_watched: bool) -> None:
    indexed = Indexed(is_watched=is_watched)
    is_held, go_on = held(indexed, "children")
    assert not indexed.index.holds_up_deletions()
    with indexed.running(), ThreadPoolExecutor(1) as pool:
        found = pool.submit(indexed.found)
        assert is_held.wait(SECONDS)
        until(lambda: indexed.index._deletions_waiting, "the call waits", SECONDS)
        assert indexed.index.holds_up_deletions() is is_watched
        go_on.set()
        assert found.result(SECONDS) == []
        assert not indexed.index.holds_up_deletions()


def test_a_topic_that_is_made_while_the_others_are_read_is_found() -> None:
    indexed = Indexed()
    # After the folder was listed.
    indexed.store.before("read_many", lambda: indexed.shadow("persistent://public/default/late") and None)
    with indexed.running():
        assert indexed.found() == ["persistent://public/default/late"]


@pytest.mark.parametrize("waiting", [1, 5])
def test_after_a_lost_connection_all_topics_are_read_once_for_all_who_wait(indexed: Indexed, waiting: int) -> None:
    assert indexed.found() == []
    go_on = threading.Event()
    indexed.store.before("children", lambda: go_on.wait(SECONDS))
    indexed.changes.lose_connection()
    indexed.shadow(SHADOW)
    with ThreadPoolExecutor(waiting) as pool:
        found = several(indexed, waiting, pool)
        go_on.set()
        assert {str(each.result(SECONDS)[0].topic) for each in found} == {SHADOW}
    assert (indexed.walks(), indexed.changes.times_armed) == (2, 2)


def test_a_lost_connection_is_noticed_before_anyone_asks(indexed: Indexed) -> None:
    assert indexed.found() == []
    indexed.changes.lose_connection()
    until(lambda: indexed.changes.times_armed == 2, "the watches are set again", SECONDS)
    indexed.shadow(SHADOW)
    assert indexed.found() == [SHADOW]


def test_a_piece_that_was_read_before_a_change_does_not_undo_it() -> None:
    indexed = Indexed()
    indexed.whole.pieces_of = 1
    shadow = indexed.fake_pulsar.shadow(SHADOW, indexed.fake_pulsar.topic(OTHER))
    path = managed_ledger_path(shadow.managed_ledger_name)
    changed: list[str] = []

    def change_its_source() -> None:
        # Once its old data waits to be handed over; before that the index looks at the changes.
        if not changed and path in indexed.reads():
            changed.append(path)
            indexed.store.put(path, managed_ledger_bytes([1], properties={SHADOW_SOURCE: SOURCE}))
        indexed.clock.advance_ms(2_000)

    indexed.whole.between = change_its_source
    with indexed.running():
        assert indexed.found() == [SHADOW]
    assert changed == [path]


def test_a_connection_that_is_lost_while_topics_are_read_proves_nothing() -> None:
    indexed = Indexed()

    def lose() -> None:
        indexed.changes.lose_connection()
        indexed.shadow("persistent://a/a/came-unheard")

    indexed.store.before("read_many", lose)
    with indexed.running():
        try:
            assert indexed.found() == ["persistent://a/a/came-unheard"]
        except TemporaryError:
            assert indexed.found() == ["persistent://a/a/came-unheard"]


@pytest.mark.parametrize("is_watched", [False, True])
def test_without_watches_each_group_of_calls_reads_all_topics_once(is_watched: bool) -> None:
    indexed = Indexed(is_watched=is_watched)
    indexed.changes.is_watchable = False
    indexed.shadow(SHADOW)
    with indexed.running(), ThreadPoolExecutor(6) as pool:
        assert indexed.found() == [SHADOW]
        before = indexed.walks()
        is_held, go_on = held(indexed, "children")
        first = pool.submit(indexed.found)
        assert is_held.wait(SECONDS)
        waiting = [pool.submit(indexed.found) for _ in range(5)]
        until(lambda: indexed.index._deletions_waiting == 6, "all calls wait", SECONDS)
        indexed.shadow(OTHER)
        go_on.set()
        first.result(SECONDS)
        assert [each.result(SECONDS) for each in waiting] == [[SHADOW, OTHER]] * 5
        assert indexed.walks() == before + 2
    assert indexed.changes.times_armed == 0
    assert len(indexed.index.warnings()) == is_watched


def test_without_watches_a_caller_waits_as_long_as_the_reading_of_all_topics_may_take() -> None:
    indexed = Indexed(is_watched=False, patience_seconds=0)
    for number in range(2_000):
        indexed.store.put(f"/managed-ledgers/t/n/persistent/{number}", b"")
    with indexed.running():
        indexed.index.all_shadows()
        assert indexed.found() == []


def test_watches_that_cannot_be_set_now_hold_up_no_deletion() -> None:
    indexed = Indexed()
    for _ in range(3):
        indexed.changes.fail_next_arm(TemporaryError("too many connections"))
    indexed.shadow(SHADOW)
    with indexed.running():
        for _ in range(4):
            assert indexed.found() == [SHADOW]
        until(lambda: indexed.index._is_complete, "the index is complete", SECONDS)


# Failures --------------------------------------------------------------------------------------------------------


def test_failed_read_is_not_absence_and_forgets_nothing(indexed: Indexed) -> None:
    assert indexed.found() == []
    indexed.store.fail_next("read_many", TemporaryError("ZooKeeper is away"))
    indexed.shadow(SHADOW)
    indexed.changes.fail_next_catch_up(TemporaryError("no answer"))
    # The loop's own look may be the one that fails.
    answers = [answer(indexed) for _ in range(3)]
    assert set(map(str, answers)) <= {
        "shadow topics are not known now: ZooKeeper is away",
        "shadow topics are not known now: no answer",
        str([SHADOW]),
    }
    assert answers[-1] == [SHADOW]
    assert indexed.changes.times_armed == 1


def answer(indexed: Indexed) -> object:
    try:
        return indexed.found()
    except TemporaryError as error:
        return error


@pytest.mark.parametrize("method", ["children", "read_many"])
def test_failed_read_of_all_topics_is_not_absence(method: str) -> None:
    indexed = Indexed(is_watched=False)
    indexed.shadow(SHADOW)
    indexed.store.fail_next(method, TemporaryError("ZooKeeper is away"))
    with indexed.running():
        with pytest.raises(TemporaryError, match="not known now: ZooKeeper is away"):
            indexed.found()
        assert indexed.found() == [SHADOW]


def test_a_defect_is_an_error_for_those_who_wait() -> None:
    indexed = Indexed()

    def defect() -> None:
        raise ZeroDivisionError

    indexed.store.before("children", defect)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(indexed.found)
        until(lambda: indexed.index._deletions_waiting, "the call waits", SECONDS)
        with pytest.raises(ZeroDivisionError):
            indexed.index.run()
        with pytest.raises(TemporaryError, match="unexpected failure"):
            calling.result(SECONDS)


def test_waiting_callers_fail_when_the_sidecar_stops() -> None:
    indexed = Indexed()
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(indexed.found), pool.submit(indexed.index.all_shadows)]
        until(lambda: indexed.index._deletions_waiting, "the call waits", SECONDS)
        indexed.stop.set()
        indexed.index.wake()
        for call in calls:
            with pytest.raises(TemporaryError, match="shutting down"):
                call.result(SECONDS)
    indexed.index.run()


def test_all_topics_are_read_again_after_six_hours(indexed: Indexed) -> None:
    assert indexed.found() == []
    indexed.changes.is_deaf = True
    indexed.shadow(SHADOW)
    assert indexed.found() == []
    indexed.clock.advance_ms(6 * 3_600_000)
    until(lambda: indexed.walks() == 2, "all topics are read again", SECONDS)
    assert indexed.found() == [SHADOW]
