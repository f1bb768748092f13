"""Probe of the metadata store's latency for small requests, as another client would see it."""

import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, encoded
from pulsar_sidecar.adapters.metadata_access import SessionOptions
from pulsar_sidecar.adapters.zookeeper.session import KazooSession
from pulsar_sidecar.features.ledger_deletion.second_phase.limits import AdaptiveLimit
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError

_LOG = logging.getLogger(__name__)
_FAREWELL_SECONDS: Final = 1.0
RECONNECT_SECONDS: Final = 1.0
_COUNT: Final = {"key": encoded("/"), "count_only": True}


class EtcdProbe:
    """Connection to an etcd server; a linearizable read passes the leader as any client's."""

    def __init__(self, endpoint: str, options: SessionOptions, clock: Clock) -> None:
        self._gateway = EtcdGateway(endpoint, clock, options)

    def ask(self) -> None:
        """Wait for the response to a small request; raise `TemporaryError` if there is none."""
        self._gateway.reading("measure etcd's latency", "kv/range", _COUNT)

    def close(self) -> None:
        self._gateway.close()


class ZooKeeperProbe:
    """Connection to a ZooKeeper server, as a session of its own.

    A ``sync`` changes nothing, needs no permission, and passes the same queues as other clients' requests, through
    the leader.
    """

    def __init__(self, server: str, options: SessionOptions, clock: Clock) -> None:
        self._session = KazooSession(f"zk:{server}", clock, options)

    def ask(self) -> None:
        """Do as `EtcdProbe.ask`."""
        self._session.reading(
            "measure ZooKeeper's latency", lambda client, deadline: deadline.answer(client.sync_async("/"))
        )

    def close(self) -> None:
        self._session.close()


class LatencyProbe:
    """Latency probe in a thread of its own until it is closed; it reconnects after a lost connection."""

    def __init__(
        self,
        servers: Sequence[str],
        connect: Callable[[str], EtcdProbe | ZooKeeperProbe],
        clock: Clock,
        listener: AdaptiveLimit,
        after_seconds: float = 0.0,
    ) -> None:
        """Prepare; see `start`.

        The probe connects to one of ``servers`` at a time, and notifies ``listener`` of every probe, in its thread;
        it makes the first one ``after_seconds``.
        """
        self._after_seconds = after_seconds
        self._servers, self._connect = servers, connect
        self._clock = clock
        self._listener = listener
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="latency-probe", daemon=True)

    def start(self) -> None:
        """Start the thread; return at once."""
        self._thread.start()

    def close(self) -> None:
        """End the probe's session; do not wait for a silent server, where the session ends by its timeout."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FAREWELL_SECONDS)

    def _run(self) -> None:
        is_unreachable = False
        self._clock.wait_seconds(self._after_seconds, self._stop)
        while not self._stop.is_set():
            server = random.choice(self._servers)  # noqa: S311
            try:
                with closing(self._connect(server)) as connection:
                    connection.ask()  # which connects
                    is_unreachable = False
                    while not self._stop.is_set():
                        with self._listener.probing():
                            connection.ask()
                        self._clock.wait_seconds(self._listener.probe_interval_seconds(), self._stop)
            except SidecarError as error:
                level = logging.DEBUG if is_unreachable else logging.INFO
                _LOG.log(level, "the latency of the metadata store at %s cannot be measured now: %s", server, error)
                is_unreachable = True
                self._clock.wait_seconds(RECONNECT_SECONDS, self._stop)
