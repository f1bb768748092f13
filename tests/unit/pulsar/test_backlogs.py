"""The estimate of what waits, from responses as brokers give them."""

from collections.abc import Mapping

import pytest
from pulsar_sidecar.adapters.pulsar_rest.topic_admin import BrokerTopicAdmin
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import BacklogGauge
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.clock import FakeClock

PENDING = parse_topic_name("persistent://pulsar/system/__ledger_deletion")
PENDING_PATH = "/admin/v2/persistent/pulsar/system/__ledger_deletion"
PARTITION = f"{PENDING}-partition-0"


class CountingBrokers:
    """One partition of which brokers count messages and entries, all of them waiting."""

    def __init__(self, messages: int, entries: int) -> None:
        self._messages = messages
        self._entries = entries

    def get(self, path: str, params: Mapping[str, str] | None = None) -> object:
        if path == f"{PENDING_PATH}/partitioned-stats":
            return {"partitions": {PARTITION: self._stats(self._messages, self._entries)}}
        if path in (f"{PENDING_PATH}-RETRY/stats", f"{PENDING_PATH}-DLQ/stats"):
            return self._stats(0, 0)
        assert path == f"{PENDING_PATH}-partition-0/internalStats"
        return {
            "entriesAddedCounter": self._entries,
            "ledgers": [],
            "cursors": {},
            "lastConfirmedEntry": "-1:-1",
            "schemaLedgers": [],
            "compactedLedger": {"ledgerId": -1, "entries": -1},
        }

    def _stats(self, messages: int, entries: int) -> Mapping[str, object]:
        waiting = {"msgBacklog": entries, "earliestMsgPublishTimeInBacklog": 7 if entries else 0}
        return {"msgInCounter": messages, "subscriptions": {SUBSCRIPTION: waiting}}


def gauge(messages: int, entries: int) -> BacklogGauge:
    return BacklogGauge(BrokerTopicAdmin(CountingBrokers(messages, entries)), FakeClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("entries", range(1, 401, 3))
def test_when_everything_waits_the_estimate_is_what_came_in(entries: int) -> None:
    assert gauge(400, entries).measure().total == 400


def test_empty_backlog_is_estimated_as_zero() -> None:
    assert gauge(0, 0).measure().total == 0
