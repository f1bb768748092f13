"""Progress: a bar on a terminal, a few lines elsewhere, nothing before there is something to show."""

import io
import sys

import pytest
from pulsar_sidecar.cli.output import ProgressBar

from tests.fakes.clock import FakeClock


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_there_are_a_few_lines() -> None:
    lines: list[str] = []
    with ProgressBar("sending", lines.append) as bar:
        for done in range(0, 100_001, 100):
            bar.report(done, 100_000)
    assert lines[0] == "sending: 0 of 100,000"
    assert lines[-1] == "sending: 100,000 of 100,000"
    assert len(lines) == 21


def test_the_rate_and_the_time_that_is_left_are_shown_where_they_are_asked_for() -> None:
    lines: list[str] = []
    clock = FakeClock()
    with ProgressBar("deleting", lines.append, with_rate=True, clock=clock) as bar:
        bar.report(0, 100)
        clock.advance_ms(2_000)
        bar.report(50, 100)
    assert lines == ["deleting: 0 of 100", "deleting: 50 of 100, 25.0/s, 2 s left"]


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    lines: list[str] = []
    with ProgressBar("sending", lines.append, with_rate=True) as bar:
        bar.report(3, 10)
        bar.report(10, 10)
    assert lines == []
    assert "sending" in terminal.getvalue()
    assert "/s" in terminal.getvalue()
    assert "10/10" in terminal.getvalue()


def test_empty_work_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with ProgressBar("sending", lines.append) as bar:
        bar.report(0, 0)
    with ProgressBar("sending", lines.append):
        pass
    assert lines == []
    assert capsys.readouterr() == ("", "")
