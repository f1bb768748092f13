"""Sends the ledgers of an audit's plan to the deletion service's topic, each row exactly once.

The service's own calls are not used: each of them would open the producer again and read back what it has stored. Here
one producer lives as long as the plan is sent.
"""

from collections.abc import Sequence
from typing import Final

import pulsar

from pulsar_sidecar.adapters.pulsar.client.clients import partitions_of
from pulsar_sidecar.adapters.pulsar.client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar.topics.deletion_topics import topic_name
from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.audit.applying import DeletableLedger, SentRows
from pulsar_sidecar.ledger_deletion.ports import DeletionTopic, OutgoingMessage, Publisher, PublishResult
from pulsar_sidecar.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.ledger_ownership.claims import LedgerKind
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.names import parse_topic_name

_COMPONENTS: Final = {
    LedgerKind.DATA: LedgerComponent.MANAGED_LEDGER,
    LedgerKind.CURSOR: LedgerComponent.MANAGED_CURSOR,
    LedgerKind.SCHEMA: LedgerComponent.SCHEMA_STORAGE,
    LedgerKind.COMPACTED: LedgerComponent.COMPACTED_LEDGER,
    LedgerKind.DELAYED_INDEX_BUCKET: LedgerComponent.DELAYED_INDEX_BUCKET,
}
_SLACK_MS: Final = 600_000
_TRIES: Final = 8
_FIRST_PAUSE_SECONDS: Final = 1.0


def producer_name(plan_sha256: str) -> str:
    """The stable name under which the rows of a plan are sent, whichever machine sends them."""
    return f"audit-plan-{plan_sha256}"


def open_plan_publisher(
    client: pulsar.Client, plan_sha256: str, clock: Clock, since_ms: int, *, first_use: bool
) -> TopicPublisher:
    """The plan's producer; what it stored since ``since_ms`` is read back unless this is its first use.

    Raises:
        TemporaryError: there are no topics of the deletion service, or they cannot be reached.
        ConflictError: another process is sending this plan now.
    """
    topic = str(topic_name(DeletionTopic.PENDING))
    # Asked first: producing to a topic that does not exist would create one that is not the service's.
    if partitions_of(client, topic) == [topic]:
        raise TemporaryError(f"{topic} does not exist yet: start a sidecar with topicTwoPhaseDeletionEnabled first")
    window_ms = max(clock.now_ms() - since_ms, 0) + _SLACK_MS
    settings = PublisherSettings(batching=True, resend_window_ms=window_ms)
    return TopicPublisher(client, topic, producer_name(plan_sha256), settings, clock, first_use)


class PendingDeletionSender:
    """`audit.applying.DeletableSender` over a publisher on ``__ledger_deletion``.

    Ledgers that claim the service's own topics are sent as well. No client may have these topics deleted through
    themselves (`ledger_deletion.send.refuse_own_topics`): a list that still has to shrink would be waited
    for, and the topics' records would go. A deletable ledger is in no list that is to shrink, and it is deleted only if
    the own topic's node, at the version that the deletion names, and the broker that has it loaded do not reference it,
    as with every other topic.
    """

    def __init__(self, publisher: Publisher, clock: Clock, instance_id: str, requested_by: str) -> None:
        self._publisher = publisher
        self._clock = clock
        self._instance_id = instance_id
        self._requested_by = requested_by

    def send(self, rows: Sequence[DeletableLedger]) -> SentRows:
        left = [self._message(row) for row in rows]
        total = SentRows()
        pause_seconds = _FIRST_PAUSE_SECONDS
        for attempt in range(_TRIES):
            if attempt:
                self._clock.wait_seconds(pause_seconds)
                pause_seconds = min(2 * pause_seconds, 30.0)
            results = self._publisher.publish(left) if left else []
            total += SentRows(results.count(PublishResult.STORED), results.count(PublishResult.ALREADY_STORED))
            left = [message for message, result in zip(left, results, strict=True) if not result.stored]
            if not left:
                return total
        raise TemporaryError(
            f"the brokers did not take {format_count(len(left), 'record')}; run the same command again to continue"
        )

    def _message(self, row: DeletableLedger) -> OutgoingMessage:
        record = PendingDeleteLedgerInfo(
            topic=parse_topic_name(row.topic),
            component=_COMPONENTS[LedgerKind(row.kind)],
            ledger_type=LedgerType.LEDGER,
            ledger_id=LedgerId(row.ledger_id),
            cursor_name=row.cursor_name,
            schema_id=row.schema_id,
            mark=Mark(
                unreferenced=True,
                instance_id=self._instance_id,
                created_ms=row.ctime_ms,
                length_bytes=row.length_bytes,
                requested_by=self._requested_by,
            ),
        )
        return OutgoingMessage(encode_record(record), key=str(record.topic), sequence_id=row.row)
