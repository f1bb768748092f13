"""Buckets that are handed to the deletion service become records that it can judge."""

from collections.abc import Sequence

import pytest
from pulsar_sidecar.bootstrap.bucket_deletions import BucketDeletions
from pulsar_sidecar.features.delayed_index.ports import UnusableBucket
from pulsar_sidecar.features.ledger_deletion.record import SIGNING_KEY, PendingDeleteLedgerInfo, is_signed
from pulsar_sidecar.features.ledger_deletion.results import SentLedger
from pulsar_sidecar.features.ledger_deletion.steps import Steps
from pulsar_sidecar.model.errors import DisabledError
from pulsar_sidecar.model.ids import LedgerId, NodeVersion
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.metadata import Birth
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import DEFAULT_LEDGERS_ROOT, instance_id_path

from tests.fakes.metadata import FakeMetadataStore

TOPIC = parse_topic_name("persistent://public/default/orders")


def test_a_named_bucket_is_signed_for_its_cursors_version_and_an_orphan_is_not() -> None:
    store = FakeMetadataStore()
    store.put(instance_id_path(DEFAULT_LEDGERS_ROOT), b"here")
    taken: list[PendingDeleteLedgerInfo] = []

    class Service:
        def require_ready(self) -> None:
            raise DisabledError("off")

        def send_pending_delete_ledgers(self, records: Sequence[PendingDeleteLedgerInfo]) -> list[SentLedger]:
            taken.extend(records)
            return [
                SentLedger(each.ledger_id, each.ledger_id == 31, None if each.ledger_id == 31 else "no")
                for each in records
            ]

    deletions = BucketDeletions(Service, store, DEFAULT_LEDGERS_ROOT, Steps())
    with pytest.raises(DisabledError, match="off"):
        deletions.demand_ready()
    named = UnusableBucket(TOPIC, "a b", LedgerId(31), Birth(5, None), 99, NodeVersion(4))
    orphan = UnusableBucket(TOPIC, "a b", LedgerId(32), Birth(6, None), None, None)
    assert deletions.enqueue_for_deletion([named, orphan]) == [None, "no"]
    key = store.peek(SIGNING_KEY)
    assert key is not None
    assert [is_signed(record, key.data) for record in taken] == [True, False]
    assert [(each.mark.marked_version, each.mark.unreferenced, each.mark.created_ms) for each in taken] == [
        (4, False, 5),
        (None, True, 6),
    ]
    assert {(each.component, each.cursor_name, each.mark.instance_id) for each in taken} == {
        (LedgerComponent.DELAYED_INDEX_BUCKET, "a b", "here")
    }
