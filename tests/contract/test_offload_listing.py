"""Listings of a bucket and of a directory, by what Pulsar's offloaders write there."""

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pulsar_sidecar.adapters.offload.object_listing import object_listing
from pulsar_sidecar.adapters.offload.object_stores import OffloadCredentials
from pulsar_sidecar.features.audit.results.tables import OffloadFinding, OrphanCause
from pulsar_sidecar.features.ledger_deletion.ports import OffloadDeletion
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import ManagedLedgerName
from pulsar_sidecar.ownership.offload_locations import driver_metadata_of, offload_target, parse_location, target_at

from tests.contract.offload_storages import (
    AZURITE_KEY,
    CLUSTER,
    BucketStorage,
    DirectoryStorage,
)
from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.unit.audit.audited_clusters import MANAGED_LEDGER, TOPIC_NODE, Auditor, full_cluster
from tests.unit.audit.stored_copies import OLD_MS, sent_records

OWNER = ManagedLedgerName("public/default/persistent/orders")
LEDGER, CUT = LedgerId(7), LedgerId(8)


@pytest.fixture(params=["s3", "gcs", "azure", "directory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> BucketStorage | DirectoryStorage:
    if request.param == "directory":
        return DirectoryStorage(tmp_path / "base")
    bucket: BucketStorage = request.getfixturevalue(f"{request.param}_bucket")
    return bucket


def listed(storage: BucketStorage | DirectoryStorage) -> list[dict[str, Any]]:
    """List the storage by its location as an operator writes it."""
    context = storage.context(0, 1)
    location = offload_target(context.driver_name, context.driver_metadata).location
    objects = object_listing(target_at(parse_location(storage.location)), storage.credentials)
    rows = [dict(row) for some in objects.rows() for row in some]
    assert {row["place"] for row in rows} <= {location.place}
    for row in rows[:1]:
        metadata = driver_metadata_of(row["driver"], row["place"], row["region"])
        assert offload_target(row["driver"], metadata).location == location
    return sorted(rows, key=lambda row: (row.get("ledger_id") or 0, row.get("role") or ""))


def test_parts_of_copies(storage: BucketStorage | DirectoryStorage) -> None:
    storage.put(LEDGER, storage.context(0, 1), OWNER)
    for number, part in enumerate(("data", "index")):
        ledger_id, context = LedgerId(CUT + number), storage.context(0, 2 + number)
        storage.put(ledger_id, context, OWNER)
        storage.cut(ledger_id, context, OWNER, part)
    rows = listed(storage)
    assert [(row["ledger_id"], row["role"], UUID(row["attempt"]).int) for row in rows] == [
        (7, "data", 1), (7, "index", 1), (8, "data", 2), (8, "index", 2), (9, "data", 3), (9, "index", 3),
    ]  # fmt: skip
    assert {row["managed_ledger"] for row in rows} == {OWNER}
    assert all(row["size_bytes"] and row["modified_ms"] for row in rows)
    whole, cut_data, cut_index = ((rows[place], rows[place + 1]) for place in (0, 2, 4))
    assert not any(row.get("damage") for row in (*whole, cut_data[1], cut_index[0]))
    assert cut_index[1]["damage"]
    if isinstance(storage, BucketStorage):
        assert {row["cluster"] for row in rows} == {CLUSTER}
        assert whole[1]["indexed_bytes"] == whole[0]["size_bytes"] == cut_data[0]["size_bytes"] + 1
    else:
        assert cut_data[0]["damage"]


def test_an_unfinished_offload(storage: BucketStorage | DirectoryStorage) -> None:
    storage.put(LEDGER, storage.context(0, 1), OWNER, {"data"})
    assert [row["role"] for row in listed(storage)] == ["data"]


def test_what_no_offloader_wrote_is_not_recognised(storage: BucketStorage | DirectoryStorage) -> None:
    storage.put_foreign(LEDGER, storage.context(0, 1), OWNER)
    rows = listed(storage)
    if isinstance(storage, BucketStorage):
        assert {row["cluster"] for row in rows} == {"another"}
    else:
        assert {row.get("attempt") for row in rows} == {None}


def test_a_missing_place_is_no_empty_one(storage: BucketStorage | DirectoryStorage) -> None:
    storage.disappear()
    with pytest.raises(TemporaryError, match="cannot be"):
        listed(storage)


def test_an_audit_plans_what_no_list_names_and_its_record_deletes_that(
    storage: BucketStorage | DirectoryStorage, tmp_path: Path
) -> None:
    named, left = (LedgerId(3), storage.context(0, 11)), (CUT, storage.context(0, 17))
    whole = replace(named[1], complete=True, bookkeeper_deleted=False)
    for copy in (named, left):
        storage.put(*copy, ManagedLedgerName(MANAGED_LEDGER))
    cluster = full_cluster()
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3], offloaded={3: whole})
    cluster.places = (storage.location,)

    def list_again() -> None:
        cluster.objects = [{**row, "modified_ms": OLD_MS} for row in listed(storage)]

    list_again()
    auditor = Auditor(tmp_path / "audits")
    audit = auditor.twice(cluster)
    assert [(row["ledger_id"], row["finding"], row["cause"]) for row in audit.offloaded] == [
        (CUT, OffloadFinding.UNREFERENCED, OrphanCause.INTERRUPTED_TRIM)
    ]
    (record,) = sent_records(audit)
    assert record.offload_context is not None
    owner = record.topic.managed_ledger_name
    assert storage.ledgers.is_whole(named[0], whole, owner)
    assert storage.ledgers.delete_offloaded(record.ledger_id, record.offload_context, owner) is OffloadDeletion.DELETED
    assert (storage.parts(*named, owner), storage.parts(*left, owner)) == ({"data", "index"}, set())
    list_again()
    assert not auditor.audit(cluster).offloaded


def test_an_empty_directory_may_be_unmounted(tmp_path: Path) -> None:
    objects = object_listing(target_at(parse_location(f"file://{tmp_path}")), OffloadCredentials())
    with pytest.raises(TemporaryError, match="check that it is mounted"):
        list(objects.rows())


def test_wrong_keys_list_nothing(azure_bucket: BucketStorage) -> None:
    wrong = OffloadCredentials(azureblob=replace(AZURITE_KEY, secret=b64encode(b"wrong").decode()))
    target = target_at(parse_location(azure_bucket.location))
    with pytest.raises(TemporaryError, match="cannot be listed"):
        list(object_listing(target, wrong).rows())
