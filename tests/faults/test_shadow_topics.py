"""Shadow topics deleted while both brokers load them, bundles move, and the sidecar that deletes one is killed."""

import random

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.cluster.shadows import Pair, Shadows
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import KEEP_NOTHING
from tests.faults.tally import Line
from tests.faults.test_cluster_topics import disturb

PAIRS = 4
_MOVE_PROBABILITY = 0.3
_MOVES = ("topic unloaded", "bundle unloaded", "bundle moved")


class Trouble:
    """Faults before each call: the first sidecar is killed once, and the shadow's bundles move."""

    def __init__(self, scene: Scene, rng: random.Random, tally: Line) -> None:
        self._scene = scene
        self._rng = rng
        self._tally = tally
        self._first, self._second = scene.start_together({}, {})
        self._calls_until_kill = rng.randrange(PAIRS * 5)

    def sidecar(self, pair: Pair) -> SidecarProcess:
        """Return the sidecar to call next."""
        rng = self._rng
        self._calls_until_kill -= 1
        if self._calls_until_kill == 0:
            self._first.kill()
            self._tally.fault("sidecar killed")
        kind = rng.choice(_MOVES)
        if rng.random() < _MOVE_PROBABILITY and disturb(self._scene, pair.shadows, kind, rng):
            self._tally.fault(kind)
        return rng.choice([self._first, self._second]) if self._first.is_running else self._second


def test_sources_keep_everything_while_their_shadows_are_deleted(scene: Scene, rng: random.Random, tally: Line) -> None:
    scene.workload.admin("POST", f"namespaces/{scene.namespace}/retention", KEEP_NOTHING)
    shadows = Shadows(scene.workload, scene.cluster.addresses.web_service_urls)
    trouble = Trouble(scene, rng, tally)
    for number in range(PAIRS):
        pair = _pair(scene, shadows, rng, number)
        before = frozenset().union(*(scene.workload.ledgers(source).data for source in pair.sources))
        with shadows.reloading(pair.shadows):
            _delete(scene, pair, trouble)
        assert scene.workload.existing(before) == before
        pair.demand_only_the_source(scene.workload)


def _pair(scene: Scene, shadows: Shadows, rng: random.Random, number: int) -> Pair:
    partitions = rng.choice([0, 0, 2])
    pair = shadows.pair(
        scene.topic(f"orders-{number}"),
        ledgers=rng.randint(1, 4),
        partitions=partitions,
        listed=rng.random() < 0.5,
    )
    if rng.random() < 0.5:
        scene.workload.client.subscribe(str(pair.shadow), "sub").close()
    return pair


def _delete(scene: Scene, pair: Pair, trouble: Trouble) -> None:
    path = f"/admin/v2/{scene.workload.of_topic(pair.shadow, 'deleteShadow')}"

    def is_done() -> bool:
        answer = trouble.sidecar(pair).request("POST", path)
        assert answer.status_code in (200, 202, 503), answer.text
        done = answer.status_code == 200
        assert not done or answer.json()["missingLedgers"] == []
        return done

    until(is_done, f"{pair.shadow} is deleted")
