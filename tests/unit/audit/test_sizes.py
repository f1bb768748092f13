"""Sizes of ledgers: BookKeeper's where a list has none, and an unknown size is never 0 bytes."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pulsar_sidecar.adapters.parquet.inputs import AuditTables
from pulsar_sidecar.features.audit.requests import RowsRequest
from pulsar_sidecar.features.audit.results.report import metrics_text
from pulsar_sidecar.features.audit.results.show import chosen_rows, overview, rows_text
from pulsar_sidecar.features.audit.results.summaries import Count
from pulsar_sidecar.features.audit.results.tables import Table
from pulsar_sidecar.features.audit.sources.manifests import LEDGERS_LEFT_OUT
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.ownership.ledger_metadata import decode_ledger_metadata
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE
from pulsar_sidecar.reports.audit_pages import size_of

from tests.fakes.bookkeeper import cursor_bytes, cursor_custom_metadata, data_custom_metadata, managed_ledger_bytes
from tests.unit.audit.audited_clusters import TOPIC_NODE, AuditedCluster, Auditor, ClusterAudit

UNLOADED = range(100, 112)
NEWEST = 200
BYTES = 27_050
OF_THE_FULL_CLUSTER = Count(10, 10_000)


def topic(cluster: AuditedCluster, ledger_id: int, **ledger: Any) -> str:
    """A topic with this ledger alone, which is the last of its list."""
    name = f"t/n/persistent/topic-{ledger_id}"
    cluster.nodes[f"/managed-ledgers/{name}"] = managed_ledger_bytes([ledger_id])
    cluster.ledger(ledger_id, data_custom_metadata(name), **ledger)
    return f"persistent://t/n/topic-{ledger_id}"


def usage(found: ClusterAudit, topic: str) -> tuple[int, int | None, int]:
    (row,) = (row for row in found.rows(Table.LEDGER_USAGE) if (row["topic"], row["kind"]) == (topic, "data"))
    return row["ledgers"], row["bytes"], row["unknown_size_ledgers"]


def closed_in_bookkeeper(cluster: AuditedCluster) -> int:
    metadata = [decode_ledger_metadata(row["value"]) for row in cluster.ledgers.values()]
    return sum(each.length_bytes for each in metadata if each.state is LedgerState.CLOSED)


def test_an_unloaded_topics_last_ledger_is_as_long_as_in_bookkeeper(auditor: Auditor, cluster: AuditedCluster) -> None:
    topics = [topic(cluster, ledger_id, length_bytes=BYTES) for ledger_id in UNLOADED]
    found = auditor.audit(cluster)
    assert {usage(found, each) for each in topics} == {(1, BYTES, 0)}
    assert found.summary.existing == Count(22, closed_in_bookkeeper(cluster))
    assert found.summary.existing_by_kind["data"] == Count(15, 12 * BYTES + 3000)
    assert found.summary.referenced == found.summary.existing


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_open_ledger_has_no_size(auditor: Auditor, cluster: AuditedCluster, state: LedgerState) -> None:
    written = topic(cluster, 100, state=state)
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 3, cluster.ledger(NEWEST, state=state)])
    found = auditor.audit(cluster)
    assert usage(found, written) == (1, None, 1)
    assert usage(found, "persistent://t/n/topic") == (4, 3000, 1)
    assert found.summary.existing == Count(12, closed_in_bookkeeper(cluster), 2)
    assert found.summary.existing_by_kind["data"] == Count(5, 3000, 2)


def test_without_bookkeepers_metadata_only_lists_give_sizes(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.dump_changes = {"left_out": (LEDGERS_LEFT_OUT,)}
    summary = auditor.audit(cluster).summary
    assert summary.existing == Count(10, 2000, 8)
    assert summary.existing_by_kind["schema"] == Count(2, None, 2)


def test_a_list_names_a_missing_ledger_in_vain_with_or_without_its_size(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    cluster.nodes[TOPIC_NODE] = managed_ledger_bytes([1, 2, 98, 3, 99])
    cluster.ledger(NEWEST, data_custom_metadata("t/n/persistent/gone"))
    found = auditor.audit(cluster)
    assert [(row["ledger_id"], row["size_bytes"]) for row in found.missing] == [(98, 1000), (99, None)]
    assert usage(found, "persistent://t/n/topic") == (3, 3000, 0)


def test_ledgers_of_a_shadow_count_for_its_source(auditor: Auditor, cluster: AuditedCluster) -> None:
    source = {SHADOW_SOURCE: "persistent://t/n/topic"}
    cluster.nodes[f"{TOPIC_NODE}-shadow"] = managed_ledger_bytes([1, 2, 3], properties=source)
    found = auditor.audit(cluster)
    assert {row["topic"] for row in found.rows(Table.LEDGER_USAGE)} & {"persistent://t/n/topic-shadow"} == set()
    assert (found.summary.existing, found.orphans) == (OF_THE_FULL_CLUSTER, {})


def test_partitions_of_a_shadow_do_not_name_their_source(auditor: Auditor, cluster: AuditedCluster) -> None:
    properties = {SHADOW_SOURCE: "persistent://t/n/source"}
    node = json.dumps({"partitions": 1, "properties": properties}).encode()
    cluster.nodes["/admin/partitioned-topics/t/n/persistent/shadow"] = node
    cluster.nodes["/managed-ledgers/t/n/persistent/shadow-partition-0"] = managed_ledger_bytes([1, 2, 3])
    cluster.nodes["/managed-ledgers/t/n/persistent/shadow-partition-0/sub"] = cursor_bytes(cursor_ledger=NEWEST)
    cluster.ledger(NEWEST, cursor_custom_metadata("t/n/persistent/shadow-partition-0", "sub"))
    found = auditor.audit(cluster)
    rows = [row for row in found.rows(Table.LEDGER_USAGE) if row["topic"] == "persistent://t/n/shadow-partition-0"]
    assert [(row["kind"], row["ledgers"]) for row in rows] == [("cursor", 1)]
    assert found.summary.existing == Count(11, closed_in_bookkeeper(cluster))


def test_orphans_of_unknown_size_are_counted_as_such(auditor: Auditor, cluster: AuditedCluster) -> None:
    gone = data_custom_metadata("t/n/persistent/gone")
    cluster.ledger(50, gone, state=LedgerState.OPEN)
    cluster.ledger(51, gone, length_bytes=7)
    cluster.ledger(52, {}, state=LedgerState.OPEN)
    found = auditor.twice(cluster)
    summary = found.summary
    assert (found.orphans[50]["state"], found.orphans[50]["length_bytes"]) == ("OPEN", None)
    assert summary.orphans["condemned"] == Count(2, 7, 1)
    assert summary.plan is not None
    assert summary.plan.ledgers == Count(2, 7, 1)
    assert summary.unattributed == Count(1, None, 1)
    assert summary.existing == Count(13, 10_007, 2)


# --- as people and programs see them -------------------------------------------------------------------------------


@pytest.fixture
def partly_known(auditor: Auditor, cluster: AuditedCluster) -> ClusterAudit:
    topic(cluster, 100, state=LedgerState.OPEN)
    cluster.ledger(50, {}, state=LedgerState.OPEN)
    return auditor.audit(cluster)


def test_the_overview_counts_what_is_unknown(partly_known: ClusterAudit) -> None:
    lines = {line[:33].strip(): line[33:].split() for line in overview(partly_known.summary, "a").splitlines()}
    assert lines["exist"] == ["12", "9.8", "KiB", "2"]
    assert lines["have no known owner"] == ["1", "unknown", "1"]


def test_rows_of_usage_do_not_show_0_bytes(partly_known: ClusterAudit) -> None:
    table = AuditTables(partly_known.directory, partly_known.summary).table(Table.LEDGER_USAGE)
    found = chosen_rows("usage", table, RowsRequest({"topic": "persistent://t/n/topic-100"}))
    assert rows_text("usage", found).splitlines()[-1].split() == [
        "data", "1", "unknown", "1", "unknown", "persistent://t/n/topic-100",
    ]  # fmt: skip


def test_metrics_leave_out_what_is_unknown_and_count_it(partly_known: ClusterAudit) -> None:
    families = text_string_to_metric_families(metrics_text(partly_known.summary))
    samples = {sample.name: sample.value for family in families for sample in family.samples}
    assert samples["pulsar_sidecar_audit_ledger_bytes"] == 10_000
    assert samples["pulsar_sidecar_audit_unknown_size_ledgers"] == 2


@pytest.mark.parametrize(("ledgers", "text"), [
    (Count(), "0 B"),
    (Count(2, 0), "0 B"),
    (Count(2, 2048), "2.0 KiB"),
    (Count(2, 2048, 1), "at least 2.0 KiB"),
    (Count.of(2, None, 2), "unknown"),
])  # fmt: skip
def test_a_size_is_shown_as_far_as_it_is_known(ledgers: Count, text: str) -> None:
    assert size_of(ledgers) == text


def test_counts_add_up() -> None:
    assert Count.sum([Count(2, 5, 1), Count.of(3, 0, 3)]) == Count(5, 5, 4)
    assert Count.sum([Count.of(1, 0, 1), Count()]) == Count(1, None, 1)
    assert Count.sum([]) == Count(0, 0, 0)
