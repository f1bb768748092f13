"""Hand-over of delayed indexes' buckets to the deletion service, because features do not import each other."""

from collections.abc import Callable, Sequence

from pulsar_sidecar.features.delayed_index.ports import UnusableBucket
from pulsar_sidecar.features.ledger_deletion.record import Mark, PendingDeleteLedgerInfo, signed, signing_key
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerType
from pulsar_sidecar.model.metadata import MetadataStore
from pulsar_sidecar.ownership.paths import read_instance_id

_REQUESTED_BY = "delayed-index repair"


class BucketDeletions:
    """The delayed index's `PendingBucketDeletions`, by ``sendPendingDeleteLedger``.

    A bucket that a cursor names gets a signed record: this cluster's own list names it, so it belongs to this cluster.
    The deletion service waits until the cursor's node has another version than the record. An orphan's record is not
    signed: the missing reference is the only evidence.
    """

    def __init__(
        self, service: Callable[[], LedgerDeletion], store: MetadataStore, ledgers_root: str, steps: Steps
    ) -> None:
        """Initialise; each call gets the service anew from ``service``, because its feature may open later."""
        self._service = service
        self._store = store
        self._root = ledgers_root
        self._steps = steps

    def demand_ready(self) -> None:
        self._service().require_ready()

    def enqueue_for_deletion(self, buckets: Sequence[UnusableBucket]) -> Sequence[str | None]:
        instance_id = read_instance_id(self._store, self._root)
        records = [_record(bucket, instance_id) for bucket in buckets]
        if any(bucket.version is not None for bucket in buckets):
            key = signing_key(self._store, self._steps)
            records = [
                record if bucket.version is None else signed(record, key)
                for bucket, record in zip(buckets, records, strict=True)
            ]
        sent = self._service().send_pending_delete_ledgers(records)
        return [None if each.sent else each.reason or "it was not recorded" for each in sent]


def _record(bucket: UnusableBucket, instance_id: str) -> PendingDeleteLedgerInfo:
    return PendingDeleteLedgerInfo(
        topic=bucket.topic,
        component=LedgerComponent.DELAYED_INDEX_BUCKET,
        ledger_type=LedgerType.LEDGER,
        ledger_id=bucket.ledger_id,
        cursor_name=bucket.subscription,
        mark=Mark(
            marked_version=bucket.version,
            unreferenced=bucket.version is None,
            instance_id=instance_id,
            created_ms=bucket.birth.created_ms,
            created_order=bucket.birth.created_order,
            length_bytes=bucket.length_bytes,
            requested_by=_REQUESTED_BY,
        ),
    )
