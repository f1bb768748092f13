"""Audits while everything changes and brokers are killed: nothing referenced is deletable, all that leaked is found.

What is referenced, and so what leaked, is reported by brokers and bookies themselves (`tests.cluster.broker_view`).
"""

import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from pulsar_sidecar.demo.deleting import delete_again, delete_topics, make_topics
from pulsar_sidecar.features.audit.results.tables import OrphanCause
from pulsar_sidecar.local_cluster.software import find_software
from pulsar_sidecar.local_cluster.spec import ClusterSpec
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.ownership.claims import LedgerKind

from tests.cluster import dead_letters
from tests.cluster.audits import Audits, Look, demand_unused
from tests.cluster.broker_view import BrokerView
from tests.cluster.choosing import FAST_BOOKIE_SESSIONS
from tests.cluster.cursor_rollovers import CursorRollovers
from tests.cluster.deletion import BROKER_CONF
from tests.cluster.every_kind import EVERY_KIND_CONF, Churn, EveryKind
from tests.cluster.function_state import FunctionState, function_state
from tests.cluster.java_programs import QUICK, java_program
from tests.cluster.patience import OPERATION_SECONDS, NotInTime, until
from tests.cluster.plugin import ClusterFactory
from tests.cluster.running import BROKERS, ClusterUnderTest
from tests.cluster.sidecars import Sidecars
from tests.cluster.topics import Workload, unique
from tests.faults.harness import line_of
from tests.faults.load import pause
from tests.faults.tally import Line

CONF = {
    **BROKER_CONF,
    **EVERY_KIND_CONF,
    "transactionCoordinatorEnabled": "true",
    # Buckets are merged, so that old ones go.
    "delayedDeliveryMaxNumBuckets": "6",
}
LOOKS = 6
CHURNING_THREADS = 3
DOOMED_TOPICS = 30
ACKNOWLEDGED = 10
TRIES_TO_LEAK = 3
_GONE_SECONDS = 180


@dataclass(frozen=True, slots=True)
class Setup:
    """A cluster of this module's own, with a sidecar, and who looks at it."""

    cluster: ClusterUnderTest
    workload: Workload
    sidecars: Sidecars
    view: BrokerView

    @property
    def url(self) -> str:
        return self.cluster.addresses.web_service_urls[0]

    def audits(self, directory: Path) -> Audits:
        return Audits(self.cluster.addresses, directory)

    def apply(self, audits: Audits, look: Look, line: Line) -> None:
        """Approve the plan, and wait until all of it is gone."""
        self.sidecars.shared()
        self._unload_owners_of_buckets(look)
        applied = audits.apply(look)
        assert applied.sent + applied.sent_earlier == len(look.deletable)
        self._wait_until_gone(look, line)
        line.accepted += applied.sent
        line.outcomes["deleted: unreferenced"] += len(look.deletable)

    def _wait_until_gone(self, look: Look, line: Line) -> None:
        """A broker that blocks itself for minutes (`tests.cluster.buckets`) outlasts all tries, here of a minute."""
        try:
            until(lambda: not self._left(look), "what was deletable is gone", _GONE_SECONDS)
        except NotInTime:
            sidecar = self.sidecars.shared()
            for ledger_id in self._left(look):
                for letter in dead_letters.listed(sidecar, ledger_id):
                    line.outcomes[f"redriven: {letter['reason']}"] += 1
                dead_letters.redrive(sidecar, ledger_id)
            until(lambda: not self._left(look), f"it is, after a second time\n{self._describe_left(look)}")

    def unused_at_rest(self) -> frozenset[int]:
        """Return the ledgers that nothing references, once two listings from the brokers agree."""

        def agreeing() -> list[frozenset[int]] | None:
            first, second = self.view.unreferenced(), self.view.unreferenced()
            return [first] if first == second else None

        return until(agreeing, "the cluster has come to rest")[0]

    def _left(self, look: Look) -> frozenset[int]:
        return look.deletable & self.view.existing()

    def _describe_left(self, look: Look) -> str:
        sidecar = self.sidecars.shared()
        rows = [look.orphans[ledger_id] for ledger_id in sorted(self._left(look))]
        letters = [dead_letters.listed(sidecar, row["ledger_id"]) for row in rows]
        return "\n".join([*(f"{row}: {found}" for row, found in zip(rows, letters, strict=True)), sidecar.log()])

    def _unload_owners_of_buckets(self, look: Look) -> None:
        """Unload owners of buckets: one whose pointer was lost is deleted once no broker can have it in memory."""
        for row in look.orphans.values():
            if row["kind"] == LedgerKind.DELAYED_INDEX_BUCKET.value:
                topic = parse_topic_name(row["topic"])
                self.workload.request("PUT", self.workload.of_topic(topic, "unload"))


@pytest.fixture(scope="module")
def setup(special_cluster: ClusterFactory, tmp_path_factory: pytest.TempPathFactory, full_run: None) -> Iterator[Setup]:
    with special_cluster(brokers=2, bookies=2, broker_conf=CONF, bookie_conf=FAST_BOOKIE_SESSIONS) as cluster:
        sidecars = Sidecars(cluster.addresses, tmp_path_factory.mktemp("sidecars"))
        with (
            contextlib.closing(Workload(cluster)) as workload,
            contextlib.closing(BrokerView(cluster.addresses)) as view,
            contextlib.closing(sidecars),
        ):
            sidecars.shared()
            yield Setup(cluster, workload, sidecars, view)


def test_referenced_ledgers_are_never_deletable_while_everything_changes(
    setup: Setup, rng: random.Random, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    line, audits = line_of(request), setup.audits(tmp_path)
    number = unique()
    every_kind = EveryKind(setup.workload, setup.cluster.addresses, f"public/every-{number}")
    every_kind.fill()
    run_transactions(setup, every_kind, tmp_path)
    upload_to_function_worker(setup, f"fn-{number}")
    churn = Churn(setup.workload, setup.cluster.addresses, f"public/churn-{number}", rng)
    audits.look()
    with function_state(setup.cluster.addresses, tmp_path) as state:
        with churn.running(CHURNING_THREADS):
            look_repeatedly(setup, state, audits, line)
        for act, count in churn.done.items():
            line.fault(f"load of audits: {act.strip('_').replace('_', ' ')}", count)
        unused = setup.unused_at_rest()
        audits.look()
        pause(3)
        last = audits.look()
        demand_unused(last, last.deletable, setup.view.references())
        demand_exactly(last, unused)
        setup.apply(audits, last, line)
        every_kind.check()
        state.check()
    assert not (audits.look().orphans.keys() & unused)


def look_repeatedly(setup: Setup, state: FunctionState, audits: Audits, line: Line) -> None:
    """Demand in repeated audits that nothing that is or will be used is deletable."""
    deletable: set[int] = set()
    for number in range(LOOKS):
        state.put("looks", str(number))
        # Seen by brokers between two dumps: what is in use now must not be deletable by the second.
        in_use = setup.view.references()
        look = audits.look()
        demand_unused(look, look.deletable, in_use)
        deletable |= look.deletable
        demand_unused(look, frozenset(deletable), setup.view.references())
        line.fault("audited under load")
        line.outcomes["ledgers compared under load"] += look.summary.existing.ledgers


def demand_exactly(look: Look, unused: frozenset[int]) -> None:
    """Demand that exactly the ledgers unknown to brokers are deletable."""
    assert look.deletable == unused, [look.orphans.get(each, each) for each in look.deletable ^ unused]


def run_transactions(setup: Setup, every_kind: EveryKind, directory: Path) -> None:
    """Run transactions, whose logs, buffers' snapshots and stores of pending acknowledgements have ledgers."""
    program = Path(__file__).with_name("Transactions.java")
    topic, addresses = every_kind.topic("transacted"), setup.cluster.addresses
    log = directory / "transactions.log"
    with java_program(program, addresses.version, ["-Xmx128m", *QUICK], [addresses.broker_service_url], log) as java:
        java.write_line(f"{topic} in-transactions")
        assert java.read() == "done"
    used = setup.view.references()
    places = {path.rpartition("/")[2] for paths in used.values() for path in paths}
    assert any(place.startswith("__transaction_log_") for place in places), sorted(places)
    assert any(place.endswith("__transaction_pending_ack") for place in places), sorted(places)


def upload_to_function_worker(setup: Setup, name: str) -> None:
    """A function's code, which the worker inside of a broker keeps on DistributedLog; the broker gets one first."""
    start_function_worker(setup.cluster)

    def uploaded() -> bool:
        # It returns 503 until it has become its own leader.
        answer = requests.post(
            f"{setup.url}/admin/v3/functions/upload",
            files={"data": ("tool.jar", b"no jar" * 100, "application/octet-stream"), "path": (None, f"a/b/{name}")},
            timeout=OPERATION_SECONDS,
        )
        assert answer.ok or answer.status_code == 503, f"{answer.status_code} {answer.text[:300]}"
        return bool(answer.ok)

    until(uploaded, "the worker took the function's code")
    segments = [ledger_id for ledger_id, paths in setup.view.references().items() if "/pulsar" in paths]
    assert len(segments) >= 2


def start_function_worker(cluster: ClusterUnderTest) -> None:
    """Switch it on in the first broker, with a runtime that needs no jars of ``bin/pulsar``."""
    assert cluster.addresses.directory is not None
    directory = cluster.addresses.directory / BROKERS[0]
    if (directory / "conf").exists():
        return
    (directory / "conf").mkdir()
    original = find_software(ClusterSpec(directory)).distribution / "conf" / "functions_worker.yml"
    runtime = "org.apache.pulsar.functions.runtime"
    changed = original.read_text().replace(
        f"\nfunctionRuntimeFactoryClassName: {runtime}.process.ProcessRuntimeFactory",
        f"\nfunctionRuntimeFactoryClassName: {runtime}.thread.ThreadRuntimeFactory",
    )
    (directory / "conf" / "functions_worker.yml").write_text(changed)
    conf = directory / "broker.conf"
    conf.write_text(conf.read_text().replace("functionsWorkerEnabled=false", "functionsWorkerEnabled=true"))
    cluster.restart(BROKERS[0])


# --- leftovers of kills --------------------------------------------------------------------------------------------


def test_orphans_of_killed_brokers_are_found_with_owner_and_cause_and_deleted(
    setup: Setup, rng: random.Random, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    line, audits = line_of(request), setup.audits(tmp_path)
    number = unique()
    doomed, churned = f"public/doomed-{number}", f"public/killed-{number}"
    names = make_topics(setup.workload.client, setup.url, doomed, DOOMED_TOPICS)
    churn = Churn(setup.workload, setup.cluster.addresses, churned, rng)
    with churn.running(2 * CHURNING_THREADS):
        pause(rng.uniform(4, 8))
        brokers = rng.sample(BROKERS, rng.randint(1, 2))
        delete_and_kill(setup, doomed, names, brokers, rng)
    line.fault("brokers killed under audit", len(brokers))
    left = demand_found_and_deleted(setup, audits, line)
    # The namespace's own topic of policies is none of those that were deleted; it lives on and may leave other things.
    deleted = {f"persistent://{doomed}/{name}" for name in names}
    causes = {row["cause"] for row in left if row["topic"] in deleted and row["kind"] != LedgerKind.SCHEMA.value}
    assert causes <= {OrphanCause.HALF_DELETED_TOPIC.value}


def test_orphans_of_brokers_killed_during_cursor_roll_overs(
    setup: Setup, rng: random.Random, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    line = line_of(request)
    for attempt in range(TRIES_TO_LEAK):
        kill_while_cursors_switch(setup, rng)
        line.fault("brokers killed while cursors switch", len(BROKERS))
        left = demand_found_and_deleted(setup, setup.audits(tmp_path / str(attempt)), line)
        if OrphanCause.FAILED_CURSOR_SWITCH.value in {row["cause"] for row in left}:
            return
    pytest.fail(f"{TRIES_TO_LEAK} times no cursor was in the middle of a change")


def kill_while_cursors_switch(setup: Setup, rng: random.Random) -> None:
    """A change takes three responses of ZooKeeper; while these are slow, most cursors are in the middle of one."""
    rollovers = CursorRollovers(setup.workload, f"public/switched-{unique()}")
    with rollovers.running():
        until(lambda: rollovers.acknowledged >= ACKNOWLEDGED, "all cursors change their ledgers again and again")
        for _ in range(rng.randint(8, 16)):
            setup.cluster.stop("zookeeper")
            pause(0.3)
            setup.cluster.cont("zookeeper")
            pause(0.03)
        for broker in BROKERS:
            setup.cluster.kill(broker)
        for broker in BROKERS:
            setup.cluster.restart(broker)


def demand_found_and_deleted(setup: Setup, audits: Audits, line: Line) -> list[dict[str, Any]]:
    """Demand that the second of two audits explains and deletes all ledgers unknown to brokers; return its rows."""
    unused = setup.unused_at_rest()
    audits.look()
    audits.wait_between_looks()
    look = audits.look()
    demand_unused(look, look.deletable, setup.view.references())
    demand_exactly(look, unused)
    left = [look.orphans[ledger_id] for ledger_id in sorted(unused)]
    for row in left:
        demand_owner_and_cause(setup, row)
    line.faults += Counter(f"left behind: {row['kind']}, {row['cause']}" for row in left)
    demand_missing(setup, look)
    setup.apply(audits, look, line)
    assert not (audits.look().orphans.keys() & unused)
    return left


def delete_and_kill(
    setup: Setup, namespace: str, names: Sequence[str], brokers: Sequence[str], rng: random.Random
) -> None:
    """Delete all topics at once, kill brokers in the middle, start them again, repeat deletions without a response."""
    with ThreadPoolExecutor(len(brokers) + 1) as pool:
        run = pool.submit(delete_topics, setup.url, namespace, names, lambda: None)
        pause(rng.uniform(0.1, 1.0))
        for broker in brokers:
            setup.cluster.kill(broker)
        pause(rng.uniform(0, 2))
        list(pool.map(setup.cluster.restart, brokers))
        failed = run.result()
    assert delete_again(setup.url, namespace, failed, pause, rounds=90) == []


def demand_owner_and_cause(setup: Setup, row: dict[str, Any]) -> None:
    """Demand that owner and cause agree with the ledger's own bytes and with the brokers."""
    kind, cause = LedgerKind(row["kind"]), OrphanCause(row["cause"])
    (stamp,) = setup.view.custom_metadata([row["ledger_id"]]).values()
    named = {
        LedgerKind.SCHEMA: row["schema_id"],
        LedgerKind.DATA: row["managed_ledger"],
        LedgerKind.CURSOR: row["managed_ledger"],
    }.get(kind, row["topic"])
    assert str(named).encode() in stamp, row
    assert cause in setup.view.causes(kind, row), row


def demand_missing(setup: Setup, look: Look) -> None:
    """Demand that ledgers reported missing are referenced by brokers and gone.

    Compacted ledgers are left out, and whatever was made while the audit's inputs were: ``docs/audit.md`` explains why.
    """
    used, existing = setup.view.references(), setup.view.existing()
    rows = [row for row in look.missing if not row["referenced_by"].endswith("/__compaction")]
    wrong = [row for row in rows if row["ledger_id"] in existing or row["ledger_id"] not in used]
    assert not wrong, wrong
