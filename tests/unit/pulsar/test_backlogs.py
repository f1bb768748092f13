"""The estimate of what waits, from answers as brokers give them."""

from collections.abc import Mapping

import pytest
from pulsar_sidecar.adapters.pulsar.topics.backlogs import BacklogGauge
from pulsar_sidecar.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.clock import FakeClock

PENDING = parse_topic_name("persistent://pulsar/system/__ledger_deletion")
RETRY = parse_topic_name("persistent://pulsar/system/__ledger_deletion-RETRY")
PARTITION = f"{PENDING}-partition-0"


class CountingBrokers:
    """One partition of which brokers count messages and entries, all of them waiting."""

    def __init__(self, messages: int, entries: int) -> None:
        self._messages = messages
        self._entries = entries

    def partitioned_stats(self, topic: TopicName, params: Mapping[str, str]) -> Mapping[str, object]:
        return {"partitions": {PARTITION: self._stats(self._messages, self._entries)}}

    def stats(self, topic: TopicName, params: Mapping[str, str]) -> Mapping[str, object]:
        return self._stats(0, 0)

    def internal_stats(self, topic: TopicName) -> Mapping[str, object]:
        return {"entriesAddedCounter": self._entries}

    def _stats(self, messages: int, entries: int) -> Mapping[str, object]:
        waiting = {"msgBacklog": entries, "earliestMsgPublishTimeInBacklog": 7 if entries else 0}
        return {"msgInCounter": messages, "subscriptions": {SUBSCRIPTION: waiting}}


@pytest.mark.parametrize("entries", range(1, 401, 3))
def test_when_everything_waits_the_estimate_is_what_came_in(entries: int) -> None:
    gauge = BacklogGauge(CountingBrokers(400, entries), PENDING, RETRY, FakeClock())  # type: ignore[arg-type]
    assert gauge.measure().total == 400


def test_where_nothing_waits_the_estimate_is_nothing() -> None:
    assert BacklogGauge(CountingBrokers(0, 0), PENDING, RETRY, FakeClock()).measure().total == 0  # type: ignore[arg-type]
