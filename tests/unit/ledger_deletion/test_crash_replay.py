"""Both phases from beginning to end, with the process killed at any point, any call failing, any broker dying.

Whatever happens, once faults stop: nothing referenced was deleted, every accepted record has ended, each ledger was
deleted once, and no ledger that the sidecar accepted is left without a reference (`sidecars.check`).
"""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from pulsar_sidecar.features.ledger_deletion.steps import Step

from tests.unit.ledger_deletion.faults import Failure, OneFault
from tests.unit.ledger_deletion.replay_settings import SETTINGS, Build, Setting, attempt, live, small, troubled
from tests.unit.ledger_deletion.sidecars import CrashAt, Sidecar, accepted_records

THOROUGH = settings.get_current_profile_name() == "thorough"
ELSEWHERE = {
    Step.RECORDS_APPENDED,
    Step.NOTE_KEPT,
    Step.DEAD_LETTERS_REDRIVEN,
    Step.DEAD_LETTERS_ACKNOWLEDGED,
    Step.LEDGER_PROTECTED,
    Step.LEDGER_BROUGHT_BACK,
    Step.PROTECTION_ENDED,
    Step.LEAK_KEPT,
    Step.LEAKS_APPENDED,
    Step.LEAK_FORGOTTEN,
    Step.BUCKET_PUT_BACK,
    Step.LEFTOVER_NODE_REMOVED,
    Step.NAMESPACE_PROGRESS_KEPT,
    Step.NAMESPACE_ASKED,
    Step.NAMESPACE_NODES_REMOVED,
}
"""Steps of an operator's calls, of the watch and of namespaces: replayed in `test_crash_replay_of_verbs`, in
`watch.test_watching_faults`, in `test_dangling_buckets`, in `test_leftover_nodes` and in
`test_crash_replay_of_namespaces`, the first two only in `tests.faults`."""
TROUBLE = {
    Step.ATTEMPT_PUT_OFF,
    Step.OPERATION_RELEASED,
    Step.UNDER_REPLICATION_CLEARED,
    Step.RETRIES_SENT,
    Step.DEAD_LETTERS_SENT,
}
TAKEN_OVER = {Step.OPERATION_HELD}
"""Steps that only another sidecar takes, which continues."""
SMOOTH = set(Step) - ELSEWHERE - TROUBLE - TAKEN_OVER


def promised(crashed: CrashAt) -> bool:
    return crashed.seen.count(Step.OPERATION_CREATED) == 2


@pytest.fixture(params=SETTINGS)
def build(request: pytest.FixtureRequest) -> Build:
    return SETTINGS[request.param]


def test_without_faults_nothing_is_left(build: Build) -> None:
    setting = build()
    steps = live(setting)[0]
    assert setting.fake_pulsar.ledgers() == setting.remaining
    assert accepted_records(setting.fake_pulsar)
    taken = set(steps.seen)
    assert taken == SMOOTH if build is not troubled else taken >= TROUBLE


def test_the_settings_take_every_step() -> None:
    taken = {step for build in (small, troubled) for step in live(build())[0].seen}
    assert taken == set(Step) - ELSEWHERE


def test_a_crash_before_and_after_any_step(build: Build) -> None:
    count = len(live(build())[0].seen)
    assert count >= 2 * len(SMOOTH - {Step.OFFLOADED_DELETED})
    for number in range(count):
        setting = build()
        before = setting.fake_pulsar.ledgers()
        crashed = live(setting, [number])[0]
        assert len(crashed.seen) == number + 1
        assert setting.fake_pulsar.ledgers() == (setting.remaining if promised(crashed) else before)


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.4])
@pytest.mark.parametrize("name", ["unloaded", "partitioned"])
def test_a_crash_while_a_low_rate_makes_facts_old(name: str, rate: float) -> None:
    """A batch is judged again and again then: each piece is judged, kept and deleted in its own time."""
    build = SETTINGS[name]
    quick = len(live(build())[0].seen)
    count = len(live(slowed(build, rate))[0].seen)
    assert count > quick
    for number in range(3, count, 1 if THOROUGH else 5):
        setting = slowed(build, rate)
        live(setting, [number])
        assert setting.fake_pulsar.ledgers() == setting.remaining


def slowed(build: Build, rate: float) -> Setting:
    setting = build()
    setting.rate_per_second = rate
    return setting


@pytest.mark.parametrize(("build", "every"), [(small, 4), (troubled, 20)])
def test_a_second_crash_at_any_point_of_what_follows_the_first(build: Build, every: int) -> None:
    """Before each step is enough, since nothing happens outside between two; the thorough run takes every pair."""
    count = len(live(build())[0].seen)
    pairs = 0
    for first in range(0, count, 1 if THOROUGH else 2):
        for second in count_until_quiet(1) if THOROUGH else count_until_quiet(every, first % every):
            setting = build()
            before = setting.fake_pulsar.ledgers()
            lives = live(setting, [first, second])
            assert setting.fake_pulsar.ledgers() == (setting.remaining if promised(lives[0]) else before)
            if len(lives[1].seen) <= second:
                break
            pairs += 1
    assert pairs > count


def test_a_third_crash_for_good_measure() -> None:
    for first in range(3, 38, 7):
        for second in range(0, 20, 6):
            for third in range(0, 20, 6):
                setting = troubled()
                live(setting, [first, second, third])
                assert setting.fake_pulsar.ledgers() == setting.remaining


def test_a_broker_that_dies_before_any_of_its_steps(build: Build) -> None:
    for die_at in range(100):
        setting = build()
        setting.fake_pulsar.die_at = die_at
        live(setting)
        assert setting.fake_pulsar.ledgers() == setting.remaining
        if setting.fake_pulsar.die_at is not None:
            assert die_at > 2
            return
    raise AssertionError("the broker needs more steps than expected")


@pytest.mark.parametrize("failure", Failure)
@pytest.mark.parametrize(
    ("name", "die_at", "every"), [("unloaded", None, 1), ("partitioned and loaded", 6, 5), ("troubled", 1, 2)]
)
def test_any_call_of_any_port_fails_once(name: str, die_at: int | None, every: int, failure: Failure) -> None:
    for number in count_until_quiet(1 if THOROUGH else every):
        setting = SETTINGS[name]()
        setting.fake_pulsar.die_at = die_at
        faults = OneFault(number, failure)
        sidecar = Sidecar(setting.fake_pulsar, wrap=faults.wrap, retry_policy=setting.retry_policy)
        asked = attempt(sidecar, setting)
        sidecar.work_and_check()
        assert setting.fake_pulsar.ledgers() == setting.remaining or not asked
        if len(faults.calls) <= number:
            assert number > 40
            return


def count_until_quiet(every: int, start: int = 0) -> Iterator[int]:
    yield from range(start, 1000, every)
    raise AssertionError("never runs without the fault")
