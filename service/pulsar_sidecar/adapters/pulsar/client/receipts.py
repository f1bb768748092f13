"""Collects the receipts of messages on their way; the client's own threads bring them in.

Invariant: every message has exactly one result, and one whose receipt has not come is UNKNOWN, never "not stored".
"""

import threading
from collections.abc import Callable

import pulsar
from _pulsar import MessageId

from pulsar_sidecar.adapters.pulsar.errors import publish_result
from pulsar_sidecar.ledger_deletion.ports import PublishResult


class Receipts:
    """The results of a fixed number of messages; all UNKNOWN at first."""

    def __init__(self, count: int) -> None:
        self._results = [PublishResult.UNKNOWN] * count
        self._expected = 0
        self._arrived = threading.Condition()

    def expect(self, index: int) -> Callable[[pulsar.Result, MessageId], None]:
        """The callback for one message; it never raises, because the client would end the process."""
        with self._arrived:
            self._expected += 1

        def receipt(result: pulsar.Result, message_id: MessageId) -> None:
            with self._arrived:
                self._results[index] = publish_result(result, message_id.ledger_id())
                self._expected -= 1
                self._arrived.notify_all()

        return receipt

    def set_result(self, index: int, result: PublishResult) -> None:
        """Give the result of a message that is not sent."""
        with self._arrived:
            self._results[index] = result

    def wait(self, timeout_seconds: float) -> bool:
        """Whether every expected receipt came in time."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self._expected == 0, timeout_seconds)

    def of(self, index: int) -> PublishResult:
        """What is known of one message now."""
        with self._arrived:
            return self._results[index]

    def results(self) -> list[PublishResult]:
        """What is known of all messages now."""
        with self._arrived:
            return list(self._results)
