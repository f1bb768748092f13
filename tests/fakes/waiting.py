"""`WaitingReader` in memory, for tests of the server, with the same messages for all topics."""

from pulsar_sidecar.backlog.ports import EntryFacts
from pulsar_sidecar.backlog.waiting import BacklogPosition, SubscriptionBacklog, WaitingPage
from pulsar_sidecar.model.errors import NotFoundError
from pulsar_sidecar.model.ids import EntryId, LedgerId, Position
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.topic_stats import SubscriptionType

NOW_MS = 1_700_000_000_000


class FakeWaitingMessages:
    """Two messages of the subscription ``billing``, the only one, on two pages."""

    def waiting(
        self, topic: TopicName, subscription: str | None, after: BacklogPosition | None, limit: int
    ) -> WaitingPage:
        if subscription not in (None, "billing"):
            raise NotFoundError(f"{topic} has no durable subscription {subscription}")
        part = SubscriptionBacklog("billing", SubscriptionType.SHARED)
        position = Position(LedgerId(7), EntryId(0 if after is None else 1))
        part.count(str(topic), position, EntryFacts(NOW_MS + 60_000, NOW_MS), NOW_MS)
        end = BacklogPosition(0, position) if after is None else None
        return WaitingPage(NOW_MS, (part.result(),), 1, 0 if end is None else 1, None if end is None else str(end))
