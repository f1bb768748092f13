"""``audit run``: arguments become a request, the outcome an exit code."""

from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest
from pulsar_sidecar.__main__ import programs
from pulsar_sidecar.cli.connecting import Programs
from pulsar_sidecar.features.audit.requests import AuditRequest, AuditResult

from tests.unit.audit.options import EVERY_OPTION, PLACES, POLICY_OF_EVERY_OPTION
from tests.unit.cli.running import Ran, Terminal


def ran(terminal: Terminal, *arguments: str, code: int = 0) -> Ran:
    terminal.audited = AuditResult(code, "clean: nothing found", "nothing to do")
    return terminal.run("audit", "run", *arguments)


@pytest.mark.parametrize("program", [field.name for field in fields(Programs) if field.name != "serve"])
def test_every_program_is_found_when_it_is_called(program: str) -> None:
    module, function = getattr(programs(), program).args
    assert callable(getattr(import_module(f"pulsar_sidecar.bootstrap.{module}"), function))


def test_an_audit_as_it_is_usually_asked_for(terminal: Terminal) -> None:
    result = ran(terminal, *PLACES)
    assert (result.code, result.out) == (0, "clean: nothing found\nnext: nothing to do\n")
    assert result.err == "working\n"
    assert terminal.asked == [AuditRequest(Path("d"), Path("l"), Path("o"))]


def test_every_option(terminal: Terminal) -> None:
    result = ran(terminal, *EVERY_OPTION, code=2)
    assert result.code == 2
    request = AuditRequest(Path("d"), Path("l"), Path("o"), Path("p"), POLICY_OF_EVERY_OPTION, True, Path("t"))
    assert terminal.asked == [request]
