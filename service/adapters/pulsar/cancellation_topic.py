"""The cancellation log: one compacted topic in ``pulsar/system``, keyed, read back by a reader of the compacted view.

Brokers compact every topic in ``pulsar/system`` once a minute as soon as it passes its threshold, and an empty message
is what makes compaction forget a key.

Invariants: `append` returns only when every record is stored, in order for each key; a record whose receipt did not
come is an error, although it may be stored.
"""

from collections.abc import Callable, Sequence
from typing import Final

import pulsar

from service.adapters.pulsar.confirmed_steps import ConfirmedSteps
from service.adapters.pulsar.errors import translated
from service.adapters.pulsar.log_producers import LogProducers
from service.adapters.pulsar.seeking import has_more
from service.adapters.pulsar.topic_admin import BrokerTopicAdmin
from service.model.clocks import Clock
from service.model.names import TopicName, parse_topic_name

CANCELLATIONS: Final = parse_topic_name("persistent://pulsar/system/__delayed_message_cancellations")
_THRESHOLD_BYTES: Final = 16 * 1024 * 1024
_READ_MS: Final = 500


class PulsarCancellationTopic:
    """`service.delayed_delivery.ports.CancellationTopic`; safe for use by several threads."""

    def __init__(
        self,
        client: pulsar.Client,
        producers: LogProducers,
        admin: BrokerTopicAdmin,
        clock: Clock,
        topic: TopicName = CANCELLATIONS,
    ) -> None:
        """``producers`` publish to the same topic; they are closed with this."""
        self._client = client
        self._producers = producers
        self._admin = admin
        self._topic = topic
        self._steps = ConfirmedSteps(clock, "the cancellation log is")

    def ensure(self) -> None:
        """See `CancellationTopic.ensure`; raises TemporaryError when the brokers do not confirm a step."""
        self._steps.run(lambda: self._admin.ensure_namespace(self._topic.tenant, self._topic.namespace_portion))
        self._steps.run(lambda: self._admin.create(self._topic))
        self._steps.run(self._set_threshold)

    def append(self, records: Sequence[tuple[str, bytes | None]]) -> None:
        self._producers.publish(records)

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
        self._producers.close()

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
