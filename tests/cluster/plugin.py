"""The fixtures through which every test gets its cluster, and what members complain of in the report of a failure."""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pulsar_sidecar.local_cluster.spec import ClusterNotFoundError, ClusterSpec
from pulsar_sidecar.model.errors import SidecarError

from tests.cluster.choosing import chosen_cluster, local_cluster, version_under_test
from tests.cluster.running import ClusterUnderTest, LocalClusterUnderTest
from tests.cluster.threads import busy_threads

ClusterFactory = Callable[..., AbstractContextManager[ClusterUnderTest]]

# What members inform about would bury what failed: only their complaints are told, and the very last lines.
_LINES_LOOKED_AT = 1_000
_COMPLAINTS = re.compile(r"\b(WARN|ERROR|FATAL)\b")
_COMPLAINTS_TOLD = 15
_LAST_LINES = 3


# A cluster that does nothing takes a tenth of a processor, and one that tests share lives until its process ends.
_SHARED_CLUSTERS = ("cluster", "deletion_cluster")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "on_deletion_cluster: runs on the cluster that all tests of deletion share")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a cluster come after those that need none or one of their own, so that few live at a time."""
    shared = {item: [name in getattr(item, "fixturenames", ()) for name in _SHARED_CLUSTERS] for item in items}
    for item, (_, deletion) in shared.items():
        if deletion:
            item.add_marker("on_deletion_cluster")
    items.sort(key=lambda item: shared[item][::-1])


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """The cluster shared by all tests that need nothing special: 2 bookies, 2 brokers, stock configuration.

    Only sessions are shorter, where the tests start it as processes: 10 s after its kill a member is nobody's any more.

    A test that breaks a member restarts it before it ends.
    """
    with chosen_cluster(tmp_path_factory.mktemp("cluster") / "members") as shared:
        yield shared


@pytest.fixture(scope="session")
def special_cluster(tmp_path_factory: pytest.TempPathFactory) -> ClusterFactory:
    """Starts a local cluster of one's own: ``with special_cluster(brokers=1, broker_conf={...}) as cluster``.

    The arguments are those of ``ClusterSpec``; 1 bookie and 1 broker unless told otherwise. Share it within a module
    by a module-scoped fixture: every member is a Java process.
    """

    def start(**wishes: Any) -> AbstractContextManager[ClusterUnderTest]:
        directory = tmp_path_factory.mktemp("special-cluster") / "members"
        return local_cluster(
            ClusterSpec(directory, **({"brokers": 1, "bookies": 1, "version": version_under_test()} | wishes))
        )

    return start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add each member's last complaints, and what brokers are busy with, to the report of a test that failed."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if hasattr(value, "log") and _has_addresses(value):
                report.sections += _logs(value) + _threads(value)
                if isinstance(value, LocalClusterUnderTest):
                    report.sections += _mended(value)
        # Once more at the end: a reader who gets only the tail of a long report has to know what failed.
        report.sections.append(("what failed", str(call.excinfo.value if call.excinfo else report.longrepr)[:2_000]))
    return report


def _has_addresses(value: object) -> bool:
    """Whether it is a cluster, and one that is there; a session's last failure may come after its end."""
    try:
        return hasattr(value, "addresses")
    except ClusterNotFoundError:
        return False


def _mended(cluster: ClusterUnderTest) -> list[tuple[str, str]]:
    """Members that a failed test leaves killed or frozen would fail all that come after it."""
    try:
        for name in cluster.addresses.members:
            if cluster.is_running(name):
                cluster.cont(name)
            else:
                cluster.restart(name)
    except SidecarError as error:
        return [("the cluster could not be mended", str(error))]
    return []


def _logs(cluster: ClusterUnderTest) -> list[tuple[str, str]]:
    return [(f"end of the log of {name}", _end_of_log(cluster, name)) for name in cluster.addresses.member_urls]


def _end_of_log(cluster: ClusterUnderTest, name: str) -> str:
    lines = cluster.log(name, _LINES_LOOKED_AT).splitlines()
    complaints = [line for line in lines[:-_LAST_LINES] if _COMPLAINTS.search(line)]
    return "\n".join(complaints[-_COMPLAINTS_TOLD:] + lines[-_LAST_LINES:])


def _threads(cluster: ClusterUnderTest) -> list[tuple[str, str]]:
    members = cluster.addresses.members
    brokers = {name: pid for name, pid in members.items() if name.startswith("broker-") and cluster.is_running(name)}
    return [(f"busy threads of {name}", busy_threads(pid)) for name, pid in brokers.items()]
