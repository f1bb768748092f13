"""A bundle that moves at any call of a sidecar, while a broker that has lost it writes what it remembers.

The real question to the owners of bundles runs here (`BrokerLiveOwners`). Whatever happens: nothing that a node, or the
owner's memory, references is deleted, and no later write by any broker references what is gone. tests/model has the
same in every order (`Marker.OWNER`), and what remains.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_rest.live_owners import BrokerLiveOwners
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerComponent

from tests.fakes.bookkeeper import compacted_custom_metadata
from tests.fakes.metadata import Method
from tests.fakes.moving_bundle import MovingBundle
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.orphans import about
from tests.unit.ledger_deletion.replay_settings import TOPIC
from tests.unit.ledger_deletion.sidecars import Crash, Sidecar, at_rest, restarted, send
from tests.unit.ledger_deletion.test_replay_of_schedules import MODERATE

TAKEN_OVER = (
    "owner_loses_the_bundle",
    "second_takes_the_bundle",
    "owner_loads",
    "owner_trims",
    "others_write",
)
"""The first broker loses the bundle with the topic loaded; the second one trims a ledger that the first still lists."""
ACTIONS = (
    *TAKEN_OVER,
    "first_takes_the_bundle",
    "owner_links_the_compacted_ledger",
    "owner_writes",
    "others_close",
)
FEW_RETRIES = RetryPolicy(reconsume_later_ms=600_000, max_redeliver_count=2)


@dataclass
class Replay:
    """A sidecar with records of every ledger that a broker may take off its list, or has not linked yet.

    Calls of the metadata store and requests to brokers are counted from 0; before each, brokers act and it may die.
    """

    actions: Mapping[int, Sequence[str]]
    crashes: Collection[int] = ()
    versioned: bool = True
    calls: int = 0
    dangling: set[LedgerId] = field(default_factory=set)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self.fake_pulsar = FakePulsar()
        topic = self.fake_pulsar.topic(TOPIC, TopicPlan(ledgers=2, compacted=True, last_open=False))
        self.listed = self.fake_pulsar.listed(topic)
        self.bundle = MovingBundle(self.fake_pulsar, topic, versioned=self.versioned)
        self.bundle.compacted = self.compacted = self.fake_pulsar.ledger(compacted_custom_metadata(TOPIC))
        for method in get_args(Method):
            self.fake_pulsar.store.before(method, self._arrive, times=-1)
        self.fake_pulsar.admin.hooks.before("views", self._arrive, times=-1)

    def run(self) -> None:
        self._send()
        self._work(Sidecar(self.fake_pulsar, retry_policy=FEW_RETRIES))
        # What has left the list since: an audit finds it, and appends records of its own.
        self._send(unreferenced=True)
        self._work(restarted(self.fake_pulsar, retry_policy=FEW_RETRIES))
        self.act("owner_links_the_compacted_ledger", "others_write", "owner_writes")
        self.bundle.owners.close()

    @property
    def harm(self) -> list[str]:
        """Return the ledgers that were deleted while referenced."""
        return [*self.fake_pulsar.violations, *(f"ledger {ledger_id} is gone" for ledger_id in sorted(self.dangling))]

    def act(self, *names: str) -> None:
        for name in names:
            getattr(self.bundle, name)()
            self.dangling |= self.fake_pulsar.dangling()

    def _send(self, **mark: object) -> None:
        kinds = dict.fromkeys(self.listed, LedgerComponent.MANAGED_LEDGER)
        kinds[self.compacted] = LedgerComponent.COMPACTED_LEDGER
        for ledger_id, kind in kinds.items():
            send(self.fake_pulsar, about(self.bundle.topic, ledger_id, kind, **mark))

    def _work(self, sidecar: Sidecar) -> None:
        while True:
            try:
                sidecar.work()
            except Crash:
                sidecar = restarted(self.fake_pulsar, retry_policy=FEW_RETRIES)
            else:
                assert at_rest(self.fake_pulsar)
                return

    def _arrive(self) -> None:
        with self.lock:
            number, self.calls = self.calls, self.calls + 1
            self.act(*self.actions.get(number, ()))
            if number in self.crashes:
                raise Crash(number)


def replayed(actions: Mapping[int, Sequence[str]], crashes: Collection[int] = (), *, versioned: bool = True) -> Replay:
    replay = Replay(actions, crashes, versioned)
    replay.run()
    return replay


def spread(names: Sequence[str], first: int, gap: int) -> dict[int, list[str]]:
    """One action at a call, with a gap between two; all at the first call for no gap."""
    found: dict[int, list[str]] = {}
    for place, name in enumerate(names):
        found.setdefault(first + place * gap, []).append(name)
    return found


@pytest.mark.parametrize("gap", [0, 1, 2, 5, 13])
def test_a_bundle_that_moves_at_any_call(gap: int) -> None:
    deleted: set[LedgerId] = set()
    calls = replayed({}).calls
    for first in range(calls):
        replay = replayed(spread(TAKEN_OVER, first, gap))
        assert replay.harm == [], first
        deleted |= {*replay.listed, replay.compacted} - replay.fake_pulsar.ledgers()
    assert deleted == {replay.listed[0], replay.compacted}


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_sidecar_that_dies_while_a_bundle_moves(after: int) -> None:
    for first in range(replayed({}).calls):
        replay = replayed(spread(TAKEN_OVER, first, 1), crashes=[first + after])
        assert replay.harm == [], first


def test_brokers_that_wrote_at_any_version_would_reference_what_is_gone() -> None:
    calls = replayed({}).calls
    assert any(replayed(spread(TAKEN_OVER[:-1], first, 1), versioned=False).harm for first in range(calls))


def test_without_the_question_the_owner_would_reference_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replayed({}).harm == []
    monkeypatch.setattr(BrokerLiveOwners, "views", lambda self, topics: {})
    replay = replayed({})
    assert replay.harm == [f"ledger {replay.compacted} is gone"]


@MODERATE
@given(
    st.dictionaries(st.integers(0, 150), st.lists(st.sampled_from(ACTIONS), max_size=3), max_size=8),
    st.lists(st.integers(0, 150), max_size=3),
)
def test_any_moves_under_any_schedule(actions: dict[int, list[str]], crashes: list[int]) -> None:
    assert replayed(actions, crashes).harm == []
