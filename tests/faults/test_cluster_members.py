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
    """Starts a member again that has ended by itself, as bookies do when they find their session ended."""

    def __init__(self, cluster: ClusterUnderTest) -> None:
        self._cluster = cluster
        self._in_hand: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    @contextlib.contextmanager
    def looking_away(self, members: Sequence[str]) -> Iterator[None]:
        """A test breaks these members on purpose and brings them back itself."""
        with self._turn:
            self._in_hand = frozenset(members)
        yield
        self._in_hand = frozenset()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SUPERVISE_SECONDS):
            with self._turn:
                for name in self._cluster.addresses.member_urls:
                    if name not in self._in_hand and not self._cluster.is_running(name):
                        self._cluster.restart(name)


@pytest.fixture
def supervisor(deletion_cluster: ClusterUnderTest) -> Iterator[Supervisor]:
    supervisor = Supervisor(deletion_cluster)
    yield supervisor
    supervisor.stop()


@pytest.mark.parametrize("role", MEMBERS, ids=lambda role: role.value)
def test_members_break_and_come_back(
    scene: Scene, supervisor: Supervisor, dice: random.Random, tally: Line, role: Role
) -> None:
    load = Load(scene, [scene.sidecar], dice)
    load.prepare()
    members = dice.sample(MEMBERS[role], dice.randint(1, len(MEMBERS[role])))
    kind = dice.choice(list(ACTS))
    with load.running():
        pause(dice.uniform(0, 2))
        with supervisor.looking_away(members):
            ACTS[kind](scene, members, dice)
        tally.fault(f"{role.value} {kind}", len(members))
        if role is Role.ZOOKEEPER:
            end_flapping(scene, supervisor)
    load.check()
    if role is Role.ZOOKEEPER:
        restart_brokers(scene, supervisor)


def end_flapping(scene: Scene, supervisor: Supervisor) -> None:
    """Start the bookies again where their registrations keep changing since ZooKeeper was away.

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
        with supervisor.looking_away(MEMBERS[Role.BOOKIE]):
            for bookie in MEMBERS[Role.BOOKIE]:
                scene.cluster.restart(bookie)


def restart_brokers(scene: Scene, supervisor: Supervisor) -> None:
    """What runs next begins with brokers whose sessions have not ended.

    Those whose have may answer look-ups of new topics with BadVersionException from then on (4.0.8).
    """
    brokers = MEMBERS[Role.BROKER]
    with supervisor.looking_away(brokers):  # else both start one that is down in between
        for broker in brokers:
            scene.cluster.restart(broker)


def killed(scene: Scene, members: Sequence[str], dice: random.Random) -> None:
    """SIGKILL, and after a while new processes."""
    registered = set(registered_bookies(scene.workload.store))
    for member in members:
        scene.cluster.kill(member)
    pause(dice.uniform(0, 3))
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


def restarted(scene: Scene, members: Sequence[str], dice: random.Random) -> None:
    """SIGTERM, then new processes, one after the other."""
    for member in members:
        scene.cluster.restart(member)
        pause(dice.uniform(0, 1))


def frozen(shortest_seconds: float, longest_seconds: float) -> Act:
    """SIGSTOP, and after a while SIGCONT."""

    def act(scene: Scene, members: Sequence[str], dice: random.Random) -> None:
        for member in members:
            scene.cluster.stop(member)
        pause(dice.uniform(shortest_seconds, longest_seconds))
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
