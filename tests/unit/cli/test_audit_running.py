"""``audit run``: what a person types becomes a request, what it came to becomes an exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from pulsar_sidecar.audit.policies import HOUR_MS, Policy
from pulsar_sidecar.audit.sources.requests import Audited, AuditRequest
from pulsar_sidecar.cli.groups.audit_running import add_run
from pulsar_sidecar.cli.lazy import LazyGroup
from pulsar_sidecar.model.errors import InvalidInputError
from typer.testing import CliRunner

PLACES = ("--dump", "d", "--listing", "l", "--output", "o")

EXCLUSIVE = ("--bookkeeper-exclusive-to-cluster",)
FOREIGN = ("--foreign-subtree", "/hbase", "--foreign-subtree", "/kafka")


class Engine:
    def __init__(self, code: int = 0, error: Exception | None = None) -> None:
        self.requests: list[AuditRequest] = []
        self._code = code
        self._error = error

    def __call__(self, request: AuditRequest, say: Callable[[str], None]) -> Audited:
        self.requests.append(request)
        say("working")
        if self._error is not None:
            raise self._error
        return Audited(self._code, "clean: nothing found", "nothing to do")


def ran(engine: Engine, *arguments: str) -> Any:
    app = typer.Typer(cls=LazyGroup, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(lambda: None)
    add_run(app, engine)
    return CliRunner().invoke(app, ["run", *arguments])


def test_an_audit_as_it_is_usually_asked_for() -> None:
    engine = Engine()
    result = ran(engine, *PLACES)
    assert (result.exit_code, result.stdout) == (0, "clean: nothing found\nnext: nothing to do\n")
    assert result.stderr == "working\n"
    assert engine.requests == [AuditRequest(Path("d"), Path("l"), Path("o"))]


def test_every_option() -> None:
    engine = Engine(code=2)
    options = ("--previous", "p", "--min-age-hours", "1.5", "--look-window-hours", "2", "--max-share", "0.3")
    result = ran(engine, *PLACES, *options, "--max-shrink", "0.4", "--allow-young", "--exact", *FOREIGN, *EXCLUSIVE)
    assert result.exit_code == 2
    policy = Policy(
        round(1.5 * HOUR_MS),
        2 * HOUR_MS,
        0.3,
        0.4,
        allow_young=True,
        foreign_subtrees=("/hbase", "/kafka"),
        bookkeeper_exclusive=True,
    )
    assert engine.requests == [AuditRequest(Path("d"), Path("l"), Path("o"), Path("p"), policy, exact=True)]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_exit_code_is_the_audits(code: int) -> None:
    assert ran(Engine(code), *PLACES).exit_code == code


def test_inputs_that_make_no_audit_end_with_1_and_nothing_on_standard_output() -> None:
    result = ran(Engine(error=InvalidInputError("two clusters")), *PLACES)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "error: two clusters" in result.stderr


@pytest.mark.parametrize("wrong", [(), ("--max-share", "2"), ("--min-age-hours", "-1")])
def test_wrong_usage_ends_with_1_because_2_says_that_there_are_findings(wrong: tuple[str, ...]) -> None:
    engine = Engine()
    places = PLACES if wrong else PLACES[:-2]
    result = ran(engine, *places, *wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "Usage: " in result.stderr
    assert engine.requests == []
