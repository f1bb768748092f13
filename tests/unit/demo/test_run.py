"""The demo's last lines, and when it claims that it kept its promise."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.demo.auditing import AuditResult, Findings
from pulsar_sidecar.demo.cancelling import CancellationResult
from pulsar_sidecar.demo.deleting import DeletionResult, Drain, WatchedDeletion
from pulsar_sidecar.demo.run import DemoReport
from pulsar_sidecar.model.ids import LedgerId

_ACT = DeletionResult(100, 801, 21, frozenset({LedgerId(5)}), frozenset(), 0)
_CLEAN = replace(_ACT, accepted_at_first=100, orphans=frozenset())
_AUDIT = AuditResult(0, 9, 1, 1, 0, Findings(0, 0, 0), True, Path("report.html"))
_CANCELLING = CancellationResult(60, 30, {"PERSISTED": 30}, 0, 0, 0)
_REPORT = DemoReport(
    _ACT,
    _CLEAN,
    Drain(801, 801, 0, 9.5),
    WatchedDeletion(34, 0, 31.0),
    _AUDIT,
    _CANCELLING,
    123.0,
    "http://127.0.0.1:8750",
    "http://b:8080",
)


def test_a_demo_in_which_everything_was_mended_kept_its_promise() -> None:
    assert _REPORT.succeeded


@pytest.mark.parametrize(
    "changed",
    [
        {"two_phase": _ACT},
        {"two_phase": replace(_CLEAN, topics_left=1)},
        {"drain": Drain(801, 800, 1, 9.5)},
        {"watched": WatchedDeletion(34, 1, 120.0)},
        {"audit": replace(_AUDIT, leaked=2)},
        {"audit": replace(_AUDIT, left=1)},
        {"audit": replace(_AUDIT, spark_agrees=False)},
        {"audit": replace(_AUDIT, at_end=Findings(1, 0, 0))},
        {"audit": replace(_AUDIT, at_end=Findings(0, 1, 0))},
        {"audit": replace(_AUDIT, at_end=Findings(0, 0, 1))},
        {"audit": replace(_AUDIT, first_deletable=1)},
    ],
)
def test_leftovers_or_differences_break_the_promise(changed: dict[str, Any]) -> None:
    assert not replace(_REPORT, **changed).succeeded


def test_the_last_lines_report_what_became_of_unreported_leaks() -> None:
    assert "of 34 ledgers that leaked while the sidecar only watched 0 were left 31 s later" in "\n".join(
        _REPORT.lines()
    )


def test_the_last_lines_have_the_audits_figures() -> None:
    text = "\n".join(_REPORT.lines())
    assert "the audit's plan had 9 ledgers, 1 of the 1 that leaked; applied, 0 of them are left" in text
    assert "the Spark job found the same plan and the same rows of all four tables" in text
    assert "a last audit is clean: 0 unreferenced, 0 missing and 0 unattributed ledgers" in text
    assert "report.html" in text
    other = "\n".join(replace(_REPORT, audit=replace(_AUDIT, spark_agrees=False)).lines())
    assert "OTHER rows" in other
    dirty = "\n".join(replace(_REPORT, audit=replace(_AUDIT, at_end=Findings(0, 2, 0))).lines())
    assert "NOT CLEAN: 0 unreferenced, 2 missing" in dirty
