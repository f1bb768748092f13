"""The sidecar's image: built from the working tree, it runs as a user who is not root, and lists what is in it."""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.choosing import PROJECT
from tests.cluster.patience import until

_BUILD_SECONDS = 800
_SECONDS = 120


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    name = "pulsar-sidecar:under-test"
    build = ["docker", "build", "--quiet", "--file", "deploy/Dockerfile", "--tag", name, "."]
    built = subprocess.run(build, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=_BUILD_SECONDS)
    assert built.returncode == 0, built.stderr[-2_000:]
    yield name
    subprocess.run(["docker", "image", "rm", "--force", name], check=True, capture_output=True, timeout=_SECONDS)


def inside(image: str, program: str, *arguments: str) -> str:
    run = ["docker", "run", "--rm", "--entrypoint", program, image, *arguments]
    return subprocess.run(run, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout


@pytest.mark.containers
def test_the_program_starts(image: str) -> None:
    assert "Usage: pulsar-sidecar serve" in inside(image, "pulsar-sidecar", "serve", "--help")


@pytest.mark.containers
def test_it_is_not_root(image: str) -> None:
    assert inside(image, "id", "-u").strip() == "10001"


@pytest.mark.containers
def test_it_lists_what_is_in_it(image: str) -> None:
    documents = "/opt/pulsar-sidecar/share/doc/pulsar-sidecar"
    listed = json.loads(inside(image, "cat", f"{documents}/sbom.cdx.json"))
    names = {component["name"] for component in listed["components"]}
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["metadata"]["component"]["name"] == "pulsar-sidecar"
    assert names > {"fastapi", "pulsar-client"}
    assert "pyarrow" not in names
    notice = inside(image, "cat", f"{documents}/NOTICE")
    assert {name for name in names if f"\n{name}\n" not in notice} <= {"pulsar-sidecar"}


@pytest.mark.containers
def test_it_is_healthy_while_its_cluster_is_away(image: str) -> None:
    store = "PULSAR_SIDECAR_METADATA_STORE_URL=zk:127.0.0.1:1"
    start = ["docker", "run", "--detach", "--rm", "--read-only", "--tmpfs", "/tmp", "--env", store, image]
    container = subprocess.run(start, capture_output=True, text=True, check=True, timeout=_SECONDS).stdout.strip()
    try:
        look = ["docker", "inspect", "--format", "{{.State.Health.Status}}", container]
        until(
            lambda: subprocess.run(look, capture_output=True, text=True, check=True).stdout.strip() == "healthy",
            "the container is healthy",
            seconds=_SECONDS,
        )
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=True, capture_output=True, timeout=_SECONDS)
