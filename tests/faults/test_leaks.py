"""The watch for leaked ledgers, killed, cut off, frozen and without its store while ledgers leak.

Mostly a reference is cut as by a broker that dies right after it: its node goes, its ledgers stay. In the last two
tests brokers do die (`tests.cluster.leaking`), and ZooKeeper dies while they delete schemas. Whatever a watch wrote
evidence of must be gone within the settle time and a minute; what has no evidence must stay, since no watch
that lived on has seen it referenced. Both are counted in ZooKeeper's transaction log
(`tests.cluster.transaction_log`).
"""

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from pulsar_sidecar.features.ledger_deletion.steps import Step
from pulsar_sidecar.features.ledger_deletion.watch.control import CONTROL
from pulsar_sidecar.features.ledger_deletion.watch.leaks import LEAKS
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.background import in_parallel, running_until
from tests.cluster.deletion import Scene
from tests.cluster.failing_sidecar import OF_THE_WATCH, Effect, Fault, points_of
from tests.cluster.leaking import LEAST_LEAKS, LeakingBrokers
from tests.cluster.links import Cut, Link, SidecarNetwork, sidecar_network
from tests.cluster.patience import until
from tests.cluster.running import BROKERS, ClusterUnderTest
from tests.cluster.sidecars import WATCH, SidecarProcess, Sidecars
from tests.cluster.topics import Workload
from tests.cluster.transaction_log import TransactionLog
from tests.faults.leading import has_come, step_of
from tests.faults.load import pause
from tests.faults.stimuli import THREADS
from tests.faults.tally import Line
from tests.faults.test_cluster_members import MEMBERS, Supervisor, end_flapping, restart_brokers
from tests.faults.test_sidecar_steps import FROZEN_SECONDS, count

SETTLE_SECONDS = 10
AFTER_SETTLING_SECONDS = 60
WATCHING = {"ledger_deletion_watch": "append", "ledger_deletion_watch_settle_in_seconds": SETTLE_SECONDS}
TOPICS_EACH = 2
LEDGERS = 3
"""So a batch of leaks is `LEAST_LEAKS` or more."""
SCHEMAS = 16
SCHEMAS_AT_ONCE = 3
POINTS = points_of(OF_THE_WATCH)
CUTS = 15
CUT_SECONDS = (0.2, 1.5)
LONG_CUT_SECONDS = (5.0, 7.0)
"""The sidecars' session is 4 s in tests."""
GRACE_SECONDS = 6.0
"""By then evidence is written."""
OUTAGE_SECONDS = (0.0, 2.0)
LONG_OUTAGE_SECONDS = (4.0, 12.0)
APPENDED = "after:leaks-appended"
FREEZING = ("before:leak-kept", "after:leak-kept", "before:leaks-appended", APPENDED)
WALKED = "the whole metadata store was read"


class Leaks:
    """Topics that no broker has loaded, and their leaks so far."""

    def __init__(self, scene: Scene, topics: int) -> None:
        self._scene = scene
        self._store = scene.workload.store
        self._whole = [scene.topic(f"leaking-{number}") for number in range(topics)]
        self._kept = scene.topic("kept")
        in_parallel(self._fill, self._whole, THREADS)
        # The brake holds when nearly all references of a small cluster vanish.
        scene.oracles.keeps(self._kept, scene.workload.fill(self._kept, LEDGERS * topics))
        self.ledger_ids: set[LedgerId] = set()
        self._cut: list[tuple[Node, frozenset[LedgerId]]] = []

    def _fill(self, topic: TopicName) -> None:
        self._scene.workload.fill(topic, LEDGERS)
        self._scene.workload.unload(topic)

    def leak(self, topics: int = TOPICS_EACH) -> frozenset[LedgerId]:
        """Remove this many topics' lists; return the ledgers that were in them."""
        chosen, self._whole = self._whole[:topics], self._whole[topics:]
        assert len(chosen) == topics, "more leaks than were prepared"
        leaked = frozenset[LedgerId]()
        for topic in chosen:
            ledger_ids = self._scene.workload.ledgers(topic).data
            node = self._store.read(managed_ledger_path(topic.managed_ledger_name))
            assert node is not None
            self._store.delete(node.path)
            self._cut.append((node, ledger_ids))
            leaked |= ledger_ids
        self.ledger_ids |= leaked
        return leaked

    def put_back(self) -> frozenset[LedgerId]:
        """Reference the ledgers that leaked last once more, as a restored list does."""
        node, ledger_ids = self._cut.pop()
        self._store.create(node.path, node.data)
        self.ledger_ids -= ledger_ids
        return ledger_ids


class Truth:
    """The required end state, counted from the cluster itself."""

    def __init__(self, scene: Scene, log: TransactionLog) -> None:
        self._scene, self._log = scene, log

    def demand_all(self, leaked: frozenset[LedgerId], sidecar: SidecarProcess) -> None:
        """Demand evidence of all these ledgers; an operator releases the watch if it brakes for their number."""
        until(
            lambda: self.evidenced(set(leaked)) == leaked,
            f"there is evidence of all of {sorted(leaked)}\n{sidecar.log()}",
            AFTER_SETTLING_SECONDS,
        )
        existing = self._scene.workload.existing
        until(lambda: sidecar.call("GET", WATCH)["braked"] or not existing(leaked), "it appends or brakes")
        sidecar.call("POST", f"{WATCH}/resume")
        self.demand(set(leaked), sidecar, set())

    def evidenced(self, leaked: set[LedgerId]) -> set[LedgerId]:
        """Return the leaked ledgers of which a watch has written evidence."""
        self._log.read_on()
        return leaked & self._log.evidence.keys()

    def demand(self, leaked: set[LedgerId], sidecar: SidecarProcess, missing: set[LedgerId]) -> None:
        """Demand that every unreferenced ledger but ``missing`` has evidence, and is deleted in time by a sidecar."""
        workload = self._scene.workload
        wanted = leaked - missing
        until(
            lambda: not workload.existing(wanted) and wanted.isdisjoint(self._with_evidence_now()),
            f"what leaked is gone, and the evidence of it, of {sorted(wanted)}\n{sidecar.log()}",
            SETTLE_SECONDS + AFTER_SETTLING_SECONDS,
        )
        assert self.evidenced(leaked) == wanted, "something was deleted that no watch had written evidence of"
        assert self.appended(sidecar) <= self._log.evidence.keys(), "only what has evidence is appended"
        assert workload.existing(missing) == missing, "nobody has seen these referenced"
        self._scene.oracles.add_accepted(wanted)
        self._log.demand_nothing_referenced_was_deleted(wanted)

    @staticmethod
    def appended(sidecar: SidecarProcess) -> set[LedgerId]:
        """Return the ledgers that the sidecar appended, or knows by evidence that another sidecar did."""
        answer = sidecar.call("GET", f"{WATCH}/leaks", limit="10000", ended="true")
        return {LedgerId(leak["ledgerId"]) for leak in answer["leaks"] if leak["appendedMs"] is not None}

    def _with_evidence_now(self) -> set[LedgerId]:
        return {LedgerId(int(name)) for name in self._scene.workload.store.children(LEAKS) or ()}


@pytest.fixture(scope="module")
def log(deletion_cluster: ClusterUnderTest) -> TransactionLog:
    return TransactionLog(deletion_cluster)


@pytest.fixture
def truth(scene: Scene, log: TransactionLog) -> Truth:
    """Return the truth without leaks of other tests, which an appending sidecar would take up."""
    scene.sidecars.end_all()
    store = scene.workload.store
    for name in store.children(LEAKS) or ():
        store.delete(f"{LEAKS}/{name}")
    store.delete(CONTROL)
    return Truth(scene, log)


@pytest.fixture(scope="module")
def network(deletion_cluster: ClusterUnderTest) -> Iterator[SidecarNetwork]:
    with sidecar_network(deletion_cluster.addresses) as network:
        yield network


@pytest.fixture
def supervisor(deletion_cluster: ClusterUnderTest) -> Iterator[Supervisor]:
    supervisor = Supervisor(deletion_cluster)
    yield supervisor
    supervisor.stop()


def state_of(sidecar: SidecarProcess) -> str | None:
    """Return the watch's state, None while the sidecar does not respond."""
    try:
        return str(sidecar.request("GET", WATCH).json().get("state"))
    except requests.RequestException:
        return None


def wait_until_watching(sidecar: SidecarProcess) -> bool:
    """Return True once the sidecar watches, False if it died of others' leftovers."""
    until(
        lambda: state_of(sidecar) == "watching" or not sidecar.is_running,
        f"{sidecar.name} watches\n{sidecar.log()}",
    )
    return sidecar.is_running


def wait_for(fault: Fault, sidecar: SidecarProcess) -> None:
    until(lambda: has_come(sidecar, fault), f"{sidecar.name} comes to {fault}\n{sidecar.log()}")


def some_fault(effect: Effect, point: str, rng: random.Random) -> Fault:
    """Evidence is written and dropped for one ledger after the other, records are appended together."""
    together = step_of(Fault(effect, point)) is Step.LEAKS_APPENDED
    return Fault(effect, point, 1 if together else rng.randint(1, LEAST_LEAKS - 1))


def test_a_watching_sidecar_killed_before_and_after_its_steps(
    scene: Scene, truth: Truth, rng: random.Random, tally: Line
) -> None:
    points = rng.sample(POINTS, len(POINTS))
    faults = [some_fault(Effect.CRASH, point, rng) for point in points]
    leaks = Leaks(scene, TOPICS_EACH * (len(points) + 1))
    sidecar = scene.sidecars.launch_failing(str(faults[0]), **WATCHING)
    for number, fault in enumerate(faults):
        is_needed = wait_until_watching(sidecar)
        following = [str(each) for each in faults[number + 1 : number + 2]]
        standby = scene.sidecars.launch_failing(*following, **WATCHING)
        if is_needed:
            leaks.leak()
        wait_for(fault, sidecar)
        sidecar = standby
    count(tally, "watching sidecar killed", faults)
    assert wait_until_watching(sidecar)
    # A reference that vanished seconds before its only witness died has no witness left.
    missing = leaks.ledger_ids - truth.evidenced(leaks.ledger_ids)
    leaks.leak()
    truth.demand(leaks.ledger_ids, sidecar, missing)


def test_the_connection_of_the_watch_is_cut_again_and_again(
    scene: Scene,
    truth: Truth,
    network: SidecarNetwork,
    rng: random.Random,
    tally: Line,
    tmp_path: Path,
    fault_rounds: int,
) -> None:
    links = [link for link in network.links if link.member == "zookeeper"]
    leaks = Leaks(scene, CUTS)
    stop = threading.Event()
    with contextlib.closing(Sidecars(scene.cluster.addresses, tmp_path, network)) as inside:
        sidecar = inside.start(**WATCHING)
        assert wait_until_watching(sidecar)
        with running_until(stop, [lambda name=name: come_and_go(scene, name, stop) for name in ("one", "other")]):
            for number in range(CUTS):
                pause(rng.uniform(0, 1))
                seconds = LONG_CUT_SECONDS if number % 5 == 4 and fault_rounds > 1 else CUT_SECONDS
                # Over a short loss of packets TCP keeps the connection, and nothing need be read again.
                how = rng.choice([*Cut, None]) if number else None
                tally.fault(cut_while_leaking(network, links, leaks, how, rng.uniform(*seconds)))
        truth.demand(leaks.ledger_ids, sidecar, set())
        assert sidecar.whole_log.count(WALKED) > 1, "a reset means a whole reading"


def cut_while_leaking(
    network: SidecarNetwork, links: Sequence[Link], leaks: Leaks, how: Cut | None, seconds: float
) -> str:
    """Lose events, whatever becomes of the session; return the fault. None resets the connections."""
    if how is None:
        network.reset(links)
        leaks.leak(1)
        return "watch: connection reset"
    network.cut(links, how)
    try:
        leaks.leak(1)
        pause(seconds)
    finally:
        network.restore(links)
    return f"watch: connection cut {how.value}"


def come_and_go(scene: Scene, name: str, stop: threading.Event) -> None:
    """Create and delete topics whose references vanish with their ledgers, as they normally do."""
    topic = scene.topic(f"comes-and-goes-{name}")
    while not stop.is_set():
        scene.workload.fill(topic, LEDGERS)
        scene.workload.delete_plainly(topic)


def test_zookeeper_killed_while_ledgers_leak(
    supervisor: Supervisor, scene: Scene, truth: Truth, rng: random.Random, tally: Line, fault_rounds: int
) -> None:
    leaks = Leaks(scene, 2 * TOPICS_EACH)
    sidecar = scene.start_alone(**WATCHING)
    assert wait_until_watching(sidecar)
    leaks.leak()
    pause(rng.uniform(0, GRACE_SECONDS))
    (zookeeper,) = MEMBERS[Role.ZOOKEEPER]
    with supervisor.leaving_alone([zookeeper]):
        scene.cluster.kill(zookeeper)
        pause(rng.uniform(*(OUTAGE_SECONDS if fault_rounds == 1 else LONG_OUTAGE_SECONDS)))
        scene.cluster.restart(zookeeper)
    end_flapping(scene, supervisor)
    tally.fault("zookeeper killed while ledgers leak")
    leaks.leak()
    truth.demand(leaks.ledger_ids, sidecar, set())
    if fault_rounds > 1:
        restart_brokers(scene, supervisor)


@pytest.mark.usefixtures("full_run")
def test_the_leader_frozen_for_longer_than_its_session(
    scene: Scene, truth: Truth, rng: random.Random, tally: Line
) -> None:
    fault = some_fault(Effect.FREEZE, rng.choice(FREEZING), rng)
    leaks = Leaks(scene, TOPICS_EACH)
    frozen = scene.sidecars.launch_failing(str(fault), **WATCHING)
    assert wait_until_watching(frozen)
    other = scene.sidecars.start(**WATCHING)
    leaks.leak()
    try:
        wait_for(fault, frozen)
        count(tally, "watching sidecar frozen", [fault])
        # The frozen one's state of these is outdated when it continues.
        linked = leaks.put_back() if fault.point != APPENDED else frozenset()
        assert wait_until_watching(other)
        pause(rng.uniform(*FROZEN_SECONDS))
    finally:
        frozen.thaw()
    until(lambda: state_of(frozen) == "standby", f"the other one leads\n{frozen.log()}")
    missing = leaks.ledger_ids - truth.evidenced(leaks.ledger_ids)
    truth.demand(leaks.ledger_ids, other, missing)
    assert scene.workload.existing(linked) == linked, "these are referenced"


@pytest.mark.usefixtures("fault_round")
def test_brokers_killed_while_they_delete(supervisor: Supervisor, scene: Scene, truth: Truth, tally: Line) -> None:
    sidecar = scene.start_alone(**WATCHING)
    assert wait_until_watching(sidecar)
    brokers = LeakingBrokers(scene, sidecar)
    lost = brokers.lose_schema_races()
    tally.fault("first publish of a schema that lost a race", len(lost))
    with supervisor.leaving_alone(BROKERS):
        left = brokers.leak(brokers.ways)
    tally.fault("brokers killed while they delete", len(BROKERS))
    for way, ledger_ids in left.items():
        tally.fault(f"left behind: {way}", len(ledger_ids))
    truth.demand_all(frozenset[LedgerId]().union(*left.values()), sidecar)
    assert scene.workload.existing(lost) == lost, "nobody has seen these referenced"


def test_zookeeper_killed_while_schemas_are_deleted(
    supervisor: Supervisor, scene: Scene, truth: Truth, rng: random.Random, tally: Line
) -> None:
    """Brokers delete a schema's ledgers first and its node then, also where a ledger could not be deleted."""
    workload = scene.workload
    topics = [scene.topic(f"with-schemas-{number}") for number in range(SCHEMAS)]
    in_parallel(lambda topic: workload.store_schemas(topic, LEDGERS), topics, THREADS)
    ledger_ids = frozenset[LedgerId]().union(*(workload.ledgers(topic).schema for topic in topics))
    scene.oracles.expect_broken_topics_in(scene.namespace)
    sidecar = scene.start_alone(**WATCHING)
    assert wait_until_watching(sidecar)
    (zookeeper,) = MEMBERS[Role.ZOOKEEPER]
    with supervisor.leaving_alone([zookeeper]), ThreadPoolExecutor(SCHEMAS_AT_ONCE) as pool:
        asked = [pool.submit(delete_schemas, workload, topic) for topic in topics]
        gone = until(
            lambda: ledger_ids - workload.existing(ledger_ids), "the first ledger is deleted", pause_seconds=0.01
        )
        scene.cluster.kill(zookeeper)
        pause(rng.uniform(*LONG_OUTAGE_SECONDS))
        scene.cluster.restart(zookeeper)
        end_flapping(scene, supervisor)
        for each in asked:
            each.result()
    assert gone != ledger_ids, "ZooKeeper dies in the middle"
    tally.fault("zookeeper killed while schemas are deleted")
    restart_brokers(scene, supervisor)
    scan = scene.oracles.reference_scan()
    leaked = ledger_ids & scan.orphans
    tally.fault("left behind: schema", len(leaked))
    tally.fault("left behind: a reference to a schema's deleted ledger", len(ledger_ids & scan.dangling))
    truth.demand_all(leaked, sidecar)


def delete_schemas(workload: Workload, topic: TopicName) -> None:
    """Delete schemas, whatever the response is."""
    with contextlib.suppress(requests.RequestException):
        workload.delete_schemas(topic)
