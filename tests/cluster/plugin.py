"""Fixtures of tests' clusters, and the processes' logs in reports of failures.

A report fits on a page: it names the files with the whole logs.
"""

import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from pulsar_sidecar.local_cluster.spec import ClusterNotFoundError, ClusterSpec
from pulsar_sidecar.model.errors import SidecarError

from tests.cluster.choosing import chosen_cluster, local_cluster, version_under_test
from tests.cluster.running import (
    ClusterUnderTest,
    ComposeClusterUnderTest,
    ExternalClusterUnderTest,
    LocalClusterUnderTest,
)
from tests.cluster.sidecars import sidecars_logs
from tests.cluster.threads import busy_threads
from tests.summary.plugin import reason_of

ClusterFactory = Callable[..., AbstractContextManager[ClusterUnderTest]]
CLUSTERS = (LocalClusterUnderTest, ComposeClusterUnderTest, ExternalClusterUnderTest)

_LINES_OF_A_MEMBER = 1_000
_COMPLAINTS = re.compile(r"\b(WARN(ING)?|ERROR|FATAL|CRITICAL)\b", re.IGNORECASE)
_LINES_SHOWN = 12
_NOT_A_NAME = re.compile(r"[^\w.-]+")
_lengths = pytest.StashKey[dict[Path, int]]()
"""Lengths of sidecars' logs at the beginning of a test."""


# An idle cluster takes a tenth of a processor, and a shared one lives until its process ends.
_SHARED_CLUSTERS = ("cluster", "deletion_cluster")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_shared_cluster: runs on the cluster of all tests that need nothing special")
    config.addinivalue_line("markers", "on_deletion_cluster: runs on the cluster that all tests of deletion share")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move tests with a shared cluster after the others, so that few clusters live at a time."""
    shared = {item: [name in getattr(item, "fixturenames", ()) for name in _SHARED_CLUSTERS] for item in items}
    for item, (plain, deletion) in shared.items():
        if plain or deletion:
            item.add_marker("on_deletion_cluster" if deletion else "on_shared_cluster")
    items.sort(key=lambda item: shared[item][::-1])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """Yield the cluster of all tests without special needs: 2 bookies, 2 brokers, stock configuration.

    Only sessions are shorter if the tests start it as processes: a killed member's session expires after 10 s.

    A test that breaks a member restarts it before it ends.
    """
    with chosen_cluster(tmp_path_factory.mktemp("cluster") / "members") as shared:
        yield shared


@pytest.fixture(scope="session")
def special_cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterFactory:
    """Return a function that starts a local cluster: ``with special_cluster(brokers=1, broker_conf={...}) as cluster``.

    The arguments are those of ``ClusterSpec``; 1 bookie and 1 broker by default. Share the cluster within a module by a
    module-scoped fixture: every member is a Java process.
    """

    def start(**options: Any) -> AbstractContextManager[ClusterUnderTest]:
        directory = tmp_path_factory.mktemp("special-cluster") / "members"
        return local_cluster(
            ClusterSpec(directory, **({"brokers": 1, "bookies": 1, "version": version_under_test()} | options))
        )

    return start


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_lengths] = {log: log.stat().st_size for log in sidecars_logs() if log.exists()}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the sidecars' logs of a failed test, and the names of files with whole logs and brokers' threads."""
    report = yield
    if report.failed:
        sidecars, members = _sidecars_lines(item), {}
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, CLUSTERS) and _has_addresses(value):
                members |= _members_logs(value) | _threads(value)
                if isinstance(value, LocalClusterUnderTest):
                    report.sections += _mended(value)
        shown = {f"last complaints of {name}": _complaints(text) for name, text in members.items()}
        report.sections += [(title, text) for title, text in shown.items() if text]
        report.sections += [(f"{name} in this test", _last_lines(text)) for name, text in sidecars.items()]
        if sidecars or members:
            report.sections.append(("all of the logs", str(_write(item, sidecars | members))))
        # Again at the end, because a reader may see only the tail of a long report.
        report.sections.append(("what failed", f"{item.nodeid}\n{reason_of(report)}"))
    return report


def _sidecars_lines(item: pytest.Item) -> dict[str, str]:
    """Return each sidecar's log since the beginning of the test."""
    lengths = item.stash.get(_lengths, {})
    texts = {log.stem: log.read_bytes()[lengths.get(log, 0) :] for log in sidecars_logs() if log.exists()}
    return {name: text.decode(errors="replace") for name, text in texts.items() if text}


def _last_lines(text: str) -> str:
    """Return the last complaints and the very last lines, since other lines would bury the failure."""
    lines = text.splitlines()
    kept = [*_complaints("\n".join(lines[:-_LINES_SHOWN])).splitlines(), *lines[-_LINES_SHOWN:]]
    return "\n".join(line[:300] for line in kept)


def _complaints(text: str) -> str:
    """Return the last warnings and errors."""
    return "\n".join([line[:300] for line in text.splitlines() if _COMPLAINTS.search(line)][-_LINES_SHOWN:])


def _write(item: pytest.Item, texts: Mapping[str, str]) -> Path:
    """Write each text to a file and return their directory, which the test's next failure replaces."""
    directory = item.config.cache.mkdir("failures") / _NOT_A_NAME.sub("-", item.nodeid)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, text in texts.items():
        (directory / f"{name}.log").write_text(text)
    return directory


def _has_addresses(value: object) -> bool:
    """Return True for an existing cluster; a session's last failure may come after the cluster's end."""
    try:
        return hasattr(value, "addresses")
    except ClusterNotFoundError:
        return False


def _mended(cluster: ClusterUnderTest) -> list[tuple[str, str]]:
    """Restart members that a failed test left killed or frozen, which would fail all later tests."""
    try:
        for name in cluster.addresses.members:
            if cluster.is_running(name):
                cluster.cont(name)
            else:
                cluster.restart(name)
    except SidecarError as error:
        return [("the cluster could not be mended", str(error))]
    return []


def _members_logs(cluster: ClusterUnderTest) -> dict[str, str]:
    return {name: cluster.log(name, _LINES_OF_A_MEMBER) for name in cluster.addresses.member_urls}


def _threads(cluster: ClusterUnderTest) -> dict[str, str]:
    members = cluster.addresses.members
    brokers = {name: pid for name, pid in members.items() if name.startswith("broker-") and cluster.is_running(name)}
    return {f"busy-threads-of-{name}": busy_threads(pid) for name, pid in brokers.items()}
