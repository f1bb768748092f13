"""Pulsar's own pulsar-admin and Java admin client, as one process that tests drive."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.admin_clients.comparing import Outcome
from tests.cluster.java_programs import QUICK, JavaProgram, java_program, quiet_log_configuration

PROGRAM = Path(__file__).with_name("AdminCommands.java")


@dataclass(frozen=True, slots=True)
class Caller:
    """An address, and the token for it."""

    url: str
    token: str


class JavaAdmin:
    def __init__(self, program: JavaProgram) -> None:
        self._program = program

    def command(self, caller: Caller, arguments: list[str]) -> Outcome:
        """Run ``pulsar-admin ARGUMENTS``."""
        answer = self._call(caller, command=arguments)
        return Outcome(answer["exitCode"], answer["output"], answer["errors"])

    def deletion(self, caller: Caller, what: str, name: str, *, force: bool = False) -> tuple[str, int]:
        """Call the admin client (`AdminCommands.deletion`); return the exception's class or "", and the status."""
        answer = self._call(caller, deletion=what, name=name, force=force)
        return answer["error"], answer["status"]

    def _call(self, caller: Caller, **call: object) -> dict[str, Any]:
        self._program.write_line(json.dumps({"url": caller.url, "token": caller.token, **call}))
        return json.loads(self._program.read())


@contextmanager
def java_admin(version: str, directory: Path) -> Iterator[JavaAdmin]:
    """Yield the admin client of that version of Pulsar."""
    configuration = quiet_log_configuration(directory)
    options = ["-Xmx256m", *QUICK, f"-Dlog4j.configurationFile={configuration}"]
    with java_program(PROGRAM, version, options, [], directory / "java-admin.log") as program:
        yield JavaAdmin(program)
