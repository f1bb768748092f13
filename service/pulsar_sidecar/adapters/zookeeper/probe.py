"""Connection of the latency probe to ZooKeeper."""

from kazoo.client import KazooClient

from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.zookeeper.session import Deadline, KazooSession
from pulsar_sidecar.model.clocks import Clock


class ZooKeeperProbe:
    """`latency_probe.ProbeConnection` by a session of its own.

    A ``sync`` changes nothing, needs no permission, and passes the same queues as other clients' requests, through
    the leader.
    """

    def __init__(self, server: str, options: SessionOptions, clock: Clock) -> None:
        self._session = KazooSession(f"zk:{server}", clock, options)

    def ask(self) -> None:
        self._session.reading("measure ZooKeeper's latency", _synchronize)

    def close(self) -> None:
        self._session.close()


def _synchronize(client: KazooClient, deadline: Deadline) -> None:
    deadline.answer(client.sync_async("/"))
