"""The lease of ephemeral nodes, kept alive by a thread, as a ZooKeeper session is by its connection."""

import logging
import threading
from typing import Final

from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway
from pulsar_sidecar.model.errors import SidecarError

_LOG = logging.getLogger(__name__)
_KEPT_ALIVE_IN_A_TIMEOUT: Final = 3


class EtcdLease:
    """One lease at a time, granted when it is first needed; an expired one is replaced by the next.

    Attributes:
        epoch: number of the lease, from 1.
    """

    def __init__(self, gateway: EtcdGateway) -> None:
        self._gateway = gateway
        self._lock = threading.Lock()
        self._id: int | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self.epoch = 1

    def id(self) -> int:
        """Return the lease's id.

        Raises:
            TemporaryError: etcd grants none.
        """
        with self._lock:
            if self._id is None:
                seconds = max(1, round(self._gateway.options.timeout_ms / 1000))
                answer = self._gateway.reading("get a lease", "lease/grant", {"TTL": str(seconds)})
                self._id = int(answer["ID"])
                if self._thread is None:
                    self._thread = threading.Thread(target=self._keep_alive, name="etcd-lease", daemon=True)
                    self._thread.start()
            return self._id

    def lost(self, lease: int) -> None:
        """Record that etcd no longer knows a lease, so that the next use begins another epoch."""
        with self._lock:
            if lease == self._id:
                self._id = None
                self.epoch += 1

    def close(self) -> None:
        """Revoke the lease; without a response it expires by its timeout. Idempotent."""
        with self._lock:
            lease, self._id, self._is_closed = self._id, None, True
        if lease is None or self._gateway.closed.is_set():
            return
        try:
            self._gateway.writing("revoke the lease", "lease/revoke", {"ID": str(lease)})
        except SidecarError as error:
            _LOG.warning("the lease was not revoked: %s", error)

    def _keep_alive(self) -> None:
        pause = self._gateway.options.timeout_ms / 1000 / _KEPT_ALIVE_IN_A_TIMEOUT
        while not self._gateway.clock.wait_seconds(pause, self._gateway.closed):
            lease = self._id
            if lease is None:
                continue
            try:
                answer = self._gateway.reading("keep the lease", "lease/keepalive", {"ID": str(lease)})
            except SidecarError as error:
                _LOG.warning("the lease could not be kept alive: %s", error)
                continue
            if not int(answer.get("result", {}).get("TTL", 0)):
                _LOG.warning("the lease has expired, with all ephemeral nodes")
                self.lost(lease)
