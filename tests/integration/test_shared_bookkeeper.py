"""Another Pulsar cluster's ledgers in the same BookKeeper: none of them is deleted, and visible signs are reported.

What a second cluster's brokers would leave in this BookKeeper is made by hand: ledgers whose claims look like ours, and
the list that names them, below another chroot of the same ZooKeeper.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.model.ids import LedgerId

from tests.cluster.audits import Audits
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.fakes.bookkeeper import managed_ledger_bytes

CHROOT = "/pulsar/cluster-b"
LIST = f"{CHROOT}/managed-ledgers/public/default/persistent/orders"


@pytest.fixture
def chroot(scene: Scene) -> Iterator[None]:
    yield
    path = LIST
    while path != CHROOT.rpartition("/")[0]:
        scene.workload.store.delete(path)
        path = path.rpartition("/")[0]


@pytest.mark.usefixtures("chroot")
def test_another_clusters_ledgers_stay(scene: Scene, deletion_cluster: ClusterUnderTest, tmp_path: Path) -> None:
    workload = scene.workload
    topic, own = scene.topic("same-name"), scene.topic("own")
    others = scene.orphans(topic, 3)
    workload.fill(own)
    sidecar = scene.start_alone(bookkeeper_exclusive_to_cluster="false")
    assert sidecar.call("GET", f"{BASE}/status")["bookkeeperExclusiveToCluster"] is False

    scene.append(sidecar, others.records())
    finals = scene.oracles.wait_for_finals(others.all)
    assert {(final.decision, final.reason) for final in finals.values()} == {("set-aside", "bookkeeper-may-be-shared")}
    gone = scene.delete_topic(sidecar, own)
    scene.oracles.wait_until_drained(sidecar)
    assert workload.existing(others.all) == others.all
    assert not workload.existing(gone.all)

    # With the setting on, an audit still sees the other cluster's nodes in this ZooKeeper.
    workload.store.create(LIST, managed_ledger_bytes([LedgerId(each) for each in sorted(others.data)]))
    audits = Audits(deletion_cluster.addresses, tmp_path)
    audits.look()
    audits.wait_between_looks()
    look = audits.look()
    assert {look.standings[ledger_id] for ledger_id in others.data} == {"unproven"}
    assert f"{CHROOT}/managed-ledgers" in look.orphans[min(others.data)]["reason"]

    # The operator states that there is no other cluster: the records come back from the dead-letter topic.
    sidecar = scene.start_alone()
    sidecar.call("POST", f"{BASE}/dead-letters/redrive", {"ledgerIds": sorted(others.all)})
    scene.oracles.wait_until_drained(sidecar)
    assert not workload.existing(others.all)


def test_a_sidecar_with_another_clusters_metadata_does_not_begin(scene: Scene) -> None:
    scene.sidecars.end_all()
    lost = scene.sidecars.launch(ledgers_root_path="/other/ledgers")
    try:
        until(lambda: "nothing is deleted" in why_not_ready(lost), "it says what differs")
        assert "/other/ledgers" in str(lost.status()["lastError"])
    finally:
        lost.kill()


def why_not_ready(sidecar: SidecarProcess) -> str:
    try:
        return sidecar.request("GET", "/readyz").text
    except requests.ConnectionError:
        return "it does not listen yet"
