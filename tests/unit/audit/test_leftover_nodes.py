"""An audit lists nodes that point to nothing, each with its remedy, and none that is in doubt."""

import pytest
from pulsar_sidecar.features.audit.results.report import metrics_text
from pulsar_sidecar.features.audit.results.show import overview
from pulsar_sidecar.features.audit.results.summaries import (
    MOST_LEFTOVER_NODES,
    LeftoverNode,
    LeftoverNodes,
    parse_summary,
)
from pulsar_sidecar.features.audit.sources.manifests import LEDGERS_LEFT_OUT
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.ownership.paths import ledger_path, under_replication_mark_path

from tests.fakes.bookkeeper import managed_ledger_bytes, schema_locator_bytes
from tests.unit.audit.audited_clusters import AuditedCluster, Auditor

TOPICS = "/managed-ledgers/t/n/persistent"
PARTITIONED = "/admin/partitioned-topics/t/n/persistent/parts"
SUFFIX = "__transaction_pending_ack"


def leftovers(auditor: Auditor, cluster: AuditedCluster) -> dict[str, str]:
    """Remedies by path."""
    return {node.path: node.remedy for node in auditor.audit(cluster).summary.leftover_nodes.nodes}


def test_nodes_of_existing_owners_are_not_leftovers(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[PARTITIONED] = b'{"partitions":2,"deleted":false}'
    cluster.nodes[f"{TOPICS}/parts-partition-1"] = b""
    for owner in ("topic-sub", "parts-partition-1-a-b", "parts-partition-0-sub"):
        cluster.nodes[f"{TOPICS}/{owner}{SUFFIX}"] = b""
    cluster.nodes[under_replication_mark_path(LedgerId(1))] = b""
    found = auditor.audit(cluster).summary
    assert found.leftover_nodes == LeftoverNodes()
    assert "point to nothing" not in overview(found, "audit")


@pytest.mark.parametrize(("named", "is_leftover"), [([90], True), ([90, 91], True), ([7, 90], False), ([90, 7], False)])
def test_a_schema_whose_ledgers_are_all_gone(
    auditor: Auditor, cluster: AuditedCluster, named: list[int], is_leftover: bool
) -> None:
    cluster.ledger(100)
    cluster.nodes[f"{TOPICS}/topic"] = managed_ledger_bytes([1, 2, 3, 100])
    cluster.nodes["/schemas/t/n/lost"] = schema_locator_bytes(named)
    expected = {"/schemas/t/n/lost": "pulsar-admin schemas delete --force persistent://t/n/lost"} if is_leftover else {}
    assert leftovers(auditor, cluster) == expected


def test_a_partitioned_topic_without_partitions(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes |= {
        "/admin/partitioned-topics": b"",
        "/admin/partitioned-topics/t/n/persistent": b"",
        PARTITIONED: b'{"partitions":2,"deleted":true}',
        "/admin/partitioned-topics/t/n/non-persistent/live": b'{"partitions":2}',
        "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign": b'{"partitions":16}',
        f"{TOPICS}/topic/parts-partition-0": b"",
    }
    assert leftovers(auditor, cluster) == {
        PARTITIONED: "pulsar-sidecar topics delete --partitioned persistent://t/n/parts"
    }


def test_pending_acknowledgements_without_a_topic(auditor: Auditor, cluster: AuditedCluster) -> None:
    path = f"{TOPICS}/lost-topic-sub{SUFFIX}"
    cluster.nodes[path] = b""
    assert leftovers(auditor, cluster) == {
        path: f"pulsar-sidecar topics delete persistent://t/n/lost-topic-sub{SUFFIX}"
    }


def test_a_mark_of_a_ledger_that_is_gone(auditor: Auditor, cluster: AuditedCluster) -> None:
    mark = under_replication_mark_path(LedgerId(90))
    cluster.nodes[mark] = b""
    assert leftovers(auditor, cluster) == {mark: "let auto-recovery run: bookkeeper shell autorecovery -enable"}
    cluster.dump_changes["left_out"] = (LEDGERS_LEFT_OUT,)
    assert leftovers(auditor, cluster) == {}


def test_a_directory_that_could_not_be_read_proves_nothing(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[PARTITIONED] = b'{"partitions":2,"deleted":false}'
    cluster.nodes[TOPICS] = None
    cluster.nodes[under_replication_mark_path(LedgerId(90))] = b""
    directory = ledger_path(LedgerId(90)).rpartition("/")[0]
    cluster.nodes[directory] = None
    assert leftovers(auditor, cluster) == {}


def test_leftover_nodes_are_counted_but_are_not_findings(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[PARTITIONED] = b'{"partitions":2,"deleted":false}'
    found = auditor.audit(cluster)
    assert found.audited.exit_code == 0
    assert f"Nodes that point to nothing\n  {PARTITIONED}: a topic without" in overview(found.summary, "audit")
    assert PARTITIONED in (found.directory / "report.html").read_text()
    assert 'leftover_nodes{cluster="local",kind="partitioned-topic"} 1.0' in metrics_text(found.summary)
    assert parse_summary(found.summary.document()) == found.summary


def test_a_summary_names_some_of_many() -> None:
    nodes = [LeftoverNode("schema", f"/schemas/t/n/{number:05d}", "", "") for number in range(MOST_LEFTOVER_NODES + 3)]
    some = LeftoverNodes.of(reversed(nodes))
    assert (some.counts, some.count) == ({"schema": len(nodes)}, len(nodes))
    assert list(some.nodes) == nodes[:MOST_LEFTOVER_NODES]


def test_a_glance_shows_a_few_of_many(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes |= {f"{PARTITIONED}-{number:02d}": b'{"partitions":2}' for number in range(30)}
    found = auditor.audit(cluster)
    text = overview(found.summary, "audit")
    assert (text.count(PARTITIONED), "30 in all; summary.json has more of them" in text) == (20, True)
