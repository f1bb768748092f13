"""The services of ``docker-compose.yml``, with settings that only tests have, started and ended by testcontainers.

Invariant: when ``composed`` has ended, no container, network or volume of them is left.
"""

import json
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILE = "docker-compose.yml"
PROJECT_NAME = "pulsar-sidecar-under-test"
"""Not the file's own: what a person has started by it is no test's to end."""

_SECONDS = 300


class Compose:
    """``docker compose`` with the files of one project."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def run(self, *arguments: str, exit_codes: Collection[int] = (0,)) -> str:
        """What a command of compose wrote; another exit code than these fails the test."""
        command = (*self._command, *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
        assert answer.returncode in exit_codes, f"{' '.join(command)}: {answer.stderr[-2_000:]}"
        return answer.stdout


@contextmanager
def composed(
    project: Path, directory: Path, services: Sequence[str], changes: Mapping[str, Any], *, build: bool = False
) -> Iterator[Compose]:
    """Start services and what they depend on, and wait until they are healthy.

    Args:
        project: the checkout.
        directory: where a file with the changes may be written.
        services: all that have no profile, if none is named.
        changes: by service, what ``docker-compose.yml`` is changed by.
        build: whether to build images first.
    """
    from testcontainers.compose import DockerCompose  # a second of imports that only this choice needs

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
    """A change of a member: settings, whether the image's configuration file names them or not."""
    return {"environment": {f"PULSAR_PREFIX_{name}": value for name, value in settings.items()}}
