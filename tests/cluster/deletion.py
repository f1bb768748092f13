"""Fixtures of every test of ledger deletion on a real cluster, and the oracles after each.

One cluster serves them all: its brokers write two entries to a ledger and keep delayed indexes in buckets, so that
small topics have ledgers of every kind. Each test has a namespace of its own.
"""

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from pulsar_sidecar.ledger_deletion.control import CONTROL
from pulsar_sidecar.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.ledger_deletion.topic_deletion.operation import OPERATIONS
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
    # Within a second brokers store acknowledgements, which they forget when they are killed. After a minute, the
    # default, what one test gave up might come again to the next one's sidecar, which would try it for hours.
    "managedLedgerCursorPositionFlushSeconds": "1",
    # An unused topic must not go by itself while a test looks at it.
    "brokerDeleteInactiveTopicsEnabled": "false",
    **BUCKETS,
    "delayedDeliveryMinIndexCountPerBucket": "4",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "3",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "60",
}

_failed = pytest.StashKey[bool]()


@dataclass(frozen=True, slots=True)
class Scene:
    """One test's part of the cluster."""

    cluster: ClusterUnderTest
    workload: Workload
    sidecars: Sidecars
    oracles: Oracles
    namespace: str

    def topic(self, local_name: str) -> TopicName:
        """A topic of this test's namespace; it does not exist yet."""
        return parse_topic_name(f"persistent://{self.namespace}/{local_name}")

    @property
    def sidecar(self) -> SidecarProcess:
        """The sidecar that tests share, the only one that runs."""
        return self.sidecars.shared()

    def start_alone(self, **settings: object) -> SidecarProcess:
        """A sidecar with settings of its own, and no other beside it."""
        self.sidecars.end_all()
        return self.sidecars.start(**settings)

    def start_together(self, *settings: Mapping[str, object]) -> list[SidecarProcess]:
        """Several sidecars and no others, one for each mapping."""
        self.sidecars.end_all()
        started = [self.sidecars.launch(**each) for each in settings]
        for sidecar in started:
            sidecar.wait_until_ready()
        return started

    def append(self, sidecar: SidecarProcess, records: Sequence[Mapping[str, Any]]) -> None:
        """Append records of ledgers to a sidecar; the oracles remember."""
        sidecar.append(records)
        self.oracles.add_accepted(record["ledgerId"] for record in records)

    def delete_topic(self, sidecar: SidecarProcess, topic: TopicName, *, force: bool = False) -> TopicLedgers:
        """Delete a topic in two phases; what it referenced just before, which the oracles remember."""
        before = self.workload.ledgers(topic)
        path = f"/admin/v2/{self.workload.of_topic(topic)}"
        sidecar.call("DELETE", path, **({"force": "true"} if force else {}))
        self.oracles.add_accepted(before.all)
        return before

    def orphans(self, topic: TopicName, ledgers: int) -> TopicLedgers:
        """Data ledgers that a broker left behind when it deleted the topic."""
        self.workload.fill(topic, ledgers)
        found = self.workload.ledgers(topic)
        self.workload.leave_ledgers_behind(topic, found)
        return found


@pytest.fixture(scope="session")
def deletion_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """The cluster of all tests of deletion."""
    directory = tmp_path_factory.mktemp("deletion-cluster") / "members"
    settings = {"broker_conf": BROKER_CONF, "bookie_conf": FAST_BOOKIE_SESSIONS}
    with started_cluster(ClusterSpec(directory, version=version_under_test(), **settings)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def workload(deletion_cluster: ClusterUnderTest) -> Iterator[Workload]:
    with contextlib.closing(Workload(deletion_cluster)) as workload:
        yield workload


@pytest.fixture(scope="session")
def sidecars(deletion_cluster: ClusterUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecars]:
    sidecars = Sidecars(deletion_cluster.addresses, tmp_path_factory.mktemp("sidecars"))
    yield sidecars
    sidecars.close()


@pytest.fixture(scope="session")
def outcome_log(workload: Workload) -> Iterator[OutcomeLog]:
    with contextlib.closing(OutcomeLog(workload)) as log:
        yield log


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    deletion_cluster: ClusterUnderTest,
    workload: Workload,
    sidecars: Sidecars,
    outcome_log: OutcomeLog,
) -> Iterator[Scene]:
    """A namespace of one's own; when the test has passed, the oracles."""
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
    """Remember that a test has failed: the oracles have nothing to add then."""
    report = yield
    if call.when == "call":
        item.stash[_failed] = report.failed
    return report


def _clear_away(workload: Workload, sidecars: Sidecars) -> None:
    """What a failed test left, so that the next one starts with a clean slate."""
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
