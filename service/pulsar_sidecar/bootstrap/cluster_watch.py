"""Asks ZooKeeper and the brokers again and again whether they answer, so that readiness is known at once.

Invariant: `missing` never waits for the cluster; its answer was true a few seconds ago.
"""

import threading
from collections.abc import Callable

import structlog

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError

_WHILE_THERE_SECONDS = 5.0
_WHILE_AWAY_SECONDS = 1.0
log = structlog.get_logger("pulsar-sidecar")


class ClusterWatch:
    """One thread for each part of the cluster; they end with the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._missing: dict[str, str | None] = {}

    def watch(self, part: str, ask: Callable[[], object]) -> None:
        """Watch a part of the cluster from now on.

        Args:
            part: its name in messages.
            ask: raises a `SidecarError` that names the host while the part is away, and takes seconds at most.
        """
        self._missing[part] = f"{part} has not answered yet"
        threading.Thread(target=self._keep_asking, args=(part, ask), name=f"watch {part}", daemon=True).start()

    def missing(self, part: str | None = None) -> str | None:
        """What is away and why, of everything or of one part; None while that answers, or is not watched."""
        if part is not None:
            return self._missing.get(part)
        return next((reason for reason in list(self._missing.values()) if reason is not None), None)

    def close(self) -> None:
        """Ask no more; does not wait for a question that is on its way."""
        self._stop.set()

    def _keep_asking(self, part: str, ask: Callable[[], object]) -> None:
        while not self._stop.is_set():
            try:
                ask()
            except SidecarError as error:
                self._note(part, str(error))
            except Exception:  # a defect must not leave the last answer standing for good
                self._note(part, f"{part} could not be asked; the log says more")
                log.exception("a part of the cluster could not be asked", part=part)
            else:
                self._note(part, None)
            away = self._missing[part] is not None
            self._clock.wait_seconds(_WHILE_AWAY_SECONDS if away else _WHILE_THERE_SECONDS, self._stop)

    def _note(self, part: str, reason: str | None) -> None:
        before, self._missing[part] = self._missing[part], reason
        if reason is not None and reason != before and not self._stop.is_set():
            log.warning("not ready", missing=reason)
        elif reason is None and before is not None:
            log.info("answers", part=part)
