import threading
from collections.abc import Sequence

import pytest
from pulsar_sidecar.ledger_deletion.ports import Delivery
from pulsar_sidecar.ledger_deletion.workflow.batches import BatchesInHand
from pulsar_sidecar.model.errors import TemporaryError

_SECONDS = 10


def batch(number: int) -> list[Delivery]:
    return [Delivery(None, b"", None, {}, f"1:{number}:0", "topic", 0)]


def test_a_second_batch_is_begun_while_the_first_waits_and_a_third_is_not() -> None:
    met, settled = threading.Barrier(3, timeout=_SECONDS), []

    def settle(deliveries: Sequence[Delivery]) -> None:
        met.wait()
        settled.append(deliveries[0].message_id)

    with BatchesInHand(settle, 2) as batches:
        for number in (1, 2):
            batches.wait_for_room(2)
            batches.begin(batch(number))
        assert settled == []
        met.wait()
        batches.wait_for_room(1)
        assert sorted(settled) == ["1:1:0", "1:2:0"]


def test_the_block_ends_after_the_batches_in_hand() -> None:
    go_on, settled = threading.Event(), []

    def settle(deliveries: Sequence[Delivery]) -> None:
        assert go_on.wait(_SECONDS)
        settled.append(deliveries[0].message_id)

    with BatchesInHand(settle, 2) as batches:
        batches.begin(batch(1))
        go_on.set()
    assert settled == ["1:1:0"]


def test_one_at_a_time_where_there_is_room_for_one() -> None:
    running, most_running = 0, 0
    lock = threading.Lock()

    def settle(deliveries: Sequence[Delivery]) -> None:
        nonlocal running, most_running
        with lock:
            running += 1
            most_running = max(most_running, running)
        with lock:
            running -= 1

    with BatchesInHand(settle, 2) as batches:
        for number in range(50):
            batches.wait_for_room(1)
            batches.begin(batch(number))
    assert most_running == 1


@pytest.mark.parametrize("at_the_end", [False, True])
def test_what_a_batch_raises_comes_out_after_its_neighbour_has_ended(at_the_end: bool) -> None:
    failed, settled = threading.Event(), []

    def settle(deliveries: Sequence[Delivery]) -> None:
        if deliveries[0].message_id == "1:1:0":
            failed.set()
            raise TemporaryError("the consumer is closed")
        assert failed.wait(_SECONDS)
        settled.append(deliveries[0].message_id)

    def settle_two() -> None:
        with BatchesInHand(settle, 2) as batches:
            batches.begin(batch(1))
            batches.begin(batch(2))
            if not at_the_end:
                batches.wait_for_room(1)

    with pytest.raises(TemporaryError):
        settle_two()
    assert settled == ["1:2:0"]
