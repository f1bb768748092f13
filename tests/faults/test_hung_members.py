"""A broker that hangs: its machine accepts connections, and nothing responds.

Response times of each route with other members hung are measured by ``python -m tests.benchmarks hanging``.
"""

from collections.abc import Iterator

import pytest

from tests.cluster.deletion import Scene
from tests.cluster.hanging import ESTIMATE, PASSED_READ, STATUS, Callers, ask, hung
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.faults.tally import Line

READS = 50
WAIT_SECONDS = 6
SOON_SECONDS = 10.0
"""2 seconds by design, and a margin for a busy machine; without the design it is the time-out of a request, 30."""
READY_SECONDS = 30


@pytest.fixture
def sidecar(scene: Scene) -> Iterator[SidecarProcess]:
    """Start a sidecar that knows only the address of the broker that will hang."""
    url = scene.cluster.addresses.member_urls["broker-1"]
    yield scene.start_alone(
        web_service_url=url, two_phase_deletion_topic_deletion_wait_in_seconds=WAIT_SECONDS, log_format="text"
    )
    scene.sidecars.end_all()


def test_a_hung_broker_holds_up_only_what_is_its_own(scene: Scene, sidecar: SidecarProcess, tally: Line) -> None:
    topic = scene.topic("orders")
    scene.workload.fill(topic, 1)
    ledgers = scene.workload.ledgers(topic)
    for path in (ESTIMATE, STATUS):
        until(lambda: ask(sidecar, "GET", path).status == 200, f"{path} is read")  # noqa: B023
    with hung(scene.cluster, ["broker-1"]):
        tally.fault("broker hung", 1)
        reads = Callers(READS, lambda: ask(sidecar, "GET", PASSED_READ))
        for path in (ESTIMATE, STATUS, "/livez") * 3:
            answered = ask(sidecar, "GET", path)
            assert answered.status == 200, (path, answered)
            assert answered.seconds < SOON_SECONDS, (path, answered)
        deletion = ask(sidecar, "DELETE", f"/admin/v2/{scene.workload.of_topic(topic)}?force=true")
        assert deletion.status in (202, 204), deletion
        assert deletion.seconds < WAIT_SECONDS + SOON_SECONDS, deletion
        assert {each.status for each in reads.wait()} == {200}
        later = ask(sidecar, "GET", PASSED_READ)
        assert (later.status, later.seconds < SOON_SECONDS) == (200, True), later
    until(lambda: sidecar.is_ready, "the sidecar is ready", READY_SECONDS)
    scene.oracles.add_accepted(ledgers.all)
    until(lambda: not sidecar.call("GET", f"{BASE}/topic-deletions"), "the deletion has ended")
