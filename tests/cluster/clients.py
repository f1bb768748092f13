"""Quiet Pulsar clients for tests, which retry while brokers restart.

If a restarted broker does not serve a topic yet, the C++ client of 4.2.0 sometimes stops retrying until its operation
times out after two minutes. So operations here time out soon, and are retried.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import pulsar
from pulsar_sidecar.local_cluster.state import ClusterAddresses

from tests.cluster.patience import until

Answer = TypeVar("Answer")

_OPERATION_SECONDS = 15
_MAY_BE_OVER_SOON = (
    pulsar.Timeout,
    pulsar.ConnectError,
    pulsar.NotConnected,
    pulsar.LookupError,
    pulsar.ServiceUnitNotReady,
    pulsar.TooManyLookupRequestException,
)


class PatientClient(pulsar.Client):
    """A client that opens producers, consumers and readers as soon as brokers serve their topics."""

    def __init__(self, addresses: ClusterAddresses) -> None:
        super().__init__(
            addresses.broker_service_url,
            operation_timeout_seconds=_OPERATION_SECONDS,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def create_producer(self, topic: str, *more: Any, **named: Any) -> pulsar.Producer:
        opening = super().create_producer
        return _patiently(lambda: opening(topic, *more, **named), f"a producer of {topic}")

    def subscribe(self, topic: Any, *more: Any, **named: Any) -> pulsar.Consumer:
        opening = super().subscribe
        return _patiently(lambda: opening(topic, *more, **named), f"a consumer of {topic}")

    def create_reader(self, topic: str, *more: Any, **named: Any) -> pulsar.Reader:
        opening = super().create_reader
        return _patiently(lambda: opening(topic, *more, **named), f"a reader of {topic}")


def _patiently(ask: Callable[[], Answer], what: str) -> Answer:
    def answer() -> Answer | None:
        try:
            return ask()
        except _MAY_BE_OVER_SOON:
            return None

    return until(answer, what)
