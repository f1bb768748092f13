import threading

import pytest
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import BatchReceiver
from pulsar_sidecar.model.errors import TemporaryError


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
