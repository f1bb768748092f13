"""Topic deletions at the same time share their round trips, and survive a kill at any step together."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import BrokerRefusedError, DataLossError, SidecarError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.model.traces import known_traces, traces
from tests.unit.ledger_deletion.faults import Wrapped
from tests.unit.ledger_deletion.namespace_sidecars import DeadAt
from tests.unit.ledger_deletion.sidecars import Crash, Sidecar, accepted_records, outcome_lines, restarted

NAMESPACE = "persistent://public/default"


@dataclass(slots=True)
class InTurns:
    """Ports that take one call at a time, as the fakes want it, each so slow that other calls come meanwhile.

    The first record is stored once ``deletions`` have been begun, however busy the machine is.
    """

    seconds: float = 0.0005
    deletions: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    calls: list[str] = field(default_factory=list)

    def wrap(self, port: object) -> Wrapped:
        return Wrapped(port, self._around)

    def _around(self, name: str, call: Callable[[], object], _arguments: Sequence[object]) -> object:
        if name == "create_together" and name not in self.calls:
            self.wait_for_deletions()
        with self.lock:
            self.calls.append(name)
            threading.Event().wait(self.seconds)
            return call()

    def wait_for_deletions(self) -> None:
        give_up = time.monotonic() + 30
        while self.calls.count("shadows_of") < self.deletions and time.monotonic() < give_up:
            threading.Event().wait(0.001)


def topics(fake_pulsar: FakePulsar, count: int) -> list[TopicName]:
    return [fake_pulsar.topic(f"{NAMESPACE}/t-{number}", TopicPlan(ledgers=2)) for number in range(count)]


def delete_at_once(sidecar: Sidecar, names: list[TopicName], **options: bool) -> list[object]:
    """The state of each, or its caller's error."""
    together = threading.Barrier(len(names))

    def delete(name: TopicName) -> object:
        together.wait()
        try:
            return sidecar.delete_topic(name, **options)
        except (SidecarError, Crash) as error:
            return error

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(delete, names))


def ids(count: int) -> list[str]:
    return [f"op-{number}" for number in range(count)]


# --- round trips -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "most_reads"),
    [(TopicPlan(subscriptions=()), 4), (TopicPlan(), 8), (TopicPlan(schema_versions=2, subscriptions=("a", "b")), 8)],
    ids=["no subscription", "one subscription", "two subscriptions and a schema"],
)
def test_topic_deletion_has_limited_round_trips(fake_pulsar: FakePulsar, plan: TopicPlan, most_reads: int) -> None:
    other = fake_pulsar.topic(f"{NAMESPACE}/another")
    topic = fake_pulsar.topic(f"{NAMESPACE}/orders", plan)
    for each in (other, topic):
        fake_pulsar.load(each)
    sidecar = Sidecar(fake_pulsar, operation_ids=ids(2))
    sidecar.delete_topic(other)
    fake_pulsar.store.journal.clear()
    assert sidecar.delete_topic(topic) is OperationState.DONE
    calls = Counter(call.method for call in fake_pulsar.store.journal)
    assert calls.pop("create_together") == calls.pop("delete_together") == 1
    assert calls.pop("now_ms", 0) <= 1
    assert calls.keys() <= {"read_many", "children_many"}
    assert calls.total() <= most_reads


def test_deletions_at_the_same_time_share_their_round_trips(fake_pulsar: FakePulsar) -> None:
    names, turns = topics(fake_pulsar, 50), InTurns(seconds=0.002, deletions=50)
    sidecar = Sidecar(fake_pulsar, wrap=turns.wrap, operation_ids=ids(50))
    assert delete_at_once(sidecar, names) == [OperationState.DONE] * 50
    check_all(fake_pulsar, sidecar)
    calls = Counter(turns.calls)
    # They are a handful; threads of a busy machine may have begun, and not come so far as to store.
    assert calls["create_together"] < 10
    assert calls["delete_together"] < 40
    assert calls["publish"] < 80


def check_all(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


# --- each for itself -------------------------------------------------------------------------------------------------


def test_refused_topic_and_shadow_do_not_delay_the_others(fake_pulsar: FakePulsar) -> None:
    source = fake_pulsar.topic("persistent://public/elsewhere/source")
    shadow = fake_pulsar.shadow(f"{NAMESPACE}/shadow", source)
    kept = fake_pulsar.ledgers()
    names, turns = topics(fake_pulsar, 12), InTurns()
    fake_pulsar.admin.hooks.fail_next("delete_topic", BrokerRefusedError(412, "Topic has active producers"))
    sidecar = Sidecar(fake_pulsar, wrap=turns.wrap, operation_ids=ids(13))
    results = delete_at_once(sidecar, [*names[:6], shadow, *names[6:]])
    kinds = Counter(type(each) for each in results)
    assert kinds == {OperationState: 11, BrokerRefusedError: 1, DataLossError: 1}
    assert isinstance(results[6], DataLossError)
    sidecar.work_and_check()
    refused = names[[type(each) for each in results if not isinstance(each, DataLossError)].index(BrokerRefusedError)]
    assert {record.topic for record in accepted_records(fake_pulsar)} == set(names)
    left = {*fake_pulsar.listed(refused)} | {cursor.cursor_ledger for cursor in fake_pulsar.cursors(refused).values()}
    assert fake_pulsar.ledgers() == kept | (left - {None})


# --- killed at any step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "every"), [(1, 1), (2, 3), (50, 97)])
def test_a_group_killed_at_any_step_is_continued(size: int, every: int) -> None:
    killed, known = 0, set(known_traces())
    for number in range(0, 2_000, every):
        fake_pulsar = FakePulsar()
        names, turns = topics(fake_pulsar, size), InTurns(seconds=0)
        dying = Sidecar(fake_pulsar, wrap=turns.wrap, steps=DeadAt(number), operation_ids=ids(size))
        results = delete_at_once(dying, names)
        killed += any(isinstance(each, Crash) for each in results)
        sidecar = restarted(fake_pulsar)
        sidecar.work_and_check()
        for name, result in zip(names, results, strict=True):
            # A topic whose deletion was not promised yet stays as a whole.
            gone = not fake_pulsar.listed(name)
            assert gone or isinstance(result, Crash)
            assert gone or not {record.topic for record in accepted_records(fake_pulsar)} & {name}
        # A contract test replays the known traces in the model: in a group each ledger takes known steps.
        assert set(traces(outcome_lines(fake_pulsar)).values()) <= known
        if not any(isinstance(each, Crash) for each in results):
            break
    assert killed > 5
