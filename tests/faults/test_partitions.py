"""Partitions between sidecars and brokers, ZooKeeper and bookies, shorter than, about and longer than a session.

The sidecars stand in a network namespace that reaches the cluster over real links (`tests.cluster.links`); in half of
the rounds another sidecar outside stays connected all the time and works on the same records.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tests.cluster.deletion import Scene
from tests.cluster.links import Cut, Link, SidecarNetwork, sidecar_network
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import Sidecars
from tests.faults.load import Load, pause
from tests.faults.tally import Line

SECONDS = {
    # The sidecars' session is 4 s in tests.
    "shorter than a session": (0.5, 2.5),
    "about a session": (3.5, 4.5),
    "longer than a session": (6.0, 9.0),
}
RESET = "connections reset"
PEERS: Mapping[str, Callable[[Link], bool]] = {
    "broker-binary": lambda link: link.purpose == "broker",
    "broker-http": lambda link: link.purpose == "http" and link.member.startswith("broker"),
    "zookeeper": lambda link: link.member == "zookeeper",
    "bookie": lambda link: link.purpose == "bookie",
    "everything": lambda link: True,
}


@pytest.fixture(scope="module")
def network(deletion_cluster: ClusterUnderTest) -> Iterator[SidecarNetwork]:
    with sidecar_network(deletion_cluster.addresses) as network:
        yield network


@pytest.fixture(scope="module")
def sidecars(
    sidecars: Sidecars,
    deletion_cluster: ClusterUnderTest,
    network: SidecarNetwork,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecars]:
    """Yield this module's sidecars in the namespace; the session's others are ended."""
    sidecars.end_all()
    inside = Sidecars(deletion_cluster.addresses, tmp_path_factory.mktemp("inside"), network)
    yield inside
    inside.close()


@pytest.fixture(scope="module")
def outside(deletion_cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecars]:
    """Yield sidecars whose connections are not cut."""
    outside = Sidecars(deletion_cluster.addresses, tmp_path_factory.mktemp("outside"))
    yield outside
    outside.close()


@pytest.mark.parametrize("peer", PEERS)
def test_a_sidecar_is_cut_off(
    scene: Scene, network: SidecarNetwork, outside: Sidecars, rng: random.Random, tally: Line, peer: str
) -> None:
    together = rng.random() < 0.5
    if not together:
        outside.end_all()
    load = Load(scene, [scene.sidecar, *([outside.shared()] if together else [])], rng, topics=4)
    load.prepare()
    links = [link for link in network.links if PEERS[peer](link)]
    kind = rng.choice([*SECONDS, RESET])
    with load.running():
        pause(rng.uniform(0, 2))
        if kind == RESET:
            reset_repeatedly(network, links, rng)
            tally.fault(f"{peer}: {RESET}")
        else:
            how = rng.choice([Cut.BOTH, Cut.BOTH, Cut.TO_CLUSTER, Cut.TO_SIDECAR])
            cut(network, links, how, rng.uniform(*SECONDS[kind]))
            tally.fault(f"{peer}: cut {how.value}, {kind}")
    load.check()


def cut(network: SidecarNetwork, links: Sequence[Link], how: Cut, seconds: float) -> None:
    network.cut(links, how)
    try:
        pause(seconds)
    finally:
        network.restore(links)


def reset_repeatedly(network: SidecarNetwork, links: Sequence[Link], rng: random.Random) -> None:
    for _ in range(4):
        network.reset(links)
        pause(rng.uniform(0, 0.8))
