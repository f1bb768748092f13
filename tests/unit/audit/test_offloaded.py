"""Copies in tiered storage against the lists that name them."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pulsar_sidecar.adapters.parquet.directories import open_audit
from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.bootstrap.audit_review import explain_ledger, show_audit
from pulsar_sidecar.features.audit.applying import verified_plan
from pulsar_sidecar.features.audit.requests import HOUR_MS, FindingsTable
from pulsar_sidecar.features.audit.results.plans import PlanDigest
from pulsar_sidecar.features.audit.results.summaries import Count, OffloadUse
from pulsar_sidecar.features.audit.results.tables import OffloadFinding, OrphanCause, OrphanStatus, Table
from pulsar_sidecar.features.audit.sources.manifests import OrderRange
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ledgers import LedgerType, OffloadContext
from pulsar_sidecar.ownership.offload_locations import offload_target

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.unit.audit.audited_clusters import (
    AS_OF_MS,
    NO_WAITING,
    PLACE,
    TOPIC,
    TOPIC_NODE,
    AuditedCluster,
    Auditor,
    full_cluster,
)
from tests.unit.audit.stored_copies import DATA_BYTES, DRIVER, OLD_MS, WHOLE, context, copy, sent_records, stored


def offloading(objects: list[dict[str, Any]], **named: OffloadContext) -> AuditedCluster:
    """Return a cluster whose topic lists the ledgers 1 to 3, with these contexts (``of_1=...``)."""
    cluster = full_cluster()
    offloaded = {int(name.removeprefix("of_")): each for name, each in named.items()}
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3], offloaded=offloaded)
    cluster.objects = objects
    return cluster


def found(auditor: Auditor, cluster: AuditedCluster) -> list[tuple[int, OffloadFinding]]:
    return [(row["ledger_id"], OffloadFinding(row["finding"])) for row in auditor.audit(cluster).offloaded]


def test_whole_copies_that_lists_name_are_no_finding(auditor: Auditor) -> None:
    audit = auditor.audit(offloading([*copy(1, 11), *copy(2, 12)], of_1=context(11), of_2=context(12)))
    assert not audit.offloaded
    assert audit.audited.exit_code == 0
    assert audit.summary.offload.uses == {OffloadUse.REFERENCED: Count(2, 2 * WHOLE)}


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        ([], "data and index missing"),
        ([stored(1, 11, "data")], "index missing"),
        ([stored(1, 11, "index")], "data missing"),
        ([stored(1, 11, "data", size_bytes=1_199), stored(1, 11, "index")], "the data have 1,199 bytes, by the index"),
        ([stored(1, 11, "data"), stored(1, 11, "index", indexed_bytes=None, damage="too short")], "too short"),
        (
            [stored(1, 11, "data", size_bytes=999), stored(1, 11, "index", indexed_bytes=999)],
            "the data have 999 bytes, the ledger has 1,000",
        ),
        (copy(1, 11, place="s3://another"), "data and index missing"),
    ],
)
@pytest.mark.parametrize("is_in_bookkeeper", [True, False])
def test_a_copy_that_is_not_whole(
    auditor: Auditor, objects: list[dict[str, Any]], reason: str, is_in_bookkeeper: bool
) -> None:
    cluster = offloading(objects, of_1=context(11, bookkeeper_deleted=not is_in_bookkeeper))
    if not is_in_bookkeeper:
        del cluster.ledgers[1]
    (row,) = (row for row in auditor.audit(cluster).offloaded if row["place"] == PLACE)
    assert row["finding"] == (OffloadFinding.DAMAGED if is_in_bookkeeper else OffloadFinding.LOST)
    assert row["reason"].startswith(reason)
    assert (row["topic"], row["standing"]) == (TOPIC, None)


def test_bookkeepers_copy_is_kept_while_tiered_storage_lacks_the_ledger(auditor: Auditor) -> None:
    named = context(11, bookkeeper_deleted=True)
    assert auditor.twice(offloading(copy(1, 11), of_1=named)).standings == {1: OrphanStatus.DELETABLE}
    assert auditor.twice(offloading(copy(1, 11)[:1], of_1=named)).standings == {1: OrphanStatus.UNPROVEN}


def test_what_bookkeeper_lost(auditor: Auditor) -> None:
    whole = offloading(copy(1, 11), of_1=context(11))
    del whole.ledgers[1]
    assert found(auditor, whole) == [(1, OffloadFinding.BOOKKEEPER_LOST)]
    unfinished = offloading(copy(1, 11)[:1], of_1=context(11, complete=False))
    assert found(auditor, unfinished) == [(1, OffloadFinding.UNFINISHED)]
    del unfinished.ledgers[1]
    assert found(auditor, unfinished) == [(1, OffloadFinding.LOST)]


BY_THE_OPTION = "deletion lag of --offload-deletion-lag-hours, 4 h"
UNKNOWN = f"{BY_THE_OPTION}; the policies of its namespace are not in the dump, or cannot be read"


def policies(lag_ms: int | None, **older: int) -> bytes:
    return json.dumps({"offload_policies": {"managedLedgerOffloadDeletionLagInMillis": lag_ms}, **older}).encode()


@pytest.mark.parametrize(
    ("policies", "late"),
    [
        (b'{"offload_policies": {}}', BY_THE_OPTION),
        (policies(HOUR_MS), "deletion lag that its namespace sets, 1 h"),
        (policies(5 * HOUR_MS + 1), None),
        (policies(-1, offload_deletion_lag_ms=0), None),
        (policies(None, offload_deletion_lag_ms=-1), None),
        (b'{"offload_deletion_lag_ms": 0}', "deletion lag that its namespace sets, 0 h"),
        (b"no JSON", UNKNOWN),
        (None, UNKNOWN),
    ],
)
def test_a_copy_past_its_namespaces_deletion_lag_is_stored_twice(
    auditor: Auditor, policies: bytes | None, late: str | None
) -> None:
    cluster = offloading(copy(1, 11), of_1=context(11, offloaded_ms=AS_OF_MS - 5 * HOUR_MS))
    cluster.nodes["/admin/policies/t/n"] = policies
    audit = auditor.audit(cluster)
    found = [(row["finding"], row["reason"].partition("outlived the ")[2]) for row in audit.offloaded]
    assert found == ([] if late is None else [(OffloadFinding.BOOKKEEPER_LATE, late)])
    uses = audit.summary.offload.uses
    assert uses.get(OffloadUse.STORED_TWICE) == (None if late is None else Count(1, 1_000))


def test_brokers_may_keep_bookkeepers_copies(auditor: Auditor) -> None:
    auditor.policy = replace(auditor.policy, offload_lag_ms=-1)
    cluster = offloading(copy(1, 11), of_1=context(11, offloaded_ms=AS_OF_MS - 5 * HOUR_MS))
    assert not auditor.audit(cluster).offloaded
    cluster.nodes["/admin/policies/t/n"] = b'{"offload_deletion_lag_ms": 1}'
    assert [row["finding"] for row in auditor.audit(cluster).offloaded] == [OffloadFinding.BOOKKEEPER_LATE]


def test_unreferenced_copies_become_deletable_and_join_the_plan(auditor: Auditor) -> None:
    auditor.policy = replace(NO_WAITING, price_per_gib_month=2.0**30)
    gone = {"managed_ledger": "t/n/persistent/gone"}
    cluster = offloading([*copy(1, 11), *copy(1, 10), *copy(7, 17), *copy(8, 18, **gone)], of_1=context(11))
    cluster.ledger(4_711)
    first = auditor.audit(cluster)
    assert {row["standing"] for row in first.offloaded} == {OrphanStatus.FIRST_LOOK}
    audit = auditor.a_day_later(cluster, first.directory)
    assert [(row["ledger_id"], row["attempt"][-2:], row["cause"], row["row"]) for row in audit.offloaded] == [
        (1, "0a", OrphanCause.FAILED_OFFLOAD, 1),
        (7, "11", OrphanCause.INTERRUPTED_TRIM, 2),
        (8, "12", OrphanCause.HALF_DELETED_TOPIC, 3),
    ]
    plan = audit.summary.plan
    assert plan is not None
    assert plan.rows == 4
    assert verified_plan(open_audit(audit.directory), AuditTables(audit.directory, audit.summary).deletable) == plan
    assert audit.audited.verdict.startswith("plan: 1 ledger and 3 copies in tiered storage")
    uses = audit.summary.offload.uses_by_tenant["t"]
    assert uses == {OffloadUse.REFERENCED: Count(1, WHOLE), OffloadUse.UNREFERENCED: Count(3, 3 * WHOLE)}
    assert audit.summary.offload.costs_by_tenant() == {"t": (WHOLE, 3 * WHOLE, 0)}
    shown = show_audit(audit.directory).text
    assert f"t                                   {WHOLE}.00      {3 * WHOLE}.00" in shown
    rows = show_audit(audit.directory, [FindingsTable.OFFLOADED]).text
    assert "Findings in tiered storage: 3 of 3" in rows
    assert f"attempt {UUID(int=18)} (data, index, 1.4 KiB): unreferenced. Likely cause: half" in explain_ledger(
        audit.directory, 8
    )
    assert "Tiered storage" in (audit.directory / "report.html").read_text()


def test_without_the_assurance_copies_are_withheld_and_ledgers_are_not(auditor: Auditor) -> None:
    auditor.policy = replace(NO_WAITING, offload_exclusive=False)
    cluster = offloading(copy(7, 17))
    cluster.ledger(4_711)
    audit = auditor.twice(cluster)
    assert [(row["standing"], row["row"]) for row in audit.offloaded] == [(OrphanStatus.WITHHELD, None)]
    assert "--offload-exclusive-to-cluster" in audit.offloaded[0]["reason"]
    assert audit.summary.plan is not None
    assert audit.summary.plan.rows == 1


def test_only_what_names_this_cluster_and_a_topic_is_deletable(auditor: Auditor) -> None:
    cluster = offloading(
        [
            *copy(1, 11),
            *copy(7, 17, cluster=None),
            *copy(8, 18, managed_ledger=None),
            *copy(9, 19, managed_ledger="not a topic's"),
            *copy(10, 20, cluster="another"),
            *copy(11, 21, managed_ledger="unknown/n/persistent/topic"),
            stored(12, 22, "data"),
            stored(12, 22, "index", managed_ledger="t/n/persistent/other"),
            {**stored(1, 13, "data"), "role": None, "ledger_id": None, "attempt": None},
            *copy(1, 11, place="s3://elsewhere"),
        ],
        of_1=context(11),
    )
    cluster.places = (PLACE, "s3://elsewhere")
    audit = auditor.twice(cluster)
    assert audit.summary.plan is not None
    assert audit.summary.plan.rows == 0
    assert [(row["ledger_id"], row["finding"], row["standing"]) for row in audit.offloaded] == [
        (1, OffloadFinding.UNREFERENCED, OrphanStatus.UNPROVEN),
        (7, OffloadFinding.UNATTRIBUTED, None),
        (8, OffloadFinding.UNATTRIBUTED, None),
        (9, OffloadFinding.UNATTRIBUTED, None),
        (11, OffloadFinding.UNREFERENCED, OrphanStatus.UNPROVEN),
        (12, OffloadFinding.UNATTRIBUTED, None),
    ]
    uses = audit.summary.offload.uses
    assert (uses[OffloadUse.ANOTHER_CLUSTER], uses[OffloadUse.UNRECOGNISED]) == (Count(1, WHOLE), Count(1, DATA_BYTES))
    assert {each.what for each in audit.summary.unseen} >= {
        "another-cluster in tiered storage",
        "unrecognised in tiered storage",
    }


def test_files_name_no_cluster_and_need_none(auditor: Auditor) -> None:
    files = {"place": "file:///tiered", "driver": "filesystem", "region": "", "cluster": None, "indexed_bytes": None}
    cluster = offloading(copy(7, 17, **files))
    cluster.places = ("file:///tiered",)
    assert [row["standing"] for row in auditor.twice(cluster).offloaded] == [OrphanStatus.DELETABLE]


def test_a_list_that_cannot_be_read_protects_copies(auditor: Auditor) -> None:
    cluster = offloading(copy(7, 17))
    cluster.nodes["/managed-ledgers/t/n/persistent/broken"] = b"\xff"
    assert [row["standing"] for row in auditor.twice(cluster).offloaded] == [OrphanStatus.UNPROVEN]


def test_young_and_changed_copies_wait(auditor: Auditor) -> None:
    cluster = offloading(copy(7, 17, modified_ms=AS_OF_MS))
    assert [row["standing"] for row in auditor.audit(cluster).offloaded] == [OrphanStatus.TOO_YOUNG]
    first = auditor.audit(offloading(copy(7, 17)))
    changed = offloading(copy(7, 17, modified_ms=OLD_MS + 1))
    assert [row["standing"] for row in auditor.a_day_later(changed, first.directory).offloaded] == [
        OrphanStatus.CHANGED
    ]


def test_places_that_were_not_listed_are_counted(auditor: Auditor) -> None:
    elsewhere = replace(context(11), driver_metadata={**DRIVER, "bucket": "another"})
    audit = auditor.audit(offloading([], of_1=elsewhere))
    assert not audit.offloaded
    assert audit.summary.offload.uses == {OffloadUse.NOT_LISTED: Count(1, 1_000)}


def test_too_large_a_share_withholds_the_plan(auditor: Auditor) -> None:
    auditor.policy = replace(NO_WAITING, max_share=0.5)
    audit = auditor.twice(offloading([*copy(1, 11), *copy(7, 17), *copy(8, 18)], of_1=context(11)))
    assert audit.summary.plan is None
    assert {row["standing"] for row in audit.offloaded} == {OrphanStatus.WITHHELD}
    assert audit.summary.offload.standings == {OrphanStatus.WITHHELD: Count(2, 2 * WHOLE)}


def test_a_bucket_that_shrank_stops_the_plan(auditor: Auditor) -> None:
    many = [part for number in range(20) for part in copy(7 + number, 17 + number)]
    auditor.policy = replace(NO_WAITING, max_shrink=0.2)
    first = auditor.audit(offloading(many))
    fewer = offloading(many[:20])
    audit = auditor.a_day_later(fewer, first.directory)
    assert audit.failed == ["offloaded-not-shrunken"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"instance_id": "another"}, "BookKeeper instance"), ({"zxids": OrderRange(800, 901)}, "list first, dump second")],
)
def test_a_listing_of_another_cluster_or_after_the_dump(
    auditor: Auditor, changed: dict[str, Any], message: str
) -> None:
    cluster = offloading([])
    cluster.offloaded_changes = changed
    with pytest.raises(InvalidInputError, match=message):
        auditor.audit(cluster)


def test_a_copy_becomes_a_record_that_locates_it(auditor: Auditor) -> None:
    (record,) = sent_records(auditor.twice(offloading(copy(7, 17))))
    assert (record.ledger_type, record.ledger_id, str(record.topic)) == (LedgerType.OFFLOAD_LEDGER, 7, TOPIC)
    assert record.mark.unreferenced
    assert record.offload_context is not None
    assert record.offload_context.attempt == UUID(int=17)
    target = offload_target(record.offload_context.driver_name, record.offload_context.driver_metadata)
    assert str(target.location) == PLACE


def test_every_part_of_a_copy_that_is_recorded_is_in_the_plans_hash(auditor: Auditor) -> None:
    audit = auditor.twice(offloading([*copy(7, 17), *copy(7, 18)]))
    (rows,) = AuditTables(audit.directory, audit.summary).table(Table.OFFLOADED_LEDGERS).to_batches()
    hashes = set()
    for name in ("", "attempt", "place", "driver", "region", "topic", "managed_ledger", "modified_ms"):
        changed = rows.to_pylist()
        if name:
            changed[1][name] = 1 if name == "modified_ms" else "another"
        digest = PlanDigest("audit", "instance")
        digest.add(pa.RecordBatch.from_pylist(changed, schema=rows.schema))
        hashes.add(digest.plan().sha256)
    assert len(hashes) == 8
