"""Sender of an audit plan's ledgers to the deletion service's topic, each row exactly once.

It does not use the service's own calls: each of them would open the producer again and read back its stored messages.
Here one producer lives as long as the plan is sent.
"""

import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

import pulsar

from pulsar_sidecar.adapters.pulsar_client.clients import partitions_of
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher
from pulsar_sidecar.adapters.pulsar_topics.deletion_topics import topic_name
from pulsar_sidecar.features.audit.applying import DeletableLedger, SentRows
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic, OutgoingMessage, Publisher, PublishResult
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, encode_record
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType, OffloadContext
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.claims import LedgerKind
from pulsar_sidecar.ownership.offload_locations import driver_metadata_of
from pulsar_sidecar.reports.formatting import format_count

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
    """Return the stable producer name for the rows of a plan, the same on every machine."""
    return f"audit-plan-{plan_sha256}"


def open_plan_publisher(
    client: pulsar.Client, plan_sha256: str, clock: Clock, since_ms: int, *, first_use: bool
) -> TopicPublisher:
    """Open the plan's producer; unless this is its first use, read back its messages since ``since_ms``.

    Raises:
        TemporaryError: there are no topics of the deletion service, or they cannot be reached.
        ConflictError: another process is sending this plan now.
    """
    topic = str(topic_name(DeletionTopic.PENDING))
    # Checked first: producing to a missing topic would create one that is not the service's.
    if partitions_of(client, topic) == [topic]:
        raise TemporaryError(f"{topic} does not exist yet: start a sidecar with topicTwoPhaseDeletionEnabled first")
    window_ms = max(clock.now_ms() - since_ms, 0) + _SLACK_MS
    settings = PublisherSettings(batching=True, resend_window_ms=window_ms)
    return TopicPublisher(client, topic, producer_name(plan_sha256), settings, clock, first_use)


class PendingDeletionSender:
    """Sender of `audit.applying.send_plan`, over a publisher on ``__ledger_deletion``.

    It sends ledgers that claim the service's own topics too. No client may delete these topics through themselves
    (`ledger_deletion.send.refuse_own_topics`): the service would wait for a list that still has to shrink, and the
    topics' records would be lost. A deletable ledger is in no such list, and the service deletes it only if neither the
    topic's node, at the version in the deletion, nor the broker that has the topic loaded references it, as for every
    other topic.
    """

    def __init__(
        self, publisher: Publisher, clock: Clock, instance_id: str, requested_by: str, *, times_known: bool = True
    ) -> None:
        """Prepare; without ``times_known`` the rows' order of creation identifies their ledgers."""
        self._publisher = publisher
        self._times_known = times_known
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
            f"the brokers did not accept {format_count(len(left), 'record')}; run the same command again to continue"
        )

    def _message(self, row: DeletableLedger) -> OutgoingMessage:
        record = PendingDeleteLedgerInfo(
            topic=parse_topic_name(row.topic),
            component=_COMPONENTS[LedgerKind(row.kind)],
            ledger_type=LedgerType.LEDGER if row.attempt is None else LedgerType.OFFLOAD_LEDGER,
            ledger_id=LedgerId(row.ledger_id),
            cursor_name=row.cursor_name,
            schema_id=row.schema_id,
            offload_context=None if row.attempt is None else _context(UUID(row.attempt), row),
            mark=Mark(
                unreferenced=True,
                instance_id=self._instance_id,
                created_ms=row.ctime_ms if self._times_known else None,
                created_order=None if self._times_known else row.czxid,
                length_bytes=row.length_bytes,
                requested_by=self._requested_by,
            ),
        )
        return OutgoingMessage(encode_record(record), key=str(record.topic), sequence_id=row.row)


def _context(attempt: UUID, row: DeletableLedger) -> OffloadContext:
    msb, lsb = struct.unpack(">qq", attempt.bytes)
    return OffloadContext(msb, lsb, row.driver, driver_metadata_of(row.driver, row.place, row.region))
