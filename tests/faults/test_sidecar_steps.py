"""Sidecars killed before and after each numbered step, all of them enumerated.

In each round one sidecar dies at every point. Several live at once, so that those who are left, and those who come
next, go on with what the dead ones had in hand; a sidecar without faults comes last and must find its way home.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from service.ledger_deletion.steps import Step
from tests.cluster.deletion import Scene
from tests.cluster.failing_sidecar import INJECTED, POINTS, Effect, Fault
from tests.cluster.patience import until
from tests.cluster.sidecars import SidecarProcess
from tests.faults.stimuli import Stimuli
from tests.faults.tally import Line

pytestmark = pytest.mark.timeout(600)

AT_ONCE = 8
ORPHANS = 4 * len(POINTS)
TO_BRING_BACK = 3
NEXT_TRY_SECONDS = 1.5
DEATH_SECONDS = 90.0

HELPED_BY = {Step.ATTEMPT_PUT_OFF: "fail:before:broker-asked:1"}
"""Steps that are taken only when another one fails first."""


def test_a_sidecar_killed_before_and_after_every_step(
    scene: Scene, dice: random.Random, tally: Line, tmp_path: Path
) -> None:
    stimuli = Stimuli(scene, dice, tmp_path)
    stimuli.prepare(topics=len(POINTS), orphans=ORPHANS)
    stimuli.delete_some(scene.sidecar, TO_BRING_BACK)
    scene.sidecars.end_all()
    for group in groups(dice.sample(POINTS, len(POINTS))):
        for killed in kill_together(scene, stimuli, [Fault(Effect.CRASH, point) for point in group]):
            tally.fault(f"sidecar killed {killed.point.replace(':', ' ')}")
    survivor = scene.start_alone(**stimuli.settings)
    stimuli.finish(survivor)
    scene.oracles.wait_until_drained(survivor, 90)
    stimuli.check()


def groups(points: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(points), AT_ONCE):
        yield points[start : start + AT_ONCE]


def kill_together(scene: Scene, stimuli: Stimuli, faults: Sequence[Fault]) -> list[Fault]:
    """Start a sidecar for each fault, and see every one of them die of it."""
    doomed = [(fault, launch(scene, stimuli, fault)) for fault in faults]
    with ThreadPoolExecutor(len(doomed)) as pool:
        return list(pool.map(lambda each: lead_to_death(stimuli, *each), doomed))


def launch(scene: Scene, stimuli: Stimuli, fault: Fault) -> SidecarProcess:
    helped = HELPED_BY.get(step_of(fault))
    faults = [str(fault)] if helped is None else [helped, str(fault)]
    return scene.sidecars.launch_failing(*faults, **stimuli.settings)


def lead_to_death(stimuli: Stimuli, fault: Fault, sidecar: SidecarProcess) -> Fault:
    """Provoke the step until the sidecar has died of it."""

    def has_died() -> bool:
        if not sidecar.is_running:
            return True
        if sidecar.is_ready:
            stimuli.provoke(step_of(fault), sidecar)
        return gone_soon(sidecar)

    until(has_died, f"{sidecar.name} has died of {fault}\n{sidecar.log()}", DEATH_SECONDS)
    assert f"{INJECTED}{fault}" in sidecar.whole_log, f"{sidecar.name} died of something else\n{sidecar.log()}"
    return fault


def gone_soon(sidecar: SidecarProcess) -> bool:
    try:
        return until(lambda: not sidecar.is_running, "it is gone", NEXT_TRY_SECONDS)
    except AssertionError:
        return False


def step_of(fault: Fault) -> Step:
    return Step(fault.point.partition(":")[2])
