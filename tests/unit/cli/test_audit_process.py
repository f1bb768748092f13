"""``python -m pulsar_sidecar audit ...`` as a scheduler runs it: 2 means findings, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest
from pulsar_sidecar.__main__ import programs

from tests.unit.audit.audited_clusters import full_cluster
from tests.unit.audit.options import PLACES
from tests.unit.cli.running import Terminal


def ended(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pulsar_sidecar", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("audit", "run", "--nonsense"), "--nonsense"),
        (("audit", "run", "--dump", "d"), "--listing"),
        (("audit", "run", *PLACES, "--max-share", "2"), "--max-share"),
        (("audit", "show"), "AUDIT"),
        (("audit", "shwo", "a"), "Did you mean 'show'"),
        (("--output", "nonsense", "audit", "show", "a"), "--output"),
    ],
)
def test_wrong_usage_ends_with_1_and_a_hint(terminal: Terminal, wrong: tuple[str, ...], message: str) -> None:
    ran = terminal.run(*wrong)
    assert (ran.code, ran.out) == (1, "")
    assert "Usage: pulsar-sidecar" in ran.err
    assert message in ran.err


def test_wrong_usage_ends_a_process_with_1() -> None:
    process = ended("audit", "run", "--nonsense")
    assert (process.returncode, process.stdout) == (1, "")
    assert "--nonsense" in process.stderr


@pytest.fixture
def real(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch, programs())


def test_audit_exits_with_0_or_2(tmp_path: Path, real: Terminal) -> None:
    cluster = full_cluster()
    places = ("--dump", cluster.dump(tmp_path / "dump"), "--listing", cluster.listing(tmp_path / "listing"))
    assert real.run("audit", "run", *map(str, places), "--output", f"{tmp_path}/clean").code == 0
    assert real.run("audit", "show", f"{tmp_path}/clean").code == 0
    cluster.ledger(50)
    places = ("--dump", cluster.dump(tmp_path / "dump-2"), "--listing", cluster.listing(tmp_path / "listing-2"))
    assert ended("audit", "run", *places, "--output", tmp_path / "findings").returncode == 2
    assert real.run("audit", "show", f"{tmp_path}/findings").code == 2


def test_inputs_that_are_missing_or_contradict_each_other_end_with_1(tmp_path: Path, real: Terminal) -> None:
    cluster = full_cluster()
    dump, listing = cluster.dump(tmp_path / "dump"), cluster.listing(tmp_path / "listing")
    cluster.listing_changes = {"instance_id": "another cluster's"}
    another = cluster.listing(tmp_path / "another")
    output = tmp_path / "audit"
    for inputs in ((tmp_path / "nowhere", listing), (dump, another)):
        ran = real.run("audit", "run", "--dump", f"{inputs[0]}", "--listing", f"{inputs[1]}", "--output", f"{output}")
        assert (ran.code, ran.out) == (1, ""), inputs
        assert ran.err, inputs
        assert not output.exists()
    ran = real.run("audit", "show", f"{output}")
    assert (ran.code, ran.out) == (1, "")
