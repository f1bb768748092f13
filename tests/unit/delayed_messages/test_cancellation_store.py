"""Writes to the log, reads from it, and another sidecar's state."""

from collections.abc import Callable

import pytest
from pulsar_sidecar.features.delayed_messages.cancel.log_records import encode_all, key_of
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.ports import LogRecords
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus as Status
from pulsar_sidecar.features.delayed_messages.results import Cause
from pulsar_sidecar.features.delayed_messages.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.delayed_messages import TOPIC, at

NOW = 1_700_000_000_000
PLACE = (TOPIC, "s")


def cancellation(entry: int, status: Status = Status.ACCEPTED) -> Cancellation:
    return Cancellation(TOPIC, "s", at(entry), NOW, NOW - 1000, status)


class Log:
    """A log that a test reads back itself; ``before`` is called with the appended records, and may raise."""

    def __init__(self) -> None:
        self.records: list[tuple[str, bytes | None]] = []
        self.before: Callable[[LogRecords], None] = lambda records: None

    def ensure(self) -> None:
        """Do nothing: the topic exists."""

    def append(self, records: LogRecords) -> None:
        self.before(records)
        self.records += records

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        apply(self.records)
        caught_up(0)


def statuses(store: CancellationStore) -> dict[int, Status]:
    return {one.position.entry_id: one.status for one in store.index.at(PLACE)}


def test_own_records_that_come_back_late_lower_nothing() -> None:
    log = Log()
    store = CancellationStore(log)
    store.record([cancellation(1), cancellation(2)])
    store.index.learn_all([cancellation(1, Status.ACKED)])
    store.record([cancellation(1, Status.PERSISTED)])
    store.apply(log.records)
    store.apply(log.records)
    assert statuses(store) == {1: Status.PERSISTED, 2: Status.ACCEPTED}


def test_of_records_whose_fate_is_unknown_those_that_came_back_are_known() -> None:
    log = Log()
    store = CancellationStore(log)

    def half(records: LogRecords) -> None:
        store.apply(records[:1])
        raise TemporaryError("for this test")

    log.before = half
    with pytest.raises(TemporaryError):
        store.record([cancellation(1), cancellation(2)])
    assert statuses(store) == {1: Status.ACCEPTED}
    store.apply(encode_all([cancellation(2)]))
    assert statuses(store) == {1: Status.ACCEPTED, 2: Status.ACCEPTED}, "it had been stored after all"


def test_finished_cancellations_are_removed_from_the_log() -> None:
    log = Log()
    store, other = CancellationStore(log), CancellationStore(log)
    store.record([cancellation(1), cancellation(2)])
    store.record([cancellation(1, Status.PERSISTED)])
    store.index.learn_all([cancellation(2, Status.ACKED)])
    written = len(log.records)
    store.finish([cancellation(1, Status.EXPIRED), cancellation(2, Status.EXPIRED)])
    assert [(key, value is None) for key, value in log.records[written:]] == [
        (key_of(TOPIC, at(2), "s"), False),
        (key_of(TOPIC, at(1), "s"), True),
        (key_of(TOPIC, at(2), "s"), True),
    ]
    other.apply(log.records)
    for knowing in (store, other):
        assert knowing.index.open_count == 0
        assert [knowing.index.find(TOPIC, at(entry))[0].status for entry in (1, 2)] == [Status.EXPIRED, Status.EXPIRED]


def test_a_failed_end_is_reported() -> None:
    log = Log()
    store, other = CancellationStore(log), CancellationStore(log)
    store.record([cancellation(1)])
    store.record([cancellation(1, Status.PERSISTED)])
    store.finish([cancellation(1).at(Status.RACED, Cause.LOST, "for this test")])
    other.apply(log.records)
    (found,) = other.index.find(TOPIC, at(1))
    assert (found.status, found.cause) == (Status.RACED, Cause.LOST)


def test_last_readable_version_of_a_record_is_kept() -> None:
    log = Log()
    store = CancellationStore(log)
    store.apply(encode_all([cancellation(1), cancellation(2), cancellation(3)]))
    store.begin_following()
    store.apply([(key_of(TOPIC, at(1), "s"), b'{"version": 9}'), *encode_all([cancellation(2)])])
    store.note_caught_up()
    assert statuses(store) == {1: Status.ACCEPTED, 2: Status.ACCEPTED}


def test_records_that_this_version_cannot_read_are_left_alone() -> None:
    store = CancellationStore(Log())
    store.apply([("?", b"{}"), ("?", None), *encode_all([cancellation(1)]), (key_of(TOPIC, at(2), "s"), b"[]")])
    assert statuses(store) == {1: Status.ACCEPTED}
