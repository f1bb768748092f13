"""Brokers, bookies and ZooKeeper killed, frozen and restarted while topics are deleted and records appended."""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import pytest
from pulsar_sidecar.local_cluster.spec import Role, role_of
from pulsar_sidecar.model.metadata import MetadataStore

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.running import ClusterUnderTest
from tests.contract.metadata_store_servers import open_patiently
from tests.faults.load import Load, pause
from tests.faults.tally import Line

Act = Callable[[Scene, Sequence[str], random.Random], None]

MEMBERS: Mapping[Role, Sequence[str]] = {
    Role.BROKER: ("broker-1", "broker-2"),
    Role.BOOKIE: ("bookie-1", "bookie-2"),
    Role.ZOOKEEPER: ("zookeeper",),
}
BOOKIES_REGISTERED = "/ledgers/available"
BOOKIE_SESSION_SECONDS = 60
_SUPERVISE_SECONDS = 0.5
_LOOKS_AT_REGISTRATIONS = 15
_BETWEEN_LOOKS_SECONDS = 0.2
_MOST_CHANGES = 4
"""A bookie whose session ended registers once; one that flaps has another registration at nearly every look."""


class Supervisor:
    """Restarter of a member that has ended on its own, as bookies do some 10 s after their session has ended.

    Tests ask for it before the scene, whose oracles look at the end and need the bookies.
    """

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._cluster = cluster
        self._left_alone: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @contextlib.contextmanager
    def leaving_alone(self, members: Sequence[str]) -> Iterator[None]:
        """Leave members alone that a test breaks on purpose and brings back itself."""
        with self._turn:
            self._left_alone = frozenset(members)
        yield
        self._left_alone = frozenset()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SUPERVISE_SECONDS):
            with self._turn:
                for name in self._cluster.addresses.member_urls:
                    if name not in self._left_alone and not self._cluster.is_running(name):
                        self._cluster.restart(name)


@pytest.fixture
def supervisor(deletion_cluster: ClusterUnderTest) -> Iterator[Supervisor]:
    supervisor = Supervisor(deletion_cluster)
    yield supervisor
    supervisor.stop()


@pytest.mark.parametrize("role", MEMBERS, ids=lambda role: role.value)
def test_members_fail_and_return(
    supervisor: Supervisor, scene: Scene, rng: random.Random, tally: Line, role: Role
) -> None:
    load = Load(scene, [scene.sidecar], rng)
    load.prepare()
    members = rng.sample(MEMBERS[role], rng.randint(1, len(MEMBERS[role])))
    kind = rng.choice(list(ACTS))
    with load.running():
        pause(rng.uniform(0, 2))
        with supervisor.leaving_alone(members):
            ACTS[kind](scene, members, rng)
        tally.fault(f"{role.value} {kind}", len(members))
        if role is Role.ZOOKEEPER:
            end_flapping(scene, supervisor)
    load.check()
    if role is Role.ZOOKEEPER:
        restart_brokers(scene, supervisor)


def end_flapping(scene: Scene, supervisor: Supervisor) -> None:
    """Start the bookies again where their registrations keep changing since ZooKeeper was down.

    Seen on 4.0.8 after eight of the ten seconds that their sessions last: both bookies removed and made their
    registrations hundreds of times a second until they were started again half an hour later, and brokers found "not
    enough non-faulty bookies".
    """
    with open_patiently(scene.cluster.addresses.metadata_store_url) as store:
        seen = []
        for _ in range(_LOOKS_AT_REGISTRATIONS):
            nodes = store.read_many([f"{BOOKIES_REGISTERED}/{bookie}" for bookie in registered_bookies(store)])
            seen.append({(node.path, node.created_order) for node in nodes if node is not None})
            pause(_BETWEEN_LOOKS_SECONDS)
    if sum(before != after for before, after in pairwise(seen)) > _MOST_CHANGES:
        with supervisor.leaving_alone(MEMBERS[Role.BOOKIE]):
            for bookie in MEMBERS[Role.BOOKIE]:
                scene.cluster.restart(bookie)


def restart_brokers(scene: Scene, supervisor: Supervisor) -> None:
    """Restart the brokers, so that later tests begin with unexpired sessions.

    Brokers with expired sessions may respond to look-ups of new topics with BadVersionException from then on (4.0.8).
    """
    brokers = MEMBERS[Role.BROKER]
    with supervisor.leaving_alone(brokers):  # else both start one that is down in between
        for broker in brokers:
            scene.cluster.restart(broker)


def killed(scene: Scene, members: Sequence[str], rng: random.Random) -> None:
    """Kill the members, and restart them after a while."""
    registered = set(registered_bookies(scene.workload.store))
    for member in members:
        scene.cluster.kill(member)
    pause(rng.uniform(0, 3))
    if role_of(members[0]) is Role.BOOKIE:
        # A bookie that starts before its dead predecessor's session has ended refuses to register (LockBusyException).
        until(
            lambda: len(set(registered_bookies(scene.workload.store)) & registered) == len(registered) - len(members),
            "the killed bookies' registrations are gone",
            BOOKIE_SESSION_SECONDS,
        )
    for member in members:
        scene.cluster.restart(member)


def registered_bookies(store: MetadataStore) -> Sequence[str]:
    children = store.children(BOOKIES_REGISTERED) or []
    return [child for child in children if child != "readonly"]


def restarted(scene: Scene, members: Sequence[str], rng: random.Random) -> None:
    """Terminate and restart the members one after the other."""
    for member in members:
        scene.cluster.restart(member)
        pause(rng.uniform(0, 1))


def frozen(shortest_seconds: float, longest_seconds: float) -> Act:
    """Return an act that stops the members, and continues them after a while."""

    def act(scene: Scene, members: Sequence[str], rng: random.Random) -> None:
        for member in members:
            scene.cluster.stop(member)
        pause(rng.uniform(shortest_seconds, longest_seconds))
        for member in members:
            scene.cluster.cont(member)

    return act


ACTS: Mapping[str, Act] = {
    "killed": killed,
    "restarted": restarted,
    # A sidecar's session is 4 s here, a broker's 10 s.
    "frozen for less than a session": frozen(0.5, 3.0),
    "frozen for more than a session": frozen(10.5, 13.0),
}
