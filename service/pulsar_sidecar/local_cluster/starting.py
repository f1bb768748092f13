"""Starting members side by side and waiting until each is ready.

Invariant: a member that lost the race for a port is planned again with other ports; one that was refused for a moment
(a port it must keep is still taken, a dead bookie's session still has its name), or that will never serve for a reason
that another start may not have, is started again until its time is over; any other failure ends the start of all, with
the last lines of that member's log. "Ready" needs the probe and that it is this member's process that listens: the
probe alone could be answered by whoever took the port. A probe answers False for "not yet" and never raises for a
member that does not answer.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

import requests

from pulsar_sidecar.local_cluster.failures import MemberFailedError
from pulsar_sidecar.local_cluster.ports import LOOPBACK, listens_on
from pulsar_sidecar.local_cluster.processes import end, exit_code, is_running, spawn
from pulsar_sidecar.local_cluster.spec import Role
from pulsar_sidecar.local_cluster.state import Member
from pulsar_sidecar.model.clocks import Clock

_POLL_SECONDS = 0.1
_PORT_TRIES = 4
_LAST_LINES = 40
_PAUSE_SECONDS = 1.0
_SOCKET_TIMEOUT_SECONDS = 2.0
_HTTP_TIMEOUT_SECONDS = (2.0, 15.0)
_LOST_RACES = ("BindException", "Address already in use", "Failed to start org.apache.bookkeeper.http server")
_PASSING_REFUSALS = {
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
        clock: tells when to give up.
        directory: the cluster's directory; a member's log is ``<name>/<name>.log`` in it.
        started: told of every member as soon as its process exists; called from several threads.
        is_ready: the probe.
        progress: told what became ready; called from several threads.
        timeout_seconds: how long one member may take.
        give_up: set when one member failed, so that nobody waits for the others.
    """

    clock: Clock
    directory: Path
    started: Callable[[Member], None]
    is_ready: Callable[[Member], bool]
    progress: Callable[[str], None]
    timeout_seconds: float
    give_up: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A started member and where in its log this start begins."""

    member: Member
    log: Path
    log_start: int

    def output(self) -> str:
        return self.log.read_bytes()[self.log_start :].decode(errors="replace")

    def lost_a_port(self) -> bool:
        return _lost_a_port(self.output())

    def refusal(self) -> str | None:
        """Why another try may succeed; None when nothing says so."""
        output = self.output()
        if _lost_a_port(output):
            return f"found a port taken: {dict(self.member.ports)}; see who listens there"
        return next((meaning for sign, meaning in _PASSING_REFUSALS.items() if sign in output), None)


def _lost_a_port(output: str) -> bool:
    return any(sign in output for sign in _LOST_RACES)


def start_members(
    launcher: Launcher, members: Sequence[Member], replan: Callable[[str], Member] | None
) -> tuple[Member, ...]:
    """Start members side by side and wait until all are ready.

    Args:
        launcher: the surroundings.
        members: what to start.
        replan: gives a member other ports after a lost race; None if its ports must stay, as for a restart.

    Returns:
        the members as they run, in the given order.

    Raises:
        MemberFailedError: a member ended, lost its port for good, or was not ready in time.
    """
    if not members:
        return ()
    with ThreadPoolExecutor(len(members), thread_name_prefix="start-member") as pool:
        try:
            starts = [pool.submit(_start_or_give_up, launcher, member, replan) for member in members]
            wait(starts)
        except BaseException:  # such as Ctrl-C while waiting
            launcher.give_up.set()
            raise
    failures = [failure for start in starts if (failure := start.exception()) is not None]
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, _GaveUpError)), failures[0])
    return tuple(start.result() for start in starts)


class _GaveUpError(MemberFailedError):
    """This member was still starting when another one failed."""


def _start_or_give_up(launcher: Launcher, member: Member, replan: Callable[[str], Member] | None) -> Member:
    try:
        return _start(launcher, member, replan)
    except BaseException:
        launcher.give_up.set()
        raise


def _start(launcher: Launcher, member: Member, replan: Callable[[str], Member] | None) -> Member:
    deadline = launcher.clock.monotonic_seconds() + launcher.timeout_seconds
    lost_races = 0
    while True:
        attempt = _launch(launcher, member)
        refusal = _wait_until_ready(launcher, attempt, deadline)
        if refusal is None:
            launcher.progress(f"{member.name} is ready")
            return attempt.member
        if replan is not None and attempt.lost_a_port():
            lost_races += 1
            if lost_races == _PORT_TRIES:
                raise MemberFailedError(f"{member.name} {refusal}")
            launcher.progress(f"{member.name} found a port taken and is started again on another")
            member = replan(member.name)
        else:
            launcher.progress(f"{member.name} is started again: {refusal}")
            _pause(launcher, member, _PAUSE_SECONDS)
            if launcher.clock.monotonic_seconds() > deadline:
                raise MemberFailedError(f"{member.name} {refusal}")


def _wait_until_ready(launcher: Launcher, attempt: _Attempt, deadline: float) -> str | None:
    """None when ready; else why it is worth another try, and the process is gone."""
    member, process = attempt.member, attempt.member.process
    assert process is not None
    while True:
        running = is_running(process)
        ready = running and launcher.is_ready(member) and listens_on(process.pid, member.ports.values())
        refusal = attempt.refusal()
        if refusal is not None:
            end([process], launcher.clock)
            return refusal
        if ready:
            return None
        if not running:
            raise _failure(attempt, f"ended with exit code {exit_code(process)} before it was ready")
        if launcher.clock.monotonic_seconds() > deadline:
            raise _failure(attempt, f"was not ready within {launcher.timeout_seconds:.0f} seconds")
        _pause(launcher, member, _POLL_SECONDS)


def _pause(launcher: Launcher, member: Member, seconds: float) -> None:
    if launcher.clock.wait_seconds(seconds, launcher.give_up):
        raise _GaveUpError(f"{member.name} was still starting when another member failed")


def _launch(launcher: Launcher, member: Member) -> _Attempt:
    log = log_path(launcher.directory, member.name)
    log_start = log.stat().st_size if log.exists() else 0
    process = spawn(member.argv, environment(), log.parent, log)
    running = replace(member, process=process)
    launcher.started(running)
    return _Attempt(running, log, log_start)


def log_path(cluster_directory: Path, name: str) -> Path:
    """Where a member's output goes."""
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


def _failure(attempt: _Attempt, what: str) -> MemberFailedError:
    return MemberFailedError(f"{attempt.member.name} {what}; the end of its log:\n{last_lines(attempt.log)}")


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
        case _:
            assert_never(member.role)


def four_letter_word(port: int, command: str) -> str:
    """What ZooKeeper answers to one of its four-letter commands; empty if it does not answer."""
    try:
        with socket.create_connection((LOOPBACK, port), _SOCKET_TIMEOUT_SECONDS) as connection:
            connection.sendall(command.encode())
            return _read_all(connection).decode(errors="replace")
    except OSError:
        return ""


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def _answers_ok(url: str) -> bool:
    with requests.Session() as session:
        session.trust_env = False
        try:
            return session.get(url, timeout=_HTTP_TIMEOUT_SECONDS, allow_redirects=False).ok
        except requests.RequestException:
            return False
