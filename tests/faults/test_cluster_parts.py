"""Brokers killed while subscriptions with delayed indexes and schemas are deleted: no ledger of theirs is left."""

import random
from concurrent.futures import ThreadPoolExecutor

from pulsar_sidecar.ledger_ownership.paths import MANAGED_LEDGERS

from tests.cluster.deletion import Scene
from tests.cluster.parts import delete_parts, killing_after, make_parts
from tests.cluster.patience import until
from tests.faults.tally import Line

BROKERS = ("broker-1", "broker-2")
SUBSCRIPTIONS, SCHEMAS = 20, 4


def test_brokers_killed_while_parts_of_topics_are_deleted(scene: Scene, dice: random.Random, tally: Line) -> None:
    sidecar, workload = scene.sidecar, scene.workload
    parts = make_parts(workload, scene.namespace, SUBSCRIPTIONS, SCHEMAS)
    assert len(parts.ledgers) >= 2 * SUBSCRIPTIONS + 3 * SCHEMAS
    paths = dice.sample(parts.paths, len(parts.paths))

    def kill() -> None:
        with ThreadPoolExecutor(len(BROKERS)) as pool:
            list(pool.map(scene.cluster.kill, BROKERS))
            list(pool.map(scene.cluster.restart, BROKERS))

    with killing_after(dice.randrange(1, len(paths) // 2), kill) as answered:
        left = delete_parts(sidecar.url, paths, answered)
    tally.fault("broker killed")
    tally.fault("broker killed")
    until(lambda: not delete_parts(sidecar.url, left), "what was refused while brokers were away is deleted")
    scene.oracles.wait_until_drained(sidecar)
    assert not workload.existing(parts.ledgers)
    assert scene.oracles.leaks_in(scene.namespace) == (frozenset(), frozenset())
    cursors = [workload.store.children(f"{MANAGED_LEDGERS}/{each.managed_ledger_name}") for each in parts.topics]
    assert not any(cursors)
