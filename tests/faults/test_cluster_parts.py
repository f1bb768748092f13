"""Brokers killed while subscriptions with delayed indexes and schemas are deleted: none of their ledgers is left."""

import random

import pytest

from tests.cluster.background import in_parallel
from tests.cluster.deletion import Scene
from tests.cluster.parts import delete_parts, delete_rest, end_promises, killing_after, make_parts
from tests.cluster.running import BROKERS
from tests.faults.tally import Line

SUBSCRIPTIONS, SCHEMAS = 20, 4


@pytest.mark.usefixtures("full_run")
def test_brokers_killed_while_parts_of_topics_are_deleted(scene: Scene, rng: random.Random, tally: Line) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    parts = make_parts(workload, scene.namespace, SUBSCRIPTIONS, SCHEMAS)
    assert len(parts.ledgers) >= 2 * SUBSCRIPTIONS + 3 * SCHEMAS
    paths = rng.sample(parts.paths, len(parts.paths))

    def kill() -> None:
        for act in (scene.cluster.kill, scene.cluster.restart):
            in_parallel(act, BROKERS, len(BROKERS))

    with killing_after(rng.randrange(1, len(paths) // 2), kill) as answered:
        left = delete_parts(sidecar.url, paths, answered)
    tally.fault("broker killed")
    tally.fault("broker killed")
    delete_rest(workload, sidecar.url, parts, left)
    broken = end_promises(workload, sidecar, parts)
    scene.oracles.wait_until_drained(sidecar)
    orphans, _ = scene.oracles.leaks_in(scene.namespace)
    referenced = frozenset().union(*(workload.ledgers(parts.subscriptions[path][0]).all for path in broken))
    assert orphans | (workload.existing(parts.ledgers) - referenced) == frozenset()
