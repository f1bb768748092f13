"""Branch coverage of the code that `make mutants` mutates, by the tests that it runs: what decides, and the codecs.

Of everything it costs as much processor time again (`make coverage`); of these files during these tests some 20 s.
"""

import json
import shutil
import tomllib
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

PROJECT = Path(__file__).parents[2]


class DecidingCoverage:
    """A plugin that measures while one of these tests runs; each process leaves its data in ``directory``."""

    def __init__(self, directory: Path, *, is_worker: bool) -> None:
        mutmut = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["mutmut"]
        self._tests = tuple(mutmut["pytest_add_cli_args_test_selection"])
        self._directory = directory / "branches"
        if not is_worker:  # workers start later
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory.mkdir(parents=True)
        self._coverage = Coverage(
            data_file=str(self._directory / "data"),
            data_suffix=True,
            branch=True,
            config_file=False,
            include=[f"*/{file.removeprefix('src/')}" for file in mutmut["only_mutate"]],
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not item.nodeid.startswith(self._tests) or item.get_closest_marker("hypothesis"):
            return (yield)
        self._coverage.start()
        try:
            return (yield)
        finally:
            self._coverage.stop()

    def pytest_sessionfinish(self) -> None:
        self._coverage.save()

    def branches(self) -> tuple[int, int]:
        """Return how many branches all processes have taken, and how many there are."""
        report = self._directory / "report.json"
        self._coverage.combine([str(self._directory)])
        self._coverage.json_report(outfile=str(report))
        totals = json.loads(report.read_text())["totals"]
        return totals["covered_branches"], totals["num_branches"]
