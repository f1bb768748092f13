"""A real Pulsar cluster on this machine: start, inspect, break and remove it without a trace.

The state file lists every process from its start, so ``down`` ends every process and removes every file, whichever
process calls it and however the start ended.

Members start in parallel. The cluster retries a member until its deadline after a temporary failure (its port is still
taken, a dead bookie's session still holds its name) or one that another start may avoid; any other failure aborts the
whole start, with the last lines of that member's log. A member starts only while its ports are free, and clusters that
share a cache never have the same ones; a foreign program that takes one during the boot answers the probe until the
member notices.

Run as a program, this module is the watchdog of a cluster that ends with its starter: the starter holds one end of a
pipe and the watchdog waits at the other; when the starter ends, even by a kill, the system closes its end. A watchdog
acts only on the directory that it was started for; taking down a cluster that is already down does nothing.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import requests

from pulsar_sidecar.local_cluster import processes
from pulsar_sidecar.local_cluster.planning import kind_of, metadata_setup_argv, plan_member
from pulsar_sidecar.local_cluster.software import Software, class_archives, find_software, no_progress
from pulsar_sidecar.local_cluster.spec import (
    ClusterExistsError,
    ClusterNotFoundError,
    ClusterSpec,
    MemberFailedError,
    Role,
)
from pulsar_sidecar.local_cluster.state import (
    ClusterAddresses,
    ClusterState,
    Member,
    addresses_of,
    change_state,
    has_state,
    metadata_store_url,
    read_state,
    remove,
    write_state,
)
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.progress import Report
from pulsar_sidecar.reports.formatting import format_count

STORE_NAMES = {Role.ZOOKEEPER: "ZooKeeper", Role.ETCD: "etcd"}
_POLL_SECONDS = 0.1
_LAST_LINES = 40
_FIRST_ERRORS = 5
_PAUSE_SECONDS = 1.0
_SOCKET_TIMEOUT_SECONDS = 2.0
_HTTP_TIMEOUT_SECONDS = (2.0, 15.0)
_GRACEFUL_STOP_SECONDS = 15.0
_START_TIMEOUT_SECONDS = 300.0
"""A member needs seconds; on one processor, busy with other clusters, it took over two minutes."""

_RECORDING_SECONDS = 120.0
_RELEASE_TIMEOUT_SECONDS = 30.0
_IMPORT_ROOT = Path(__file__).parents[2]
_ARCHIVE_NAME = "classes.jsa"
_FORMER_SESSION_SECONDS = 60.0
"""ZooKeeper keeps a killed member's session for 30 s, then removes nodes that the next process relies on.

A broker that starts meanwhile loses its lock, its name or its own bundle at some step, and ends.
"""

_LOST_PORT = "found a port taken; see who listens on {ports}"
_PASSING_REFUSALS = {
    "BindException": _LOST_PORT,
    "Address already in use": _LOST_PORT,
    "Failed to start org.apache.bookkeeper.http server": _LOST_PORT,
    "LockBusyException": "its name is still held by the previous process's session",
    "NodeExists for /ledgers/underreplication": "another bookie laid out the store at the same moment",
    "BadVersion for /ledgers/underreplication": "another bookie laid out the store at the same moment",
    "Failed to load topic within timeout": "a topic did not load; two of its threads may be deadlocked",
}
"""Log lines of failures that a later start may avoid, with their meaning.

A topic that does not load within a minute: in brokers of 4.0, a thread that initialises `Schema` and another that
initialises an implementation of it can deadlock. Every thread that needs a topic's policies then waits for them, and
the broker serves nothing until a restart.
"""


class LocalCluster:
    """A cluster in a directory, started by this process or another."""

    def __init__(self, directory: Path, clock: Clock | None = None, progress: Report = no_progress) -> None:
        self._directory = directory.absolute()
        self._clock = clock or SystemClock()
        self._progress = progress
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def up(cls, spec: ClusterSpec, progress: Report = no_progress, clock: Clock | None = None) -> Self:
        """Start a cluster and wait until every member is ready.

        Raises:
            MissingPrerequisiteError: no Java, no Maven to fetch the distribution, or no etcd for a cluster on it.
            DistributionError: the distribution could not be fetched.
            ClusterExistsError: the directory holds a cluster or other files.
            MemberFailedError: a member did not become ready; the cluster was taken down again.
        """
        _refuse_if_in_use(spec.directory)
        software = find_software(spec, progress)
        archives = class_archives(software, partial(_record_classes, spec.version, software), progress)
        return cls._up_with(spec, replace(software, class_archives=archives), progress, clock)

    @classmethod
    def _up_with(cls, spec: ClusterSpec, software: Software, progress: Report, clock: Clock | None) -> Self:
        cluster = cls(spec.directory, clock, progress)
        cluster._directory.mkdir(parents=True, exist_ok=True)
        with processes.exclusive(cluster._directory):
            _refuse_if_in_use(cluster._directory)
            write_state(cluster._directory, ClusterState(spec.version, spec.cluster_name, ()))
        try:
            if spec.ends_with_starter:
                cluster._watchdog = _start_watchdog(cluster._directory)
            cluster._start_all(spec, software)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def addresses(self) -> ClusterAddresses:
        return addresses_of(self._directory, read_state(self._directory))

    def status(self) -> Mapping[str, bool]:
        """Return the members' readiness by name, in starting order: True if the member runs and is ready."""
        return {
            member.name: member.process is not None and processes.is_running(member.process) and is_ready(member)
            for member in read_state(self._directory).members
        }

    def is_running(self, name: str) -> bool:
        """Return True if a member's process exists, ready or not, even a stopped one."""
        process = read_state(self._directory).member(name).process
        return process is not None and processes.is_running(process)

    def kill(
        self, name: str, number: signal.Signals = signal.SIGKILL, timeout_seconds: float = _GRACEFUL_STOP_SECONDS
    ) -> None:
        """Send a signal to a member; after SIGKILL and SIGTERM wait until it has ended.

        Raises:
            ClusterNotFoundError: the member does not exist, or does not run.
            MemberFailedError: the member did not end within ``timeout_seconds``.
        """
        process = read_state(self._directory).member(name).process
        if process is None or not processes.send_signal(process, number):
            raise ClusterNotFoundError(f"{name} is not running; start it with restart")
        if number not in (signal.SIGKILL, signal.SIGTERM):
            return
        if not processes.wait_until_gone(process, self._clock, timeout_seconds):
            raise MemberFailedError(f"{name} is still running {timeout_seconds:.0f} s after {number.name}")

    def restart(self, name: str) -> None:
        """Restart a member with the same ports and data, and wait until it is ready.

        Raises:
            ClusterNotFoundError: the member does not exist.
            MemberFailedError: the member did not become ready; the others keep running.
        """
        member = read_state(self._directory).member(name)
        if member.process is not None and processes.send_signal(member.process, signal.SIGTERM):
            processes.send_signal(member.process, signal.SIGCONT)
            if not processes.wait_until_gone(member.process, self._clock, _GRACEFUL_STOP_SECONDS):
                processes.end([member.process], self._clock)
        self.start_members([member])

    def start_members(self, members: Sequence[Member], timeout_seconds: float = _START_TIMEOUT_SECONDS) -> None:
        """Start members in parallel and wait until all are ready, or until the first failure.

        Raises:
            MemberFailedError: a member ended, its port was taken for too long, or it was not ready in time.
        """
        give_up = threading.Event()
        with ThreadPoolExecutor(max(1, len(members)), thread_name_prefix="start-member") as pool:
            try:
                starts = [pool.submit(self._start, member, timeout_seconds, give_up) for member in members]
                for start in wait(starts, return_when=FIRST_EXCEPTION).done:
                    start.result()
            except BaseException:  # such as Ctrl-C while waiting
                give_up.set()
                raise

    def down(self) -> None:
        """End every member and remove the directory; idempotent.

        Raises:
            TemporaryError: a process did not end; the directory is still there.
        """
        if has_state(self._directory):
            processes.end(read_state(self._directory).processes(), self._clock)
            remove(self._directory)
        if self._watchdog is not None:
            _release(self._watchdog)
            self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    def _start(self, member: Member, timeout_seconds: float, give_up: threading.Event) -> None:
        now = self._clock.monotonic_seconds()
        deadline = now + timeout_seconds
        may_end_until = min(deadline, now + _FORMER_SESSION_SECONDS) if member.process else now
        while refusal := self._start_failure(member, deadline, may_end_until, give_up):
            self._progress(f"{member.name} is started again: {refusal}")
            self._pause(member, _PAUSE_SECONDS, give_up)
            if self._clock.monotonic_seconds() > deadline:
                raise MemberFailedError(f"{member.name} {refusal}")
        self._progress(f"{member.name} is ready")

    def _start_failure(
        self, member: Member, deadline: float, may_end_until: float, give_up: threading.Event
    ) -> str | None:
        """Try one start; return None if the member is ready, else the reason for a retry, with its process ended."""
        if not all(processes.is_free(port) for port in member.ports.values()):
            return _LOST_PORT.format(ports=dict(member.ports))
        log = self.log_path(member.name)
        log_start = log.stat().st_size if log.exists() else 0
        process = processes.spawn(member.argv, _environment(), log.parent, log)
        self._record(replace(member, process=process))
        while True:
            ready = is_ready(member)
            # After the probe: another process may have answered it while the member ended.
            running = processes.is_running(process)
            output = log.read_bytes()[log_start:].decode(errors="replace")
            for sign, meaning in _PASSING_REFUSALS.items():
                if sign in output:
                    processes.end([process], self._clock)
                    return meaning.format(ports=dict(member.ports))
            if ready and running:
                return None
            if not running:
                what = f"ended with exit code {processes.exit_code(process)} before it was ready"
                if self._clock.monotonic_seconds() < may_end_until:
                    return f"{what}, perhaps because the previous process's session has ended since"
                raise MemberFailedError(f"{member.name} {what}; {_excerpt(output)}")
            if self._clock.monotonic_seconds() > deadline:
                raise MemberFailedError(f"{member.name} was not ready in time; {_excerpt(output)}")
            self._pause(member, _POLL_SECONDS, give_up)

    def _pause(self, member: Member, seconds: float, give_up: threading.Event) -> None:
        if self._clock.wait_seconds(seconds, give_up):
            raise MemberFailedError(f"{member.name} was still starting when another member failed")

    def _record(self, member: Member) -> None:
        change_state(self._directory, lambda state: state.with_member(member))

    def log_path(self, name: str) -> Path:
        return self._directory / name / f"{name}.log"

    def _start_all(self, spec: ClusterSpec, software: Software) -> None:
        self._progress(
            f"starting {STORE_NAMES[spec.metadata_store]}, {format_count(spec.bookies, 'bookie')} and "
            f"{format_count(spec.brokers, 'broker')} of {spec.version}"
        )
        first, *others = spec.member_names()
        store = plan_member(spec, software, first, "")
        self.start_members([store])
        url = metadata_store_url(store)
        planned = [plan_member(spec, software, name, url) for name in others]
        if planned:
            brokers = tuple(member for member in planned if member.role is Role.BROKER)
            self._set_up_metadata(metadata_setup_argv(spec, software, url, brokers))
            self.start_members(planned)

    def _set_up_metadata(self, argv: tuple[str, ...]) -> None:
        log = self.log_path("metadata-setup")
        process = processes.spawn(argv, _environment(), log.parent, log)
        change_state(self._directory, lambda state: msgspec.structs.replace(state, metadata_setup=process))
        if not processes.wait_until_gone(process, self._clock, _START_TIMEOUT_SECONDS):
            processes.end([process], self._clock)
        if processes.exit_code(process) != 0:
            raise MemberFailedError(f"the cluster's metadata could not be set up:\n{last_lines(log)}")
        self._progress("the cluster's metadata is set up")


def _refuse_if_in_use(directory: Path) -> None:
    if has_state(directory):
        raise ClusterExistsError(f"{directory} already holds a cluster; take it down first with down")
    if directory.exists() and any(directory.iterdir()):
        raise ClusterExistsError(f"{directory} is not empty; choose another directory")


def _record_classes(version: str, software: Software, directory: Path) -> None:
    """Run a small cluster, end its members by SIGTERM so that each writes its archive, and collect the archives."""
    spec = ClusterSpec(
        directory / "cluster",
        brokers=1,
        bookies=1,
        version=version,
        # A relative name, so that every member writes its archive into its own directory.
        java_options=(f"-XX:ArchiveClassesAtExit={_ARCHIVE_NAME}",),
        ends_with_starter=True,
    )
    with LocalCluster._up_with(spec, software, no_progress, None) as cluster:
        for name in reversed(spec.member_names()):
            cluster.kill(name, signal.SIGTERM, _RECORDING_SECONDS)
        for name in ("metadata-setup", *spec.member_names()):
            (spec.directory / name / _ARCHIVE_NAME).rename(directory / f"{kind_of(name)}.jsa")


def _excerpt(output: str) -> str:
    """Return a log's last lines, and its first errors, since an ending member logs a lot."""
    lines = output.splitlines()
    errors = [line for line in lines[:-_LAST_LINES] if " ERROR " in line][:_FIRST_ERRORS]
    first = ["its first errors:", *errors] if errors else []
    return "\n".join([*first, "the end of its log:", *lines[-_LAST_LINES:]])


def last_lines(log: Path, count: int = _LAST_LINES) -> str:
    """Return the end of a log, or a note that there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:])
    except FileNotFoundError:
        return f"(no log at {log})"


def _environment() -> Mapping[str, str]:
    """Return this process's environment without options for other Java programs."""
    unwanted = {"JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH"}
    return {name: value for name, value in os.environ.items() if name not in unwanted}


def is_ready(member: Member) -> bool:
    """Return True if a member serves: ZooKeeper's ``srvr``, etcd's and a broker's ``health``, a bookie's ``is_ready``.

    A broker's health check produces and consumes a message, so it covers the bookies too.
    """
    match member.role:
        case Role.ZOOKEEPER:
            return "Mode:" in four_letter_word(member.ports["client"], "srvr")
        case Role.ETCD:
            return _answers_ok(f"http://{processes.LOOPBACK}:{member.ports['client']}/health")
        case Role.BOOKIE:
            return _answers_ok(f"http://{processes.LOOPBACK}:{member.ports['http']}/api/v1/bookie/is_ready")
        case Role.BROKER:
            return _answers_ok(f"http://{processes.LOOPBACK}:{member.ports['http']}/admin/v2/brokers/health")


def four_letter_word(port: int, command: str) -> str:
    """Return ZooKeeper's response to a four-letter command; empty if it does not respond."""
    try:
        with socket.create_connection((processes.LOOPBACK, port), _SOCKET_TIMEOUT_SECONDS) as connection:
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


def _start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "pulsar_sidecar.local_cluster.cluster", str(directory)],
        cwd=_IMPORT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _release(watchdog: subprocess.Popen[bytes]) -> None:
    """Release the watchdog, which takes the cluster down unless that is done, and wait for its end."""
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    try:
        watchdog.wait(_RELEASE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"the watchdog {watchdog.pid} did not end; end it with kill -9") from error


if __name__ == "__main__":
    sys.stdin.buffer.read()
    LocalCluster(Path(sys.argv[1])).down()
