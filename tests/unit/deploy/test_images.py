"""The images' own programs: the entry point of Spark's pods, and HEALTHCHECK."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from tests.cluster.choosing import PROJECT
from tests.fakes.http_servers import Answer, http_server

POD = {
    "SPARK_HOME": "/opt/spark", "JAVA_HOME": "/java", "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.7",
    "SPARK_CONF_DIR": "/conf",
    "SPARK_JAVA_OPT_10": "-Dlast=a b", "SPARK_JAVA_OPT_2": "-Dthird", "SPARK_JAVA_OPT_0": "-Dfirst",
    "SPARK_EXECUTOR_MEMORY": "1024m", "SPARK_DRIVER_URL": "spark://driver:1", "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "2", "SPARK_APPLICATION_ID": "app", "SPARK_EXECUTOR_POD_IP": "10.0.0.8",
    "SPARK_RESOURCE_PROFILE_ID": "0", "SPARK_EXECUTOR_POD_NAME": "exec-3",
}  # fmt: skip


@pytest.fixture(scope="module")
def entrypoint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("entrypoint", PROJECT / "deploy" / "spark" / "entrypoint.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_driver_is_submitted_in_its_own_pod(entrypoint: ModuleType) -> None:
    found = entrypoint.command(["driver", "--properties-file", "p", "local:///job.py", "--dump", "a b"], POD)
    assert found == [
        "/opt/spark/bin/spark-submit", "--conf", "spark.driver.bindAddress=10.0.0.7", "--deploy-mode", "client",
        "--properties-file", "p", "local:///job.py", "--dump", "a b",
    ]  # fmt: skip


def test_an_executor_gets_its_options_in_their_order(entrypoint: ModuleType) -> None:
    found = entrypoint.command(["executor"], POD)
    assert found[:8] == [
        "/java/bin/java", "-Dfirst", "-Dthird", "-Dlast=a b", "-Xms1024m", "-Xmx1024m",
        "-cp", "/conf:/opt/spark/jars/*",
    ]  # fmt: skip
    assert found[8] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    options = dict(zip(found[9::2], found[10::2], strict=True))
    assert options["--driver-url"] == "spark://driver:1"
    assert options["--podName"] == "exec-3"
    assert len(options) == 7


def test_an_executor_without_a_variable_is_an_error(entrypoint: ModuleType) -> None:
    with pytest.raises(KeyError, match="SPARK_EXECUTOR_ID"):
        entrypoint.command(["executor"], {name: text for name, text in POD.items() if name != "SPARK_EXECUTOR_ID"})


def test_any_other_command_is_run_as_it_is(entrypoint: ModuleType) -> None:
    assert entrypoint.command(["spark-submit", "--version"], {}) == ["spark-submit", "--version"]


@contextmanager
def served(status: int) -> Iterator[str]:
    with http_server(lambda arrived: Answer(status if arrived.target == "/livez" else 404)) as server:
        yield server.address.rpartition(":")[2]


def health(listen: str) -> int:
    program = [sys.executable, PROJECT / "deploy" / "healthcheck.py"]
    environment = {**os.environ, "PULSAR_SIDECAR_LISTEN": listen}
    return subprocess.run(program, env=environment, capture_output=True, check=False, timeout=60).returncode


def test_a_container_is_healthy_while_its_sidecar_lives() -> None:
    with served(200) as port:
        assert health(f"127.0.0.1:{port}") == 0
        assert health(f"0.0.0.0:{port}") == 0
    assert health(f"0.0.0.0:{port}") == 1
    with served(503) as port:
        assert health(f"127.0.0.1:{port}") == 1


def test_images_leave_out_what_starts_clusters_and_name_what_has_it(tmp_path: Path) -> None:
    left_out = {
        PROJECT / line
        for line in (PROJECT / ".dockerignore").read_text().splitlines()
        if line.startswith("service/pulsar_sidecar/")
    }
    assert all(path.exists() for path in left_out)
    package = PROJECT / "service" / "pulsar_sidecar"
    shutil.copytree(
        package, tmp_path / "pulsar_sidecar",
        ignore=lambda at, names: [name for name in names if Path(at, name) in left_out or name == "__pycache__"],
    )  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pulsar_sidecar", *arguments],
            capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )  # fmt: skip

    for arguments in (("local-cluster", "up"), ("demo",), ("demo", "down")):
        refused = run(*arguments)
        assert refused.returncode == 1
        assert re.fullmatch(rf"{arguments[0]} is not part of this image;.*'pulsar-sidecar\[demo\]'\n", refused.stderr)
    started = run("serve", "--help")
    assert (started.returncode, started.stderr) == (0, "")
