"""A real Pulsar cluster on this machine: started, looked at, broken on purpose, and taken down without a trace.

Invariant: everything that was started stands in the state file first to last, so ``down`` ends every process and
removes every file, whoever calls it and however the start ended.

Run as a program this module is the watchdog of a cluster that ends with its starter: the starting process holds one end
of a pipe and the watchdog waits at the other; when the starter ends, even by a kill, the system closes its end. A
watchdog acts only on the directory it was started for, and taking down a cluster that is already down does nothing.
"""

import dataclasses
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from pulsar_sidecar.local_cluster.planning import kind_of, metadata_setup_argv, plan_member
from pulsar_sidecar.local_cluster.processes import (
    end,
    exclusive,
    exit_code,
    is_running,
    send_signal,
    spawn,
    wait_until_gone,
)
from pulsar_sidecar.local_cluster.software import Progress, Software, class_archives, find_software, no_progress
from pulsar_sidecar.local_cluster.spec import (
    ClusterExistsError,
    ClusterNotFoundError,
    ClusterSpec,
    MemberFailedError,
    Role,
)
from pulsar_sidecar.local_cluster.starting import Launcher, environment, is_ready, last_lines, log_path, start_members
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

_GRACEFUL_STOP_SECONDS = 15.0
_RESTART_TIMEOUT_SECONDS = 120.0
_RECORDING_SECONDS = 120.0
_RELEASE_TIMEOUT_SECONDS = 30.0
_IMPORT_ROOT = Path(__file__).parents[2]
_ARCHIVE_NAME = "classes.jsa"


class LocalCluster:
    """A cluster that was started in a directory, by this process or by another."""

    def __init__(self, directory: Path, clock: Clock | None = None, progress: Progress = no_progress) -> None:
        self._directory = directory.absolute()
        self._clock = clock or SystemClock()
        self._progress = progress
        self._watchdog: subprocess.Popen[bytes] | None = None

    @classmethod
    def up(cls, spec: ClusterSpec, progress: Progress = no_progress, clock: Clock | None = None) -> Self:
        """Start a cluster and wait until every member is ready.

        Raises:
            MissingPrerequisiteError: no Java, or no Maven where the distribution has to be fetched.
            DistributionError: the distribution could not be fetched.
            ClusterExistsError: the directory holds a cluster or somebody's files.
            MemberFailedError: a member did not become ready; everything was taken down again.
        """
        _refuse_if_in_use(spec.directory)
        software = find_software(spec, progress)

        def record(directory: Path) -> None:
            _record_classes(spec.version, software, directory)

        archives = class_archives(software, record, progress)
        return cls._up_with(spec, dataclasses.replace(software, class_archives=archives), progress, clock)

    @classmethod
    def _up_with(cls, spec: ClusterSpec, software: Software, progress: Progress, clock: Clock | None) -> Self:
        cluster = cls(spec.directory, clock, progress)
        cluster._directory.mkdir(parents=True, exist_ok=True)
        with exclusive(cluster._directory):
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
        """Whether each member runs and is ready, by name, in starting order."""
        return {
            member.name: member.process is not None and is_running(member.process) and is_ready(member)
            for member in read_state(self._directory).members
        }

    def is_running(self, name: str) -> bool:
        """Whether a member's process exists, ready or not (a stopped one does)."""
        process = read_state(self._directory).member(name).process
        return process is not None and is_running(process)

    def kill(
        self, name: str, number: signal.Signals = signal.SIGKILL, timeout_seconds: float = _GRACEFUL_STOP_SECONDS
    ) -> None:
        """Send a signal to a member; after SIGKILL and SIGTERM wait until it is gone.

        Raises:
            ClusterNotFoundError: no such member, or it does not run.
            MemberFailedError: it did not end within ``timeout_seconds``.
        """
        process = read_state(self._directory).member(name).process
        if process is None or not send_signal(process, number):
            raise ClusterNotFoundError(f"{name} does not run; start it with restart")
        if number not in (signal.SIGKILL, signal.SIGTERM):
            return
        if not wait_until_gone(process, self._clock, timeout_seconds):
            raise MemberFailedError(f"{name} still runs {timeout_seconds:.0f} s after {number.name}")

    def stop(self, name: str) -> None:
        """Freeze a member (SIGSTOP): it keeps its connections and its ports and does nothing."""
        self.kill(name, signal.SIGSTOP)

    def cont(self, name: str) -> None:
        """Let a frozen member go on (SIGCONT)."""
        self.kill(name, signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Start a member again with the same ports and data, stopping it first if it runs; wait until it is ready.

        Raises:
            ClusterNotFoundError: no such member.
            MemberFailedError: it did not become ready; the others are left alone.
        """
        member = read_state(self._directory).member(name)
        if member.process is not None and send_signal(member.process, signal.SIGTERM):
            send_signal(member.process, signal.SIGCONT)
            if not wait_until_gone(member.process, self._clock, _GRACEFUL_STOP_SECONDS):
                end([member.process], self._clock)
        start_members(self._launcher(_RESTART_TIMEOUT_SECONDS), [member])

    def log(self, name: str, lines: int = 40) -> str:
        return last_lines(log_path(self._directory, name), lines)

    def down(self) -> None:
        """End every member and remove the directory; doing it twice is no error.

        Raises:
            TemporaryError: a process did not end; the directory is still there.
        """
        if has_state(self._directory):
            end(read_state(self._directory).processes(), self._clock)
            remove(self._directory)
        if self._watchdog is not None:
            _release(self._watchdog)
            self._watchdog = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    def _launcher(self, timeout_seconds: float) -> Launcher:
        def record(member: Member) -> None:
            change_state(self._directory, lambda state: state.with_member(member))

        return Launcher(self._clock, self._directory, record, self._progress, timeout_seconds)

    def _start_all(self, spec: ClusterSpec, software: Software) -> None:
        launcher = self._launcher(spec.start_timeout_seconds)
        self._progress(f"starting ZooKeeper, {spec.bookies} bookies and {spec.brokers} brokers of {spec.version}")
        zookeeper = plan_member(spec, software, "zookeeper", "")
        start_members(launcher, [zookeeper])
        url = metadata_store_url(zookeeper)
        planned = [plan_member(spec, software, name, url) for name in spec.member_names() if name != "zookeeper"]
        if planned:
            brokers = tuple(member for member in planned if member.role is Role.BROKER)
            self._set_up_metadata(spec, metadata_setup_argv(spec, software, url, brokers))
            start_members(launcher, planned)

    def _set_up_metadata(self, spec: ClusterSpec, argv: tuple[str, ...]) -> None:
        log = log_path(self._directory, "metadata-setup")
        process = spawn(argv, environment(), log.parent, log)
        change_state(self._directory, lambda state: msgspec.structs.replace(state, metadata_setup=process))
        if not wait_until_gone(process, self._clock, spec.start_timeout_seconds):
            end([process], self._clock)
        if exit_code(process) != 0:
            raise MemberFailedError(f"the cluster's metadata could not be set up:\n{last_lines(log)}")
        self._progress("the cluster's metadata is set up")


def _refuse_if_in_use(directory: Path) -> None:
    if has_state(directory):
        raise ClusterExistsError(f"{directory} holds a cluster already; take it down first with down")
    if directory.exists() and any(directory.iterdir()):
        raise ClusterExistsError(f"{directory} is not empty; choose another directory")


def _record_classes(version: str, software: Software, directory: Path) -> None:
    """Run a small cluster, end its members gently so that each writes its archive, and collect the archives."""
    spec = ClusterSpec(
        directory / "cluster",
        brokers=1,
        bookies=1,
        version=version,
        # A relative name: every member writes its archive into its own directory.
        java_options=(f"-XX:ArchiveClassesAtExit={_ARCHIVE_NAME}",),
        ends_with_starter=True,
    )
    with LocalCluster._up_with(spec, software, no_progress, None) as cluster:
        for name in reversed(spec.member_names()):
            cluster.kill(name, signal.SIGTERM, _RECORDING_SECONDS)
        for name in ("metadata-setup", *spec.member_names()):
            (spec.directory / name / _ARCHIVE_NAME).rename(directory / f"{kind_of(name)}.jsa")


def _start_watchdog(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-m", "pulsar_sidecar.local_cluster.cluster", str(directory)],
        cwd=_IMPORT_ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def _release(watchdog: subprocess.Popen[bytes]) -> None:
    """Let the watchdog end; it takes the cluster down if that was not done."""
    assert watchdog.stdin is not None
    watchdog.stdin.close()
    try:
        watchdog.wait(_RELEASE_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TemporaryError(f"the watchdog {watchdog.pid} did not end; look at it") from error


if __name__ == "__main__":
    sys.stdin.buffer.read()
    LocalCluster(Path(sys.argv[1])).down()
