"""Probe of etcd's latency for small requests: a linearizable read, which passes the leader as any client's."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, RefusedError, encoded, endpoints_of
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.zookeeper.probe import LatencyProbe, ProbeConnection
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.metadata_stores import ETCD

_LOOK_SECONDS: Final = 0.05
_REQUEST: Final = {"key": encoded("/"), "count_only": True}


class EtcdLatencyProbe(LatencyProbe):
    """`LatencyProbe` of one of etcd's members at a time."""

    def __init__(
        self, url: str, options: SessionOptions, clock: Clock, listener: AdaptiveLimit, *, after_seconds: float = 0.0
    ) -> None:
        scheme = f"{ETCD}{endpoints_of(url)[0].partition('://')[0]}://"
        servers = [endpoint.partition("://")[2] for endpoint in endpoints_of(url)]
        super().__init__(servers, options.credential, clock, listener, after_seconds=after_seconds)
        self._scheme, self._options = scheme, options

    def _connection(self, server: str) -> ProbeConnection:
        return _ProbedMember(EtcdGateway(f"{self._scheme}{server}", self._clock, self._options))


class _ProbedMember:
    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway
        self._thread = ThreadPoolExecutor(1, "etcd-probe")

    def round_trip(self, overdue: Callable[[float], None]) -> float:
        """Return the seconds from sending a probe to its answer; meanwhile call ``overdue`` with the wait so far."""
        clock = self._gateway.clock
        began = clock.monotonic_seconds()
        answer = self._thread.submit(self._gateway.reading, "measure etcd's latency", "kv/range", _REQUEST)
        while True:
            try:
                answer.result(_LOOK_SECONDS)
            except TimeoutError:
                overdue(clock.monotonic_seconds() - began)
            except (SidecarError, RefusedError) as error:
                raise ConnectionError(str(error)) from error
            else:
                return clock.monotonic_seconds() - began

    def close(self) -> None:
        self._gateway.close()
        self._thread.shutdown(wait=False)
