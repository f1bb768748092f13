"""Executors in processes of their own need the wheel and its Python packages, and nothing else of this project."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
from pulsar_sidecar.features.audit.requests import AuditRequest
from pulsar_sidecar.reports.documents import EXIT_FINDINGS

from tests.made_audits import comparable
from tests.spark.random_clusters import random_clusters
from tests.unit.audit.audited_clusters import NO_WAITING, embedded

_PROJECT = Path(__file__).parents[2]
_SECONDS = 300
_CLUSTERS = 5
_QUICK_JAVA = "spark.executor.extraJavaOptions=-XX:TieredStopAtLevel=1"
# As `NO_WAITING`.
_POLICY = (
    *("--look-window-hours", "0", "--max-share", "1"),
    *("--bookkeeper-exclusive-to-cluster", "--offload-exclusive-to-cluster"),
)


def python_without_this_project(directory: Path) -> Path:
    """The locked packages alone: without `site` no ``.pth`` file leads to the working tree."""
    script = directory / "python"
    packages = sysconfig.get_path("purelib")
    script.write_text(f'#!/bin/sh\nPYTHONPATH={packages}:${{PYTHONPATH:-}} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    asked = [str(script), "-c", "import numpy, pyarrow, pyspark; import pulsar_sidecar"]
    ran = subprocess.run(asked, env={}, capture_output=True, text=True, check=False, cwd=directory, timeout=_SECONDS)
    assert "No module named 'pulsar_sidecar'" in ran.stderr
    return script


def test_two_executors_with_nothing_but_the_wheel(wheel: Path, tmp_path: Path) -> None:
    cluster, expected, audit = random_clusters(_CLUSTERS), tmp_path / "embedded", tmp_path / "audit"
    dump, listing = cluster.dump(tmp_path / "dump"), cluster.listing(tmp_path / "listing")
    offloaded = cluster.offloaded(tmp_path / "offloaded")
    embedded(AuditRequest(dump, listing, expected, None, NO_WAITING, offloaded=offloaded))
    python = str(python_without_this_project(tmp_path))
    places = ("--dump", str(dump), "--listing", str(listing), "--output", str(audit), "--offloaded", str(offloaded))
    environment = {
        "PATH": os.environ["PATH"],
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER": "local-cluster[2,1,1024]",
        "SPARK_SUBMIT_OPTIONS": f"--conf spark.ui.enabled=false --conf spark.executor.memory=1g --conf {_QUICK_JAVA}",
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "SIDECAR_WHEEL": str(wheel),
        **{name: value for name, value in os.environ.items() if name == "JAVA_HOME"},
    }
    script = str(_PROJECT / "deploy" / "spark" / "submit.sh")
    ran = subprocess.run(
        ["sh", script, *places, *_POLICY],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert ran.returncode == EXIT_FINDINGS, (ran.stdout, ran.stderr[-3000:])
    assert comparable(audit) == comparable(expected)
