"""Shadow topics without infinite retention are named as dangers, and nothing is reported that a dump does not hold."""

import json
import zlib

import pytest
from pulsar_sidecar.features.audit.results.show import overview
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import compressed, data_custom_metadata, managed_ledger_bytes
from tests.unit.audit.audited_clusters import TOPIC, AuditedCluster, Auditor, full_cluster

SHADOW = "persistent://t/n/shadow"
SHADOW_NODE = "/managed-ledgers/t/n/persistent/shadow"
POLICIES = "/admin/policies/t/n"


@pytest.fixture
def cluster() -> AuditedCluster:
    cluster = full_cluster()
    cluster.nodes[SHADOW_NODE] = managed_ledger_bytes([1, 2, 3], properties={SHADOW_SOURCE: TOPIC})
    return cluster


def policies(retention: object) -> bytes:
    return json.dumps({"bundles": {}, "retention_policies": retention}).encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "retention is unknown, because its policies are not in the dump or cannot be read"),
        (b"no JSON", "retention is unknown, because its policies cannot be read"),
        (policies(None), "retention is not set, so the brokers' default applies"),
        (policies({"retentionTimeInMinutes": -1, "retentionSizeInMB": 10}), "retention is -1 minutes and 10 MB"),
        (policies({"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}), "retention is 60 minutes and -1 MB"),
    ],
)
def test_a_shadow_is_a_danger_unless_its_namespace_retains_everything(
    auditor: Auditor, cluster: AuditedCluster, value: bytes | None, message: str
) -> None:
    if value is not None:
        cluster.nodes[POLICIES] = value
    found = auditor.audit(cluster)
    (danger,) = found.summary.dangers
    assert danger.topic == SHADOW
    assert danger.why.startswith(f"a shadow of {TOPIC}: ")
    assert message in danger.why
    assert "the topic's own retention is unknown, because a dump does not contain it" in danger.why
    assert "set-retention" in danger.remedy
    assert found.audited.exit_code == 2
    assert SHADOW in overview(found.summary, str(found.directory))
    assert "1 topic that endangers another's ledgers" in found.audited.verdict


def test_infinite_namespace_retention_is_not_a_danger(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.nodes[POLICIES] = policies({"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
    found = auditor.audit(cluster)
    assert (found.summary.dangers, found.audited.exit_code) == ((), 0)


def test_a_compressed_shadow_is_seen(auditor: Auditor, cluster: AuditedCluster) -> None:
    plain = cluster.nodes[SHADOW_NODE]
    assert plain is not None
    cluster.nodes[SHADOW_NODE] = compressed("ZLIB", plain, zlib.compress(plain))
    assert [danger.topic for danger in auditor.audit(cluster).summary.dangers] == [SHADOW]


def test_a_partitioned_shadow_is_one_danger_however_many_partitions_are_loaded(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    del cluster.nodes[SHADOW_NODE]
    node = {"partitions": 3, "deleted": False, "properties": {SHADOW_SOURCE: TOPIC}}
    cluster.nodes["/admin/partitioned-topics/t/n/persistent/shadow"] = json.dumps(node).encode()
    for index in range(2):
        properties = {SHADOW_SOURCE: f"{TOPIC}-partition-{index}"}
        cluster.nodes[f"{SHADOW_NODE}-partition-{index}"] = managed_ledger_bytes([1, 2], properties=properties)
    assert [danger.topic for danger in auditor.audit(cluster).summary.dangers] == [SHADOW]


@pytest.mark.parametrize("source_lists_it", [True, False])
def test_a_ledger_that_a_shadow_lists_is_never_deletable(
    auditor: Auditor, cluster: AuditedCluster, source_lists_it: bool
) -> None:
    if not source_lists_it:
        cluster.ledger(40, data_custom_metadata("t/n/persistent/topic"))
        cluster.nodes[SHADOW_NODE] = managed_ledger_bytes([1, 2, 3, 40], properties={SHADOW_SOURCE: TOPIC})
    assert auditor.twice(cluster).orphans == {}


def test_a_partitioned_topic_that_may_be_a_shadow_and_cannot_be_read_is_reported(
    auditor: Auditor, cluster: AuditedCluster
) -> None:
    before = auditor.audit(cluster)
    cluster.nodes["/admin/partitioned-topics/t/n/persistent/broken"] = b'{"PULSAR.SHADOW_SOURCE'
    found = auditor.audit(cluster)
    (row,) = [row for row in found.summary.unseen if row not in before.summary.unseen]
    assert (row.what, row.count) == ("partitioned topics that cannot be understood", 1)
    assert found.orphans.keys() == before.orphans.keys()
