"""The cancellation log and what is known from it."""

import threading
from collections.abc import Callable, Iterable, Sequence

import structlog

from pulsar_sidecar.delayed_delivery.cancel.cancellation_index import CancellationIndex, SubscriptionKey
from pulsar_sidecar.delayed_delivery.cancel.log_records import decode, encode_all, key_of, parse_key
from pulsar_sidecar.delayed_delivery.cancel.reissue_intents import is_intent_key
from pulsar_sidecar.delayed_delivery.cancel.requests import Cancellation, CancellationStatus
from pulsar_sidecar.delayed_delivery.ports import CancellationTopic, LogRecords
from pulsar_sidecar.delayed_delivery.workflow.intent_store import IntentStore
from pulsar_sidecar.model.errors import TemporaryError, UndecodableError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.positions import Position

log = structlog.get_logger("delayed-delivery")

_MOST_AWAITED = 200_000


class CancellationStore:
    """The log and what is known from it; safe for use by several threads.

    Invariants: what is recorded is durable before it is known here; once the log has been read anew, nothing is known
    here as open that it does not hold.
    """

    def __init__(self, topic: CancellationTopic) -> None:
        self._topic = topic
        self._index = CancellationIndex()
        self._lock = threading.Lock()
        # What was written here comes back from the topic, and need not be read: while it is written, and afterwards.
        self._writing: dict[str, bytes] = {}
        self._came_back: set[str] = set()
        self._written: dict[str, bytes] = {}
        self.caught_up = threading.Event()
        self._follows = False
        self.intents = IntentStore(topic)

    @property
    def follows(self) -> bool:
        """Whether the log has been read and is being followed: otherwise what is known here may have ended."""
        return self._follows

    def record(self, cancellations: Sequence[Cancellation]) -> None:
        """Make them durable, then known.

        Raises:
            TemporaryError: at least one is not known to be stored; none of them is known here.
        """
        if cancellations:
            records = encode_all(cancellations)
            with self._lock:
                self._writing.update(records)
            try:
                self._topic.append(records)
            except BaseException:
                self._settle_own(cancellations, records, stored=False)
                raise
            self._settle_own(cancellations, records, stored=True)

    def _settle_own(
        self, cancellations: Sequence[Cancellation], records: Sequence[tuple[str, bytes]], *, stored: bool
    ) -> None:
        known: Sequence[Cancellation] = cancellations
        with self._lock:
            came_back = {key for key, _ in records if key in self._came_back} if self._came_back else set()
            if not stored:
                known = [one for one, (key, _) in zip(cancellations, records, strict=True) if key in came_back]
            for key, _ in records:
                self._writing.pop(key, None)
            self._came_back -= came_back
            if stored and len(self._written) < _MOST_AWAITED:
                self._written.update(record for record in records if record[0] not in came_back)
            self._index.learn_all(known)

    def finish(self, cancellations: Sequence[Cancellation]) -> None:
        """Record how they ended, and drop them from the log."""
        if not cancellations:
            return
        records: list[tuple[str, bytes | None]] = []
        records += encode_all(one for one in cancellations if not self._goes_without(one))
        records += ((key_of(one.topic, one.position, one.subscription), None) for one in cancellations)
        self._topic.append(records)
        self.learn(cancellations)

    def _goes_without(self, end: Cancellation) -> bool:
        """Whether everybody takes its being forgotten for this end: what was PERSISTED has expired then."""
        known = self.known(end.topic, end.position, end.subscription)
        return (
            end.status is CancellationStatus.EXPIRED
            and known is not None
            and known.status is CancellationStatus.PERSISTED
        )

    def learn(self, cancellations: Iterable[Cancellation]) -> None:
        """Know them, without writing."""
        with self._lock:
            self._index.learn_all(cancellations)

    def lower(self, cancellations: Iterable[Cancellation]) -> None:
        """`CancellationIndex.lower` each, without writing."""
        with self._lock:
            for cancellation in cancellations:
                self._index.lower(cancellation)

    def begin_following(self) -> None:
        """The log is read from its beginning now; what was written may be compacted away and never come back."""
        with self._lock:
            self._follows = False
            self._written.clear()
            self._index.mark_unseen()
            self.intents.begin_following()

    def note_caught_up(self, unreadable: int = 0) -> None:
        """Everything that the log held has been applied, except so many of its entries.

        What it does not hold any more has ended, and compaction took that record away as well.
        """
        with self._lock:
            dropped = 0 if unreadable else self._index.sweep_unseen()
            self._index.keep_unseen()
            self.intents.note_caught_up(complete=not unreadable)
            self._follows = True
        if dropped:
            log.info("cancellations that the log does not hold any more are forgotten", count=dropped)
        self.caught_up.set()

    def stop_following(self) -> None:
        """The log is not followed any more: what others write there is not noticed."""
        self._follows = False

    def apply(self, records: LogRecords) -> None:
        """Records of the log, whoever wrote them."""
        with self._lock:
            others = [(key, value) for key, value in records if not (value and self._is_own(key, value))]
        learned: list[Cancellation] = []
        for key, value in others:
            try:
                if is_intent_key(key):
                    self.intents.apply(key, value)
                elif value:
                    learned.append(decode(key, value))
                else:
                    self.learn(learned)
                    learned = []
                    self._forget(key)
            except UndecodableError as error:
                log.warning("a record of the cancellation log is left alone", error=str(error))
                self._keep(key)
        self.learn(learned)

    def _forget(self, key: str) -> None:
        topic, position, subscription = parse_key(key)
        with self._lock:
            self._index.forget(topic, position, subscription)

    def _keep(self, key: str) -> None:
        """The log holds it, although this build cannot read it: what was known of it before stays."""
        try:
            topic, position, subscription = parse_key(key)
        except UndecodableError:
            return
        with self._lock:
            self._index.keep(topic, position, subscription)

    def _is_own(self, key: str, value: bytes) -> bool:
        if self._writing.get(key) == value:
            self._came_back.add(key)
            return True
        if self._written.get(key) == value:
            del self._written[key]
            return True
        return False

    def await_log(self, patience_ms: int) -> None:
        """Wait until the log has been read once.

        Raises:
            TemporaryError: it has not.
        """
        if not self.caught_up.wait(patience_ms / 1000):
            raise TemporaryError("the sidecar is still reading its cancellation log; try again in a moment")

    def find(self, topic: TopicName, position: Position) -> list[Cancellation]:
        """`CancellationIndex.find`."""
        with self._lock:
            return self._index.find(topic, position)

    def known(self, topic: TopicName, position: Position, subscription: str) -> Cancellation | None:
        """`CancellationIndex.known`."""
        with self._lock:
            return self._index.known(topic, position, subscription)

    def known_at(self, place: SubscriptionKey) -> Callable[[Position], Cancellation | None]:
        """`CancellationIndex.known_at`."""
        with self._lock:
            return self._index.known_at(place)

    def places(self) -> list[SubscriptionKey]:
        """`CancellationIndex.places`."""
        with self._lock:
            return self._index.places()

    def unpersisted_count(self, place: SubscriptionKey) -> int:
        """`CancellationIndex.unpersisted_count`."""
        with self._lock:
            return self._index.unpersisted_count(place)

    def unpersisted_at(self, place: SubscriptionKey) -> list[Cancellation]:
        """`CancellationIndex.unpersisted_at`."""
        with self._lock:
            return self._index.unpersisted_at(place)

    def changed_at(self, place: SubscriptionKey) -> list[Cancellation] | None:
        """`CancellationIndex.changed_at`."""
        with self._lock:
            return self._index.changed_at(place)

    def expired_at(self, place: SubscriptionKey, expired_ms: int) -> list[Cancellation]:
        """`CancellationIndex.expired_at`."""
        with self._lock:
            return self._index.expired_at(place, expired_ms)

    def dues_at(self, place: SubscriptionKey, until_ms: int) -> set[int]:
        """`CancellationIndex.dues_at`."""
        with self._lock:
            return self._index.dues_at(place, until_ms)

    def at(self, place: SubscriptionKey) -> list[Cancellation]:
        """`CancellationIndex.at`."""
        with self._lock:
            return self._index.at(place)

    @property
    def open_count(self) -> int:
        """`CancellationIndex.open_count`."""
        with self._lock:
            return self._index.open_count
