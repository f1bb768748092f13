"""Sidecars on machines whose clock is wrong, or jumps: nothing young is deleted, and nothing waits for ever.

The clock is changed by libfaketime, for one process; how long something takes is measured correctly even so, as it is
on a machine whose clock is set.
"""

import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent, LedgerState
from pulsar_sidecar.model.names import TopicName

from tests.cluster.deletion import Scene
from tests.cluster.sidecars import SidecarProcess
from tests.cluster.topics import record
from tests.faults.load import Load, pause
from tests.faults.tally import Line

LIBRARIES = [
    *(Path(place) / "faketime/libfaketimeMT.so.1" for place in ("/usr/lib", "/usr/lib/x86_64-linux-gnu")),
    Path("/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"),
    Path("/usr/lib64/faketime/libfaketimeMT.so.1"),
]
TRUE_TIMERS = Path(__file__).with_name("true_timers.c")
SKEWS = ("+1h", "-1h", "-10y", "+10y")
OPEN_MIN_AGE_SECONDS = 12
CLOCK_ERROR_MS = 500
"""Accuracy of the store's clock as the sidecar and the test know it."""
SETTINGS = {"two_phase_deletion_open_ledger_min_age_in_seconds": OPEN_MIN_AGE_SECONDS}


def faked(file: Path) -> Mapping[str, str]:
    """Return the environment in which a process reads its clock's error from the file, again and again."""
    library = next((path for path in LIBRARIES if path.exists()), None)
    if library is None:
        pytest.skip("libfaketime is not here: apt install libfaketime (Debian), dnf install libfaketime (Fedora)")
    return {
        "LD_PRELOAD": f"{true_timers(file.parent)} {library}",
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def true_timers(directory: Path) -> Path:
    """Return the library that keeps libfaketime away from monotonic timers; see its source."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("a C compiler is not here: apt install gcc (Debian), dnf install gcc (Fedora)")
    library = directory / "true_timers.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, TRUE_TIMERS], check=True, timeout=60)
    return library


def set_clock(file: Path, skew: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"{skew}\n")
    new.replace(file)


def start_skewed(scene: Scene, file: Path) -> SidecarProcess:
    scene.sidecars.end_all()
    sidecar = scene.sidecars.launch_in(faked(file), **SETTINGS)
    sidecar.wait_until_ready()
    return sidecar


def open_orphans(scene: Scene) -> dict[LedgerId, tuple[TopicName, int]]:
    """Leave open ledgers behind; return their topics and creation times by the store's clock."""
    found = {}
    for topic in (scene.topic(f"open-{number}") for number in range(3)):
        left = scene.orphans(topic, 1)
        for ledger_id, node in scene.workload.ledger_nodes(left.data).items():
            if scene.workload.metadata(ledger_id).state is not LedgerState.CLOSED:
                found[ledger_id] = (topic, node.created_ms)
    assert found
    return found


def records_of(young: Mapping[LedgerId, tuple[TopicName, int]]) -> list[dict[str, Any]]:
    return [record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id) for ledger_id, (topic, _) in young.items()]


def stays_until_old_enough(scene: Scene, young: Mapping[LedgerId, tuple[TopicName, int]]) -> None:
    """Demand that each ledger exists as long as it is too young to be deleted, by the store's clock."""
    store = scene.workload.store
    while young:
        existing = scene.workload.existing(young)
        now_ms = store.now_ms()
        young = {
            ledger_id: (topic, born_ms)
            for ledger_id, (topic, born_ms) in young.items()
            if now_ms - born_ms < OPEN_MIN_AGE_SECONDS * 1000 - CLOCK_ERROR_MS
        }
        assert young.keys() <= existing, f"deleted too young: {young.keys() - existing}"
        pause(0.2)


def test_a_clock_that_is_wrong(scene: Scene, rng: random.Random, tally: Line, tmp_path: Path) -> None:
    # An hour ahead, retries were once delayed by an hour too.
    work_with_a_clock(scene, rng, tally, tmp_path / "skew", "+1h")


@pytest.mark.replays("ci", 0)  # back by ten years, where the client's batches once took ten years to come
def test_a_clock_that_is_wrong_and_jumps(scene: Scene, rng: random.Random, tally: Line, tmp_path: Path) -> None:
    work_with_a_clock(scene, rng, tally, tmp_path / "skew", rng.choice(SKEWS), most_jumps=2)


def work_with_a_clock(
    scene: Scene, rng: random.Random, tally: Line, file: Path, skew: str, most_jumps: int = 0
) -> None:
    set_clock(file, skew)
    sidecar = start_skewed(scene, file)
    load = Load(scene, [sidecar], rng)
    load.prepare()
    young = open_orphans(scene)
    with load.running():
        scene.append(sidecar, records_of(young))
        tally.fault("sidecar's clock is wrong")
        for _ in range(rng.randint(0, most_jumps)):
            pause(rng.uniform(0.5, 3))
            set_clock(file, rng.choice(SKEWS))
            tally.fault("sidecar's clock jumps")
        stays_until_old_enough(scene, young)
    finals = scene.oracles.wait_for_finals(young)
    assert {final.decision for final in finals.values()} == {"deleted"}
    load.check()
