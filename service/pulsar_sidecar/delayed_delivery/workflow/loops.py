"""The two loops of cancelling: one follows the log, one reconciles cursors with it if no other sidecar leads."""

import threading

import structlog

from pulsar_sidecar.delayed_delivery.leadership import Leadership
from pulsar_sidecar.delayed_delivery.ports import Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.delayed_delivery.workflow.reconciler import Reconciler
from pulsar_sidecar.delayed_delivery.workflow.reissuing import Reissuer
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.runtime.supervised_loops import SupervisedLoops

log = structlog.get_logger("delayed-delivery")

_ROUND_SECONDS = 0.2
_LEADING_SECONDS = 1.0
_LONGEST_BACKOFF_SECONDS = 15.0


class Loops:
    """The threads of one sidecar."""

    def __init__(
        self,
        ports: Ports,
        store: CancellationStore,
        reconciler: Reconciler,
        reissuer: Reissuer,
        leadership: Leadership,
        stop: threading.Event,
    ) -> None:
        self._ports = ports
        self._store = store
        self._reconciler = reconciler
        self._reissuer = reissuer
        self._leadership = leadership
        self._stop = stop
        self.leading = False
        self.last_error: str | None = None
        self._loops = SupervisedLoops(
            "delayed-delivery", ports.clock, stop, self._note_failure, _LONGEST_BACKOFF_SECONDS
        )

    def start(self) -> None:
        """Start them; returns at once."""
        self._loops.start({"cancellations-log": self._follow, "cancellations-reconcile": self._reconcile})

    def join(self) -> None:
        """Wait until each has ended, and let another sidecar lead."""
        self._loops.join()
        if self.leading:
            try:
                self._leadership.resign()
            except SidecarError as error:
                log.warning("another sidecar leads only when this one's session has ended", error=str(error))

    def _note_failure(self, failure: str) -> None:
        self.last_error = failure

    def _follow(self) -> None:
        self._ports.log.ensure()
        self._store.begin_following()
        try:
            self._ports.log.follow(self._store.apply, self._caught_up, self._stop.is_set)
        finally:
            self._store.stop_following()

    def _caught_up(self, unreadable: int) -> None:
        self._store.note_caught_up(unreadable)
        log.info("cancellation log read", open=self._store.index.open_count)

    def _reconcile(self) -> None:
        asked_at = -_LEADING_SECONDS
        try:
            while not self._stop.is_set():
                now = self._ports.clock.monotonic_seconds()
                if now - asked_at >= _LEADING_SECONDS:
                    self._note_leading(self._store.caught_up.is_set() and self._leadership.held())
                    asked_at = now
                if self.leading:
                    self._reconciler.round()
                    self._reissuer.round()
                self._ports.clock.wait_seconds(_ROUND_SECONDS, self._stop)
        except BaseException:
            self.leading = False
            raise

    def _note_leading(self, leading: bool) -> None:
        if leading and not self.leading:
            self._reconciler.begin_leading()
            log.info("this sidecar reconciles the cancellations now")
        self.leading = leading
