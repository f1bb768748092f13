"""Guards that stop a plan, and inputs that no audit accepts."""

from collections.abc import Callable

import pytest
from pulsar_sidecar.features.audit.requests import HOUR_MS, AuditPolicy, AuditRequest
from pulsar_sidecar.features.audit.sources.manifests import OrderRange, RowCounts
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.ledgers import LedgerState

from tests.fakes.bookkeeper import (
    data_custom_metadata,
    ledger_metadata_bytes,
    schema_custom_metadata,
    schema_locator_bytes,
)
from tests.unit.audit.audited_clusters import MANAGED_LEDGER, NO_WAITING, AuditedCluster, Auditor, embedded
from tests.unit.audit.sources import INSTANCE_ID

ORPHAN = 50


def test_the_brake_stops_a_plan_of_too_many(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.living(range(100, 180))
    for ledger_id in range(200, 211):
        cluster.ledger(ledger_id, length_bytes=1)
    auditor.policy = AuditPolicy(look_window_ms=0, bookkeeper_exclusive=True)
    found = auditor.twice(cluster)
    assert (found.failed, found.audited.exit_code, found.summary.plan) == (["share-of-ledgers"], 1, None)
    assert set(found.standings.values()) == {"withheld"}
    assert found.summary.orphans["withheld"].ledgers == 11
    # A brake does not contradict what was seen: the look counts, and a word lets it through.
    auditor.policy = AuditPolicy(look_window_ms=0, max_share=0.2, bookkeeper_exclusive=True)
    assert set(auditor.a_day_later(cluster, found.directory).standings.values()) == {"condemned"}


def test_the_brake_counts_bytes_too(auditor: Auditor, cluster: AuditedCluster) -> None:
    auditor.policy = AuditPolicy(look_window_ms=0, bookkeeper_exclusive=True)
    cluster.living(range(100, 180))
    cluster.ledger(ORPHAN, length_bytes=1_000_000)
    assert auditor.twice(cluster).failed == ["share-of-bytes"]


def test_a_dump_that_forbids_deletion_nominates_only(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    cluster.dump_changes = {"allows_deletion": False, "reservations": ("it lacks what happened since",)}
    found = auditor.twice(cluster)
    assert (found.audited.exit_code, found.summary.plan) == (2, None)
    assert found.failed == ["dump-may-condemn"]
    assert set(found.standings.values()) <= {"first-look", "withheld"}
    # Such a look does not count as one.
    cluster.dump_changes = {}
    assert auditor.a_day_later(cluster, found.directory).standings == {ORPHAN: "first-look"}


def test_inputs_that_shrank_stop_the_plan(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.living(range(100, 140))
    schemas = [cluster.ledger(number, schema_custom_metadata("t/n/topic")) for number in range(200, 230)]
    cluster.nodes["/schemas/t/n/topic"] = schema_locator_bytes([7, 8, *schemas])
    first = auditor.audit(cluster)
    del cluster.nodes["/schemas/t/n/topic"]
    found = auditor.a_day_later(cluster, first.directory)
    assert found.failed == ["references-not-shrunken", "kinds-still-referenced"]
    assert (found.audited.exit_code, found.summary.plan) == (1, None)
    for ledger_id in [7, 8, *schemas]:
        del cluster.ledgers[ledger_id]
    found = auditor.audit(cluster, first.directory)
    assert found.failed == ["listing-not-shrunken", "references-not-shrunken", "kinds-still-referenced"]


def test_large_unreferenced_share_fails_its_guard(auditor: Auditor, cluster: AuditedCluster) -> None:
    for ledger_id in range(100, 120):
        cluster.ledger(ledger_id)
    found = auditor.twice(cluster)
    assert "referenced-share" in found.failed
    assert "condemned" not in found.standings.values()


@pytest.mark.parametrize("defect", [
    lambda cluster: cluster.ledgers.clear(),
    lambda cluster: (cluster.nodes.clear(), cluster.cursor_ledgers.clear(), cluster.log_segments.clear()),
    lambda cluster: cluster.listing_changes.update(instance_id="another"),
    lambda cluster: (cluster.unlisted.update([*cluster.ledgers][1:]), cluster.listed_too.update(range(1000, 1010))),
    lambda cluster: cluster.listing_changes.update(zxids=OrderRange(500, 701)),
    lambda cluster: cluster.listing_changes.update(zxids=OrderRange(500, None)),
    lambda cluster: cluster.dump_changes.update(as_of=None),
], ids=["no ledgers", "no references", "another cluster", "other ids", "stale", "no end", "no time"])  # fmt: skip
def test_inputs_that_contradict_each_other_make_no_audit(
    auditor: Auditor, cluster: AuditedCluster, defect: Callable[[AuditedCluster], object]
) -> None:
    cluster.ledger(ORPHAN)
    defect(cluster)
    with pytest.raises(InvalidInputError):
        auditor.audit(cluster)
    assert [path.name for path in auditor.directory.rglob("*udit*")] == []


@pytest.mark.parametrize("part", ["dump", "listing"])
@pytest.mark.parametrize("how", ["cut", "gone", "added"])
def test_a_damaged_file_makes_no_audit(auditor: Auditor, cluster: AuditedCluster, part: str, how: str) -> None:
    base = auditor.directory
    inputs = {"dump": cluster.dump(base / "dump"), "listing": cluster.listing(base / "listing")}
    file = sorted(inputs[part].rglob("*.parquet"))[-1]
    if how == "cut":
        file.write_bytes(file.read_bytes()[:-1])
    elif how == "gone":
        file.unlink()
    else:
        (file.parent / "more.parquet").write_bytes(file.read_bytes())
    with pytest.raises(InvalidInputError):
        embedded(AuditRequest(**inputs, output=base / "audit", policy=NO_WAITING))
    assert not (base / "audit").exists()


def test_an_earlier_audit_must_be_of_this_cluster_and_earlier(auditor: Auditor, cluster: AuditedCluster) -> None:
    first = auditor.audit(cluster)
    cluster.as_of_ms -= HOUR_MS
    with pytest.raises(InvalidInputError, match="newer than this dump"):
        auditor.audit(cluster, first.directory)
    cluster.as_of_ms += 24 * HOUR_MS
    assert cluster.nodes.get("/ledgers/INSTANCEID") is None
    cluster.dump_changes = {"instance_id": f"not {INSTANCE_ID}"}
    cluster.listing_changes = {"instance_id": f"not {INSTANCE_ID}"}
    with pytest.raises(InvalidInputError, match="--previous is of"):
        auditor.audit(cluster, first.directory)


def test_unreadable_nodes_elsewhere_are_named(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.dump_changes = {"counts": {"other": RowCounts(5, 2)}}
    (unseen,) = auditor.audit(cluster).summary.unseen
    assert (unseen.what, unseen.count) == ("other nodes that could not be read", 2)


def test_metadata_of_a_newer_form_is_never_deletable(auditor: Auditor, cluster: AuditedCluster) -> None:
    cluster.ledger(ORPHAN)
    newer = ledger_metadata_bytes(LedgerState.CLOSED, data_custom_metadata(MANAGED_LEDGER)).replace(b"\t3\n", b"\t4\n")
    cluster.ledgers[ORPHAN]["value"] = newer
    assert list(auditor.twice(cluster).unattributed) == [ORPHAN]
