"""A real Pulsar cluster on this machine: started, looked at, broken on purpose, and taken down without a trace.

Invariant: everything that was started stands in the state file first to last, so ``down`` ends every process and
removes every file, whoever calls it and however the start ended.
"""

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import requests

from pulsar_sidecar.local_cluster import planning
from pulsar_sidecar.local_cluster.addresses import ClusterAddresses, addresses_of
from pulsar_sidecar.local_cluster.class_archives import ARCHIVE_NAME, RECORDING_OPTION, archives, kind_of
from pulsar_sidecar.local_cluster.distribution import (
    OFFLOADERS,
    SERVER,
    unpacked,
)
from pulsar_sidecar.local_cluster.failures import ClusterExistsError, ClusterNotFoundError, MemberFailedError
from pulsar_sidecar.local_cluster.java import find_java
from pulsar_sidecar.local_cluster.planning import Software, plan_member
from pulsar_sidecar.local_cluster.processes import (
    end,
    exclusive,
    exit_code,
    is_running,
    send_signal,
    spawn,
    wait_until_gone,
)
from pulsar_sidecar.local_cluster.spec import ClusterSpec, Lifetime, Role, cache_directory
from pulsar_sidecar.local_cluster.starting import (
    Launcher,
    environment,
    is_ready,
    last_lines,
    log_path,
    start_members,
)
from pulsar_sidecar.local_cluster.state import (
    ClusterState,
    Member,
    change_state,
    has_state,
    read_state,
    remove,
    write_state,
)
from pulsar_sidecar.local_cluster.watchdog import LifeLine, hold_life_line
from pulsar_sidecar.model.clocks import Clock, SystemClock

_GRACEFUL_STOP_SECONDS = 15.0
_RESTART_TIMEOUT_SECONDS = 120.0
_RECORDING_SECONDS = 120.0

Progress = Callable[[str], None]


def no_progress(text: str) -> None:
    """For callers that show nothing."""


class LocalCluster:
    """A cluster that was started in a directory, by this process or by another."""

    def __init__(self, directory: Path, clock: Clock | None = None, progress: Progress = no_progress) -> None:
        self._directory = directory.absolute()
        self._clock = clock or SystemClock()
        self._progress = progress
        self._life_line: LifeLine | None = None

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
        software = _with_class_archives(spec, find_software(spec, progress), progress)
        return cls._up_with(spec, software, progress, clock)

    @classmethod
    def _up_with(cls, spec: ClusterSpec, software: Software, progress: Progress, clock: Clock | None) -> Self:
        cluster = cls(spec.directory, clock, progress)
        cluster._claim_directory(spec)
        try:
            if spec.lifetime is Lifetime.STARTING_PROCESS:
                cluster._life_line = hold_life_line(cluster._directory)
            cluster._start_all(spec, software)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def addresses(self) -> ClusterAddresses:
        """Where the cluster listens.

        Raises:
            ClusterNotFoundError: it was taken down.
        """
        return addresses_of(read_state(self._directory))

    def status(self) -> Mapping[str, bool]:
        """Whether each member runs and is ready, by name, in starting order.

        Raises:
            ClusterNotFoundError: it was taken down.
        """
        return {member.name: self._is_up(member) for member in read_state(self._directory).members}

    def is_running(self, name: str) -> bool:
        """Whether a member's process exists, ready or not (a stopped one does)."""
        process = read_state(self._directory).member(name).process
        return process is not None and is_running(process)

    def kill(
        self,
        name: str,
        number: signal.Signals = signal.SIGKILL,
        timeout_seconds: float = _GRACEFUL_STOP_SECONDS,
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
        start_members(self._launcher(_RESTART_TIMEOUT_SECONDS), [member], replan=None)

    def log(self, name: str, lines: int = 40) -> str:
        """The last lines of a member's log."""
        return last_lines(log_path(self._directory, name), lines)

    def down(self) -> None:
        """End every member and remove the directory; doing it twice is no error.

        Raises:
            TemporaryError: a process did not end; the directory is still there.
        """
        if has_state(self._directory):
            end(read_state(self._directory).processes(), self._clock)
            remove(self._directory)
        if self._life_line is not None:
            self._life_line.release()
            self._life_line = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.down()

    def _is_up(self, member: Member) -> bool:
        return member.process is not None and is_running(member.process) and is_ready(member)

    def _claim_directory(self, spec: ClusterSpec) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        with exclusive(self._directory):
            _refuse_if_in_use(self._directory)
            write_state(ClusterState(self._directory, spec.version, spec.cluster_name))

    def _launcher(self, timeout_seconds: float) -> Launcher:
        return Launcher(
            clock=self._clock,
            directory=self._directory,
            started=self._record,
            is_ready=is_ready,
            progress=self._progress,
            timeout_seconds=timeout_seconds,
        )

    def _record(self, member: Member) -> None:
        change_state(self._directory, lambda state: state.with_member(member))

    def _start_all(self, spec: ClusterSpec, software: Software) -> None:
        launcher = self._launcher(spec.start_timeout_seconds)
        self._progress(f"starting ZooKeeper, {spec.bookies} bookies and {spec.brokers} brokers of {spec.version}")
        plan = partial(plan_member, spec, software, metadata_store_url="")
        (zookeeper,) = start_members(launcher, [plan("zookeeper")], plan)
        url = planning.metadata_store_url(zookeeper)
        plan = partial(plan_member, spec, software, metadata_store_url=url)
        planned = [plan(name) for name in spec.member_names() if name != "zookeeper"]
        brokers = tuple(member for member in planned if member.role is Role.BROKER)
        self._set_up_metadata(spec, software, url, brokers)
        started = start_members(launcher, planned, plan)
        self._correct_cluster_urls(spec, brokers, tuple(m for m in started if m.role is Role.BROKER))

    def _set_up_metadata(
        self, spec: ClusterSpec, software: Software, metadata_store_url: str, brokers: tuple[Member, ...]
    ) -> None:
        argv = planning.metadata_setup_argv(spec, software, metadata_store_url, brokers)
        log = log_path(self._directory, "metadata-setup")
        process = spawn(argv, environment(), log.parent, log)
        change_state(self._directory, lambda state: replace(state, metadata_setup=process))
        if not wait_until_gone(process, self._clock, spec.start_timeout_seconds):
            end([process], self._clock)
        if exit_code(process) != 0:
            raise MemberFailedError(f"the cluster's metadata could not be set up:\n{last_lines(log)}")
        self._progress("the cluster's metadata is set up")

    def _correct_cluster_urls(
        self, spec: ClusterSpec, planned: tuple[Member, ...], started: tuple[Member, ...]
    ) -> None:
        """A broker that found its port taken listens elsewhere than the metadata was told."""
        if [broker.ports for broker in planned] == [broker.ports for broker in started]:
            return
        urls = {
            "serviceUrl": planning.web_service_url(started),
            "brokerServiceUrl": planning.broker_service_url(started),
        }
        address = self.addresses().web_service_urls[0]
        answer = requests.post(f"{address}/admin/v2/clusters/{spec.cluster_name}", json=urls, timeout=30)
        if not answer.ok:
            raise MemberFailedError(f"the cluster's addresses could not be corrected: {answer.text}")


def _refuse_if_in_use(directory: Path) -> None:
    if has_state(directory):
        raise ClusterExistsError(f"{directory} holds a cluster already; take it down first with down")
    if directory.exists() and any(directory.iterdir()):
        raise ClusterExistsError(f"{directory} is not empty; choose another directory")


def find_software(spec: ClusterSpec, progress: Progress = no_progress) -> Software:
    """What the members are made of, fetched first where the cache has none.

    Raises:
        MissingPrerequisiteError: no Java, or no Maven where something has to be fetched.
        DistributionError: it could not be fetched.
    """
    java = find_java()
    cache = cache_directory()
    distribution = unpacked(SERVER, spec.version, cache, progress)
    if not spec.offloaders:
        return Software(java, distribution)
    offloaders = unpacked(OFFLOADERS, spec.version, cache, progress)
    return Software(java, distribution, offloaders / "offloaders")


def _with_class_archives(spec: ClusterSpec, software: Software, progress: Progress) -> Software:
    def record(directory: Path) -> None:
        _record_classes(spec.version, software, directory)

    found = archives(cache_directory(), software.java, software.distribution, record, progress)
    return replace(software, class_archives=found)


def _record_classes(version: str, software: Software, directory: Path) -> None:
    """Run a small cluster, end its members gently so that each writes its archive, and collect the archives."""
    spec = ClusterSpec(
        directory / "cluster",
        brokers=1,
        bookies=1,
        version=version,
        java_options=(RECORDING_OPTION,),
        lifetime=Lifetime.STARTING_PROCESS,
    )
    with LocalCluster._up_with(spec, software, no_progress, None) as cluster:
        for name in reversed(spec.member_names()):
            cluster.kill(name, signal.SIGTERM, _RECORDING_SECONDS)
        for name in ("metadata-setup", *spec.member_names()):
            (spec.directory / name / ARCHIVE_NAME).rename(directory / f"{kind_of(name)}.jsa")
