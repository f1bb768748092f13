"""Topics unloaded, their bundles split and moved to another broker, again and again, while the topics are deleted."""

import random
from collections.abc import Sequence

from pulsar_sidecar.model.names import TopicName

from tests.cluster.deletion import Scene
from tests.faults.load import Load, pause
from tests.faults.tally import Line

MOVES = 12
MOST_SPLITS = 3


def test_topics_move_while_they_are_deleted(scene: Scene, rng: random.Random, tally: Line) -> None:
    load = Load(scene, [scene.sidecar], rng, topics=8)
    load.prepare()
    splits = 0
    with load.running():
        for _ in range(MOVES):
            pause(rng.uniform(0, 0.5))
            kind = rng.choice(["topic unloaded", "bundle unloaded", "bundle moved", "bundle split"])
            splits += kind == "bundle split"
            if (kind != "bundle split" or splits <= MOST_SPLITS) and disturb(scene, load.topics, kind, rng):
                tally.fault(kind)
    load.check()


def disturb(scene: Scene, topics: Sequence[TopicName], kind: str, rng: random.Random) -> bool:
    """Request it from a broker; return True if it was done. A missing topic or a moving bundle is no failure."""
    request = scene.workload.request
    if kind == "topic unloaded":
        return request("PUT", scene.workload.of_topic(rng.choice(topics), "unload")).ok
    boundaries = scene.workload.admin("GET", f"namespaces/{scene.namespace}/bundles")["boundaries"]
    place = rng.randrange(len(boundaries) - 1)
    bundle = f"namespaces/{scene.namespace}/{boundaries[place]}_{boundaries[place + 1]}"
    if kind == "bundle split":
        return request("PUT", f"{bundle}/split", unload="true").ok
    if kind == "bundle moved":
        url = rng.choice(scene.cluster.addresses.web_service_urls)
        return request("PUT", f"{bundle}/unload", destinationBroker=url.removeprefix("http://")).ok
    return request("PUT", f"{bundle}/unload").ok
