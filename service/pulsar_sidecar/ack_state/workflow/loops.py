"""Asks again and again for the states of the topics that an operator wants watched, so that metrics can show them."""

import threading
from collections.abc import Sequence

import structlog

from pulsar_sidecar.ack_state.judging import DetailOptions
from pulsar_sidecar.ack_state.workflow.service import AckStateService
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.names import TopicName

log = structlog.get_logger(__name__)
_NO_DETAIL = DetailOptions(ranges=0, stretches=0)


class AckStateWatch:
    """One thread; survives every error and goes on with the next topic."""

    def __init__(
        self, states: AckStateService, topics: Sequence[TopicName], every_seconds: float, clock: Clock
    ) -> None:
        self._states = states
        self._topics = topics
        self._every_seconds = every_seconds
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ack-state-watch", daemon=True)

    def start(self) -> None:
        """Begin, if there is anything to watch."""
        if self._topics:
            self._thread.start()

    def close(self) -> None:
        """Stop and wait for the end; idempotent."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for topic in self._topics:
                self._look_at(topic)
            self._clock.wait_seconds(self._every_seconds, self._stop)

    def _look_at(self, topic: TopicName) -> None:
        try:
            self._states.ack_states(topic, None, _NO_DETAIL)
        except SidecarError as error:
            log.warning("a watched topic's acknowledgement state could not be read", topic=str(topic), error=str(error))
        except Exception:
            # A defect of ours that meets one topic must not leave the others unwatched.
            log.exception("looking at a watched topic failed unexpectedly", topic=str(topic))
