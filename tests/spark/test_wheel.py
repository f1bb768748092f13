"""Contents of the wheel in site-packages, which Spark's executors import from and all other packages share."""

import subprocess
import zipfile
from pathlib import Path

from tests.cluster.choosing import PROJECT


def packaged(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_only_our_two_packages_go_into_site_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in packaged(wheel)}
    (information,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops == {"pulsar_sidecar", "pyspark_jobs", information}


def test_everything_that_is_kept_in_the_packages_is_in_the_wheel(wheel: Path) -> None:
    kept = subprocess.run(
        ["git", "ls-files", "service/pulsar_sidecar", "pyspark_jobs"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    present = {name.removeprefix("service/") for name in kept if (PROJECT / name).exists()}
    assert "pulsar_sidecar/py.typed" in present
    assert present - packaged(wheel) == set()
