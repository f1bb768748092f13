"""Sidecars killed and terminated at random times under load."""

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import requests
from urllib3.exceptions import NewConnectionError

from tests.cluster.deletion import Scene
from tests.cluster.sidecars import BASE, SidecarProcess
from tests.faults.load import Load, pause
from tests.faults.tally import Line

TOPICS = 8
CALLERS = 4
GRACE_SECONDS = 60
UNCERTAIN_SECONDS = 0.2
"""A request that began so shortly before the signal may have come too late to be in flight."""


def test_sidecars_killed_at_random_times(scene: Scene, rng: random.Random, tally: Line) -> None:
    sidecars = scene.start_together({}, {})
    load = Load(scene, sidecars, rng, topics=TOPICS)
    load.prepare()
    with load.running():
        for _ in range(rng.randint(3, 5)):
            pause(rng.uniform(0, 2.5))
            victim = rng.choice(sidecars)
            victim.kill()
            tally.fault("sidecar killed at a random time")
            pause(rng.uniform(0, 1))
            victim.restart()
    for sidecar in sidecars:
        sidecar.wait_until_ready()
    load.check()


@dataclass(frozen=True, slots=True)
class Call:
    """A request: its start, and its status or error."""

    began: float
    status: int | None
    broken_by: str


class Callers:
    """Callers that send one request after the other, each over a connection of its own."""

    def __init__(self, ask: Callable[[int], requests.Response]) -> None:
        self._ask = ask
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(CALLERS)
        self._calls: list[Call] = []
        self._running = [self._pool.submit(self._call_on, number) for number in range(CALLERS)]

    def end(self) -> list[Call]:
        """Stop, and return how all the requests went."""
        self._stop.set()
        for each in self._running:
            each.result()
        self._pool.shutdown()
        return self._calls

    def _call_on(self, number: int) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._calls.append(Call(began, self._ask(number).status_code, ""))
            except requests.RequestException as error:
                # What was refused a connection was not in flight before.
                self._calls.append(Call(time.monotonic() if _refused(error) else began, None, repr(error)))
                self._stop.wait(0.05)


def _refused(error: requests.RequestException) -> bool:
    return bool(error.args) and isinstance(getattr(error.args[0], "reason", None), NewConnectionError)


def test_sidecars_terminated_under_load(scene: Scene, rng: random.Random, tally: Line) -> None:
    sidecars = scene.start_together({}, {})
    victim = rng.choice(sidecars)
    load = Load(scene, sidecars, rng, topics=TOPICS)
    load.prepare()
    mine = rng.sample(load.records, CALLERS)
    with load.running():
        pause(rng.uniform(0, 2.5))
        callers = Callers(lambda number: append(victim, mine[number]))
        pause(rng.uniform(0.3, 1))
        terminated_at = time.monotonic()
        code = victim.terminate(GRACE_SECONDS)
        tally.fault("sidecar terminated under load")
        calls = callers.end()
        assert code == 0, f"it ended with {code}\n{victim.log()}"
        victim.restart()
    in_flight = [call for call in calls if call.began < terminated_at - UNCERTAIN_SECONDS]
    assert in_flight
    wrong = [call for call in in_flight if call.status is None or call.status >= 500]
    assert not wrong, f"requests in flight were not answered: {wrong}\n{victim.log()}"
    answered = {call.status for call in calls if call.status is not None}
    assert answered <= {200, 503}, f"{answered}"
    assert "Traceback" not in victim.whole_log
    victim.wait_until_ready()
    load.check()


def append(sidecar: SidecarProcess, record: object) -> requests.Response:
    return requests.post(f"{sidecar.url}{BASE}/pending", json={"ledgers": [record]}, timeout=GRACE_SECONDS)
