"""Two Pulsar clusters on one BookKeeper: the other's live ledgers look like orphans, and none is deletable."""

from dataclasses import replace

import msgspec
import pytest
from pulsar_sidecar.features.audit.applying import verified_plan
from pulsar_sidecar.features.audit.requests import AuditPolicy
from pulsar_sidecar.features.audit.results.tables import Table
from pulsar_sidecar.features.audit.results.verdicts import AuditVerdict, conclude
from pulsar_sidecar.model.errors import ConflictError
from pulsar_sidecar.model.ledgers import LedgerState

from tests.fakes.bookkeeper import cursor_custom_metadata, data_custom_metadata, managed_ledger_bytes
from tests.unit.audit.audited_clusters import MANAGED_LEDGER, NO_WAITING, AuditedCluster, Auditor, full_cluster

OTHERS = range(600, 612)
NESTED = "/pulsar-b/managed-ledgers"


@pytest.fixture
def cluster() -> AuditedCluster:
    """Another cluster has a topic of the same name, as with geo-replication; its references are elsewhere."""
    cluster = full_cluster()
    cluster.living(range(300, 500))
    for ledger_id in OTHERS[:-2]:
        cluster.ledger(ledger_id, data_custom_metadata(MANAGED_LEDGER))
    cluster.ledger(OTHERS[-2], data_custom_metadata(MANAGED_LEDGER), state=LedgerState.OPEN)
    cluster.ledger(OTHERS[-1], cursor_custom_metadata(MANAGED_LEDGER, "sub"), state=LedgerState.OPEN)
    return cluster


# --- the setting -----------------------------------------------------------------------------------------------------


def test_with_the_defaults_nothing_is_deletable(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy()
    found = auditor.twice(cluster)
    assert set(found.standings.values()) == {"withheld"}
    assert set(found.orphans) == set(OTHERS)
    assert found.summary.plan is None
    assert found.audited.exit_code == 2
    assert found.summary.policy["bookkeeperExclusiveToCluster"] is False
    (guard,) = (guard for guard in found.summary.guards if not guard.passed)
    assert "--bookkeeper-exclusive-to-cluster" in guard.explanation
    conclusion = conclude(found.summary, "audits/tuesday")
    assert conclusion.verdict is AuditVerdict.FINDINGS
    assert "--bookkeeper-exclusive-to-cluster" in conclusion.sentence
    report = (found.directory / "report.html").read_text()
    assert "--bookkeeper-exclusive-to-cluster" in report
    with pytest.raises(ConflictError, match="--bookkeeper-exclusive-to-cluster"):
        verified_plan(found.summary, list)


def test_a_look_without_the_setting_counts_when_it_is_given(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy()
    first = auditor.audit(cluster)
    auditor.policy = AuditPolicy(bookkeeper_exclusive=True)
    found = auditor.a_day_later(cluster, first.directory)
    assert set(found.standings.values()) == {"condemned"}
    assert found.summary.plan is not None
    assert found.summary.policy["bookkeeperExclusiveToCluster"] is True


def test_a_clean_cluster_needs_no_setting(auditor: Auditor) -> None:
    auditor.policy = AuditPolicy()
    found = auditor.twice(full_cluster())
    assert (found.audited.exit_code, found.orphans) == (0, {})


def test_a_plan_that_an_earlier_version_made_is_refused(auditor: Auditor, cluster: AuditedCluster) -> None:
    summary = auditor.twice(cluster).summary
    assert summary.plan is not None
    policy = {name: value for name, value in summary.policy.items() if name != "bookkeeperExclusiveToCluster"}
    with pytest.raises(ConflictError, match="--bookkeeper-exclusive-to-cluster"):
        verified_plan(msgspec.structs.replace(summary, policy=policy), list)


# --- another cluster's visible state ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chroot", "foreign"),
    [
        *((each, ()) for each in ("/pulsar-b", "/pulsar", "/stream/b", "/a/b/c", "/loadbalance/b", "/namespace/b/c/d")),
        *((each, ("/pulsar-b", "/a/b", "/stream")) for each in ("/pulsar-b", "/stream/b", "/a/b/c")),
    ],
)
def test_a_cluster_below_another_chroot_protects_everything(
    auditor: Auditor, cluster: AuditedCluster, chroot: str, foreign: tuple[str, ...]
) -> None:
    namespace = f"{chroot}/managed-ledgers/t/n/persistent"
    for path in (f"{chroot}/managed-ledgers", f"{chroot}/managed-ledgers/t", f"{chroot}/managed-ledgers/t/n"):
        cluster.nodes[path] = b""
    cluster.nodes |= {namespace: b"", f"{namespace}/topic": managed_ledger_bytes(list(OTHERS))}
    auditor.policy = replace(NO_WAITING, foreign_subtrees=foreign)
    found = auditor.twice(cluster)
    assert set(found.standings.values()) == {"unproven"}
    row = found.rows(Table.ORPHAN_LEDGERS)[0]
    assert f"{chroot}/managed-ledgers was not read" in row["reason"]
    assert "another Pulsar cluster" in row["reason"]
    assert any("other Pulsar clusters" in unseen.what for unseen in found.summary.unseen)


@pytest.mark.parametrize("path", [NESTED, "/pulsar-b/schemas"])
def test_an_empty_or_unreadable_tree_is_one_too(auditor: Auditor, cluster: AuditedCluster, path: str) -> None:
    for value in (b"", None):
        cluster.nodes[path] = value
        auditor.policy = replace(NO_WAITING, foreign_subtrees=("/pulsar-b",))
        assert set(auditor.twice(cluster).standings.values()) == {"unproven"}


def test_a_tree_that_is_named_itself_protects_nothing(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes |= {NESTED: b"", f"{NESTED}/t/n/persistent": b"", f"{NESTED}/t/n/persistent/x": b"data"}
    auditor.policy = replace(NO_WAITING, foreign_subtrees=(f"{NESTED}/",))
    assert set(auditor.twice(cluster).standings.values()) == {"condemned"}


def test_tenants_and_namespaces_may_be_called_so(auditor: Auditor, cluster: AuditedCluster) -> None:
    for tenant in ("schemas", "managed-ledgers"):
        cluster.nodes |= {
            f"/namespace/{tenant}": b"",
            f"/namespace/t/{tenant}": b"",
            f"/namespace/{tenant}/n/0x00000000_0xffffffff": b"{}",
            f"/loadbalance/bundle-data/{tenant}": b"",
            f"/admin/policies/{tenant}": b"{}",
            f"/managed-ledgers/{tenant}": b"",
        }
    assert set(auditor.twice(cluster).standings.values()) == {"condemned"}


def test_a_tenant_that_the_policies_do_not_know_protects_its_ledgers(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes["/admin/local-policies/old"] = b"{}"
    strangers = {
        700: data_custom_metadata("others/n/persistent/topic"),
        701: cursor_custom_metadata("others/n/persistent/topic", "sub"),
    }
    ours = {
        702: data_custom_metadata("pulsar/other-cluster/10.0.0.1:8080/persistent/healthcheck"),
        703: data_custom_metadata("pulsar/10.0.0.1:8080/persistent/healthcheck"),
        704: data_custom_metadata("old/n/persistent/topic"),
    }
    for ledger_id, custom in (strangers | ours).items():
        cluster.ledger(ledger_id, custom)
    found = auditor.twice(cluster)
    assert {found.standings[ledger_id] for ledger_id in strangers} == {"unproven"}
    assert {found.standings[ledger_id] for ledger_id in [*ours, *OTHERS]} == {"condemned"}
    assert "does not have its tenant others" in found.orphans[700]["reason"]
    (unseen,) = found.summary.unseen
    assert (unseen.count, "(others)" in unseen.what) == (1, True)


def test_without_policies_tenants_are_not_compared_and_that_is_reported(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    del cluster.nodes["/admin/policies/t"]
    cluster.ledger(700, data_custom_metadata("others/n/persistent/topic"))
    found = auditor.twice(cluster)
    assert set(found.standings.values()) == {"condemned"}
    (unseen,) = found.summary.unseen
    assert "tenants' policies" in unseen.what
