"""Cancellation log and the state derived from it."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog

from pulsar_sidecar.features.delayed_messages.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.features.delayed_messages.cancel.log_records import (
    Message,
    RescheduleIntent,
    decode,
    decode_intent,
    encode_all,
    is_intent_key,
    key_of,
    parse_intent_key,
    parse_key,
)
from pulsar_sidecar.features.delayed_messages.cancel.requests import Cancellation
from pulsar_sidecar.features.delayed_messages.ports import CancellationTopic, LogRecords
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError

log = structlog.get_logger("delayed-delivery")

_MOST_AWAITED = 200_000
_READ_SECONDS = 10.0
"""Timeout of a request's wait for the log to be read at the start."""


class CancellationStore:
    """Cancellation log and the state derived from it; thread-safe.

    Invariants: a record is durable before it is known here; after the log has been reread, the index has no open
    cancellation that the log does not hold.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self.index = CancellationIndex()
        # Own records that have not come back from the topic, by key: while they are being written, and afterwards. They
        # need not be decoded.
        self._writing: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self.caught_up = threading.Event()
        self.follows = False
        """True if the log has been read and is being followed; otherwise the known cancellations may have ended."""
        self.intents = RescheduleIntents(topic)

    def record(self, cancellations: Sequence[Cancellation]) -> None:
        """Make cancellations durable, then add them to the index.

        Raises:
            TemporaryError: at least one is not known to be stored; none of them is in the index.
        """
        if cancellations:
            records = encode_all(cancellations)
            with self.index.lock:
                self._writing.update(records)
            try:
                self._topic.append(records)
            except BaseException:
                self._apply_own(cancellations, records, stored=False)
                raise
            self._apply_own(cancellations, records, stored=True)

    def _apply_own(
        self, cancellations: Sequence[Cancellation], records: Sequence[tuple[str, bytes]], *, stored: bool
    ) -> None:
        known: Sequence[Cancellation] = cancellations
        with self.index.lock:
            came_back = {key for key, _ in records if key not in self._writing}
            if not stored:
                known = [one for one, (key, _) in zip(cancellations, records, strict=True) if key in came_back]
            for key, _ in records:
                self._writing.pop(key, None)
            if stored and len(self._written) < _MOST_AWAITED:
                self._written.update(record for record in records if record[0] not in came_back)
            self.index.learn_all(known)

    def finish(self, cancellations: Sequence[Cancellation]) -> None:
        """Record how cancellations ended, and drop them from the log.

        If the dropped cancellation was PERSISTED, every sidecar regards it as expired.
        """
        if not cancellations:
            return
        logged: list[Cancellation] = []
        for one in cancellations:
            known = self.index.known(one.topic, one.position, one.subscription)
            was_persisted = known is not None and known.status is CancellationStatus.PERSISTED
            if one.status is not CancellationStatus.EXPIRED or not was_persisted:
                logged.append(one)
        forgotten = [(key_of(one.topic, one.position, one.subscription), None) for one in cancellations]
        self._topic.append([*encode_all(logged), *forgotten])
        self.index.learn_all(cancellations)

    def begin_following(self) -> None:
        """Prepare to reread the log from its beginning."""
        with self.index.lock:
            self.follows = False
            self._written.clear()
            self.index.mark_unseen()
            self.intents.mark_unseen()

    def note_caught_up(self, unreadable: int = 0) -> None:
        """Note that the log has been read, except ``unreadable`` entries.

        Cancellations that the log no longer holds have ended, and compaction removed the record of their end.
        """
        with self.index.lock:
            dropped = self.index.sweep_unseen(complete=not unreadable)
            self.intents.sweep_unseen(complete=not unreadable)
            self.follows = True
        if dropped:
            log.info("dropped ended cancellations that are no longer in the log", count=dropped)
        self.caught_up.set()

    def apply(self, records: LogRecords) -> None:
        """Apply records of the log, written by any sidecar."""
        with self.index.lock:
            others = [(key, value) for key, value in records if not (value and self._is_own(key, value))]
        learned: list[Cancellation] = []
        for key, value in others:
            try:
                if is_intent_key(key):
                    self.intents.apply(key, value)
                elif value:
                    learned.append(decode(key, value))
                else:
                    self.index.learn_all(learned)
                    learned = []
                    self.index.forget(*parse_key(key))
            except UndecodableError as error:
                log.warning("ignoring undecodable record of the cancellation log", error=str(error))
                # The log holds the record, although this build cannot read it: the earlier state stays.
                with suppress(UndecodableError):
                    self.index.keep(*parse_key(key))
        self.index.learn_all(learned)

    def _is_own(self, key: str, value: bytes) -> bool:
        for own in (self._writing, self._written):
            if own.get(key) == value:
                del own[key]
                return True
        return False

    def await_log(self) -> None:
        """Wait until the log has been read once.

        Raises:
            TemporaryError: the log has not been read in time.
        """
        if not self.caught_up.wait(_READ_SECONDS):
            raise TemporaryError("the sidecar is still reading its cancellation log; try again in a moment")


class RescheduleIntents:
    """Intents to publish messages again, by message, in the log's order; thread-safe.

    The log has one order for all sidecars, so all of them select the same intent as the one that may publish; a second
    intent publishes nothing.

    Invariant: every intent here was read back from the log, so all sidecars know them in the same order.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self._lock = threading.RLock()
        self._by_message: dict[Message, dict[str, RescheduleIntent]] = {}
        self._unseen: set[str] = set()

    def write(self, intent: RescheduleIntent) -> None:
        """Make an intent durable.

        Raises:
            TemporaryError: the intent is not known to be stored.
        """
        self._topic.append([intent.encoded()])

    def drop(self, intent: RescheduleIntent) -> None:
        """Remove an intent from the log; raises as `write` does."""
        self._topic.append([(intent.key, None)])

    def apply(self, key: str, value: bytes | None) -> None:
        """Apply a record of the log.

        Raises:
            UndecodableError: another version wrote the record; it is left alone.
        """
        message, token = parse_intent_key(key)
        with self._lock:
            self._unseen.discard(key)
            if value:
                self._by_message.setdefault(message, {})[token] = decode_intent(key, value)
            else:
                self._forget(message, token)

    def valid(self, message: Message) -> RescheduleIntent | None:
        """Return the valid intent: the one whose copy is stored, or else the first in the log."""
        with self._lock:
            intents = list(self._by_message.get(message, {}).values())
        return next((one for one in intents if one.copy is not None), intents[0] if intents else None)

    def holds(self, intent: RescheduleIntent) -> bool:
        """Return True if the intent's record has been read from the log."""
        with self._lock:
            return intent.token in self._by_message.get(intent.message, {})

    def all(self) -> list[RescheduleIntent]:
        """Return every intent, including invalid ones."""
        with self._lock:
            return [one for intents in self._by_message.values() for one in intents.values()]

    def mark_unseen(self) -> None:
        """Mark all intents as unseen before the log is reread from its beginning."""
        with self._lock:
            self._unseen = {one.key for one in self.all()}

    def sweep_unseen(self, *, complete: bool) -> None:
        """Forget intents not seen since `mark_unseen`; none if the log was not read completely."""
        with self._lock:
            for key in self._unseen if complete else ():
                self._forget(*parse_intent_key(key))
            self._unseen = set()

    def _forget(self, message: Message, token: str) -> None:
        intents = self._by_message.get(message, {})
        intents.pop(token, None)
        if not intents:
            self._by_message.pop(message, None)
