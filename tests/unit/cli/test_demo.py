"""The command line of the demonstration; the story itself is played on a real cluster."""

from pathlib import Path

from pulsar_sidecar.local_cluster.spec import Role

from tests.unit.cli.running import Terminal


def test_alone_it_runs_and_a_failure_is_reported(terminal: Terminal) -> None:
    ran = terminal.run("demo", "--topics", "7", "--metadata-store", "etcd")
    assert terminal.played == [(None, 7, Role.ETCD)]
    assert ran.code == 1
    assert "no cluster was started" in ran.err


def test_down_ends_it(terminal: Terminal, tmp_path: Path) -> None:
    assert terminal.run("demo", "down", "--dir", str(tmp_path)).code == 0
    assert terminal.struck == [tmp_path]
    assert terminal.played == []
