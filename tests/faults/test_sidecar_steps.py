"""Sidecars that die, fail, freeze or lose their session at the numbered steps.

In each round one sidecar is killed at every point. Several live at once, so that those who are left, and those who
come next, continue the dead ones' work; a sidecar without faults comes last and must find its way home.
"""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.deletion import Scene
from tests.cluster.failing_sidecar import POINTS, Effect, Fault
from tests.cluster.sidecars import SidecarProcess
from tests.faults.leading import launch, lead_all, lead_all_in
from tests.faults.load import pause
from tests.faults.stimuli import Stimuli
from tests.faults.tally import Line

AT_ONCE = 8
SHORT_CUT = 16
"""So many points are tried where every test has one round only."""
TO_BRING_BACK = 3
STUMBLING = 6
ORPHANS_EACH = 8
"""Of six sidecars each gets one in six: when these were 24 and went by threes, one once got none of them."""
FROZEN_SECONDS = (4.5, 8.0)
"""Longer than the session of 4 s; the broker keeps the connections of a frozen sidecar open for about a minute."""


def prepared(scene: Scene, rng: random.Random, directory: Path, sidecars: int) -> Stimuli:
    """Prepare enough topics and ledgers for this many sidecars, none of which runs."""
    stimuli = Stimuli(scene, rng, directory)
    stimuli.prepare(topics=2 * sidecars, orphans=ORPHANS_EACH * sidecars)
    stimuli.delete_some(scene.sidecar, TO_BRING_BACK)
    scene.sidecars.end_all()
    return stimuli


def test_a_sidecar_killed_before_and_after_every_step(
    scene: Scene, rng: random.Random, tally: Line, tmp_path: Path, fault_rounds: int
) -> None:
    points = rng.sample(POINTS, SHORT_CUT if fault_rounds == 1 else len(POINTS))
    stimuli = prepared(scene, rng, tmp_path, len(points))
    for group in groups(points):
        faults = [Fault(Effect.CRASH, point) for point in group]
        lead_all(stimuli, [(fault, launch(scene, stimuli, fault)) for fault in faults])
        count(tally, "killed", faults)
    come_home(scene, stimuli, scene.start_alone(**stimuli.settings))


@pytest.mark.parametrize("effect", [Effect.FAIL, Effect.EXPIRE], ids=["step-fails", "session-ends"])
def test_a_sidecar_stumbles(effect: Effect, scene: Scene, rng: random.Random, tally: Line, tmp_path: Path) -> None:
    stimuli = prepared(scene, rng, tmp_path, STUMBLING)
    faults = [Fault(effect, point) for point in rng.sample(POINTS, STUMBLING)]
    stumbling = [(fault, launch(scene, stimuli, fault)) for fault in faults]
    lead_all(stimuli, stumbling)
    count(tally, {Effect.FAIL: "step fails", Effect.EXPIRE: "session ends"}[effect], faults)
    for _, sidecar in stumbling:
        sidecar.wait_until_ready()
    come_home(scene, stimuli, rng.choice(stumbling)[1])


@pytest.mark.usefixtures("full_run")
def test_a_sidecar_frozen_during_work(scene: Scene, rng: random.Random, tally: Line, tmp_path: Path) -> None:
    stimuli = prepared(scene, rng, tmp_path, STUMBLING)
    faults = [Fault(Effect.FREEZE, point) for point in rng.sample(POINTS, STUMBLING // 2)]
    frozen = [(fault, launch(scene, stimuli, fault)) for fault in faults]
    with ThreadPoolExecutor(len(faults)) as pool:
        try:
            lead_all_in(pool, stimuli, frozen)
            count(tally, "frozen", faults)
            other = scene.sidecars.start(**stimuli.settings)
            # Another sidecar gets the frozen ones' requests too: theirs must do no harm when they continue.
            stimuli.ask_again(other)
            pause(rng.uniform(*FROZEN_SECONDS))
        finally:
            for _, sidecar in frozen:
                sidecar.thaw()
    come_home(scene, stimuli, rng.choice([other, *(sidecar for _, sidecar in frozen)]))


def come_home(scene: Scene, stimuli: Stimuli, sidecar: SidecarProcess) -> None:
    """Demand that all requests are accepted and all work ends."""
    sidecar.wait_until_ready()
    stimuli.finish(sidecar)
    scene.oracles.wait_until_drained(sidecar)
    stimuli.check()


def count(tally: Line, what: str, faults: Sequence[Fault]) -> None:
    for fault in faults:
        tally.fault(f"{what} {fault.point.replace(':', ' ')}")


def groups(points: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(points), AT_ONCE):
        yield points[start : start + AT_ONCE]
