"""Each response rests on a cursor that was read for it, and on the subscriptions that exist now."""

from collections import Counter
from collections.abc import Mapping

import pytest
from pulsar_sidecar.backlog.waiting import WaitingReader, partitions_of
from pulsar_sidecar.features.delayed_index.inspection.overdue import OverdueReader
from pulsar_sidecar.features.delayed_messages.cancel.requests import CancelOptions, Target
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus as Status
from pulsar_sidecar.features.delayed_messages.results import Cause, Verdict
from pulsar_sidecar.features.delayed_messages.selecting import Selection
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import Subscription, TopicInternalStats

from tests.fakes.delayed_messages import LEDGER, TOPIC, FakeCluster, FakeSidecar, at

_DUE_IN_MS = 120_000


class Looking:
    """A cluster whose calls are counted, a sidecar, and a first cancellation that has read everything."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.subscription = self.cluster.subscribe()
        self.cluster.publish(20, _DUE_IN_MS)
        self.calls: Counter[str] = Counter()
        self.cluster.before = lambda call: self.calls.update([call])
        self.sidecar = FakeSidecar(self.cluster)
        assert self.cancel(0).proof is Status.ACKED
        self.calls.clear()

    def cancel(self, entry: int) -> Verdict:
        ((verdict,),) = [outcome.verdicts for outcome in self.sidecar.cancel(entry)]
        return verdict


@pytest.fixture
def looking() -> Looking:
    return Looking()


def test_replicators_are_no_subscriptions_that_the_cache_lacks(looking: Looking) -> None:
    looking.cluster.replicated_to = ("west",)
    assert looking.cancel(2).proof is Status.ACKED
    assert (looking.calls["subscriptions"], looking.calls["state"]) == (1, 1)


def test_message_just_acknowledged_by_a_consumer_is_too_late(looking: Looking) -> None:
    looking.subscription.acked.add(at(3))
    verdict = looking.cancel(3)
    assert (verdict.proof, verdict.cause) == (Status.TOO_LATE, Cause.ACKED_BEFORE)
    assert looking.calls["join"] == 0


def test_subscription_deleted_during_cancel_is_not_recreated(looking: Looking) -> None:
    del looking.cluster.subscriptions_["s"]
    looking.cluster.subscribe("other")
    ((verdict,),) = [outcome.verdicts for outcome in looking.sidecar.cancel_at([at(1)], ("s",))]
    assert (verdict.proof, verdict.cause) == (Status.NOT_FOUND, Cause.NO_SUBSCRIPTION)
    assert looking.calls["join"] == 0


def test_subscription_created_during_cancel_is_included(looking: Looking) -> None:
    other = looking.cluster.subscribe("other")
    (outcome,) = looking.sidecar.cancel(1)
    assert {verdict.subscription for verdict in outcome.verdicts} == {"s", "other"}
    assert at(1) in other.acked


class Growing(FakeCluster):
    """A topic whose second partition has just come, and has every message; one partition is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        self.asked.append(max_age_seconds)
        return 1 if max_age_seconds else 2

    def partition_of_ledger(self, topic: TopicName, partitions: int, ledger_id: LedgerId) -> int | None:
        return 1 if (partitions, ledger_id) == (2, LEDGER) else None


class Lacking(FakeCluster):
    """A topic of two partitions, the first of which was deleted because no client used it."""

    def partitions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> int | None:
        return 2

    def subscriptions(self, topic: TopicName, *, max_age_seconds: float = 0.0) -> Mapping[str, Subscription]:
        self._demand(topic)
        return FakeCluster.subscriptions(self, topic)

    def state(self, topic: TopicName) -> TopicInternalStats:
        self._demand(topic)
        return FakeCluster.state(self, topic)

    def _demand(self, topic: TopicName) -> None:
        if topic == TOPIC.partition(0):
            raise NotFoundError(f"there is no topic {topic}")


def test_a_partition_that_does_not_exist_does_not_block_the_others() -> None:
    cluster = Lacking()
    cluster.subscribe()
    cluster.publish(1, _DUE_IN_MS, key="k")
    cluster.clock.advance_ms(1)
    shown = FakeSidecar(cluster).feature.preview(TOPIC, Selection(key="k"))
    assert (shown.count, [one.topic for one in shown.sample]) == (1, [str(TOPIC.partition(1))])
    page = WaitingReader(cluster, cluster, cluster.clock).waiting(TOPIC, None, None, 10)
    assert [one.delayed for one in page.subscriptions] == [1]
    cluster.clock.advance_ms(2 * _DUE_IN_MS)
    overdue = OverdueReader(cluster, cluster, cluster, lambda _: None, cluster.clock)
    report = overdue.overdue(TOPIC, None, 0, 10)
    assert [(one.topic, one.messages) for one in report.subscriptions] == [(str(TOPIC.partition(1)), 1)]
    with pytest.raises(NotFoundError, match="no durable subscription nobody"):
        overdue.overdue(TOPIC, "nobody", 0, 10)


@pytest.mark.parametrize("partition", [1, None])
def test_a_partition_that_has_just_come_is_found(partition: int | None) -> None:
    cluster = Growing()
    cluster.subscribe()
    (position,) = cluster.publish(1, _DUE_IN_MS)
    (outcome,) = FakeSidecar(cluster).feature.cancel(
        TOPIC, [Target(position, None, None, (), partition)], CancelOptions()
    )
    assert (outcome.topic, outcome.cancelled) == (str(TOPIC.partition(1)), True)
    assert (cluster.asked[0] > 0, cluster.asked[1:]) == (True, [0.0])


def test_selections_and_overdue_messages_are_looked_for_in_every_partition_there_is_now() -> None:
    cluster = Growing()
    assert partitions_of(cluster, TOPIC) == [TOPIC.partition(0), TOPIC.partition(1)]
