"""Connection of the latency probe to etcd."""

from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, encoded
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.model.clocks import Clock

_REQUEST: Final = {"key": encoded("/"), "count_only": True}


class EtcdProbe:
    """`latency_probe.ProbeConnection` by linearizable reads, which pass the leader as any client's."""

    def __init__(self, endpoint: str, options: SessionOptions, clock: Clock) -> None:
        self._gateway = EtcdGateway(endpoint, clock, options)

    def ask(self) -> None:
        self._gateway.reading("measure etcd's latency", "kv/range", _REQUEST)

    def close(self) -> None:
        self._gateway.close()
