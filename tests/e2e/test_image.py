"""The sidecar's image: it is built from the working tree, and the program in it starts as a user who is not root."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.choosing import PROJECT

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
