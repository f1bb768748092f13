"""Message ids as Java spells them, retries' due times, and what a consumer remembers."""

import inspect
import threading
import tracemalloc

import _pulsar
import pulsar
import pytest
from pulsar_sidecar.adapters.pulsar_client.clients import handle_of, java_message_id
from pulsar_sidecar.adapters.pulsar_client.publisher import Receipts
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import BatchReceiver, FinishedMessages, due_ms, is_early
from pulsar_sidecar.features.ledger_deletion.ports import Delivery, PublishResult
from pulsar_sidecar.model.errors import PermanentError, TemporaryError


def message_id(ledger: int, entry: int, partition: int = -1, batch_index: int = -1) -> _pulsar.MessageId:
    return _pulsar.MessageId(partition, ledger, entry, batch_index)


def delivery(properties: dict[str, str], publish_time_ms: int = 1000) -> Delivery:
    return Delivery("x", b"", None, properties, "1:2:-1", "topic", publish_time_ms)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (message_id(28, 0), "28:0:-1"),
        (message_id(28, 3, 2), "28:3:2"),
        (message_id(28, 3, 2, 0), "28:3:2:0"),
        (message_id(2**40, 7, -1, 499), "1099511627776:7:-1:499"),
    ],
)
def test_message_ids(given: _pulsar.MessageId, expected: str) -> None:
    assert java_message_id(given) == expected


@pytest.mark.parametrize(
    ("delay", "expected"),
    [("500", 1500), ("0", 1000), ("", 1000), ("-5", 1000), ("x", 1000), ("9" * 30, 1000), ("²", 1000)],
)
def test_retry_without_valid_delay_is_due_immediately(delay: str, expected: int) -> None:
    assert due_ms(delivery({"DELAY_TIME": delay})) == expected


def test_a_delivery_of_another_making_cannot_be_acknowledged() -> None:
    with pytest.raises(PermanentError):
        handle_of(delivery({}))


def test_finished_messages_are_known_by_entry_and_place() -> None:
    finished = FinishedMessages(2)
    finished.add("1:1:0:0")
    finished.add("1:2:0")
    assert finished.holds("1:1:0:0")
    assert finished.holds("1:2:0")
    assert not finished.holds("1:1:0:1")
    assert not finished.holds("1:1:0")
    assert not finished.holds("1:1:1:0")
    finished.add("1:1:0:1")
    finished.add("1:3:0")
    assert finished.holds("1:1:0:0")
    assert not finished.holds("1:2:0")


def test_receipts_come_from_other_threads_and_late_ones_change_no_answer_given() -> None:
    receipts = Receipts(3)
    assert receipts.results() == [PublishResult.NOT_STORED] * 3
    callbacks = [receipts.expect(index) for index in range(2)]
    receipts.set_already_stored(2)
    assert not receipts.wait(0)
    thread = threading.Thread(target=callbacks[0], args=(pulsar.Result.Ok, message_id(1, 1)))
    thread.start()
    thread.join()
    assert not receipts.wait(0)
    given = receipts.results()
    assert given == [PublishResult.STORED, PublishResult.UNKNOWN, PublishResult.ALREADY_STORED]
    callbacks[1](pulsar.Result.Ok, message_id(1, 2))
    assert receipts.wait(0)
    assert given[1] is PublishResult.UNKNOWN
    assert receipts.results()[1] is PublishResult.STORED


def test_finished_messages_take_bits_not_objects() -> None:
    finished = FinishedMessages(20_000)
    tracemalloc.start()
    try:
        for entry in range(20):
            for index in range(1_000):
                finished.add(f"7:{entry}:0:{index}")
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Threads of earlier tests may allocate meanwhile: count what the class itself took.
    its_own = snapshot.filter_traces([tracemalloc.Filter(True, inspect.getfile(FinishedMessages))])
    taken = sum(statistic.size for statistic in its_own.statistics("filename"))
    assert 0 < taken < 20 * 1_000


@pytest.mark.parametrize(
    ("delay_ms", "early"),
    [("60000", True), ("2500", False), ("0", False), ("soon", False)],
    ids=["a minute", "little more than two ticks, one of which has passed", "none", "no number"],
)
def test_a_retry_that_comes_long_before_it_is_due_is_early(delay_ms: str, early: bool) -> None:
    assert is_early(delivery({"DELAY_TIME": delay_ms}, 1000), now_ms=2000) is early


def test_a_publish_time_to_come_holds_nothing_back() -> None:
    assert not is_early(delivery({"DELAY_TIME": "60000"}, 3_600_000), now_ms=2000)


# --- receiving -------------------------------------------------------------------------------------------------------


class Batches:
    """A client whose batch is ready when its turn has come."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.ready.set()
        self.error: Exception | None = None

    def batch_receive(self) -> list:
        self.ready.wait(10)
        if self.error is not None:
            raise self.error
        return ["a batch"]


def test_a_batch_is_handed_on() -> None:
    receiver = BatchReceiver(Batches(), timeout_ms=100)
    assert receiver.receive() == ["a batch"]
    assert receiver.receive() == ["a batch"]
    receiver.close()


def test_the_clients_own_error_is_handed_on() -> None:
    batches = Batches()
    batches.error = RuntimeError("AlreadyClosed")
    receiver = BatchReceiver(batches, timeout_ms=100)
    with pytest.raises(RuntimeError, match="AlreadyClosed"):
        receiver.receive()
    receiver.close()


def test_a_client_that_does_not_answer_is_given_up() -> None:
    # Its timer goes by the wall clock: set back by an hour, it once made a sidecar wait for an hour.
    batches = Batches()
    batches.ready.clear()
    receiver = BatchReceiver(batches, timeout_ms=20, grace_seconds=0.02)
    with pytest.raises(TemporaryError, match="was the clock set back"):
        receiver.receive()
    receiver.close()
    batches.ready.set()
