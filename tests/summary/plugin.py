"""``pytest --part FILE``: leaves there how the tests went."""

import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.summary.deciding import DecidingCoverage
from tests.summary.part import Failure, Part

_REASON_CHARACTERS = 500
REPLAY = "to replay this round"
"""A section of a report with the command that runs its test again."""
_began = pytest.StashKey[float]()
_deciding = pytest.StashKey[DecidingCoverage]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", type=Path, default=None, help="where to leave how the tests went, for the summary")
    parser.addoption("--branches", action="store_true", help="measure branch coverage of what decides, for the summary")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_began] = time.monotonic()
    if config.getoption("--branches"):
        path = config.getoption("--part")
        if path is None:
            raise pytest.UsageError("--branches needs --part FILE, beside which it leaves what it measured")
        config.stash[_deciding] = DecidingCoverage(path.parent, is_worker=hasattr(config, "workerinput"))
        config.pluginmanager.register(config.stash[_deciding])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    path = config.getoption("--part")
    if path is not None and not hasattr(config, "workerinput"):
        part = part_of(terminalreporter.stats, time.monotonic() - config.stash[_began])
        deciding = config.stash.get(_deciding, None)
        replace(part, branches=deciding and deciding.branches()).save(path)


def part_of(stats: dict[str, list[Any]], elapsed_seconds: float) -> Part:
    """Return the result; ``stats`` are pytest's reports by outcome, and an error in a fixture's end is a failure."""
    failed = [report for outcome in ("failed", "error") for report in stats.get(outcome, ())]
    failed_tests = {report.nodeid for report in failed}
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    return Part(
        passed=sum(report.nodeid not in failed_tests for report in stats.get("passed", ())),
        failures=tuple(Failure(report.nodeid, reason_of(report), again(report)) for report in failed),
        skipped=dict(Counter(_skip_reason(report) for report in stats.get("skipped", ()))),
        second_tries=tuple(report.nodeid for report in stats.get("rerun", ())),
        seconds=dict(seconds),
        elapsed_seconds=elapsed_seconds,
    )


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the failed test's error, with the expected and the actual value."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip()[:_REASON_CHARACTERS]


def again(report: pytest.TestReport | pytest.CollectReport) -> str:
    return dict(report.sections).get(REPLAY, f".venv/bin/python -m pytest '{report.nodeid}'")


def _skip_reason(report: pytest.TestReport) -> str:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return reason.removeprefix("Skipped: ")
