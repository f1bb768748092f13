"""Processes that outlive the Python objects that started them, their locks, and their ports.

Invariants: a signal goes only to a process whose start time is the recorded one, never to another process that got its
id meanwhile. A port that is handed out was free a moment ago and lies below the range of ports for outgoing
connections, so a restarted member finds it still free.
"""

import fcntl
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pulsar_sidecar.local_cluster.spec import cache_directory
from pulsar_sidecar.model.clocks import Clock, attempts
from pulsar_sidecar.model.errors import TemporaryError

LOOPBACK = "127.0.0.1"
_FIRST_PORT = 15_000
_PORT_COUNT = 17_000
_POLL_SECONDS = 0.05
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, never a later one with the same id; ``started`` is compared, never interpreted."""

    pid: int
    started: str


def spawn(argv: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path) -> ProcessIdentity:
    """Start a process in its own session, and append its output to ``log``.

    In its own session Ctrl-C at the terminal does not reach it.
    """
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - the argument list is ours
            list(argv), cwd=directory, env=dict(environment), start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    _children[child.pid] = child
    return identify(child.pid)


def identify(pid: int) -> ProcessIdentity:
    """Return the process that has this id now, even a foreign one."""
    return ProcessIdentity(pid, _start_time(pid) or "ended at once")


def is_running(process: ProcessIdentity) -> bool:
    """Return True if this very process still runs; a zombie does not."""
    exit_code(process)
    return _start_time(process.pid) == process.started


def exit_code(process: ProcessIdentity) -> int | None:
    """Return the exit code of a child process; None while it runs, or if another process started it."""
    child = _children.get(process.pid)
    return None if child is None else child.poll()


def send_signal(process: ProcessIdentity, number: signal.Signals) -> bool:
    """Send a signal to this very process; return False if it no longer runs."""
    if not is_running(process):
        return False
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return False
    return True


def end(processes: Sequence[ProcessIdentity], clock: Clock, timeout_seconds: float = 20.0) -> None:
    """Kill processes and wait until the system has released them.

    Raises:
        TemporaryError: a process still exists after ``timeout_seconds``.
    """
    for process in processes:
        send_signal(process, signal.SIGKILL)
    for process in processes:
        if not wait_until_gone(process, clock, timeout_seconds):
            raise TemporaryError(f"process {process.pid} did not end; check why, and run `local-cluster down` again")


def wait_until_gone(process: ProcessIdentity, clock: Clock, timeout_seconds: float) -> bool:
    """Wait for a process to end; return False if it still runs after ``timeout_seconds``."""
    return any(not is_running(process) for _ in attempts(clock, timeout_seconds, _POLL_SECONDS))


def _start_time(pid: int) -> str | None:
    """Return field 22 of ``/proc/<pid>/stat``, or the start time of ``ps`` where there is no ``/proc``.

    A killed process becomes a zombie at once, but its other threads may hold its ports a little longer.
    """
    if not Path("/proc/self/stat").exists():
        return _start_time_from_ps(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()
    threads, started = int(fields[16]), fields[18]
    ended = state == "X" or (state == "Z" and threads <= 1)
    return None if ended else started


def _start_time_from_ps(pid: int) -> str | None:
    command = ["/bin/ps", "-o", "state=,lstart=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed program
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the lock of an existing file or directory, after any other process has released it.

    The system releases the lock when its holder ends in any way.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_free(port: int) -> bool:
    """Return True if the port is free for a listener on the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> tuple[int, ...]:
    """Return the next free ports of a rotation that all clusters of the cache share.

    So two clusters that start at the same time get different ports, and no cluster gets the port of a stopped member
    before the rotation is over.
    """
    counter = cache_directory() / "next-port"
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.touch()
    with exclusive(counter):
        first = int(counter.read_text() or secrets.randbelow(_PORT_COUNT))
        ports = (_FIRST_PORT + (first + step) % _PORT_COUNT for step in range(_PORT_COUNT))
        chosen = tuple(islice(filter(is_free, ports), count))
        if len(chosen) < count:
            raise TemporaryError(f"found only {len(chosen)} of {count} free ports on {LOOPBACK}; stop something")
        counter.write_text(str(chosen[-1] + 1 - _FIRST_PORT))
    return chosen
