"""Brokers' refusals for a namespace come before the first record, and again at each pass."""

from dataclasses import dataclass, field, replace

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_ports import DeletionSettings, NamespaceClusters
from pulsar_sidecar.features.ledger_deletion.topic_deletion.namespace_refusals import (
    POLICIES_READ_ONLY,
    NamespaceRefusals,
)
from pulsar_sidecar.model.errors import ForeignRedirectError, RefusedBeforehandError, SidecarError, TemporaryError
from pulsar_sidecar.model.pulsar_versions import Line

from tests.fakes.namespaces import CLUSTER, FakeNamespaceAdmin
from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.namespace_sidecars import NAMESPACE, DeadAt, NamespaceSidecar, filled
from tests.unit.ledger_deletion.sidecars import Crash, accepted_records, at_rest

BOTH = NamespaceClusters(frozenset({CLUSTER, "remote"}))
V1 = "public/local/old"
GLOBAL = "public/global/old"
STILL = "Cannot delete the global namespace {}. There are still more than one replication clusters configured{}."
OR_NONE = " or replication clusters is empty"


def of(*replication: str, allowed: tuple[str, ...] = ()) -> NamespaceClusters:
    return NamespaceClusters(frozenset(replication), frozenset(allowed))


@dataclass(frozen=True)
class Case:
    """A namespace and its brokers; ``error`` is None where they would delete it."""

    status: int | None = None
    reason: str = ""
    namespace: str = NAMESPACE
    clusters: NamespaceClusters = field(default_factory=lambda: of(CLUSTER))
    force: bool = True
    line: Line = (4, 0)
    allowed: bool = True
    authorization: bool = False
    read_only: bool = False
    not_persistent: tuple[str, ...] = ()


CASES = {
    "its only cluster": Case(),
    "allowed in its only cluster": Case(clusters=of(CLUSTER, allowed=(CLUSTER,))),
    "two clusters": Case(412, STILL.format(NAMESPACE, ""), clusters=BOTH),
    "two clusters, on 4.2": Case(412, STILL.format(NAMESPACE, OR_NONE), clusters=BOTH, line=(4, 2)),
    "two allowed ones": Case(412, STILL.format(NAMESPACE, ""), clusters=of(CLUSTER, allowed=(CLUSTER, "remote"))),
    "none": Case(412, STILL.format(NAMESPACE, ""), clusters=of()),
    "two clusters, empty": Case(412, STILL.format(NAMESPACE, ""), clusters=BOTH, force=False),
    "another cluster that is unknown": Case(404, "Cluster gone does not exist", clusters=of("gone")),
    "no force": Case(405, "Broker doesn't allow forced deletion of namespaces", allowed=False, clusters=BOTH),
    "no force needed": Case(allowed=False, force=False),
    "policies that are read only": Case(
        403, "Broker is forbidden to do read-write operations", read_only=True, allowed=False
    ),
    "a topic that is not persistent": Case(
        409, "Cannot delete non empty namespace", force=False, not_persistent=(f"non-persistent://{NAMESPACE}/a",)
    ),
    "V1": Case(namespace=V1, clusters=BOTH),
    "V1 of another cluster": Case(namespace="public/remote/old"),
    "V1 of this cluster": Case(namespace=V1, authorization=True),
    "V1 of an unknown cluster": Case(
        404, "Cluster gone does not exist", namespace="public/gone/old", authorization=True
    ),
    "V1, global": Case(412, STILL.format(GLOBAL, ""), namespace=GLOBAL, clusters=BOTH),
    "V1, global, of none": Case(namespace=GLOBAL, clusters=of()),
}


def refusals_of(case: Case) -> NamespaceRefusals:
    fake_pulsar = FakePulsar()
    brokers = FakeNamespaceAdmin(fake_pulsar)
    brokers.create(case.namespace)
    brokers.clusters[case.namespace] = case.clusters
    brokers.settings = DeletionSettings(CLUSTER, case.line, case.allowed, case.authorization)
    brokers.not_persistent = list(case.not_persistent)
    if case.read_only:
        fake_pulsar.store.put(POLICIES_READ_ONLY, b"")
    return NamespaceRefusals(fake_pulsar.store, brokers)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_sidecar_refuses_namespaces_that_brokers_refuse(case: Case) -> None:
    refusals = refusals_of(case)
    if case.status is None:
        refusals.check(case.namespace, force=case.force)
        return
    with pytest.raises(RefusedBeforehandError) as refusal:
        refusals.check(case.namespace, force=case.force)
    assert refusal.value.status == case.status
    assert refusal.value.reason.startswith(case.reason)


@pytest.mark.parametrize(
    "case",
    [Case(clusters=of("remote")), Case(namespace="public/remote/old", authorization=True)],
    ids=["only there", "V1"],
)
def test_namespace_redirected_elsewhere_is_refused(case: Case) -> None:
    with pytest.raises(
        ForeignRedirectError, match="to http://remote:8080, because remote is its only cluster"
    ) as found:
        refusals_of(case).check(case.namespace, force=True)
    assert found.value.sidecar_url is None


@pytest.mark.parametrize("policies", [None, {}, [], {"replication_clusters": "local"}])
def test_policies_that_cannot_be_read_are_no_answer(policies: object) -> None:
    with pytest.raises(TemporaryError):
        NamespaceClusters.read(policies)


def test_the_clusters_are_read_as_brokers_write_them() -> None:
    assert NamespaceClusters.read({"replication_clusters": ["b", "a"], "allowed_clusters": None}) == of("a", "b")
    assert NamespaceClusters.read({"replication_clusters": ["a"], "allowed_clusters": ["a"]}) == of("a", allowed=("a",))


# --- before the first record, and at each pass -----------------------------------------------------------------------


def add_cluster(brokers: FakeNamespaceAdmin) -> None:
    brokers.clusters[NAMESPACE] = BOTH


def forbid_force(brokers: FakeNamespaceAdmin) -> None:
    brokers.settings = replace(brokers.settings, forced_deletion_allowed=False)


@pytest.mark.parametrize(("change", "status"), [(add_cluster, 412), (forbid_force, 405)])
def test_change_between_passes_refuses_before_deleting_more(change: object, status: int) -> None:
    fake_pulsar, brokers = filled(3)
    sidecar = NamespaceSidecar(fake_pulsar, brokers)
    sidecar.namespaces.begin(NAMESPACE, force=True, requested_by="me")
    change(brokers)
    ledgers = fake_pulsar.ledgers()
    sidecar.work()
    assert [tried.state for tried in sidecar.ended] == [OperationState.REFUSED]
    refusal = sidecar.ended[0].refusal
    assert isinstance(refusal, RefusedBeforehandError)
    assert refusal.status == status
    assert fake_pulsar.ledgers() == ledgers
    assert accepted_records(fake_pulsar) == []
    assert brokers.deletions == []


@pytest.mark.parametrize("number", range(1, 60, 4))
def test_a_process_that_continues_looks_again(number: int) -> None:
    fake_pulsar, brokers = filled(2)
    with pytest.raises(Crash):
        NamespaceSidecar(fake_pulsar, brokers, steps=DeadAt(number)).delete_namespace()
    add_cluster(brokers)
    fake_pulsar.store.end_session()
    fake_pulsar.topics.drop_connections()
    asked, second = len(brokers.deletions), NamespaceSidecar(fake_pulsar, brokers)
    running = {status.topic_name for status in second.deleter.running()}
    # A broker takes pending acknowledgements along with their topic.
    users = [topic for topic in brokers.stored_topics(NAMESPACE) if not topic.is_system_topic]
    names = {topic for topic in users if {topic, topic.base}.isdisjoint(running)}
    second.work()
    assert names <= set(brokers.stored_topics(NAMESPACE))
    assert len(brokers.deletions) == asked
    assert at_rest(fake_pulsar)


@pytest.mark.parametrize("failing", ["deletion_settings", "clusters_of", "topics_in"])
def test_failed_lookup_prevents_deletion(failing: str) -> None:
    fake_pulsar, brokers = filled(0)

    def fail(*_: object) -> None:
        raise TemporaryError("no broker answers")

    setattr(brokers, failing, fail)
    before = set(fake_pulsar.store.paths())
    with pytest.raises(SidecarError, match="no broker answers"):
        NamespaceSidecar(fake_pulsar, brokers).namespaces.begin(NAMESPACE, force=False, requested_by="me")
    assert set(fake_pulsar.store.paths()) == before
