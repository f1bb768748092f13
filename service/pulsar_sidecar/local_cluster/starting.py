"""Starting members side by side and waiting until each is ready.

Invariant: a member that was refused for a moment (a port it must keep is still taken, a dead bookie's session still has
its name), or that will never serve for a reason that another start may not have, is started again until its time is
over; any other failure ends the start of all, with the last lines of that member's log. A member is only started while
its ports are free, so that nobody else can answer its probe. A probe answers False for "not yet" and never raises for a
member that does not answer.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path

import requests

from pulsar_sidecar.local_cluster.processes import LOOPBACK, end, exit_code, is_free, is_running, spawn
from pulsar_sidecar.local_cluster.spec import MemberFailedError, Role
from pulsar_sidecar.local_cluster.state import Member
from pulsar_sidecar.model.clocks import Clock

_POLL_SECONDS = 0.1
_LAST_LINES = 40
_PAUSE_SECONDS = 1.0
_SOCKET_TIMEOUT_SECONDS = 2.0
_HTTP_TIMEOUT_SECONDS = (2.0, 15.0)
_LOST_PORT = "found a port taken; see who listens on {ports}"
_PASSING_REFUSALS = {
    "BindException": _LOST_PORT,
    "Address already in use": _LOST_PORT,
    "Failed to start org.apache.bookkeeper.http server": _LOST_PORT,
    "LockBusyException": "its name is still held by the session of the process before it",
    "NodeExists for /ledgers/underreplication": "another bookie laid out the store in the same moment",
    "BadVersion for /ledgers/underreplication": "another bookie laid out the store in the same moment",
    "Failed to load topic within timeout": "a topic did not load; two of its threads may wait for each other for ever",
}
"""What a member may write once and not again when it is started a little later, and what that means.

A topic that does not load within a minute: in brokers of 4.0, one thread that initialises `Schema` and another that
initialises a class that implements it can wait for each other. Every thread that asks for a topic's policies then waits
for them, and the broker serves nothing until it is started anew.
"""


@dataclass(frozen=True, slots=True)
class Launcher:
    """What starting needs from its surroundings.

    Attributes:
        directory: the cluster's directory; a member's log is ``<name>/<name>.log`` in it.
        started: told of every member as soon as its process exists; called from several threads, as is ``progress``.
        timeout_seconds: how long one member may take.
        give_up: set when one member failed, so that nobody waits for the others.
    """

    clock: Clock
    directory: Path
    started: Callable[[Member], None]
    progress: Callable[[str], None]
    timeout_seconds: float
    give_up: threading.Event = field(default_factory=threading.Event)


def start_members(launcher: Launcher, members: Sequence[Member]) -> None:
    """Start members side by side and wait until all are ready.

    Raises:
        MemberFailedError: a member ended, found its port taken for too long, or was not ready in time.
    """
    with ThreadPoolExecutor(max(1, len(members)), thread_name_prefix="start-member") as pool:
        try:
            starts = [pool.submit(_start, launcher, member) for member in members]
            for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                start.result()
        except BaseException:  # such as Ctrl-C while waiting
            launcher.give_up.set()
            raise


def _start(launcher: Launcher, member: Member) -> None:
    deadline = launcher.clock.monotonic_seconds() + launcher.timeout_seconds
    while refusal := _refusal_of(launcher, member, deadline):
        launcher.progress(f"{member.name} is started again: {refusal}")
        _pause(launcher, member, _PAUSE_SECONDS)
        if launcher.clock.monotonic_seconds() > deadline:
            raise MemberFailedError(f"{member.name} {refusal}")
    launcher.progress(f"{member.name} is ready")


def _refusal_of(launcher: Launcher, member: Member, deadline: float) -> str | None:
    """Try once: None when the member is ready; else why it is worth another try, and its process is gone."""
    if not all(is_free(port) for port in member.ports.values()):
        return _LOST_PORT.format(ports=dict(member.ports))
    log = log_path(launcher.directory, member.name)
    log_start = log.stat().st_size if log.exists() else 0
    process = spawn(member.argv, environment(), log.parent, log)
    launcher.started(replace(member, process=process))
    while True:
        running = is_running(process)
        ready = running and is_ready(member)
        output = log.read_bytes()[log_start:].decode(errors="replace")
        for sign, meaning in _PASSING_REFUSALS.items():
            if sign in output:
                end([process], launcher.clock)
                return meaning.format(ports=dict(member.ports))
        if ready:
            return None
        if not running:
            raise _failure(member, log, f"ended with exit code {exit_code(process)} before it was ready")
        if launcher.clock.monotonic_seconds() > deadline:
            raise _failure(member, log, f"was not ready within {launcher.timeout_seconds:.0f} seconds")
        _pause(launcher, member, _POLL_SECONDS)


def _pause(launcher: Launcher, member: Member, seconds: float) -> None:
    if launcher.clock.wait_seconds(seconds, launcher.give_up):
        raise MemberFailedError(f"{member.name} was still starting when another member failed")


def _failure(member: Member, log: Path, what: str) -> MemberFailedError:
    return MemberFailedError(f"{member.name} {what}; the end of its log:\n{last_lines(log)}")


def log_path(cluster_directory: Path, name: str) -> Path:
    return cluster_directory / name / f"{name}.log"


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """The end of a log, or a note that there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return f"(no log at {log})"


def environment() -> Mapping[str, str]:
    """The environment members get: this one, without options meant for other Java programs."""
    unwanted = {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def is_ready(member: Member) -> bool:
    """Whether a member serves: ZooKeeper's ``srvr``, the bookie's ``is_ready``, the broker's ``health``.

    A broker's health check produces and consumes a message, so it covers the way through the bookies.
    """
    match member.role:
        case Role.ZOOKEEPER:
            return "Mode:" in four_letter_word(member.ports["client"], "srvr")
        case Role.BOOKIE:
            return _answers_ok(f"http://{LOOPBACK}:{member.ports['http']}/api/v1/bookie/is_ready")
        case Role.BROKER:
            return _answers_ok(f"http://{LOOPBACK}:{member.ports['http']}/admin/v2/brokers/health")


def four_letter_word(port: int, command: str) -> str:
    """What ZooKeeper answers to one of its four-letter commands; empty if it does not answer."""
    try:
        with socket.create_connection((LOOPBACK, port), _SOCKET_TIMEOUT_SECONDS) as connection:
            connection.sendall(command.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode(errors="replace")
    except OSError:
        return ""


def _answers_ok(url: str) -> bool:
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=_HTTP_TIMEOUT_SECONDS, allow_redirects=False).ok
        except requests.RequestException:
            return False
