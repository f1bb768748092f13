"""The services of ``docker-compose.yml`` with tests' settings, started and ended by testcontainers.

Invariant: after ``composed`` none of their containers, networks or volumes is left.
"""

import json
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "docker-compose.yml"
PROJECT_NAME = "pulsar-sidecar-under-test"
"""Project name, other than the file's own, so that tests never end a person's services."""

_SECONDS = 300


class Compose:
    """``docker compose`` with the files of a project."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def run(self, *arguments: str, exit_codes: Collection[int] = (0,)) -> str:
        """Run a command of compose and return its output; an unexpected exit code fails the test."""
        command = (*self._command, *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert answer.returncode in exit_codes, f"{' '.join(command)}: {answer.stderr[-2_000:]}"
        return answer.stdout


@contextmanager
def composed(
    project: Path, directory: Path, services: Sequence[str], changes: Mapping[str, Any], *, build: bool = False
) -> Iterator[Compose]:
    """Start services with their dependencies, and wait until they are healthy.

    Args:
        project: checkout.
        directory: directory for a file with the changes.
        services: services to start; all without a profile if empty.
        changes: changes of ``docker-compose.yml`` by service.
        build: True to build images first.
    """
    from testcontainers.compose import DockerCompose  # a slow import that only containers need

    directory.mkdir(parents=True, exist_ok=True)
    override = directory / "changes.json"
    override.write_text(json.dumps({"name": PROJECT_NAME, "services": dict(changes)}))
    files = [str(project / FILE), str(override)]
    started = DockerCompose(project, files, services=list(services) or None, wait=True, build=build)
    # `down` of named services would leave their network.
    ended = DockerCompose(project, files, profiles=["*"])
    try:
        started.start()
        yield Compose(started.docker_compose_command())
    finally:
        ended.stop()


def with_settings(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return a member's change for settings, including those that the image's configuration file does not name."""
    return {"environment": {f"PULSAR_PREFIX_{name}": value for name, value in settings.items()}}
