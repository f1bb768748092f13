"""The cancellation log: one compacted topic in ``pulsar/system``, keyed, read back by a reader of the compacted view.

Brokers compact every topic in ``pulsar/system`` once a minute as soon as it passes its threshold, and an empty message
is what makes compaction forget a key.

Invariants: `append` returns only when every record is stored, in order for each key; a record whose receipt did not
come is an error, although it may be stored.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Final

import _pulsar
import pulsar

from service.adapters.pulsar.errors import translated
from service.adapters.pulsar.receipts import Receipts
from service.adapters.pulsar.seeking import has_more
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.model.clocks import Clock
from service.model.errors import BrokerRefusedError, OutcomeUnknownError, TemporaryError
from service.model.names import TopicName, parse_topic_name

CANCELLATIONS: Final = parse_topic_name("persistent://pulsar/system/__delayed_message_cancellations")
_THRESHOLD_BYTES: Final = 16 * 1024 * 1024
_FEW: Final = 4
_BATCH_MESSAGES: Final = 1000
_BATCH_BYTES: Final = 256 * 1024
_MAX_IN_FLIGHT: Final = 200_000
_RECEIPT_SECONDS: Final = 20.0
_READ_MS: Final = 500
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.5
_NOT_READY: Final = (405, 409, 412)


class PulsarCancellationTopic:
    """`service.delayed_delivery.ports.CancellationTopic`; safe for use by several threads."""

    def __init__(
        self, client: pulsar.Client, admin: BrokerTopicAdmin, clock: Clock, topic: TopicName = CANCELLATIONS
    ) -> None:
        self._client = client
        self._admin = admin
        self._clock = clock
        self._topic = topic
        self._single = _Producer(client, topic, batching=False)
        self._bulk = _Producer(client, topic, batching=True)
        self._never = threading.Event()

    def ensure(self) -> None:
        """See `CancellationTopic.ensure`; raises TemporaryError when the brokers do not confirm a step."""
        self._confirmed(lambda: self._admin.ensure_namespace(self._topic.tenant, self._topic.namespace_portion))
        self._confirmed(lambda: self._admin.create(self._topic))
        self._confirmed(self._set_threshold)

    def append(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        # A batch waits some milliseconds for company, which a single cancellation has no use for.
        producer = self._single if len(records) <= _FEW else self._bulk
        producer.send(records)

    def follow(
        self, apply: Callable[[str, bytes | None], None], caught_up: Callable[[], None], stopped: Callable[[], bool]
    ) -> None:
        with translated(f"reading {self._topic}"):
            reader = self._client.create_reader(
                str(self._topic), pulsar.MessageId.earliest, receiver_queue_size=5000, is_read_compacted=True
            )
            try:
                self._follow(reader, apply, caught_up, stopped)
            finally:
                reader.close()

    def close(self) -> None:
        """Close the producers; idempotent."""
        self._single.close()
        self._bulk.close()

    def _follow(
        self,
        reader: pulsar.Reader,
        apply: Callable[[str, bytes | None], None],
        caught_up: Callable[[], None],
        stopped: Callable[[], bool],
    ) -> None:
        reading_back = True
        while not stopped():
            if reading_back and not has_more(reader):
                reading_back = False
                caught_up()
            try:
                message = reader.read_next(_READ_MS)
            except pulsar.exceptions.Timeout:
                continue
            key = message.partition_key()
            if key:
                apply(key, message.data() or None)

    def _set_threshold(self) -> None:
        if self._admin.policy(self._topic, "compactionThreshold") != _THRESHOLD_BYTES:
            self._admin.set_policy(self._topic, "compactionThreshold", _THRESHOLD_BYTES)

    def _confirmed(self, step: Callable[[], object]) -> None:
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                step()
            except (TemporaryError, OutcomeUnknownError) as error:
                failure = error
            except BrokerRefusedError as error:
                if error.status not in _NOT_READY:
                    raise
                failure = error
            else:
                return
            self._clock.wait_seconds(_PAUSE_SECONDS, self._never)
        raise TemporaryError(f"the cancellation log is not ready: {failure}; try again") from failure


class _Producer:
    """A producer that is opened with its first record, and again after a failure."""

    def __init__(self, client: pulsar.Client, topic: TopicName, *, batching: bool) -> None:
        self._client = client
        self._topic = topic
        self._batching = batching
        self._producer: pulsar.Producer | None = None
        self._lock = threading.Lock()

    def send(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        with translated(f"writing to {self._topic}"):
            producer = self._opened()
            receipts = Receipts(len(records))
            for index, (key, value) in enumerate(records):
                producer._producer.send_async(_message(key, value), receipts.expect(index))
        in_time = receipts.wait(_RECEIPT_SECONDS)
        failed = sum(not result.stored for result in receipts.results())
        if not in_time or failed:
            self.close()
            raise TemporaryError(
                f"{failed} of {len(records)} records of the cancellation log are not known to be stored"
            )

    def close(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer._producer.close_async(lambda result: None)

    def _opened(self) -> pulsar.Producer:
        with self._lock:
            if self._producer is None:
                self._producer = self._client.create_producer(
                    str(self._topic),
                    send_timeout_millis=int(_RECEIPT_SECONDS * 1000),
                    max_pending_messages=_MAX_IN_FLIGHT,
                    block_if_queue_full=True,
                    batching_enabled=self._batching,
                    batching_max_messages=_BATCH_MESSAGES,
                    batching_max_allowed_size_in_bytes=_BATCH_BYTES,
                    batching_max_publish_delay_ms=2,
                )
            return self._producer


def _message(key: str, value: bytes | None) -> _pulsar.Message:
    return _pulsar.MessageBuilder().partition_key(key).content(value or b"").build()
