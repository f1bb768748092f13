"""The intents to publish messages again: written to the log, and known only as the log tells them."""

import threading

from pulsar_sidecar.delayed_delivery.cancel.reissue_intents import Message, ReissueIntent, ReissueIntents
from pulsar_sidecar.delayed_delivery.ports import CancellationTopic


class IntentStore:
    """Safe for use by several threads.

    Invariant: nothing is known here that was not read back from the log, so all sidecars know it in the same order.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self._intents = ReissueIntents()
        self._lock = threading.Lock()

    def write(self, intent: ReissueIntent) -> None:
        """Make it durable.

        Raises:
            TemporaryError: it is not known to be stored.
        """
        self._topic.append([intent.encoded()])

    def drop(self, intent: ReissueIntent) -> None:
        """Remove it from the log; raises as `write` does."""
        self._topic.append([(intent.key, None)])

    def apply(self, key: str, value: bytes | None) -> None:
        """`ReissueIntents.apply`."""
        with self._lock:
            self._intents.apply(key, value)

    def valid(self, message: Message) -> ReissueIntent | None:
        """`ReissueIntents.valid`."""
        with self._lock:
            return self._intents.valid(message)

    def holds(self, intent: ReissueIntent) -> bool:
        """`ReissueIntents.holds`."""
        with self._lock:
            return self._intents.holds(intent)

    def all(self) -> list[ReissueIntent]:
        """`ReissueIntents.all`."""
        with self._lock:
            return self._intents.all()

    def begin_following(self) -> None:
        """The log is read from its beginning now."""
        with self._lock:
            self._intents.mark_unseen()

    def note_caught_up(self, *, complete: bool) -> None:
        """The log has been read; ``complete`` means every entry of it."""
        with self._lock:
            if complete:
                self._intents.sweep_unseen()
