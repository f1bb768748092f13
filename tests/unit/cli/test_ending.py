"""Exit of a command when the other side is down or hangs, or its pipe is closed: the documented code, soon."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pulsar_sidecar.features.ledger_deletion.results import DeadLetter
from pulsar_sidecar.model.clocks import SystemClock

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import served

ROOT = Path(__file__).parents[3]
CLOCK = SystemClock()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PULSAR_")}


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Shells start background jobs so, and children inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "pulsar_sidecar", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def port_of(listening: socket.socket) -> int:
    port: int = listening.getsockname()[1]
    return port


def asked_by(request: bytes, hung: socket.socket) -> socket.socket:
    """Return the connection that sent the request: probes of another test's server come to a port that was its own."""
    hung.settimeout(60)
    while True:
        connection, _ = hung.accept()
        connection.settimeout(60)
        if request in connection.recv(1000):
            return connection
        connection.close()


def interrupted_while_it_waits(
    hung: socket.socket, process: subprocess.Popen[str], request: bytes = b"User-Agent: python-requests/"
) -> tuple[str, str]:
    """Return the output of a command that was interrupted while it waited for a response, and soon ended.

    Its server accepts a connection and never responds, like a stopped process.
    """
    with asked_by(request, hung):
        begin = CLOCK.monotonic_seconds()
        process.send_signal(signal.SIGINT)
        printed = process.communicate(timeout=60)
        assert CLOCK.monotonic_seconds() - begin < 5, "a second, on a machine with nothing else to do"
    return printed


def test_a_command_that_waits_for_a_hung_zookeeper_ends_soon_after_it_is_interrupted(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hung,
        command(
            "metadata", "dump", "--source", f"zk://127.0.0.1:{port_of(hung)}",
            "--cursors-from", f"zk:127.0.0.1:{port_of(hung)}", "--output", str(tmp_path / "out"),
        ) as process,
    ):  # fmt: skip
        _, output = interrupted_while_it_waits(hung, process, request=bytes(4))  # its protocol version
    assert process.returncode != 0
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger-deletion", "status"),
        ("topics", "delete", "a", "b", "c"),
        ("namespaces", "delete", "a/b"),
        ("topics", "delete-shadow", "a"),
    ],
    ids=" ".join,
)
def test_a_command_that_waits_for_a_hung_sidecar_ends_when_it_is_interrupted(arguments: tuple[str, ...]) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as hung,
        command("--admin-url", f"http://127.0.0.1:{port_of(hung)}", *arguments) as process,
    ):
        out, err = interrupted_while_it_waits(hung, process)
    assert (process.returncode, out) == (130, ""), err
    assert "Traceback" not in err


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_trusted_certificate_that_cannot_be_used_is_reported_in_a_sentence(
    terminal: Terminal, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    ran = terminal.run("--tls-trust-cert-path", str(file), "ledger-deletion", "status")
    assert ran.code == 1
    assert str(file) in ran.err


def test_a_command_whose_output_is_read_no_further_does_its_work() -> None:
    with served(FakeDeletionService()) as server, command("--admin-url", server.url, "ledger-deletion", "status") as it:
        assert it.stdout is not None
        assert it.stderr is not None
        it.stdout.close()
        output = it.stderr.read()
        assert it.wait(60) == 0, output
    assert output == ""


def test_a_command_whose_remarks_are_not_read_does_its_work() -> None:
    service = FakeDeletionService()
    with served(service) as server, command("--admin-url", server.url, "topics", "delete", "a", "b") as it:
        assert it.stderr is not None
        it.stderr.close()
        assert it.wait(60) == 0
    assert len(service.calls("delete_topic")) == 2


def test_names_that_the_terminal_cannot_write_are_escaped() -> None:
    service = FakeDeletionService()
    service.dead = [DeadLetter("1:1:0", None, "", "é", 1, 5)]
    environment_of_old = {**environment(), "PYTHONIOENCODING": "ascii"}
    with served(service) as server:
        ran = subprocess.run(
            [sys.executable, "-m", "pulsar_sidecar", "--admin-url", server.url, "ledger-deletion", "dlq", "list"],
            capture_output=True, text=True, cwd=ROOT, env=environment_of_old, check=True, timeout=60,
        )  # fmt: skip
    assert r"\xe9" in ran.stdout


def test_a_token_that_travels_in_clear_is_a_warning(terminal: Terminal) -> None:
    arguments = ("--request-timeout", "0.001", "--auth-params", "token:abc", "ledger-deletion", "status")
    for url in ("http://192.0.2.1:8750", "HTTP://192.0.2.1:8750"):
        assert "the token is sent unencrypted to 192.0.2.1" in terminal.run("--admin-url", url, *arguments).err
    for url in ("http://127.0.0.1:1", "https://192.0.2.1:8750"):
        assert "in clear" not in terminal.run("--admin-url", url, *arguments).err
