"""A cluster, a sidecar that cancels on it, and topics, for all tests of cancelling."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pulsar_sidecar.model.names import parse_topic_name

from tests.cluster.delays import DelayedTopic, Deliveries
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import Sidecars
from tests.cluster.topics import unique

CANCELLING = {
    "topic_two_phase_deletion_enabled": "true",
    "bookkeeper_exclusive_to_cluster": "true",
    "delayed_message_cancelling_enabled": "true",
    "delayed_message_reassert_in_seconds": 2,
}


class Setup:
    """A cluster, a sidecar on it, and topics."""

    def __init__(self, cluster: ClusterUnderTest, sidecars: Sidecars, **settings: object) -> None:
        self.cluster = cluster
        self.sidecars = sidecars
        self.sidecar = sidecars.start(**CANCELLING, **settings)

    @contextmanager
    def topic(self, namespace: str = "public/default") -> Iterator[DelayedTopic]:
        if not self.sidecar.is_running:
            self.sidecar.restart()  # an earlier test failed after it had killed the sidecar
            self.sidecar.wait_until_ready()
        name = f"persistent://{namespace}/delays-{unique()}"
        topic = DelayedTopic(self.cluster.addresses, parse_topic_name(name))
        try:
            yield topic
        finally:
            topic.close()


@contextmanager
def set_up(cluster: ClusterUnderTest, directory: Path, **settings: object) -> Iterator[Setup]:
    """Yield the setup; ``settings`` are the first sidecar's."""
    sidecars = Sidecars(cluster.addresses, directory)
    try:
        yield Setup(cluster, sidecars, **settings)
    finally:
        sidecars.close()


def check(deliveries: Deliveries, everything: set[int], cancelled: set[int]) -> None:
    assert not deliveries.numbers & cancelled, f"cancelled and delivered: {sorted(deliveries.numbers & cancelled)[:20]}"
    assert deliveries.numbers == everything - cancelled
