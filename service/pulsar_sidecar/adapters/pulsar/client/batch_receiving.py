"""Receives batches within a time that goes by the machine's monotonic clock.

The client counts how long a batch has been waited for by the wall clock
(``ConsumerImplBase::doBatchReceiveTimeTask``), so a clock that is set back by an hour would make it wait for an hour.
"""

import concurrent.futures
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import pulsar

from pulsar_sidecar.model.errors import TemporaryError

_GRACE_SECONDS = 10.0
"""How much longer than agreed a busy machine may take to answer."""


class BatchSource(Protocol):
    """The part of `pulsar.Consumer` that is needed here."""

    def batch_receive(self) -> list[pulsar.Message]:
        """The next batch, after the policy's timeout at the latest."""
        ...


class BatchReceiver:
    """One consumer's batches; not for several threads."""

    def __init__(self, source: BatchSource, timeout_ms: int, grace_seconds: float = _GRACE_SECONDS) -> None:
        self._source = source
        self._longest_seconds = timeout_ms / 1000 + grace_seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="receiving")

    def receive(self) -> list[pulsar.Message]:
        """The next batch, empty when nothing came.

        Raises:
            TemporaryError: the client did not answer in time; close the consumer, which ends its waiting, and open
                another.
        """
        asked = self._thread.submit(self._source.batch_receive)
        try:
            return asked.result(self._longest_seconds)
        except concurrent.futures.TimeoutError as error:
            raise TemporaryError(
                f"no batch within {self._longest_seconds:.0f} s; was the clock set back? A new consumer is opened"
            ) from error

    def close(self) -> None:
        """Begin nothing more; does not wait for what is on its way, which ends with the consumer."""
        self._thread.shutdown(wait=False)
