"""Programs that succeeded end with exit code 0, many at a time, although the client's threads outlive it.

docs/client-aborts-at-exit.md has what they would otherwise do.
"""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.clients import PatientClient
from tests.cluster.deletion import Scene
from tests.cluster.programs import run_program
from tests.faults.harness import Round
from tests.faults.tally import Line

AT_ONCE, AT_ONCE_IN_ONE_ROUND = 12, 4
"""Each imports everything for itself, a second or two of a processor."""
MESSAGES = 60


@pytest.fixture
def at_once(fault_rounds: int) -> int:
    return AT_ONCE if fault_rounds > 1 else AT_ONCE_IN_ONE_ROUND


def end_of(program: Sequence[str]) -> tuple[int, str]:
    """Return a program's exit code, and the end of its standard error."""
    ended = run_program(*program)
    return ended.returncode, ended.stderr[-1_000:]


def demand_successes(programs: Sequence[Sequence[str]]) -> None:
    with ThreadPoolExecutor(len(programs)) as pool:
        ends = Counter(pool.map(end_of, programs))
    assert {code for code, _ in ends} == {0}, ends


def test_programs_that_read(scene: Scene, fault_round: Round, tally: Line, tmp_path: Path, at_once: int) -> None:
    topic = str(scene.topic("read"))
    with (
        closing(PatientClient(scene.cluster.addresses)) as client,
        closing(client.create_producer(topic)) as producer,
    ):
        for number in range(MESSAGES):
            producer.send_async(b"message %d" % number, lambda *_: None)
        producer.flush()
    url = scene.cluster.addresses.broker_service_url
    databases = [str(tmp_path / f"{number}.sqlite") for number in range(at_once)]
    demand_successes([("tests.cluster.reading_into_sqlite", url, topic, database, "100000") for database in databases])
    tally.fault("reading program ended", at_once)


@pytest.mark.parametrize("deadline_seconds", ["30", "0"])
def test_programs_that_publish(
    scene: Scene, fault_round: Round, tally: Line, deadline_seconds: str, at_once: int
) -> None:
    url, topic = scene.cluster.addresses.broker_service_url, str(scene.topic("published"))
    demand_successes([("tests.cluster.publishing_and_ending", url, topic, deadline_seconds)] * at_once)
    tally.fault("publishing program ended", at_once)


def test_services_that_are_terminated(scene: Scene, fault_round: Round, tally: Line, at_once: int) -> None:
    scene.sidecars.end_all()
    services = [scene.sidecars.launch_in({}) for _ in range(max(2, at_once // 3))]
    for service in services:
        service.wait_until_ready()
    with ThreadPoolExecutor(len(services)) as pool:
        codes = list(pool.map(lambda service: service.terminate(), services))
    assert set(codes) == {0}, "\n".join(service.log() for service in services)
    tally.fault("service terminated", len(services))
