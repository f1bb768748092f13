"""The cancellation log: a compacted, keyed topic in ``pulsar/system``, followed entry by entry.

Brokers compact every topic in ``pulsar/system`` once a minute as soon as it passes its threshold, and an empty message
makes compaction drop a key. A client's reader would return one record at a time, each for the price of decoding ten.

Nothing runs in the background: a broken connection ends the reading with an error, and the follower begins again.
Invariants: the reader reports "caught up" once it has applied everything up to the broker's last message; it misses no
record from then on. Brokers give a reader that compaction overtakes the compacted entries, without the empty record
that dropped a key: such a reading ends with an error too. If that happens before the end, the reader first reports
"caught up" with one more unreadable entry: no caller waits forever for the end of the log.
"""

from collections.abc import Callable, MutableMapping, Sequence
from functools import partial
from typing import Final

import structlog

from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_rest.topic_stats import Compaction
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import confirmed
from pulsar_sidecar.adapters.pulsar_wire.binary_connections import BinaryConnection, TopicOwners
from pulsar_sidecar.adapters.pulsar_wire.encoding import Record, keyed_entry
from pulsar_sidecar.adapters.pulsar_wire.producers import LogProducers
from pulsar_sidecar.adapters.pulsar_wire.topic_tails import TopicReader
from pulsar_sidecar.features.delayed_messages.ports import LogRecords
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api

CANCELLATIONS: Final = parse_topic_name("persistent://pulsar/system/__delayed_message_cancellations")
_THRESHOLD_BYTES: Final = 16 * 1024 * 1024
_PERMITS: Final = 20_000
_LOOK_UP_SECONDS: Final = 0.5
"""Interval at which a caller that waits for a record checks for a stop."""
_ANSWER_SECONDS: Final = 15.0
_SILENCE_SECONDS: Final = 75.0
"""Brokers send a ping every 30 s (``keepAliveIntervalSeconds``)."""
_QUIET_SECONDS: Final = 15.0
"""Interval at which an idle reader checks whether compaction removed the pending entries."""
_BEFORE_ALL: Final = Position(LedgerId(-1), EntryId(-1))

log = structlog.get_logger("pulsar")


class PulsarCancellationTopic:
    """`delayed_messages.ports.CancellationTopic`; safe for use by several threads."""

    def __init__(
        self, owners: TopicOwners, admin: BrokerTopicAdmin, clock: Clock, topic: TopicName = CANCELLATIONS
    ) -> None:
        self._owners = owners
        self._admin = admin
        self._clock = clock
        self._topic = topic
        self._producers = LogProducers(owners, clock, topic)

    def ensure(self) -> None:
        topic, admin, what = self._topic, self._admin, "the cancellation log is"
        confirmed(lambda: admin.ensure_namespace(topic.tenant, topic.namespace_portion), what, self._clock)
        confirmed(lambda: admin.create(topic), what, self._clock)
        confirmed(self._set_threshold, what, self._clock)

    def append(self, records: LogRecords) -> None:
        self._producers.publish(records)

    def follow(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        try:
            with self._owners.using(self._topic, own=True) as connection:
                own = self._producers.in_flight
                ask_compaction = partial(self._admin.compaction, self._topic)
                reading = _Reading(connection, self._topic, self._clock, ask_compaction, own)
                reading.run(apply, caught_up, stopped)
        except OSError as error:
            raise TemporaryError(f"reading {self._topic}: {error}; it is read again") from error

    def close(self) -> None:
        self._producers.close()

    def _set_threshold(self) -> None:
        if self._admin.policy(self._topic, "compactionThreshold") != _THRESHOLD_BYTES:
            self._admin.set_policy(self._topic, "compactionThreshold", _THRESHOLD_BYTES)


class _Reading(TopicReader):
    """Reading of the log from its beginning, which detects compactions meanwhile."""

    def __init__(
        self,
        connection: BinaryConnection,
        topic: TopicName,
        clock: Clock,
        compaction: Callable[[], Compaction],
        own: MutableMapping[bytes, Sequence[Record]],
    ) -> None:
        self._topic = topic
        self._own = own
        self._clock = clock
        self._frames_heard = 0
        self._heard_at = clock.monotonic_seconds()
        self._seen = _BEFORE_ALL
        self._unreadable = 0
        self._ask_compaction = compaction
        self._compaction = compaction()
        self._compaction_asked_at = clock.monotonic_seconds()
        self._is_behind = True
        super().__init__(connection, topic, "log", compacted=True, permits=_PERMITS)

    def run(
        self, apply: Callable[[LogRecords], None], caught_up: Callable[[int], None], stopped: Callable[[], bool]
    ) -> None:
        end = self._last_message()
        self._connection.send(*self._permitted(_PERMITS))
        while not stopped():
            if self._is_behind and self._seen >= end:
                self._report_caught_up(caught_up)
            records = self._next()
            if records:
                apply(records)
            elif records is None and self._is_behind:
                # Compaction may have removed the last message; the broker knows the new one.
                end = self._last_message()
            elif records is None:
                self._check_quiet()

    def _last_message(self) -> Position:
        self._connection.wait_at_most(_ANSWER_SECONDS)
        found = self.last_position()
        self._connection.wait_at_most(_LOOK_UP_SECONDS)
        return found or _BEFORE_ALL

    def _next(self) -> LogRecords | None:
        """Return the records of the next entry; None if there is none now."""
        try:
            command, message = self._received()
        except TimeoutError:
            self._check_silence()
            return None
        return self._opened(command.message, message) if command.type == api.BaseCommand.MESSAGE else ()

    def _opened(self, command: api.CommandMessage, message: bytes) -> LogRecords:
        found = command.message_id
        before, self._seen = self._seen, Position(LedgerId(found.ledgerId), EntryId(found.entryId))
        try:
            records, messages = keyed_entry(message, self._own)
        except UndecodableError as error:
            log.warning("skipping undecodable cancellation record", position=str(self._seen), error=str(error))
            records, messages = (), 1
            self._unreadable += 1
        is_next = self._seen == Position(before.ledger_id, EntryId(before.entry_id + 1))
        if not self._is_behind and not (is_next and len(records) == messages):
            self._check_overtaken(before, self._ask_compaction())
        self._acknowledge(found, messages)
        return records

    def _report_caught_up(self, caught_up: Callable[[int], None]) -> None:
        """Report "caught up"; a compaction that ended meanwhile may have removed an earlier key's empty record."""
        is_overtaken = self._ask_compaction().ledger_id != self._compaction.ledger_id
        caught_up(self._unreadable + is_overtaken)
        if is_overtaken:
            raise TemporaryError(f"{self._topic} was compacted while it was read; it is read again")
        self._is_behind = False

    def _check_quiet(self) -> None:
        now = self._clock.monotonic_seconds()
        if now - self._compaction_asked_at < _QUIET_SECONDS:
            return
        self._compaction_asked_at = now
        try:
            newest = self._ask_compaction()
        except SidecarError as error:
            log.info("reading the last compaction failed; will retry", topic=str(self._topic), error=str(error))
            return
        self._check_overtaken(self._seen, newest)

    def _check_overtaken(self, seen: Position, newest: Compaction) -> None:
        """Raise `TemporaryError` if a new compaction went beyond ``seen``, up to which everything was read."""
        known, self._compaction = self._compaction, newest
        self._compaction_asked_at = self._clock.monotonic_seconds()
        if newest.ledger_id != known.ledger_id and seen < newest.horizon:
            raise TemporaryError(f"{self._topic} was compacted before its reader had read it; it is read again")

    def _acknowledge(self, found: api.MessageIdData, messages: int) -> None:
        """Move the broker's cursor and grant permits for as many messages as it counts, compacted ones included."""
        ack = api.CommandAck(consumer_id=self._id, ack_type=api.CommandAck.Cumulative)
        ack.message_id.add(ledgerId=found.ledgerId, entryId=found.entryId)
        self._connection.send(ack, *self._permitted(messages))

    def _check_silence(self) -> None:
        now = self._clock.monotonic_seconds()
        if self._connection.frames_received != self._frames_heard:
            self._frames_heard, self._heard_at = self._connection.frames_received, now
        elif now - self._heard_at > _SILENCE_SECONDS:
            raise TemporaryError(
                f"the broker has sent nothing to the reader of {self._topic} for {_SILENCE_SECONDS:g} s; "
                "it is read again"
            )
