"""Records delivered twice, out of order and late: each ledger's effect happens once."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import DELAY_TIME, SUBSCRIPTION
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.deletion import Scene
from tests.cluster.patience import until
from tests.faults.load import Load, pause
from tests.faults.tally import Line

PENDING = parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}")
RETRY = parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.RETRY.value}")
DISTURBANCES = 3


def test_records_come_again_out_of_order_and_late(scene: Scene, rng: random.Random, tally: Line) -> None:
    assert scene.sidecar.is_ready
    load = Load(scene, [scene.sidecar], rng, topics=2)
    load.prepare()
    begun_ms = scene.workload.store.now_ms()
    with load.running():
        send_copies(scene, load.records, rng, tally)
        for _ in range(DISTURBANCES):
            pause(rng.uniform(0, 1.5))
            kind = rng.choice(list(DISTURB))
            DISTURB[kind](scene, begun_ms)
            load.use([scene.sidecar])
            tally.fault(kind)
            send_copies(scene, load.records, rng, tally)
    scene.oracles.wait_until_drained(scene.sidecar)
    load.check()


def send_copies(scene: Scene, records: Sequence[Mapping[str, Any]], rng: random.Random, tally: Line) -> None:
    """Send the records again, shuffled, from producers of other names, on both topics, some of them delayed."""
    chosen = [rng.choice(records) for _ in range(len(records))]
    _produce(scene, PENDING, chosen[::2], rng, tally)
    _produce(scene, RETRY, chosen[1::2], rng, tally)


def _produce(
    scene: Scene, topic: TopicName, records: Sequence[Mapping[str, Any]], rng: random.Random, tally: Line
) -> None:
    producer = scene.workload.client.create_producer(str(topic), batching_enabled=rng.random() < 0.5)
    with closing(producer):
        for each in records:
            late_ms = rng.choice([0, 0, rng.randrange(3000)])
            properties = {DELAY_TIME: str(late_ms)} if topic is RETRY else {}
            later = timedelta(milliseconds=late_ms) if late_ms else None
            producer.send(json.dumps(each).encode(), properties=properties, deliver_after=later)
            tally.fault("record sent again late" if late_ms else "record sent again")


def rewound(scene: Scene, begun_ms: int) -> None:
    """Seek the subscription back to the round's beginning on every topic."""
    partitions = scene.workload.admin("GET", scene.workload.of_topic(PENDING, "partitions"))["partitions"]
    for topic in [*(PENDING.partition(index) for index in range(partitions)), RETRY]:
        path = scene.workload.of_topic(topic, f"subscription/{SUBSCRIPTION}/resetcursor/{begun_ms}")
        until(lambda path=path: scene.workload.request("POST", path).ok, f"the subscription of {topic} is rewound")


def killed(scene: Scene, _: int) -> None:
    """Kill the sidecar, whose unacknowledged records are redelivered to another."""
    scene.sidecar.kill()
    assert scene.sidecar.is_ready


def terminated(scene: Scene, _: int) -> None:
    """Terminate the sidecar in an orderly way."""
    scene.sidecar.terminate()
    assert scene.sidecar.is_ready


def rewound_and_killed(scene: Scene, begun_ms: int) -> None:
    """A new consumer knows nothing of its redeliveries."""
    rewound(scene, begun_ms)
    killed(scene, begun_ms)


DISTURB: Mapping[str, Callable[[Scene, int], None]] = {
    "subscription rewound": rewound,
    "consumer killed": killed,
    "consumer terminated": terminated,
    "subscription rewound, consumer killed": rewound_and_killed,
}
