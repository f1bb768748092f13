"""The demo's commands in processes of their own: findings are no failure, and everything else that is not 0 is one."""

from pathlib import Path

import pytest
from pulsar_sidecar.demo.auditing import Commands
from pulsar_sidecar.model.errors import TemporaryError

from tests.unit.audit.findings import orphan
from tests.unit.audit.written import write_audit


def test_an_audit_with_findings_is_shown(tmp_path: Path) -> None:
    write_audit(tmp_path / "second", [orphan(4)])
    shown = Commands(tmp_path, lambda text: None).shown("second", "--orphans")
    assert [row["ledger_id"] for row in shown["orphans"]["rows"]] == [4]


def test_a_command_that_fails_or_is_used_wrongly_ends_the_act(tmp_path: Path) -> None:
    lines: list[str] = []
    commands = Commands(tmp_path, lines.append)
    with pytest.raises(TemporaryError, match=r"audit run ended with 1[\s\S]*--nonsense"):
        commands.run("audit", "run", "--nonsense")
    assert lines == ["   $ pulsar-sidecar audit run --nonsense"]
