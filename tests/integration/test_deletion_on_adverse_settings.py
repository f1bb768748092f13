"""Brokers whose settings would stop ledger deletion: no delayed delivery, short delays only, expiring subscriptions."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import SYSTEM_NAMESPACE, DeletionTopic
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import SUBSCRIPTION
from pulsar_sidecar.model.ledgers import LedgerComponent
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path

from tests.cluster.deletion import BROKER_CONF
from tests.cluster.oracles import Outcome, OutcomeLog
from tests.cluster.patience import holds_for, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.sidecars import SidecarProcess, Sidecars
from tests.cluster.topics import Workload, record, unique

ADVERSE = {
    **BROKER_CONF,
    "delayedDeliveryEnabled": "false",
    "subscriptionExpirationTimeMinutes": "1",
    "subscriptionExpiryCheckIntervalInMinutes": "1",
}
RETRY_SECONDS, TRIES = 5, 2
SETTINGS: dict[str, object] = {
    "two_phase_deletion_reconsume_later_in_seconds": RETRY_SECONDS,
    "two_phase_deletion_max_retry_delete_count": TRIES,
}
STATUS = "/admin/v2/ledger-deletion/status"
PENDING, RETRY, DEAD_LETTER = (
    parse_topic_name(f"persistent://{SYSTEM_NAMESPACE}/{topic.value}")
    for topic in (DeletionTopic.PENDING, DeletionTopic.RETRY, DeletionTopic.DEAD_LETTER)
)


@dataclass(frozen=True, slots=True)
class Adverse:
    """A cluster with such settings, and sidecars that meet them at their start."""

    workload: Workload
    outcomes: OutcomeLog
    sidecars: Sidecars

    @property
    def sidecar(self) -> SidecarProcess:
        running = self.sidecars.running
        return running[0] if running else self.sidecars.start(**SETTINGS)

    def tries(self) -> list[Outcome]:
        """Return every try of a record that cannot be judged, up to its end."""
        topic = parse_topic_name(f"persistent://public/default/adverse-{unique()}")
        self.workload.fill(topic, 1)
        (ledger_id,) = self.workload.ledgers(topic).data
        self.workload.leave_ledgers_behind(topic, self.workload.ledgers(topic))
        self.workload.store.create(managed_ledger_path(topic.managed_ledger_name), b"\x00 this is no ManagedLedgerInfo")
        self.sidecar.append([record(topic, LedgerComponent.MANAGED_LEDGER, ledger_id)])

        def given_up() -> list[Outcome]:
            found = [one for one in self.outcomes.all if one.step == "settled" and one.ledger_id == ledger_id]
            return found if found and found[-1].decision == "dead-letter" else []

        return until(given_up, "the record is given up")

    @contextlib.contextmanager
    def delaying(self, path: str, policy: dict[str, object]) -> Iterator[None]:
        """Set a policy of delayed delivery for a namespace or a topic, and restore the former one at the end."""
        place = f"{path}/delayedDelivery"
        former = self.workload.admin("GET", place)
        self.workload.admin("POST", place, policy)
        try:
            yield
        finally:
            self.workload.admin("DELETE", place) if former is None else self.workload.admin("POST", place, former)
            until(lambda: self.workload.admin("GET", place) == former, "the former policy is in force")

    def subscriptions(self) -> list[str]:
        """Return the existing subscriptions of the service."""
        partitions = [PENDING.partition(index) for index in range(4)]
        wanted = [*((topic, SUBSCRIPTION) for topic in [*partitions, RETRY]), (DEAD_LETTER, "dead-letters")]
        return [
            str(topic)
            for topic, name in wanted
            if name in self.workload.admin("GET", self.workload.of_topic(topic, "subscriptions"))
        ]


@pytest.fixture(scope="module")
def adverse(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adverse]:
    with (
        special_cluster(broker_conf=ADVERSE) as cluster,
        contextlib.closing(Workload(cluster)) as workload,
        contextlib.closing(OutcomeLog(workload)) as outcomes,
        contextlib.closing(Sidecars(cluster.addresses, tmp_path_factory.mktemp("sidecars"))) as sidecars,
    ):
        sidecars.start(**SETTINGS)
        yield Adverse(workload, outcomes, sidecars)


def waits_between(tries: list[Outcome]) -> list[float]:
    """Return the seconds between one try and the next."""
    moments: list[Any] = [one.entry["reads"]["atMs"] for one in tries]
    return [(later - earlier) / 1000 for earlier, later in pairwise(moments)]


def check_tries(tries: list[Outcome]) -> None:
    """Demand that each try was counted and on time; a broker may deliver up to two ticks early."""
    assert [one.decision for one in tries] == ["retry"] * TRIES + ["dead-letter"]
    assert min(waits_between(tries)) > RETRY_SECONDS - 2.2


def test_retries_wait_although_brokers_have_delayed_delivery_switched_off(adverse: Adverse) -> None:
    check_tries(adverse.tries())
    assert adverse.sidecar.call("GET", STATUS)["warnings"] == []
    policy = adverse.workload.admin("GET", adverse.workload.of_topic(RETRY, "delayedDelivery"))
    assert (policy["active"], policy["maxDeliveryDelayInMillis"]) == (True, 0)


def test_retries_wait_although_the_namespace_admits_only_short_delays(adverse: Adverse) -> None:
    limits = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 1000}
    with adverse.delaying(f"namespaces/{SYSTEM_NAMESPACE}", limits):
        check_tries(adverse.tries())


def test_the_sidecar_waits_itself_where_brokers_delay_nothing(adverse: Adverse) -> None:
    off = {"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0}
    with adverse.delaying(adverse.workload.of_topic(RETRY), off):
        check_tries(adverse.tries())


def test_the_services_subscriptions_do_not_expire(adverse: Adverse, full_run: None) -> None:
    adverse.sidecars.end_all()
    before = adverse.subscriptions()
    assert len(before) == 6
    holds_for(lambda: adverse.subscriptions() == before, "the subscriptions are there", 200)


def test_subscriptions_do_not_expire_in_the_services_namespace(adverse: Adverse) -> None:
    path = f"namespaces/{SYSTEM_NAMESPACE}/subscriptionExpirationTime"
    assert adverse.workload.admin("GET", path) == 0
