"""Operation of the chart, and disruptions of its pods by the cluster, while topics are deleted through it."""

import random
import threading
import time
from contextlib import AbstractContextManager

import pytest
import requests

from tests.cluster.background import running_until
from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarClient
from tests.cluster.tokens import token
from tests.faults.load import Load, pause
from tests.faults.tally import Line
from tests.kubernetes.cluster import PodsUnderTest
from tests.kubernetes.release import Release

pytestmark = pytest.mark.kubernetes


_PAUSE_SECONDS = 0.05
_REQUEST_SECONDS = 5
_CALLERS_PATIENCE_SECONDS = 30
"""An operation's timeout in Pulsar's clients, by default."""


class Watcher:
    """A caller that polls the Service, and retries at once without a response."""

    def __init__(self, service: SidecarClient) -> None:
        self._service = service
        self._stop = threading.Event()
        self._last = time.monotonic()
        self.answered = self.refused = 0
        self.longest_gap = 0.0

    def watching(self) -> AbstractContextManager[None]:
        """Call the Service while the body runs."""
        self._last = time.monotonic()
        return running_until(self._stop, [self._ask])

    def _ask(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            if self._is_answered():
                now = time.monotonic()
                self.longest_gap = max(self.longest_gap, now - self._last)
                self._last = now
                self.answered += 1
            else:
                self.refused += 1

    def _is_answered(self) -> bool:
        try:
            return self._service.request("GET", f"{BASE}/inflight", seconds=_REQUEST_SECONDS).ok
        except requests.RequestException:
            return False


@pytest.fixture
def load(scene: Scene, release: Release, rng: random.Random) -> Load:
    """Prepare topics to delete through the Service and each pod, and records of leaked ledgers."""
    load = Load(scene, [release.service, *map(release.pod, release.pods)], rng)
    load.prepare()
    return load


def test_sidecar_pods_are_killed(load: Load, release: Release, rng: random.Random, tally: Line) -> None:
    with load.running():
        for pod in rng.sample(release.pods, len(release.pods)):
            pause(rng.uniform(0, 2))
            release.kill(pod)
            tally.fault("sidecar's pod killed")
            release.wait_until_ready()
    load.check()


def test_broker_pods_are_killed(
    load: Load, deletion_cluster: PodsUnderTest, release: Release, rng: random.Random, tally: Line
) -> None:
    with load.running():
        for broker in rng.sample(["broker-1", "broker-2"], 2):
            pause(rng.uniform(0, 2))
            deletion_cluster.kill(broker)
            tally.fault("broker's pod killed")
            deletion_cluster.wait_until_ready(broker)
    release.wait_until_ready()
    load.check()


def test_an_upgrade_rolls_through_the_sidecars(load: Load, release: Release, tally: Line) -> None:
    """The Service is polled; a caller that retries gets a response before a client of Pulsar gives up."""
    asked = Watcher(release.service)
    before = release.identities()
    with load.running(), asked.watching():
        release.upgrade({"sidecar": {"configData": {"twoPhaseDeletionRatePerSecond": 500}}})
        tally.fault("upgrade")
    assert not before & release.identities(), "the upgrade left a pod as it was"
    load.check()
    tally.fault("asked during the upgrade", asked.answered)
    tally.fault("refused once during the upgrade", asked.refused)
    assert asked.longest_gap < _CALLERS_PATIENCE_SECONDS, f"no sidecar answered for {asked.longest_gap:.1f} s"


def test_evictions_keep_to_the_budget(load: Load, release: Release, tally: Line) -> None:
    """A node that is drained takes the pods one after the other."""
    with load.running():
        assert release.evict(release.pods[0]), "the budget allows no eviction while both are ready"
        assert not release.evict(release.pods[1]), "the budget allows both to be evicted at once"
        tally.fault("eviction refused: the budget")
        until(lambda: release.evict(release.pods[1]), "the second may go once the first is back", pause_seconds=1)
        tally.fault("sidecar's pod evicted", 2)
        release.wait_until_ready()
    load.check()


def test_a_wrong_token_stops_an_upgrade_and_is_rolled_back(load: Load, release: Release, tally: Line) -> None:
    """The first pod with it ends and leaves the reason for ``kubectl describe``; the other one continues."""
    wrong = "pulsar-token-forged"
    release.make_secret(wrong, TOKEN=token("admin") + "-forged")
    last = release.pods[-1]
    with load.running():
        release.upgrade({"auth": {"client": {"secretName": wrong}}}, wait=False)
        until(lambda: "check the sidecar's credentials" in release.exit_messages(last), f"{last} gives the reason")
        tally.fault("upgrade to a wrong token")
        until(lambda: release.service.is_ready, "the other sidecar works on")
        release.rollback()
        tally.fault("rollback")
    release.wait_until_ready()
    load.check()


def test_a_secret_without_its_key_is_named_by_the_pod(scene: Scene, release: Release, tally: Line) -> None:
    release.make_secret("pulsar-token-empty", ANOTHER="value")
    release.upgrade({"auth": {"client": {"secretName": "pulsar-token-empty"}}}, wait=False)
    last = release.pods[-1]

    until(
        lambda: "/pulsar-sidecar/secrets/client/TOKEN" in release.exit_messages(last),
        f"{last} names the missing file",
    )
    tally.fault("upgrade to a secret without its key")
    release.rollback()
    release.wait_until_ready()


def test_a_release_that_is_installed_again_finds_its_state(scene: Scene, release: Release, tally: Line) -> None:
    """Records wait and the second phase is paused: both are kept in Pulsar and ZooKeeper, not in the release."""
    left = scene.orphans(scene.topic("left"), 3)
    release.service.call("POST", f"{BASE}/pause", {"reason": "the chart is installed again"})
    until(lambda: all(map(is_paused, release.running)), "both sidecars are paused")
    scene.append(release.service, left.records())
    release.uninstall()
    tally.fault("uninstalled")
    assert scene.workload.existing(left.all) == left.all, "nothing is deleted while no sidecar runs"
    release.upgrade()
    release.wait_until_ready()
    assert all(map(is_paused, release.running))
    assert scene.workload.existing(left.all) == left.all
    release.service.call("POST", f"{BASE}/resume")
    until(lambda: not scene.workload.existing(left.all), "the ledgers of before are gone")


def is_paused(sidecar: SidecarClient) -> bool:
    return sidecar.metrics()["pulsar_ledger_deletion_paused"] == 1
