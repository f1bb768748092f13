"""The manifests in ``deploy`` as a Kubernetes judges them that would run them; it keeps none of them."""

import subprocess

import pytest

from tests.cluster.choosing import PROJECT

_SECONDS = 120
DIRECTORIES = ("duplicates", "spark")
"""``spark/operator`` is of a kind that only a cluster with that operator knows."""


@pytest.mark.kubernetes
@pytest.mark.parametrize("directory", DIRECTORIES)
def test_the_api_server_would_take_them(directory: str) -> None:
    applied = subprocess.run(
        ["kubectl", "apply", "--dry-run=server", "--kustomize", str(PROJECT / "deploy" / directory)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert applied.returncode == 0, applied.stderr
    assert applied.stdout
    assert all(line.endswith("(server dry run)") for line in applied.stdout.splitlines())
