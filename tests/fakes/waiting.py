"""`WaitingReader` in memory, for tests of its door: every topic waits for the same."""

from pulsar_sidecar.delayed_delivery.backlog import BacklogPosition, SubscriptionBacklog, WaitingPage
from pulsar_sidecar.delayed_delivery.ports import EntryFacts
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType

NOW_MS = 1_700_000_000_000


class FakeWaitingMessages:
    """Two messages for the subscription ``billing``, on two pages; no other one exists."""

    def waiting(
        self, topic: TopicName, subscription: str | None, after: BacklogPosition | None, limit: int
    ) -> WaitingPage:
        if subscription not in (None, "billing"):
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        part = SubscriptionBacklog("billing", SubscriptionType.SHARED)
        position = Position(LedgerId(7), EntryId(0 if after is None else 1))
        part.count(str(topic), position, EntryFacts(NOW_MS + 60_000, NOW_MS), NOW_MS)
        end = BacklogPosition(0, position) if after is None else None
        return WaitingPage(NOW_MS, (part,), end, 1, 0 if end is None else 1)
