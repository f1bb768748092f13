"""The two loops of cancelling: one follows the log, one reconciles cursors with it if no other sidecar leads.

Each survives every error of ours: it notes it, waits and starts afresh.
"""

import threading
from collections.abc import Callable

import structlog

from pulsar_sidecar.delayed_delivery.leadership import Leadership
from pulsar_sidecar.delayed_delivery.ports import Ports
from pulsar_sidecar.delayed_delivery.workflow.cancellation_store import CancellationStore
from pulsar_sidecar.delayed_delivery.workflow.reconciler import Reconciler
from pulsar_sidecar.delayed_delivery.workflow.reissuing import Reissuer
from pulsar_sidecar.model.errors import SidecarError

log = structlog.get_logger("delayed-delivery")

_ROUND_SECONDS = 0.2
_LEADING_SECONDS = 1.0
_FIRST_BACKOFF_SECONDS = 0.5
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
        self._threads: list[threading.Thread] = []
        self.leading = False
        self.last_error: str | None = None

    def start(self) -> None:
        """Start them; returns at once."""
        loops: list[tuple[str, Callable[[], None]]] = [("log", self._follow), ("assert", self._assert)]
        for name, loop in loops:
            thread = threading.Thread(
                target=self._keep_running, args=(name, loop), name=f"cancellations-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def join(self) -> None:
        """Wait until each has ended, and let another sidecar lead."""
        for thread in self._threads:
            thread.join()
        if self.leading:
            try:
                self._leadership.resign()
            except SidecarError as error:
                log.warning("another sidecar leads only when this one's session has ended", error=str(error))

    def _keep_running(self, name: str, loop: Callable[[], None]) -> None:
        backoff_seconds = _FIRST_BACKOFF_SECONDS
        while not self._stop.is_set():
            started = self._ports.clock.monotonic_seconds()
            try:
                loop()
            except SidecarError as error:
                self.last_error = f"{name}: {error}"
                log.warning("loop starts afresh", loop=name, error=str(error), backoff_seconds=backoff_seconds)
            except Exception:
                # A defect of ours must not silence the loop for good; the log holds the work.
                self.last_error = f"{name}: unexpected failure, see the log"
                log.exception("loop failed unexpectedly and starts afresh", loop=name)
            if self._ports.clock.monotonic_seconds() - started > _LONGEST_BACKOFF_SECONDS:
                backoff_seconds = _FIRST_BACKOFF_SECONDS
            self._ports.clock.wait_seconds(backoff_seconds, self._stop)
            backoff_seconds = min(backoff_seconds * 2, _LONGEST_BACKOFF_SECONDS)

    def _follow(self) -> None:
        self._ports.log.ensure()
        self._store.begin_following()
        try:
            self._ports.log.follow(self._store.apply, self._caught_up, self._stop.is_set)
        finally:
            self._store.stop_following()

    def _caught_up(self, unreadable: int) -> None:
        self._store.note_caught_up(unreadable)
        log.info("cancellation log read", open=self._store.open_count)

    def _assert(self) -> None:
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
