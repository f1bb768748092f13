"""``--version`` shows what is installed."""

from importlib.metadata import version

from tests.unit.cli.running import Terminal


def test_the_version_is_the_installed_one(terminal: Terminal) -> None:
    ran = terminal.run("--version")
    assert (ran.code, ran.out) == (0, f"{version('pulsar-sidecar')}\n")
