"""The four topics of the deletion service on a real cluster.

Invariant: this module decides nothing about a record; it moves records, and reports exactly which it moved.
"""

import heapq
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar_client.clients import delivery_of, handle_of, messages_since, position_of
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar_errors import close_quietly, translated
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.pending_consumer import (
    ConsumerSettings,
    SharedPendingDeletions,
    unacknowledged,
)
from pulsar_sidecar.adapters.pulsar_topics.topics_setup import DEAD_LETTERS_SUBSCRIPTION, TopicsSettings, TopicsSetup
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, Backlog, DeletionTopic, Delivery
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import ConflictError, NotFoundError, SidecarError, TemporaryError
from pulsar_sidecar.model.ids import Position
from pulsar_sidecar.model.names import TopicName, parse_topic_name

_BATCHED: Final = (DeletionTopic.PENDING, DeletionTopic.OUTCOME)
"""Batched topics; retries and dead letters are acknowledged one by one, so each has its own entry, as in Java."""
_RECEIVE_TIMEOUT_MS: Final = 500
_DEADLINE_SECONDS: Final = 15.0


def topic_name(topic: DeletionTopic) -> TopicName:
    return parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{topic.value}")


class PulsarDeletionTopics:
    """`ledger_deletion.ports.DeletionTopics` over one client and the admin REST API; safe for several threads.

    The caller owns the client, and closes it after everything that was opened here.
    """

    def __init__(
        self,
        client: pulsar.Client,
        rest: AdminRest,
        clock: Clock,
        *,
        topics: TopicsSettings | None = None,
        consumer: ConsumerSettings | None = None,
        publisher: PublisherSettings | None = None,
        brokers_clock: Clock | None = None,
    ) -> None:
        """Use ``clock`` for this machine's time, ``brokers_clock`` for the brokers', by which they deliver later."""
        self._client = client
        self._clock = clock
        self._brokers_clock = brokers_clock or clock
        self._admin = BrokerTopicAdmin(rest)
        self._setup = TopicsSetup(self._admin, topic_name, topics or TopicsSettings(), clock)
        self._consumer = consumer or ConsumerSettings()
        self._publisher = publisher or PublisherSettings(batching=True)
        self._gauge = BacklogGauge(self._admin, clock)

    def ensure(self) -> None:
        self._setup.run()

    def warnings(self) -> Sequence[str]:
        return tuple(self._setup.warnings)

    def publisher(self, topic: DeletionTopic, producer_name: str) -> TopicPublisher:
        settings = replace(self._publisher, batching=self._publisher.batching and topic in _BATCHED)
        uri = str(topic_name(topic))
        return TopicPublisher(
            self._client,
            uri,
            producer_name,
            settings,
            self._brokers_clock,
            most_delay_ms=lambda: self._setup.most_delay_ms,
        )

    def pending(self) -> SharedPendingDeletions:
        topics = [topic_name(DeletionTopic.PENDING), topic_name(DeletionTopic.RETRY)]
        return SharedPendingDeletions(self._client, self._admin, topics, self._brokers_clock, self._consumer)

    def dead_letters(self) -> "ExclusiveDeadLetters":
        return ExclusiveDeadLetters(self._client, self._admin, topic_name(DeletionTopic.DEAD_LETTER), self._clock)

    def outcomes_since(self, since_ms: int, *, quickly: bool = False) -> Iterator[bytes]:
        topic = str(topic_name(DeletionTopic.OUTCOME))
        with translated(f"reading {topic}"):
            for message in messages_since(self._client, topic, since_ms, seeking=quickly):
                yield message.data()

    def unacknowledged(self) -> Generator[Delivery, None, None]:
        """Yield the waiting records; consume none, and read no more than the caller takes."""
        retry = topic_name(DeletionTopic.RETRY)
        topics = [*(parse_topic_name(each) for each in self._admin.backlogs(topic_name(DeletionTopic.PENDING))), retry]
        with ExitStack() as opened:
            yield from heapq.merge(
                *(opened.enter_context(closing(self._waiting_on(topic))) for topic in topics),
                key=lambda delivery: delivery.publish_time_ms,
            )

    def _waiting_on(self, topic: TopicName) -> Generator[Delivery, None, None]:
        progress = self._admin.internal_stats(topic).cursor(SUBSCRIPTION).acknowledged
        return unacknowledged(self._client, topic, progress)

    def backlog(self) -> Backlog:
        return self._gauge.measure()


def dead_letters_in(admin: BrokerTopicAdmin, topic: TopicName) -> int:
    """Return the number of entries that wait on the dead-letter topic, by its broker's count."""
    waiting = admin.backlog(topic).subscriptions.get(DEAD_LETTERS_SUBSCRIPTION)
    if waiting is None:
        raise TemporaryError("the broker does not report the number of dead letters; try again")
    return waiting.msg_backlog


class BacklogGauge:
    """Estimate of waiting records, from brokers' counts (PIP-186 ``estimatedInflightDeletionLedgerCount``).

    Brokers count entries, and an entry may be a batch of hundreds of records. So the gauge multiplies entries by the
    topic's own messages per entry since it was loaded; a topic that was just loaded has no such figure, so the gauge
    reads three of its waiting entries instead. Invariant: the estimate is 0 exactly when no entry waits.
    """

    def __init__(self, admin: BrokerTopicAdmin, clock: Clock) -> None:
        self._admin = admin
        self._clock = clock
        self._messages_per_entry: dict[str, float] = {}

    def measure(self) -> Backlog:
        """Measure the backlog now; raise `TemporaryError` if a topic could not be read."""
        measured_ms = self._clock.now_ms()
        pending, retry = topic_name(DeletionTopic.PENDING), topic_name(DeletionTopic.RETRY)
        found = dict(sorted(self._admin.backlogs(pending).items()))
        if not found:
            raise TemporaryError(f"the broker shows no partitions of {pending}; try again")
        found[str(retry)] = self._admin.backlog(retry, earliest=True)
        counts: dict[str, int] = {}
        earliest: list[int] = []
        for topic, stats in found.items():
            waiting = stats.subscriptions.get(SUBSCRIPTION)
            if waiting is None:
                raise TemporaryError(f"the broker shows no subscription {SUBSCRIPTION} on {topic}; try again")
            counts[topic] = self._messages(topic, waiting.msg_backlog, stats.msg_in_counter)
            if waiting.msg_backlog > 0 and waiting.earliest_msg_publish_time_in_backlog > 0:
                earliest.append(waiting.earliest_msg_publish_time_in_backlog)
        return Backlog(counts, min(earliest, default=None), measured_ms, self._dead_letters())

    def _dead_letters(self) -> int | None:
        try:
            return dead_letters_in(self._admin, topic_name(DeletionTopic.DEAD_LETTER))
        except SidecarError:
            return None

    def _messages(self, topic: str, entries: int, messages_in: int) -> int:
        if entries == 0:
            return 0
        name = parse_topic_name(topic)
        added = self._admin.internal_stats(name).entries_added
        if added > 0 and messages_in > 0:
            ratio = max(1.0, messages_in / added)
        elif topic in self._messages_per_entry:
            ratio = self._messages_per_entry[topic]
        else:
            ratio = self._sampled(name, entries)
        self._messages_per_entry[topic] = ratio
        return round(entries * ratio)  # not rounded up: 3 entries of 400 / 3 messages are 400, not 401

    def _sampled(self, topic: TopicName, entries: int) -> float:
        positions = {1, (entries + 1) // 2, entries}
        try:
            sizes = [self._admin.messages_in_backlog_entry(topic, SUBSCRIPTION, position) for position in positions]
        except NotFoundError as error:
            raise TemporaryError(f"the backlog of {topic} shrank while it was being measured; try again") from error
        return sum(sizes) / len(sizes)


class ExclusiveDeadLetters:
    """`ledger_deletion.ports.DeadLetters`: kept by a durable subscription, for one user at a time.

    Invariant: a listing is complete up to its limit, or it fails: the broker's own count shows when it is.
    """

    def __init__(self, client: pulsar.Client, admin: BrokerTopicAdmin, topic: TopicName, clock: Clock) -> None:
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._closed = False
        self._received: set[Position] = set()
        self._finished: set[Position] = set()
        try:
            with translated(f"subscribing to {topic}"):
                self._consumer = client.subscribe(
                    str(topic),
                    DEAD_LETTERS_SUBSCRIPTION,
                    pulsar.ConsumerType.Exclusive,
                    initial_position=pulsar.InitialPosition.Earliest,
                )
        except ConflictError as error:
            raise ConflictError("another listing or redrive of dead letters is running, try again") from error

    def receive(self, limit: int) -> list[Delivery]:
        self._check_open()
        found: list[Delivery] = []
        give_up = self._clock.monotonic_seconds() + _DEADLINE_SECONDS
        missing = self._missing_entries()
        while len(found) < limit and (missing > 0 or (found and handle_of(found[-1]).batch_index() >= 0)):
            message = self._next_message()
            if message is not None:
                self._received.add(position_of(message.message_id()))
                found.append(delivery_of(message))
                missing = missing - 1 if message.message_id().batch_index() <= 0 else missing
                continue
            # Acknowledgements reach the broker a moment later, so its count is read again.
            missing = self._missing_entries()
            if missing > 0 and self._clock.monotonic_seconds() > give_up:
                raise TemporaryError("the broker did not deliver all the dead letters that it counts; try again")
            if missing <= 0:
                break
        return found

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check_open()
        with translated("acknowledging dead letters"):
            for delivery in deliveries:
                message_id = handle_of(delivery)
                self._consumer.acknowledge(message_id)
                self._finished.add(position_of(message_id))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_quietly(self._consumer, "leaving the dead letters")

    def _next_message(self) -> pulsar.Message | None:
        with translated("receiving dead letters"):
            try:
                return self._consumer.receive(_RECEIVE_TIMEOUT_MS)
            except pulsar.exceptions.Timeout:
                return None

    def _missing_entries(self) -> int:
        """Return the number of entries in the broker's backlog that were not received yet: a batch counts once."""
        return dead_letters_in(self._admin, self._topic) + len(self._finished) - len(self._received)

    def _check_open(self) -> None:
        if self._closed:
            raise TemporaryError("this reader of the dead letters is closed; open a new one")
