"""Leading sidecars to the fault that waits in them."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pulsar_sidecar.features.ledger_deletion.steps import Step

from tests.cluster.deletion import Scene
from tests.cluster.failing_sidecar import INJECTED, Effect, Fault
from tests.cluster.patience import until
from tests.cluster.sidecars import SidecarProcess
from tests.faults.stimuli import Stimuli

_NEXT_TRY_SECONDS = 1.5

_HELPED_BY = {Step.ATTEMPT_PUT_OFF: "fail:before:broker-asked:1"}
"""Steps that are taken only after another step fails."""


def launch(scene: Scene, stimuli: Stimuli, fault: Fault) -> SidecarProcess:
    """Start a sidecar in which the fault waits."""
    helped = _HELPED_BY.get(step_of(fault))
    faults = [str(fault)] if helped is None else [helped, str(fault)]
    return scene.sidecars.launch_failing(*faults, **stimuli.settings)


def lead_all(stimuli: Stimuli, sidecars: Sequence[tuple[Fault, SidecarProcess]]) -> None:
    """Request each sidecar's step until its fault has come, all at the same time."""
    with ThreadPoolExecutor(len(sidecars)) as pool:
        for led in [pool.submit(lead, stimuli, fault, sidecar) for fault, sidecar in sidecars]:
            led.result()


def lead_all_in(pool: ThreadPoolExecutor, stimuli: Stimuli, sidecars: Sequence[tuple[Fault, SidecarProcess]]) -> None:
    """Lead all sidecars into faults that leave callers waiting in the pool without a response."""
    waiting: list[Future[None]] = [pool.submit(lead, stimuli, fault, sidecar) for fault, sidecar in sidecars]
    for fault, sidecar in sidecars:
        until(lambda it=(sidecar, fault): has_come(*it) or _any_failed(waiting), f"{fault} has come")


def lead(stimuli: Stimuli, fault: Fault, sidecar: SidecarProcess) -> None:
    """Send requests to one sidecar until its fault has come."""

    def come() -> bool:
        if sidecar.is_running and sidecar.is_ready and not has_come(sidecar, fault):
            stimuli.provoke(step_of(fault), sidecar)
        return _comes_soon(sidecar, fault) or not sidecar.is_running

    until(come, f"{sidecar.name} comes to {fault}\n{sidecar.log()}")
    assert has_come(sidecar, fault), f"{sidecar.name} ended without {fault}\n{sidecar.log()}"
    if fault.effect is Effect.CRASH:
        until(lambda: not sidecar.is_running, f"{sidecar.name} is gone")


def has_come(sidecar: SidecarProcess, fault: Fault) -> bool:
    """Return True if the fault was injected."""
    return f"{INJECTED}{fault}" in sidecar.whole_log


def step_of(fault: Fault) -> Step:
    return Step(fault.point.partition(":")[2])


def _comes_soon(sidecar: SidecarProcess, fault: Fault) -> bool:
    try:
        return until(lambda: has_come(sidecar, fault) or not sidecar.is_running, "it comes", _NEXT_TRY_SECONDS)
    except AssertionError:
        return False


def _any_failed(waiting: Sequence[Future[None]]) -> bool:
    for each in waiting:
        if each.done():
            each.result()
    return False
