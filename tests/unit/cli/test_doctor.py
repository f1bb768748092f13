"""``pulsar-sidecar doctor``: lines or JSON, and the exit code."""

import json

import pytest
from pulsar_sidecar.features.doctor.findings import Finding, Level
from pulsar_sidecar.model.errors import InvalidInputError

from tests.unit.cli.running import Terminal

GOOD = Finding(Level.OK, "clocks", "they are right")
OFF = Finding(Level.OFF, "settings", "deleting is off", "set x=true")
BAD = Finding(Level.FAILED, "metadata store", "it is away", "start it")


@pytest.mark.parametrize(("findings", "code"), [([GOOD, OFF], 0), ([GOOD, OFF, BAD], 2)])
def test_doctor_prints_each_finding_and_fails_if_one_failed(
    terminal: Terminal, findings: list[Finding], code: int
) -> None:
    terminal.examined = findings
    ran = terminal.run("doctor", "--metadata-store-url", "zk:z:2181", "--no-topic-two-phase-deletion-enabled")
    assert ran.code == code
    lines = ran.out.splitlines()
    assert len(lines) == len(findings) + 1
    assert lines[1].split() == ["off", "settings", "deleting", "is", "off;", "set", "x=true"]
    assert lines[-1] == f"1 ok, 1 off, 0 warning, {len(findings) - 2} failed"
    ((flags, config),) = terminal.looked
    assert (flags["metadata_store_url"], flags["topic_two_phase_deletion_enabled"]) == ("zk:z:2181", "false")
    assert config is None


def test_as_json(terminal: Terminal) -> None:
    terminal.examined = [GOOD, BAD]
    ran = terminal.run("--output", "json", "doctor")
    assert json.loads(ran.out) == [
        {"level": "ok", "subject": "clocks", "finding": "they are right", "remedy": None},
        {"level": "failed", "subject": "metadata store", "finding": "it is away", "remedy": "start it"},
    ]
    assert ran.code == 2


def test_invalid_setting_exits_with_1(terminal: Terminal) -> None:
    terminal.examined = InvalidInputError("metadataStoreUrl is missing")
    ran = terminal.run("doctor")
    assert (ran.code, ran.out) == (1, "")
    assert "metadataStoreUrl is missing" in ran.err
