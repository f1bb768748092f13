"""``deduplication duplicates``: arguments become a request, findings a sentence and an exit code."""

from pathlib import Path

import pytest
from pulsar_sidecar.features.duplicates.requests import DuplicatesOutcome, DuplicatesRequest
from pulsar_sidecar.model.errors import InvalidInputError

from tests.unit.cli.running import Terminal

_ASKED = ("deduplication", "duplicates", "--extract", "extracts/monday", "--output", "found")


@pytest.mark.parametrize("exit_code", [0, 1, 2])
def test_the_conclusion_is_shown_with_its_exit_code(terminal: Terminal, exit_code: int) -> None:
    terminal.concluded = DuplicatesOutcome(exit_code, "findings: 2 duplicate", "see found/report.html")
    ran = terminal.run(*_ASKED)
    assert (ran.code, ran.out) == (exit_code, "findings: 2 duplicate\nnext: see found/report.html\n")
    assert terminal.asked == [DuplicatesRequest(Path("extracts/monday"), Path("found"))]


def test_an_incomplete_extract_is_an_error(terminal: Terminal) -> None:
    terminal.concluded = InvalidInputError("extracts/monday has no readable manifest.json")
    ran = terminal.run(*_ASKED)
    assert (ran.code, ran.out) == (1, "")
    assert "has no readable manifest.json" in ran.err
