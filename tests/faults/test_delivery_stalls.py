"""A delayed tracker that stalls: retries are due and the broker delivers none, so the sidecar reads them itself.

The stall is the broker's own. With delivery times taken strictly, its tracker looks for due messages once in a tick at
most, and a tick is an hour here; only a subscription's first delayed messages come in time.
"""

import random
import re
from collections.abc import Iterator

import pytest

from tests.cluster.deletion import BROKER_CONF, Scene, open_outcome_log, open_sidecars, open_workload
from tests.cluster.patience import until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess
from tests.faults.load import Load
from tests.faults.tally import Line

STALLING = {
    **BROKER_CONF,
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "delayedDeliveryTickTimeMillis": "3600000",
}
WATCHFUL = {"two_phase_deletion_watchdog_late_in_seconds": 2}
OVERDUE = re.compile(r"retries are overdue.*\boverdue=(\d+)")


@pytest.fixture(scope="module")
def deletion_cluster(special_cluster: ClusterFactory) -> Iterator[ClusterUnderTest]:
    with special_cluster(broker_conf=STALLING) as cluster:
        yield cluster


workload = pytest.fixture(scope="module")(open_workload)
sidecars = pytest.fixture(scope="module")(open_sidecars)
outcome_log = pytest.fixture(scope="module")(open_outcome_log)


def test_retries_go_on_while_the_broker_delivers_none(scene: Scene, rng: random.Random, tally: Line) -> None:
    sidecar = scene.sidecars.running[0] if scene.sidecars.running else scene.start_alone(**WATCHFUL)
    before = overdue_retries(sidecar)
    load = Load(scene, [sidecar], rng, topics=2)
    load.prepare()
    with load.running():
        # Records of ledgers that are in use have to wait on the retry topic.
        until(lambda: overdue_retries(sidecar) > before, "retries are read past the broker")
    load.check()
    tally.fault("retry held back", overdue_retries(sidecar) - before)


def overdue_retries(sidecar: SidecarProcess) -> int:
    """Return the number of retries found overdue so far."""
    return sum(int(count) for count in OVERDUE.findall(sidecar.whole_log))
