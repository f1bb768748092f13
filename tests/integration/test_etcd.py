"""A whole cluster on etcd: deletions, leaks and audits are those of a cluster on ZooKeeper."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pulsar_sidecar.adapters.etcd import revision_times
from pulsar_sidecar.features.audit.results.tables import OffloadFinding, OrphanStatus
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakCause
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.audits import IMPATIENT, Audits, Look
from tests.cluster.choosing import FAST_BOOKIE_SESSIONS
from tests.cluster.deletion import BROKER_CONF, Scene, open_outcome_log, open_sidecars, open_workload
from tests.cluster.offloading import offload_closed_ledgers, offload_to_directory
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import WATCH, SidecarProcess, run_command
from tests.contract.offload_storages import DirectoryStorage
from tests.integration.test_leak_watch import (
    AFTER_SETTLING_SECONDS,
    SETTLE_SECONDS,
    leaks,
    start_watching,
    take_nodes_away,
)

LEAK_SECONDS = SETTLE_SECONDS + AFTER_SETTLING_SECONDS


@pytest.fixture(scope="module")
def deletion_cluster(special_cluster: ClusterFactory) -> Iterator[ClusterUnderTest]:
    options = {"broker_conf": BROKER_CONF, "bookie_conf": FAST_BOOKIE_SESSIONS, "metadata_store": Role.ETCD}
    with special_cluster(offloaders=True, **options) as cluster:
        yield cluster


workload = pytest.fixture(scope="module")(open_workload)
sidecars = pytest.fixture(scope="module")(open_sidecars)
outcome_log = pytest.fixture(scope="module")(open_outcome_log)


def environment_of(cluster: ClusterUnderTest) -> dict[str, str]:
    addresses = cluster.addresses
    return {
        "PULSAR_SIDECAR_METADATA_STORE_URL": addresses.metadata_store_url,
        "PULSAR_SIDECAR_WEB_SERVICE_URL": ",".join(addresses.web_service_urls),
        "PULSAR_SIDECAR_BROKER_SERVICE_URL": addresses.broker_service_url,
    }


def test_a_topic_is_deleted_in_two_phases_and_a_leak_is_found(scene: Scene) -> None:
    watching = start_watching(scene, "append")
    examined = run_command("doctor", **environment_of(scene.cluster))
    assert (examined.exit_code, "runs etcd 3." in examined.stdout) == (0, True), examined.stdout
    topic, left = scene.topic("everything"), scene.topic("left")
    scene.workload.fill_with_everything(topic)
    deleted = scene.delete_topic(watching, topic)
    assert all(deleted.of(component) for component in LedgerComponent)
    # The broker's own deletions are complete.
    finals = scene.oracles.wait_for_finals(deleted.all).values()
    assert {(final.decision, final.reason) for final in finals} <= {
        ("deleted", "unreferenced"),
        ("kept", "already-gone"),
    }
    assert not scene.workload.existing(deleted.all)

    # The leftovers of a broker that dies after it removed the list.
    scene.workload.fill(left, 3)
    scene.workload.unload(left)
    leaked = scene.workload.ledgers(left).data
    until(
        lambda: all(watching.call("GET", f"{WATCH}/leaks/{each}")["namedBy"] for each in leaked),
        "the watch has seen the list",
    )
    take_nodes_away(scene, [left])
    until(lambda: not scene.workload.existing(leaked), f"the leak is deleted: {leaked}", LEAK_SECONDS)
    found = leaks(watching)
    assert found.keys() <= leaked
    assert {leak["cause"] for leak in found.values()} == {LeakCause.TOPIC_DELETION}
    scene.oracles.add_accepted(found)


def test_an_audit_finds_what_is_left_and_hands_it_over(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ages are counted from the first mark after a ledger's creation.
    monkeypatch.setattr(revision_times, "STORED_INTERVAL_MS", 0)
    tiered = DirectoryStorage(tmp_path / "tiered")
    sidecar: SidecarProcess = scene.start_alone(ledger_deletion_watch="off", offload_allowed_locations=tiered.location)
    policy = replace(IMPATIENT, offload_exclusive=True)
    audits = Audits(scene.cluster.addresses, tmp_path / "audits", policy, (tiered.location,))
    namespace = offload_to_directory(scene.cluster, tiered.location, tmp_path / "profile.xml")
    offloaded = parse_topic_name(f"persistent://{namespace}/offloaded")
    scene.workload.subscribe(offloaded, "keeps-everything")
    scene.workload.fill(offloaded, ledgers=3)
    offload_closed_ledgers(scene.cluster, offloaded)
    stray = LedgerId(999_999), tiered.context(7, 8), offloaded.managed_ledger_name
    tiered.put(*stray)
    left = scene.orphans(scene.topic("left"), ledgers=3)
    scene.workload.store.now_ms()
    audits.wait_between_looks()
    assert not left.all & audits.look().deletable

    def deletable_look() -> Look | None:
        # Stores of marks that others wrote meanwhile are tried again.
        scene.workload.store.now_ms()
        audits.wait_between_looks()
        look = audits.look()
        return look if left.all <= look.deletable else None

    look = until(deletable_look, "what is left is old enough to be deletable")
    assert look.summary.offload.uses["referenced"].ledgers == 2
    assert [(row["ledger_id"], row["finding"], row["standing"]) for row in look.offloaded] == [
        (stray[0], OffloadFinding.UNREFERENCED, OrphanStatus.DELETABLE)
    ]
    assert audits.apply(look).sent == len(look.deletable) + 1
    scene.oracles.add_accepted(look.deletable)
    until(
        lambda: not scene.workload.existing(left.all) and not tiered.parts(*stray),
        f"what was left is deleted\n{sidecar.log()}",
    )
