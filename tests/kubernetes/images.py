"""Images of pods: built from the working tree and copied into the node, or of a registry from which nodes pull them."""

import os
import re
import subprocess
from collections.abc import Sequence

import pulsar_sidecar

from tests.cluster.choosing import PROJECT
from tests.kubernetes.node import load_images

REGISTRY_VARIABLE = "PULSAR_SIDECAR_TEST_REGISTRY"
_TAG = "under-test"
_BUILDS = {
    "sidecar": ("pulsar-sidecar", "--file", "deploy/Dockerfile", "."),
    "audit": (
        "pulsar-sidecar-audit",
        "--file",
        "deploy/Dockerfile",
        "--build-arg",
        "LOCK=requirements-audit.lock",
        ".",
    ),
    "spark": (
        "pulsar-sidecar-spark",
        "--file",
        "deploy/spark/Dockerfile",
        "--build-arg",
        f"SIDECAR_IMAGE=pulsar-sidecar-audit:{_TAG}",
        ".",
    ),
}
_HANDED_ON = re.compile("(pip_.*|(https?|no)_proxy)", re.IGNORECASE)
"""Environment variables that package clients may need to reach a registry."""


class Images:
    """The images of one run: `provide` what pods will need."""

    def __init__(self) -> None:
        registry = os.environ.get(REGISTRY_VARIABLE)
        self._is_built_here = registry is None
        self._prefix = "" if registry is None else f"{registry.rstrip('/')}/"
        self._tag = _TAG if registry is None else pulsar_sidecar.__version__

    @property
    def values(self) -> dict[str, object]:
        """The chart's ``images``."""
        return {role: {"repository": self._prefix + build[0], "tag": self._tag} for role, build in _BUILDS.items()}

    def provide(self, *roles: str) -> None:
        """Have the node know the project's images for these roles."""
        if self._is_built_here:
            names = [_built(*_BUILDS[role]) for role in roles]
            load_images(names)

    def provide_from_outside(self, name: str) -> None:
        """Have the node know an image that is not the project's."""
        if self._is_built_here:
            listing = ["docker", "image", "ls", "--quiet", name]
            if not subprocess.run(listing, stdout=subprocess.PIPE, check=True).stdout:
                subprocess.run(["docker", "pull", "--quiet", name], check=True)
            load_images([name])


def _built(repository: str, *arguments: str) -> str:
    name = f"{repository}:{_TAG}"
    handed_on = [word for each in os.environ if _HANDED_ON.fullmatch(each) for word in ("--build-arg", each)]
    command: Sequence[str] = ("docker", "build", "--quiet", "--network", "host", *handed_on, "--tag", name, *arguments)
    built = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"{name} cannot be built: {built.stderr[-2_000:]}"
    return name
