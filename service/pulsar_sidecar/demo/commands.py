"""The commands that a user would type, in processes of their own, in a directory that keeps what they make."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from pulsar_sidecar.local_cluster.software import find_java
from pulsar_sidecar.model.errors import TemporaryError

_JOB: Final = "pyspark_jobs.orphan_ledgers.job"
_FINDINGS: Final = 2
_COMMAND_SECONDS: Final = 900


class Commands:
    """Runs commands and says which."""

    def __init__(self, directory: Path, say: Callable[[str], None]) -> None:
        self._say = say
        self._directory = directory

    def run(self, *arguments: str) -> str:
        """A command of the sidecar's; what it wrote to standard output.

        Raises:
            TemporaryError: it failed; findings are no failure.
        """
        self._say(f"   $ pulsar-sidecar {' '.join(arguments)}")
        return self._sidecar(*arguments)

    def shown(self, audit: str, *more: str) -> dict[str, Any]:
        """What ``audit show`` tells of an audit, as JSON."""
        return dict(json.loads(self._sidecar("audit", "show", audit, "--format", "json", *more)))

    def on_spark(self, *options: str) -> bool:
        """The Spark job with these options; false if there is no PySpark."""
        if find_spec("pyspark") is None or find_spec("pyspark_jobs.orphan_ledgers") is None or find_spec(_JOB) is None:
            return False
        java_home = str(Path(find_java().executable).resolve().parents[1])
        self._start([sys.executable, "-m", _JOB, *options], os.environ | {"JAVA_HOME": java_home})
        return True

    def path(self, name: str) -> Path:
        """Where something lies that a command made."""
        return self._directory / name

    def _sidecar(self, *arguments: str) -> str:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}
        return self._start([sys.executable, "-m", "pulsar_sidecar", *arguments], inherited)

    def _start(self, command: list[str], environment: Mapping[str, str]) -> str:
        self._directory.mkdir(exist_ok=True)
        what = " ".join(command[2:5])
        try:
            ended = subprocess.run(  # noqa: S603 - our own command line, without a shell
                command,
                cwd=self._directory,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=_COMMAND_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise TemporaryError(f"{what} took longer than {_COMMAND_SECONDS} s; look at the machine's load") from error
        if ended.returncode not in (0, _FINDINGS):
            raise TemporaryError(f"{what} ended with {ended.returncode}: {ended.stderr[-2000:]}")
        return ended.stdout
