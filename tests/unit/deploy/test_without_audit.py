"""`pip install pulsar-sidecar` is enough for the service; commands on tables name the missing extra."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.choosing import PROJECT
from tests.matrix.environments import locked

DO_WITHOUT = {"serve", "tear_demo_down", "verify_stored", "publish_file", "run_doctor"}
HINT = "pip install 'pulsar-sidecar[audit]'"
CALL_EACH = """
import dataclasses, json, pulsar_sidecar.bootstrap.app
from pulsar_sidecar.__main__ import programs
answers = {}
for field in dataclasses.fields(found := programs()):
    try:
        getattr(found, field.name)()
    except Exception as error:
        answers[field.name] = str(error)
print(json.dumps(answers))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


def installed(lock: str) -> Iterator[str]:
    for name in re.findall(r"^([\w.-]+)==", locked(lock), re.MULTILINE):
        try:
            importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another system or version of Python
        yield name


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The interpreter with only the project and the packages of `deploy/requirements.lock`."""
    site = tmp_path_factory.mktemp("site")
    tops = {"pulsar_sidecar": PROJECT / "service" / "pulsar_sidecar", "pyspark_jobs": PROJECT / "pyspark_jobs"}
    for name in (*installed("requirements.lock"), "pulsar-sidecar"):
        found = importlib.metadata.distribution(name)
        names = {file.parts[0] for file in found.files or ()}
        tops |= {top: Path(str(found.locate_file(top))) for top in names if not top.startswith((".", "_editable"))}
    for top, place in tops.items():
        (site / top).symlink_to(place)

    def run_alone(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(site), "PYTHONNOUSERSITE": "1"}
        return subprocess.run(
            [sys.executable, "-S", *arguments],
            capture_output=True, text=True, check=False, timeout=120, env=environment, cwd=site,
        )  # fmt: skip

    return run_alone


def test_all_but_what_works_on_tables_starts_without_arrow(run: Run) -> None:
    answers = json.loads(run("-c", CALL_EACH).stdout)
    assert "pip install 'pulsar-sidecar[demo]'" in answers.pop("run_demo")
    assert {name for name, text in answers.items() if HINT not in text} == DO_WITHOUT
    assert all("missing" in answers[name] for name in DO_WITHOUT), answers


def test_a_command_without_arrow_names_the_next_step(run: Run) -> None:
    assert run("-m", "pulsar_sidecar", "serve", "--help").returncode == 0
    refused = run("-m", "pulsar_sidecar", "audit", "show", "nowhere")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert HINT in refused.stderr
