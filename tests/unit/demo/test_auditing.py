"""The audit's act on made-up output of the commands: when engines agree, and when a last audit is clean."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.bootstrap.audit_review import show_audit
from pulsar_sidecar.demo.auditing import AuditResult, AuditScenario, Findings, differences, findings_of
from pulsar_sidecar.features.audit.requests import FindingsTable, RowsRequest
from pulsar_sidecar.local_cluster.state import ClusterAddresses
from pulsar_sidecar.model.ids import LedgerId

from tests.fakes.clock import FakeClock
from tests.unit.audit.findings import missing, orphan, unattributed, usage
from tests.unit.audit.written import write_audit

ALL = ("orphans", "missing", "unattributed", "usage")
LEAKED = frozenset({LedgerId(4)})
NONE: frozenset[LedgerId] = frozenset()
CLEAN = Findings(0, 0, 0)
ADDRESSES = ClusterAddresses(
    ("http://b:8080",), "pulsar://b:6650", "zk:z:2181", (), None, "4.0.8", "local", members={}, member_urls={}
)


class FakeCommands:
    """`demo.auditing.Commands`, with audits that were written before: those of each last look in turn."""

    def __init__(self, directory: Path) -> None:
        self.ran: list[tuple[str, ...]] = []
        self._directory = directory

    def write(self, name: str, **tables: Sequence[dict[str, Any]]) -> None:
        write_audit(self.path(name), **tables)

    def run(self, *arguments: str) -> str:
        self.ran.append(arguments)
        return "it is so"

    def shown(self, audit: str, *more: str) -> dict[str, Any]:
        assert all(f"--{name}" in more for name in ALL)
        wanted = tuple(map(FindingsTable, ALL))
        return dict(show_audit(self.path(audit), wanted, RowsRequest(limit=1_000_000)).document)

    def run_on_spark(self, *options: str) -> None:
        self.ran.append(("spark", *options))

    def path(self, name: str) -> Path:
        return self._directory / name

    def looks(self) -> int:
        return sum(command[:2] == ("audit", "run") and "last" in command[3] for command in self.ran)


@pytest.fixture
def commands(tmp_path: Path) -> FakeCommands:
    """Ledger 4 leaked; it is found twice, by both engines."""
    commands = FakeCommands(tmp_path)
    commands.write("first", orphans=[orphan(4, standing="first-look")])
    for name in ("second", "second-on-spark"):
        commands.write(name, orphans=[orphan(4)], usage=[usage("persistent://a/b/c")])
    return commands


def played(commands: FakeCommands, dangling: frozenset[LedgerId] = NONE) -> tuple[AuditResult, str]:
    lines: list[str] = []
    story = AuditScenario(commands, ADDRESSES, FakeClock(), lines.append, lambda ledger_ids: NONE)
    return story.run(LEAKED, dangling), "\n".join(lines)


def test_leaks_are_found_by_both_engines_and_applied(commands: FakeCommands) -> None:
    commands.write("last-1")
    act, text = played(commands)
    assert act == AuditResult(0, 1, 1, 1, 0, CLEAN, True, commands.path("second") / "report.html")
    assert act.succeeded
    assert "its answer is the same" in text
    assert [command[:2] for command in commands.ran if command[0] == "audit"] == [
        ("audit", "run"), ("audit", "run"), ("audit", "explain"), ("audit", "apply"), ("audit", "run"),
    ]  # fmt: skip


def test_transient_finding_is_audited_again(commands: FakeCommands) -> None:
    commands.write("last-1", missing=[missing(7, kind="compacted")])
    commands.write("last-2", orphans=[orphan(8, standing="first-look")])
    commands.write("last-3")
    act, text = played(commands)
    assert (act.at_end, commands.looks()) == (CLEAN, 3)
    assert "0 unreferenced, 1 missing and 0 unattributed ledgers" in text


@pytest.mark.parametrize(
    ("tables", "at_end"),
    [
        ({"orphans": [orphan(8)]}, Findings(1, 0, 0)),
        ({"missing": [missing(7), missing(7, referenced_by="/another")]}, Findings(0, 1, 0)),
        ({"unattributed": [unattributed(9)]}, Findings(0, 0, 1)),
    ],
)
def test_remaining_findings_fail_the_demo(commands: FakeCommands, tables: dict[str, Any], at_end: Findings) -> None:
    for look in range(1, 9):
        commands.write(f"last-{look}", **tables)
    act, _ = played(commands)
    assert (act.at_end, act.succeeded) == (at_end, False)
    assert 2 < commands.looks() < 9


def test_references_that_dangled_before_are_not_counted(commands: FakeCommands) -> None:
    commands.write("last-1", missing=[missing(7)])
    act, _ = played(commands, dangling=frozenset({LedgerId(7)}))
    assert act.succeeded
    assert commands.looks() == 1


def test_another_answer_of_sparks_breaks_the_promise(tmp_path: Path) -> None:
    commands = FakeCommands(tmp_path)
    for name in ("first", "second", "last-1"):
        commands.write(name)
    commands.write("second-on-spark", usage=[usage("persistent://a/b/c")])
    act, text = played(commands)
    assert (act.spark_agrees, act.succeeded) == (False, False)
    assert "ANOTHER one: usage" in text


FOUND: dict[str, list[dict[str, Any]]] = {
    "orphans": [orphan(1)],
    "missing": [missing(2)],
    "unattributed": [unattributed(3)],
    "usage": [usage("persistent://a/b/c"), usage("persistent://a/b/d")],
}


@pytest.mark.parametrize(
    ("changed", "differing"),
    [
        ({}, []),
        ({"orphans": [orphan(1, cause="unknown")]}, ["orphans"]),
        ({"orphans": [orphan(1), orphan(5)]}, ["plan", "orphans"]),
        ({"missing": []}, ["missing"]),
        ({"unattributed": [unattributed(3, reason="other")]}, ["unattributed"]),
        ({"usage": [usage("persistent://a/b/c")]}, ["usage"]),
        ({"usage": FOUND["usage"][::-1]}, []),
    ],
)
def test_engines_are_compared_by_plan_and_all_four_tables(
    tmp_path: Path, changed: dict[str, Any], differing: list[str]
) -> None:
    commands = FakeCommands(tmp_path)
    commands.write("embedded", **FOUND)
    commands.write("spark", **(FOUND | changed))
    options = [f"--{table}" for table in ALL]
    assert differences(commands.shown("embedded", *options), commands.shown("spark", *options)) == differing
    assert findings_of(commands.shown("embedded", *options), NONE) == Findings(1, 1, 1)
