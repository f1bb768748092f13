"""Estimates how many records wait, from what brokers count.

Brokers count entries, and an entry may be a batch of hundreds of records. So entries are multiplied by the topic's own
messages per entry since it was loaded; a topic that was just loaded has no such figure, and three of its waiting
entries are looked at instead. Invariant: the estimate is 0 exactly when no entry waits.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pulsar_sidecar.adapters.pulsar.rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.ledger_deletion.ports import Backlog
from pulsar_sidecar.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name

_PARAMS: Final = {
    "getPreciseBacklog": "true",
    "getEarliestTimeInBacklog": "true",
    "subscriptionBacklogSize": "false",
    "excludePublishers": "true",
    "excludeConsumers": "true",
}


@dataclass(frozen=True, slots=True)
class _Waiting:
    topic: str
    entries: int
    messages_in: int
    earliest_ms: int


class BacklogGauge:
    """Measures all partitions of ``pending``, and ``retry`` (PIP-186 ``estimatedInflightDeletionLedgerCount``)."""

    def __init__(self, admin: BrokerTopicAdmin, pending: TopicName, retry: TopicName, clock: Clock) -> None:
        self._admin = admin
        self._pending = pending
        self._retry = retry
        self._clock = clock
        self._messages_per_entry: dict[str, float] = {}

    def measure(self) -> Backlog:
        """Ask the brokers now.

        Raises:
            TemporaryError: one of the topics could not be asked.
        """
        measured_ms = self._clock.now_ms()
        waiting = list(self._waiting())
        earliest = [found.earliest_ms for found in waiting if found.entries > 0 and found.earliest_ms > 0]
        counts = {found.topic: self._messages(found) for found in waiting}
        return Backlog(counts, min(earliest, default=None), measured_ms)

    def _waiting(self) -> Iterator[_Waiting]:
        stats = self._admin.partitioned_stats(self._pending, {**_PARAMS, "perPartition": "true"})
        partitions = stats.get("partitions")
        if not isinstance(partitions, dict) or not partitions:
            raise TemporaryError(f"the broker shows no partitions of {self._pending}; try again")
        for topic, partition in sorted(partitions.items()):
            yield _waiting(topic, partition)
        yield _waiting(str(self._retry), self._admin.stats(self._retry, _PARAMS))

    def _messages(self, waiting: _Waiting) -> int:
        if waiting.entries == 0:
            return 0
        topic = parse_topic_name(waiting.topic)
        added = self._admin.internal_stats(topic).get("entriesAddedCounter")
        if isinstance(added, int) and added > 0 and waiting.messages_in > 0:
            ratio = max(1.0, waiting.messages_in / added)
        elif waiting.topic in self._messages_per_entry:
            ratio = self._messages_per_entry[waiting.topic]
        else:
            ratio = self._sampled(topic, waiting.entries)
        self._messages_per_entry[waiting.topic] = ratio
        return round(waiting.entries * ratio)  # not up: 3 entries of 400 / 3 messages are 400, not 401

    def _sampled(self, topic: TopicName, entries: int) -> float:
        positions = {1, (entries + 1) // 2, entries}
        try:
            sizes = [self._admin.messages_in_backlog_entry(topic, SUBSCRIPTION, position) for position in positions]
        except NotFoundError as error:
            raise TemporaryError(f"the backlog of {topic} shrank while it was looked at; try again") from error
        return sum(sizes) / len(sizes)


def _waiting(topic: str, stats: object) -> _Waiting:
    subscriptions = stats.get("subscriptions") if isinstance(stats, dict) else None
    found = subscriptions.get(SUBSCRIPTION) if isinstance(subscriptions, dict) else None
    if not isinstance(stats, dict) or not isinstance(found, dict):
        raise TemporaryError(f"the broker shows no subscription {SUBSCRIPTION} on {topic}; try again")
    return _Waiting(
        topic,
        _count(found, "msgBacklog"),
        _count(stats, "msgInCounter"),
        _count(found, "earliestMsgPublishTimeInBacklog"),
    )


def _count(stats: Mapping[str, object], name: str) -> int:
    value = stats.get(name)
    if not isinstance(value, int):
        raise TemporaryError(f"the broker's stats lack {name}; try again")
    return value
