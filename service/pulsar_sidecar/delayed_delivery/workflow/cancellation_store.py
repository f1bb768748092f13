"""The cancellation log and what is known from it."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import structlog

from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import CancellationIndex
from pulsar_sidecar.delayed_delivery.cancel.log_records import (
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
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus
from pulsar_sidecar.delayed_delivery.ports import CancellationTopic, LogRecords
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError

log = structlog.get_logger("delayed-delivery")

_MOST_AWAITED = 200_000
_READ_SECONDS = 10.0
"""How long a request waits for the log to be read at the start."""


class CancellationStore:
    """The log and what is known from it; safe for use by several threads.

    Invariants: what is recorded is durable before it is known here; once the log has been read anew, nothing is known
    here as open that it does not hold.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self.index = CancellationIndex()
        # What was written here and has not come back from the topic, where it need not be read: while it is written,
        # and afterwards.
        self._writing: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self.caught_up = threading.Event()
        self.follows = False
        """Whether the log has been read and is being followed: otherwise what is known here may have ended."""
        self.intents = RescheduleIntents(topic)

    def record(self, cancellations: Sequence[Cancellation]) -> None:
        """Make them durable, then known.

        Raises:
            TemporaryError: at least one is not known to be stored; none of them is known here.
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
        """Record how they ended, and drop them from the log.

        Where one that was PERSISTED is forgotten, every sidecar takes it for expired.
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
        """The log is read from its beginning now; what was written may be compacted away and never come back."""
        with self.index.lock:
            self.follows = False
            self._written.clear()
            self.index.mark_unseen()
            self.intents.mark_unseen()

    def note_caught_up(self, unreadable: int = 0) -> None:
        """Everything that the log held has been applied, except so many of its entries.

        What it does not hold any more has ended, and compaction took that record away as well.
        """
        with self.index.lock:
            dropped = self.index.sweep_unseen(complete=not unreadable)
            self.intents.sweep_unseen(complete=not unreadable)
            self.follows = True
        if dropped:
            log.info("forgot ended cancellations, whose records are no longer in the log", count=dropped)
        self.caught_up.set()

    def apply(self, records: LogRecords) -> None:
        """Take records of the log, of any sidecar."""
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
                log.warning(
                    "the sidecar cannot read a record of the cancellation log, and ignores it", error=str(error)
                )
                # The log holds it, although this build cannot read it: what was known of it before stays.
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
            TemporaryError: it has not.
        """
        if not self.caught_up.wait(_READ_SECONDS):
            raise TemporaryError("the sidecar is still reading its cancellation log; try again in a moment")


class RescheduleIntents:
    """What is to be published again, by message, in the log's order; safe for use by several threads.

    The log has one order for all sidecars, so all of them take the same intent for the one that may publish: the
    second publishes nothing.

    Invariant: nothing is known here that was not read back from the log, so all sidecars know it in the same order.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self._lock = threading.RLock()
        self._by_message: dict[Message, dict[str, RescheduleIntent]] = {}
        self._unseen: set[str] = set()

    def write(self, intent: RescheduleIntent) -> None:
        """Make it durable.

        Raises:
            TemporaryError: it is not known to be stored.
        """
        self._topic.append([intent.encoded()])

    def drop(self, intent: RescheduleIntent) -> None:
        """Remove it from the log; raises as `write` does."""
        self._topic.append([(intent.key, None)])

    def apply(self, key: str, value: bytes | None) -> None:
        """A record of the log.

        Raises:
            UndecodableError: another version wrote it; it is left alone.
        """
        message, token = parse_intent_key(key)
        with self._lock:
            self._unseen.discard(key)
            if value:
                self._by_message.setdefault(message, {})[token] = decode_intent(key, value)
            else:
                self._forget(message, token)

    def valid(self, message: Message) -> RescheduleIntent | None:
        """The intent that counts: the one whose copy is stored, or else the first in the log."""
        with self._lock:
            intents = list(self._by_message.get(message, {}).values())
        return next((one for one in intents if one.copy is not None), intents[0] if intents else None)

    def holds(self, intent: RescheduleIntent) -> bool:
        """Whether the intent's record has been read from the log."""
        with self._lock:
            return intent.token in self._by_message.get(intent.message, {})

    def all(self) -> list[RescheduleIntent]:
        """Every intent, those that do not count among them."""
        with self._lock:
            return [one for intents in self._by_message.values() for one in intents.values()]

    def mark_unseen(self) -> None:
        """The log is read from its beginning now."""
        with self._lock:
            self._unseen = {one.key for one in self.all()}

    def sweep_unseen(self, *, complete: bool) -> None:
        """Forget what the log no longer holds; nothing where it could not be read as a whole."""
        with self._lock:
            for key in self._unseen if complete else ():
                self._forget(*parse_intent_key(key))
            self._unseen = set()

    def _forget(self, message: Message, token: str) -> None:
        intents = self._by_message.get(message, {})
        intents.pop(token, None)
        if not intents:
            self._by_message.pop(message, None)
