"""Rounds, seeds and counts of fault tests.

A test with the fixture ``rng`` runs once for each round, with an rng that depends on the session's seed, the test
and the round alone. A round that once failed is kept as ``@pytest.mark.replays("<seed>", <round>)``: it runs always,
and alone where one round is requested.

    pytest tests/faults --fault-rounds 20 --fault-seed 4711

One with ``tally`` counts its faults; when it has passed, the oracles are consulted, and the ends of
the records are counted too.
"""

import os
import random
import secrets
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from pulsar_sidecar.local_cluster.spec import DEFAULT_VERSION
from pulsar_sidecar.model.clocks import SystemClock

from tests.cluster.deletion import Scene
from tests.faults.tally import Line, Tally
from tests.summary.plugin import REPLAY

_tally = pytest.StashKey[Tally]()
_failed = pytest.StashKey[bool]()


@dataclass(frozen=True, slots=True)
class Round:
    """A round, which draws the same random numbers whenever it runs."""

    seed: str
    number: int

    def rng(self, test: str) -> random.Random:
        return random.Random(f"{self.seed} {test} {self.number}")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("faults")
    group.addoption("--fault-rounds", type=int, default=1, help="how often each fault test runs (1: a short cut)")
    group.addoption("--fault-seed", default=None, help="seed of the fault tests' rng; random unless given")
    group.addoption("--namespace-topics", type=int, default=100, help="in the namespace whose deletion is killed")
    group.addoption("--fault-report", type=Path, default=None, help="where the counts are written, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "replays(seed, round): a round that once failed, which runs always")
    seed = config.getoption("--fault-seed") or ("ci" if os.environ.get("CI") else secrets.token_hex(4))
    config.stash[_tally] = Tally(seed)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "fault_round" in metafunc.fixturenames:
        kept = [Round(*mark.args) for mark in metafunc.definition.iter_markers("replays")]
        seed = metafunc.config.stash[_tally].seed
        count = metafunc.config.getoption("--fault-rounds")
        rounds = [] if kept and count == 1 else [Round(seed, number) for number in range(count)]
        names = [f"{each.seed}.{each.number}" for each in kept] + [f"round-{each.number}" for each in rounds]
        metafunc.parametrize("fault_round", kept + rounds, ids=names)


@pytest.fixture(scope="session")
def fault_rounds(request: pytest.FixtureRequest) -> int:
    """Return the requested number of rounds, 1 in a short run."""
    return int(request.config.getoption("--fault-rounds"))


@pytest.fixture(scope="session")
def full_run(fault_rounds: int) -> None:
    """Skip tests that take too long for a short run."""
    if fault_rounds == 1:
        pytest.skip("takes longer than one round's short cut may: make test-faults runs it")


@pytest.fixture
def rng(request: pytest.FixtureRequest, fault_round: Round) -> random.Random:
    return fault_round.rng(_test_of(request.node))


@pytest.fixture
def tally(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Line]:
    """Return the test's counts; once it has passed, consult the oracles and count their findings."""
    line = line_of(request)
    yield line
    if not request.node.stash.get(_failed, False):
        running = scene.sidecars.running
        scene.oracles.check(running[0] if running else scene.sidecars.shared())
        line.ended(scene.oracles.accepted, scene.oracles.outcomes)


def line_of(request: pytest.FixtureRequest) -> Line:
    """Return the counts of a test that consults the oracles itself."""
    return request.config.stash[_tally].line(_test_of(request.node))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show how to replay a round that failed, and count it."""
    report = yield
    names = getattr(item, "fixturenames", ())
    if not {"tally", "rng", "fault_rounds"}.isdisjoint(names):
        line = item.config.stash[_tally].line(_test_of(item))
        if report.when == "call" and not report.skipped:
            line.rounds += 1
            item.stash[_failed] = report.failed
        if report.failed:
            replay = _replay_command(item)
            report.sections.append((REPLAY, replay))
            line.violations.append(f"{replay}\n{report.longreprtext.strip().splitlines()[-1]}")
        if report.skipped and isinstance(report.longrepr, tuple):
            line.skipped = report.longrepr[2].removeprefix("Skipped: ")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tally, report = config.stash[_tally], config.getoption("--fault-report")
    if report is not None and tally.lines:
        terminalreporter.section(f"faults, seed {tally.seed}")
        for line in tally.summary():
            terminalreporter.line(line)
        tally.save(report, _about())


def _about() -> dict[str, str]:
    now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
    return {
        "date": now.date().isoformat(),
        "pulsar": DEFAULT_VERSION,
        "pulsar-client": version("pulsar-client"),
        "kazoo": version("kazoo"),
    }


def _test_of(item: pytest.Item) -> str:
    """Return ``path::name`` with parameters but without the round."""
    parameters = dict(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    parameters.pop("fault_round", None)
    name = item.nodeid.partition("[")[0]
    return f"{name}[{'-'.join(str(each) for each in parameters.values())}]" if parameters else name


def _replay_command(item: pytest.Item) -> str:
    command = f".venv/bin/python -m pytest '{item.nodeid}'"
    callspec = getattr(item, "callspec", None)
    found = callspec.params.get("fault_round") if callspec else None
    rounds = item.config.getoption("--fault-rounds")
    return command if found is None else f"{command} --fault-seed {found.seed} --fault-rounds {rounds}"
