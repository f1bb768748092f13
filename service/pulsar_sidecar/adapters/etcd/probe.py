"""Connection of the latency probe to etcd: a linearizable read, which passes the leader as any client's."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, encoded
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError

_LOOK_SECONDS: Final = 0.05
_REQUEST: Final = {"key": encoded("/"), "count_only": True}


class EtcdProbe:
    """`latency_probe.ProbeConnection` to one of etcd's members."""

    def __init__(self, endpoint: str, options: SessionOptions, clock: Clock) -> None:
        self._gateway = EtcdGateway(endpoint, clock, options)
        self._thread = ThreadPoolExecutor(1, "etcd-probe")

    def round_trip(self, overdue: Callable[[float], None]) -> float:
        clock = self._gateway.clock
        began = clock.monotonic_seconds()
        answer = self._thread.submit(self._gateway.reading, "measure etcd's latency", "kv/range", _REQUEST)
        while True:
            try:
                answer.result(_LOOK_SECONDS)
            except TimeoutError:
                overdue(clock.monotonic_seconds() - began)
            except SidecarError as error:
                raise ConnectionError(str(error)) from error
            else:
                return clock.monotonic_seconds() - began

    def close(self) -> None:
        self._gateway.close()
        self._thread.shutdown(wait=False)
