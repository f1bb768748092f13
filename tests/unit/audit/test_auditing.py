"""The embedded engine on small clusters: what is found, how far each case has come, and what protects a ledger."""

from typing import Any

import pytest
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy
from pulsar_sidecar.features.audit.results.tables import Table
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import OffloadContext
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.bookkeeper import (
    bucket_custom_metadata,
    compacted_custom_metadata,
    cursor_bytes,
    cursor_custom_metadata,
    data_custom_metadata,
    managed_ledger_bytes,
    schema_custom_metadata,
)
from tests.made_audits import open_to_others
from tests.unit.audit.audited_clusters import (
    AS_OF_MS,
    BUCKET_KEY,
    COMPACTION,
    MANAGED_LEDGER,
    TOPIC,
    TOPIC_NODE,
    AuditedCluster,
    Auditor,
    compaction_row,
    segment_row,
)
from tests.unit.audit.sources import node

ORPHAN = 50


def test_a_cluster_without_findings_is_clean(auditor: Auditor, cluster: AuditedCluster) -> None:
    found = auditor.twice(cluster)
    assert found.audited.exit_code == 0
    assert (found.orphans, found.missing, found.unattributed) == ({}, [], {})
    summary = found.summary
    assert (summary.existing.ledgers, summary.referenced.ledgers, summary.references) == (10, 10, 10)
    assert [look.audit_id for look in summary.history][-1] == summary.audit_id
    assert len(summary.history) == 2
    assert (found.directory / "report.html").exists()
    assert open_to_others(found.directory) == []


# --- each kind of orphan: owner and cause --------------------------------------------------------------------------

CAUSES = [
    (data_custom_metadata(MANAGED_LEDGER), "data", "failed-rollover"),
    (data_custom_metadata("t/n/persistent/gone"), "data", "half-deleted-topic"),
    (cursor_custom_metadata(MANAGED_LEDGER, "sub"), "cursor", "failed-cursor-switch"),
    (cursor_custom_metadata(MANAGED_LEDGER, "a%2Fb"), "cursor", "half-deleted-cursor"),
    (cursor_custom_metadata("t/n/persistent/gone", "sub"), "cursor", "half-deleted-topic"),
    (schema_custom_metadata("t/n/topic"), "schema", "schema-race"),
    (schema_custom_metadata("t/n/gone"), "schema", "half-deleted-topic"),
    (compacted_custom_metadata(TOPIC), "compacted", "failed-compaction"),
    (compacted_custom_metadata("persistent://t/n/gone"), "compacted", "half-deleted-topic"),
    (bucket_custom_metadata(TOPIC, "sub", BUCKET_KEY), "delayed-index-bucket", "lost-bucket-pointer"),
    (bucket_custom_metadata(TOPIC, "gone", BUCKET_KEY), "delayed-index-bucket", "half-deleted-cursor"),
]


def test_each_orphan_has_its_owner_and_its_cause(auditor: Auditor, cluster: AuditedCluster) -> None:
    for ledger_id, (custom, _, _) in enumerate(CAUSES, ORPHAN):
        cluster.ledger(ledger_id, custom)
    cluster.living(range(300, 320))
    orphans = auditor.twice(cluster).orphans
    assert len(orphans) == len(CAUSES)
    for ledger_id, (_, kind, cause) in enumerate(CAUSES, ORPHAN):
        demand_deletable(orphans[ledger_id], kind, cause)


@pytest.mark.parametrize(("listed", "cause"), [([60], "interrupted-trim"), ([1, 60], "hand-edit")])
def test_the_list_shows_how_a_data_ledger_went_out_of_it(
    auditor: Auditor, cluster: AuditedCluster, listed: list[int], cause: str
) -> None:
    cluster.ledger(ORPHAN)
    cluster.ledger(60)
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes(listed)
    demand_deletable(auditor.twice(cluster).orphans[ORPHAN], "data", cause)


def demand_deletable(row: dict[str, Any], kind: str, cause: str) -> None:
    assert (row["standing"], row["kind"], row["cause"]) == ("condemned", kind, cause)
    assert row["topic"].startswith("persistent://t/n/")
    assert (row["namespace"], row["tenant"], row["row"] is not None) == ("t/n", "t", True)
    assert all("not this one" in each or "there is no" in each for each in row["evidence"][1:])


def test_names_as_users_write_them(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(50, cursor_custom_metadata("t/n/persistent/a%25b+c.d-partition-3", "s%2Fub"))
    cluster.ledger(51, schema_custom_metadata("t/n/a%25b+c.d"))
    cluster.ledger(52, schema_custom_metadata("t/n/x-partition-1"))
    cluster.ledger(53, data_custom_metadata("t/c/n/persistent/v1"))
    orphans = auditor.twice(cluster).orphans
    assert [orphans[n]["topic"] for n in (50, 51, 52, 53)] == [
        "persistent://t/n/a%b c.d-partition-3",
        "persistent://t/n/a%b c.d",
        "persistent://t/n/x-partition-1-partition-0",
        "persistent://t/c/n/v1",
    ]
    assert orphans[50]["cursor_name"] == "s/ub"


@pytest.mark.parametrize("managed_ledger", [
    "pulsar/system/persistent/__transaction_log_0",
    "pulsar/system/persistent/transaction_coordinator_assign-partition-3",
    "t/n/persistent/topic-sub__transaction_pending_ack",
    "t/n/persistent/__change_events",
    "somebody/elses/managed/ledger",
])  # fmt: skip
def test_a_managed_ledger_counts_whether_or_not_brokers_list_it_as_a_topic(
    auditor: Auditor, cluster: AuditedCluster, managed_ledger: str
) -> None:
    path = f"/managed-ledgers/{managed_ledger}"
    cluster.ledger(50, data_custom_metadata(managed_ledger))
    cluster.ledger(51, cursor_custom_metadata(managed_ledger, "sub"))
    cluster.nodes |= {path: managed_ledger_bytes([50]), f"{path}/sub": cursor_bytes(cursor_ledger=51)}
    found = auditor.twice(cluster)
    assert (found.orphans, list(found.unattributed), found.missing) == ({}, [], [])


# --- ledgers without an owner --------------------------------------------------------------------------------------


NOBODYS = [
    {},
    {"application": b"somebody"},
    {**data_custom_metadata(MANAGED_LEDGER), "component": b"of-the-future"},
    {**data_custom_metadata(MANAGED_LEDGER), "pulsar/more": b"x"},
    data_custom_metadata("no/topic/at/all/of/this/length"),
    data_custom_metadata("t/n/persistent/not~encoded"),
    cursor_custom_metadata(MANAGED_LEDGER, "not~encoded"),
    schema_custom_metadata("t/n/with/too/many"),
]


def test_ledgers_of_unknown_owners_are_reported_and_never_deletable(auditor: Auditor, cluster: AuditedCluster) -> None:
    ledger_ids = [cluster.ledger(ledger_id, custom) for ledger_id, custom in enumerate(NOBODYS, ORPHAN)]
    # Nor is one whose metadata is not understood.
    ledger_ids += [cluster.ledger(70), cluster.ledger(71)]
    cluster.ledgers[70] |= {"value": b"garbage"}
    cluster.ledgers[71] |= {"value": None, "unreadable": "no right to"}
    found = auditor.twice(cluster)
    assert (found.orphans, list(found.unattributed), found.audited.exit_code) == ({}, ledger_ids, 2)


# --- two looks, age, change ----------------------------------------------------------------------------------------


def test_the_first_look_makes_nothing_deletable(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    found = auditor.audit(cluster)
    assert (found.standings, found.audited.exit_code) == ({ORPHAN: "first-look"}, 2)
    assert found.orphans[ORPHAN]["first_seen_ms"] == AS_OF_MS


def test_the_window_counts_from_the_first_of_several_looks(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy(max_share=1, bookkeeper_exclusive=True)
    cluster.ledger(ORPHAN)
    found = auditor.audit(cluster)
    standings = []
    for _ in range(4):
        cluster.as_of_ms += 5 * HOUR_MS
        found = auditor.audit(cluster, found.directory)
        standings.append(found.standings[ORPHAN])
    assert standings == ["first-look"] * 2 + ["condemned"] * 2


def test_a_gap_in_the_looks_begins_anew(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy(max_share=1, bookkeeper_exclusive=True)
    cluster.ledger(ORPHAN)
    first = auditor.audit(cluster)
    listed = cluster.nodes[TOPIC_NODE]
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3, ORPHAN])
    linked = auditor.a_day_later(cluster, first.directory)
    cluster.nodes[TOPIC_NODE] = listed
    assert auditor.a_day_later(cluster, linked.directory).standings == {ORPHAN: "first-look"}


@pytest.mark.parametrize("column", ["version", "czxid", "mzxid"])
def test_a_ledger_that_changed_between_the_looks_waits(auditor: Auditor, cluster: AuditedCluster, column: str) -> None:
    cluster.ledger(ORPHAN)
    first = auditor.audit(cluster)
    cluster.ledgers[ORPHAN][column] += 1
    second = auditor.a_day_later(cluster, first.directory)
    assert second.standings == {ORPHAN: "changed"}
    assert auditor.a_day_later(cluster, second.directory).standings == {ORPHAN: "condemned"}


@pytest.mark.parametrize(("hours", "standing"), [(71, "too-young"), (73, "condemned")])
def test_age_is_measured_by_the_stores_clock(
    auditor: Auditor, cluster: AuditedCluster, hours: int, standing: str
) -> None:
    cluster.ledger(ORPHAN, ctime_ms=AS_OF_MS + (24 - hours) * HOUR_MS)
    assert auditor.twice(cluster).standings == {ORPHAN: standing}


def test_a_young_age_floor_needs_a_word(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy(min_age_ms=HOUR_MS)
    with pytest.raises(InvalidInputError, match="--allow-young"):
        auditor.audit(cluster)
    auditor.policy = AuditPolicy(min_age_ms=HOUR_MS, allow_young=True)
    assert auditor.audit(cluster).audited.exit_code == 0


# --- who is in the listing and in the dump -------------------------------------------------------------------------


def test_ledger_in_only_one_input_is_not_a_candidate(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.unlisted = {cluster.ledger(ORPHAN)}
    cluster.listed_too = {77}
    found = auditor.twice(cluster)
    assert (found.orphans, found.missing) == ({}, [])


def test_a_ledger_that_is_twice_in_the_dump_is_judged_once(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    older = {**cluster.ledgers[ORPHAN], "czxid": 1, "mzxid": 1}
    cluster.ledgers[-1] = older
    cluster.unlisted = {-1}
    found = auditor.twice(cluster)
    assert [(row["ledger_id"], row["czxid"]) for row in found.rows(Table.ORPHAN_LEDGERS)] == [(ORPHAN, 60)]


def test_dump_without_ledgers_yields_no_plan(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    for ledger_id in list(cluster.ledgers):
        cluster.listed_too.add(ledger_id)
    cluster.ledgers.clear()
    cluster.dump_changes = {"left_out": ("ledgers",)}
    found = auditor.twice(cluster)
    assert (found.summary.plan, found.audited.exit_code) == (None, 1)
    assert found.failed == ["nothing-left-out"]
    assert list(found.unattributed) == [ORPHAN]


# --- missing -------------------------------------------------------------------------------------------------------


NEWEST = 10**6
"""A ledger that exists, so that lower ids are none of ledgers that were made while the inputs were taken."""


def test_missing_ledgers_name_who_is_affected(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([101, 1, 2, 3, cluster.ledger(NEWEST)])
    cluster.nodes[f"{TOPIC_NODE}/s%2Fub"] = cursor_bytes(cursor_ledger=102, buckets={BUCKET_KEY: 103})
    cluster.cursor_ledgers.append(compaction_row(104))
    cluster.log_segments.append(segment_row(105))
    found = auditor.twice(cluster)
    by_id = {row["ledger_id"]: row for row in found.missing}
    assert list(by_id) == [101, 102, 103, 104, 105]
    assert [row["kind"] for row in by_id.values()] == [
        "data", "cursor", "delayed-index-bucket", "compacted", "log-segment",
    ]  # fmt: skip
    assert (by_id[101]["entries"], by_id[101]["size_bytes"], by_id[102]["cursor_name"]) == (10, 1000, "s/ub")
    assert TOPIC in by_id[104]["affected"]
    assert "leave its other buckets behind" in by_id[103]["affected"]
    assert (found.audited.exit_code, found.summary.missing) == (2, 5)
    usage = {row["kind"]: row["ledgers"] for row in found.rows(Table.LEDGER_USAGE)}
    assert usage == {
        "data": 4, "cursor": 2, "delayed-index-bucket": 1, "compacted": 1, "schema": 2, "log-segment": 1,
    }  # fmt: skip


def test_ledger_created_during_the_dump_is_not_missing(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3, 99, cluster.ledger(100), 101])
    cluster.nodes[f"{TOPIC_NODE}/s%2Fub"] = cursor_bytes(cursor_ledger=102)
    found = auditor.audit(cluster)
    assert [row["ledger_id"] for row in found.missing] == [99]
    assert found.summary.missing == 1
    usage = {row["kind"]: row["ledgers"] for row in found.rows(Table.LEDGER_USAGE)}
    assert (usage["data"], usage["cursor"]) == (4, 2)


def test_a_compacted_ledger_that_compaction_has_replaced_is_not_missing(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    """The cursor's node still names 90; its ledger names 9, which exists, or 91, which is gone."""
    cluster.nodes[COMPACTION] = cursor_bytes(cursor_ledger=6, compacted_ledger=90)
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3, cluster.ledger(NEWEST)])
    cluster.cursor_ledgers = [compaction_row(9), compaction_row(91)]
    assert [row["ledger_id"] for row in auditor.audit(cluster).missing] == [91]
    cluster.cursor_ledgers = [compaction_row(9)]
    assert [row["ledger_id"] for row in auditor.audit(cluster).missing] == [90]
    cluster.cursor_ledgers = [compaction_row(92)]
    cluster.ledger(92, compacted_custom_metadata(TOPIC))
    found = auditor.audit(cluster)
    assert (found.missing, list(found.orphans)) == ([], [9])


def offload(*, deleted: bool) -> OffloadContext:
    return OffloadContext(1, 2, "filesystem", {}, complete=True, bookkeeper_deleted=deleted)


def test_offloaded_ledger_is_not_missing(auditor: Auditor, cluster: AuditedCluster) -> None:
    offloaded = {100: offload(deleted=True), 1: offload(deleted=False)}
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([100, 1, 2, 3], offloaded=offloaded)
    found = auditor.twice(cluster)
    assert (found.missing, found.orphans) == ([], {})
    # BookKeeper's copy that should be gone and is not: nothing means it any more.
    cluster.ledger(100)
    found = auditor.twice(cluster)
    assert found.standings == {100: "condemned"}
    (row,) = found.rows(Table.ORPHAN_LEDGERS)
    assert row["cause"] == "offloaded-copy"
    assert row["evidence"][-1].endswith("names 4, from 1 to 100, and this one as replaced by tiered storage")


def test_a_ledger_below_a_directory_that_could_not_be_read_is_not_missing(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3, 123456, cluster.ledger(NEWEST)])
    assert [row["ledger_id"] for row in auditor.audit(cluster).missing] == [123456]
    directory = ledger_path(LedgerId(123456)).rpartition("/")[0]
    cluster.ledgers[-1] = node(directory, unreadable="no right to")
    cluster.unlisted = {-1}
    assert auditor.audit(cluster).missing == []
