"""Fixtures of all tests of ledger deletion on a real cluster, and the oracles after each.

One cluster serves all of them: its brokers write two entries to a ledger and keep delayed indexes in buckets, so that
small topics have ledgers of every kind. Each test has its own namespace.
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pulsar_sidecar.features.ledger_deletion.control import CONTROL
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.cluster.buckets import BUCKETS
from tests.cluster.choosing import FAST_BOOKIE_SESSIONS, FAST_SESSIONS, started_cluster, version_under_test
from tests.cluster.oracles import Oracles, OutcomeLog
from tests.cluster.running import ClusterUnderTest
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import ENTRIES_PER_LEDGER, TopicLedgers, Workload, unique

BROKER_CONF = {
    "forceDeleteNamespaceAllowed": "true",
    "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    **FAST_SESSIONS,
    # Brokers store acknowledgements within a second; a kill loses the rest. With the default of a minute, the next
    # test's sidecar might get a record again that this one gave up, and retry it for hours.
    "managedLedgerCursorPositionFlushSeconds": "1",
    # Brokers must not delete an unused topic during a test.
    "brokerDeleteInactiveTopicsEnabled": "false",
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "4",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "3",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "60",
}

_failed = pytest.StashKey[bool]()


@dataclass(frozen=True, slots=True)
class Scene:
    """A test's part of the cluster."""

    cluster: ClusterUnderTest
    workload: Workload
    sidecars: Sidecars
    oracles: Oracles
    namespace: str

    def topic(self, local_name: str) -> TopicName:
        """Return the name of a topic in this test's namespace, which does not exist yet."""
        return parse_topic_name(f"persistent://{self.namespace}/{local_name}")

    @property
    def sidecar(self) -> SidecarProcess:
        """Return the sidecar that tests share, the only running one."""
        return self.sidecars.shared()

    def start_alone(self, **settings: object) -> SidecarProcess:
        """Start a sidecar with special settings, and end all others."""
        self.sidecars.end_all()
        return self.sidecars.start(**settings)

    def start_together(self, *settings: Mapping[str, object]) -> list[SidecarProcess]:
        """Start sidecars, one for each mapping, and end all others."""
        self.sidecars.end_all()
        started = [self.sidecars.launch(**each) for each in settings]
        for sidecar in started:
            sidecar.wait_until_ready()
        return started

    def append(self, sidecar: SidecarProcess, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records of ledgers to a sidecar, and record them for the oracles."""
        sidecar.append(records)
        self.oracles.add_accepted(record["ledgerId"] for record in records)

    def delete_topic(self, sidecar: SidecarProcess, topic: TopicName, *, force: bool = False) -> TopicLedgers:
        """Delete a topic in two phases, record it for the oracles, and return its references just before."""
        before = self.workload.ledgers(topic)
        path = f"/admin/v2/{self.workload.of_topic(topic)}"
        sidecar.call("DELETE", path, **({"force": "true"} if force else {}))
        self.oracles.add_accepted(before.all)
        return before

    def orphans(self, topic: TopicName, ledgers: int) -> TopicLedgers:
        """Create data ledgers that a broker left behind when it deleted the topic."""
        self.workload.fill(topic, ledgers)
        found = self.workload.ledgers(topic)
        self.workload.leave_ledgers_behind(topic, found)
        return found


@pytest.fixture(scope="session")
def deletion_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """Yield the cluster of all tests of deletion."""
    directory = tmp_path_factory.mktemp("deletion-cluster") / "members"
    settings = {"broker_conf": BROKER_CONF, "bookie_conf": FAST_BOOKIE_SESSIONS}
    with started_cluster(ClusterSpec(directory, version=version_under_test(), **settings)) as cluster:
        yield cluster


def open_workload(deletion_cluster: ClusterUnderTest) -> Iterator[Workload]:
    with contextlib.closing(Workload(deletion_cluster)) as workload:
        yield workload


def open_sidecars(deletion_cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecars]:
    sidecars = Sidecars(deletion_cluster.addresses, tmp_path_factory.mktemp("sidecars"))
    yield sidecars
    sidecars.close()


def open_outcome_log(workload: Workload) -> Iterator[OutcomeLog]:
    with contextlib.closing(OutcomeLog(workload)) as log:
        yield log


# Modules with a cluster of their own make the same fixtures of it.
workload = pytest.fixture(scope="session")(open_workload)
sidecars = pytest.fixture(scope="session")(open_sidecars)
outcome_log = pytest.fixture(scope="session")(open_outcome_log)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    deletion_cluster: ClusterUnderTest,
    workload: Workload,
    sidecars: Sidecars,
    outcome_log: OutcomeLog,
) -> Iterator[Scene]:
    """Yield a new namespace, and check the oracles after the test has passed."""
    namespace = f"public/t-{unique()}"
    workload.create_namespace(namespace)
    oracles = Oracles(workload, outcome_log)
    yield Scene(deletion_cluster, workload, sidecars, oracles, namespace)
    if request.node.stash.get(_failed, False):
        _clear_away(workload, sidecars)
        return
    running = sidecars.running
    oracles.check(running[0] if running else sidecars.shared())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the failure of a test, after which the oracles have nothing to add."""
    report = yield
    if call.when == "call":
        item.stash[_failed] = report.failed
    return report


def _clear_away(workload: Workload, sidecars: Sidecars) -> None:
    """Remove a failed test's leftovers, so that the next test starts clean."""
    sidecars.end_all()
    for child in workload.store.children(OPERATIONS) or []:
        for name in workload.store.children(f"{OPERATIONS}/{child}") or []:
            workload.store.delete(f"{OPERATIONS}/{child}/{name}")
        workload.store.delete(f"{OPERATIONS}/{child}")
    workload.store.delete(CONTROL)
    pending = parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.PENDING.value}")
    retry = parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{DeletionTopic.RETRY.value}")
    for topic in (pending, retry):
        workload.request("POST", workload.of_topic(topic, f"subscription/{SUBSCRIPTION}/skip_all"))
