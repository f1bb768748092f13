"""Full disks: a sidecar keeps nothing on its own, so its work continues; a full bookie is waited for.

The small disks are tmpfs mounts, which take root.
"""

import contextlib
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deletion import BROKER_CONF, Scene
from tests.cluster.oracles import Oracles, OutcomeLog
from tests.cluster.patience import holds_for, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import BASE, SidecarProcess, Sidecars
from tests.cluster.topics import Workload
from tests.faults.harness import line_of
from tests.faults.load import Load, pause
from tests.faults.tally import Line

pytestmark = pytest.mark.usefixtures("full_run")

FULL = Path("/dev/full")
LOG_DISK_BYTES = 256 * 1024
NOWHERE = {"TMPDIR": "/proc", "HOME": "/proc"}
"""Places in which no process can write."""


@contextlib.contextmanager
def small_disk(place: Path, size_bytes: int) -> Iterator[Path]:
    """Yield a file system of its own that is soon full."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk takes root: sudo, or unshare --map-root-user --mount")
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"this machine lets nobody mount a small disk: {mounted.stderr.decode().strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_up(disk: Path) -> Path:
    """Write until nothing more fits; the file that took the space."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as output, contextlib.suppress(OSError):
        while True:
            output.write(b"\0" * 4096)
    return filler


def test_a_sidecar_that_cannot_write_a_line(scene: Scene, rng: random.Random, tally: Line) -> None:
    if not FULL.exists():
        pytest.skip("this system has no /dev/full")
    scene.sidecars.end_all()
    sidecar = scene.sidecars.launch_in(NOWHERE, log=FULL)
    until(lambda: sidecar.is_ready, "it is ready")
    load = Load(scene, [sidecar], rng)
    load.prepare()
    with load.running():
        tally.fault("sidecar's output is on a full disk, and no directory is writable")
    load.check()
    scene.oracles.wait_until_drained(sidecar)
    assert sidecar.terminate() == 0


def test_a_sidecar_whose_disk_fills_up_for_a_while(
    scene: Scene, rng: random.Random, tally: Line, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", LOG_DISK_BYTES) as disk:
        log = disk / "sidecar.log"
        scene.sidecars.end_all()
        sidecar = scene.sidecars.launch_in(NOWHERE, log=log)
        until(lambda: sidecar.is_ready, "it is ready")
        load = Load(scene, [sidecar], rng)
        load.prepare()
        with load.running():
            pause(rng.uniform(0, 2))
            filler = fill_up(disk)
            tally.fault("sidecar's disk fills up")
            written = log.stat().st_size
            pause(rng.uniform(1, 3))
            assert log.stat().st_size <= written + 4096
            filler.unlink()
        load.check()
        until(lambda: _logged_by(sidecar, log) > written + 4096, "it writes its log again")
        scene.oracles.wait_until_drained(sidecar)
        assert sidecar.terminate() == 0


def _logged_by(sidecar: SidecarProcess, log: Path) -> int:
    """Return the log's length after one more request that is logged."""
    answer = sidecar.request("POST", f"{BASE}/pending", {"ledgers": []})
    assert answer.status_code < 500, answer.text
    return log.stat().st_size


# --- a bookie's disk -------------------------------------------------------------------------------------------------

BOOKIE_DISK_BYTES = 96 * 1024 * 1024
USED_WHEN_FULL = 0.94
ORPHANS = 10
READ_ONLY = "/ledgers/available/readonly"
HOLDS_SECONDS = 8


@pytest.fixture
def scene_on_a_small_disk(
    special_cluster: ClusterFactory, tmp_path: Path, full_run: None
) -> Iterator[tuple[Scene, Path]]:
    """Yield a cluster whose only bookie keeps its ledgers on a small disk."""
    with small_disk(tmp_path / "disk", BOOKIE_DISK_BYTES) as disk:
        bookie_conf = {
            "ledgerDirectories": str(disk),
            "indexDirectories": str(disk),
            "diskUsageThreshold": "0.90",
            "diskUsageWarnThreshold": "0.85",
            "diskUsageLwmThreshold": "0.85",
            "diskCheckInterval": "1000",
        }
        with (
            special_cluster(bookie_conf=bookie_conf, broker_conf=BROKER_CONF) as cluster,
            contextlib.closing(Workload(cluster)) as workload,
            contextlib.closing(OutcomeLog(workload)) as log,
            contextlib.closing(Sidecars(cluster.addresses, tmp_path)) as sidecars,
        ):
            workload.create_namespace("public/small-disk")
            yield Scene(cluster, workload, sidecars, Oracles(workload, log), "public/small-disk"), disk


def test_a_bookie_whose_disk_is_full_for_a_while(
    scene_on_a_small_disk: tuple[Scene, Path], request: pytest.FixtureRequest
) -> None:
    scene, disk = scene_on_a_small_disk
    line = line_of(request)
    kept = scene.topic("kept")
    scene.oracles.keeps(kept, scene.workload.fill(kept))
    left = scene.orphans(scene.topic("left"), ORPHANS)
    sidecar = scene.sidecar
    sidecar.call("POST", f"{BASE}/pause", {})
    scene.append(sidecar, left.records())
    filler = disk / "filler"
    usage = shutil.disk_usage(disk)
    filler.write_bytes(b"\0" * (int(usage.total * USED_WHEN_FULL) - usage.used))
    until(lambda: scene.workload.store.children(READ_ONLY), "the bookie takes no more entries")
    line.fault("a bookie's disk is full")
    sidecar.call("POST", f"{BASE}/resume", {})
    # A judgement that cannot be kept deletes nothing, and what cannot be recorded is not accepted.
    holds_for(lambda: scene.workload.existing(left.all) == left.all, "nothing is deleted", HOLDS_SECONDS)
    refused = sidecar.request("POST", f"{BASE}/pending", {"ledgers": left.records()[:1]})
    assert refused.status_code == 503 or refused.json()["notSent"], refused.text
    assert sidecar.is_running
    filler.unlink()
    until(lambda: not scene.workload.store.children(READ_ONLY), "the bookie takes entries again")
    scene.oracles.wait_for_finals(left.all)
    sidecar.wait_until_ready()
    scene.oracles.check(sidecar)
    line.ended(scene.oracles.accepted, scene.oracles.outcomes)
