"""Both phases from beginning to end, with the process killed after any step, any port call failing, any broker dying.

Whatever happens, once faults stop: nothing referenced was deleted, every accepted record has ended, and no ledger that
the sidecar was told about is left without a reference.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.ledger_deletion.steps import Step
from service.model.errors import SidecarError
from service.model.names import TopicName
from tests.fakes.world import TopicPlan, World
from tests.unit.ledger_deletion.faults import OneFault
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, check, restarted, told

TOPIC = "persistent://public/default/orders"
SMOOTH = set(Step) - {
    Step.RECORDS_APPENDED,
    Step.ATTEMPT_PUT_OFF,
    Step.NOTE_KEPT,
    Step.UNDER_REPLICATION_CLEARED,
    Step.RETRIES_SENT,
    Step.DEAD_LETTERS_SENT,
    Step.DEAD_LETTERS_REDRIVEN,
    Step.DEAD_LETTERS_ACKNOWLEDGED,
    Step.LEDGER_BROUGHT_BACK,
}
"""What a deletion takes that nothing disturbs; the other steps are crashed at on a real cluster, in `tests.faults`."""
Build = Callable[[], tuple[World, TopicName, bool]]


def standard_world(*, loaded: bool = False) -> tuple[World, TopicName, bool]:
    world = World()
    plan = TopicPlan(subscriptions=("sub", "a/b"), schema_versions=2, compacted=True, buckets=1, offloaded=(0,))
    topic = world.topic(TOPIC, plan)
    if loaded:
        world.load(topic)
    return world, topic, False


def partitioned_world(*, loaded: bool = False) -> tuple[World, TopicName, bool]:
    world = World()
    topic = world.partitioned_topic(TOPIC, 2, TopicPlan(ledgers=2, schema_versions=1, offloaded=(0,)))
    if loaded:
        for index in range(2):
            world.load(topic.partition(index))
    return world, topic, True


WORLDS: dict[str, Build] = {
    "unloaded": standard_world,
    "loaded": lambda: standard_world(loaded=True),
    "partitioned": partitioned_world,
    "partitioned and loaded": lambda: partitioned_world(loaded=True),
}


def live(world: World, topic: TopicName, partitioned: bool, crashes: Sequence[int] = ()) -> list[CrashAt]:
    """Delete the topic and settle everything; each number of ``crashes`` kills one process after so many steps."""
    lives = [CrashAt(number) for number in crashes] + [CrashAt()]
    sidecar = Sidecar(world, steps=lives[0])
    try:
        sidecar.delete_topic(topic, partitioned=partitioned)
        sidecar.work()
    except Crash:
        for steps in lives[1:]:
            try:
                restarted(world, steps=steps).work()
            except Crash:
                continue
            break
    check(world)
    return lives


@pytest.fixture(params=WORLDS)
def build(request: pytest.FixtureRequest) -> Build:
    return WORLDS[request.param]


def test_without_faults_nothing_is_left(build: Build) -> None:
    world, topic, partitioned = build()
    steps = live(world, topic, partitioned)[0]
    assert world.ledgers() == set()
    assert set(steps.seen) == SMOOTH
    assert told(world)


def test_a_crash_before_and_after_any_step(build: Build) -> None:
    world, topic, partitioned = build()
    count = len(live(world, topic, partitioned)[0].seen)
    assert count > 2 * len(SMOOTH)
    for number in range(count):
        world, topic, partitioned = build()
        before = world.ledgers()
        crashed = live(world, topic, partitioned, [number])[0]
        assert len(crashed.seen) == number + 1
        # Nothing was promised before the operation's node was there.
        assert world.ledgers() == (before if number == 0 else set())


def test_a_broker_that_dies_before_any_of_its_steps(build: Build) -> None:
    for die_at in range(100):
        world, topic, partitioned = build()
        world.die_at = die_at
        live(world, topic, partitioned)
        assert world.ledgers() == set()
        if world.die_at is not None:
            assert die_at > 5
            return
    raise AssertionError("the broker needs more steps than expected")


@pytest.mark.parametrize("die_at", [1, 7, 13])
@pytest.mark.parametrize("name", ["unloaded", "loaded"])
def test_a_dying_broker_and_two_crashes(name: str, die_at: int) -> None:
    for number in range(1, 48, 2):
        for again in (0, 3):
            world, topic, partitioned = WORLDS[name]()
            world.die_at = die_at
            live(world, topic, partitioned, [number, again])
            assert world.ledgers() == set()


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("die_at", [None, 6])
@pytest.mark.parametrize("name", ["unloaded", "partitioned and loaded"])
def test_any_call_of_any_port_fails_once(name: str, die_at: int | None, applied: bool) -> None:
    for number in count_until_quiet(every=1 if die_at is None else 3):
        world, topic, partitioned = WORLDS[name]()
        world.die_at = die_at
        faults = OneFault(number, applied)
        sidecar = Sidecar(world, wrap=faults.wrap)
        asked = attempt(sidecar, topic, partitioned)
        sidecar.work()
        check(world)
        assert world.ledgers() == set() or not asked
        if len(faults.calls) <= number:
            assert number > 40
            return


def count_until_quiet(every: int) -> Iterator[int]:
    yield from range(0, 1000, every)
    raise AssertionError("never runs without the fault")


def attempt(sidecar: Sidecar, topic: TopicName, partitioned: bool) -> bool:
    """Ask for the deletion; False when the caller was told that nothing is known to have begun."""
    try:
        sidecar.delete_topic(topic, partitioned=partitioned)
    except SidecarError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Schedule:
    """One life of a world."""

    plan: TopicPlan
    partitions: int
    loaded: bool
    die_at: int | None
    crashes: tuple[int, ...]
    fault_at: int | None
    applied: bool
    trimmed: int
    trimmer_dies: bool
    grows: bool


plans = st.builds(
    TopicPlan,
    ledgers=st.integers(1, 4),
    subscriptions=st.sets(st.sampled_from(["sub", "a/b", "x y", "ü", "p%2Fq"]), max_size=3).map(sorted).map(tuple),
    closed_cursors=st.booleans(),
    schema_versions=st.integers(0, 2),
    compacted=st.booleans(),
    buckets=st.integers(0, 2),
    offloaded=st.sampled_from([(), (0,)]),
    last_open=st.booleans(),
    age_ms=st.sampled_from([0, 1_000, 3_600_000, 10**10]),
)
schedules = st.builds(
    Schedule,
    plan=plans,
    partitions=st.integers(0, 2),
    loaded=st.booleans(),
    die_at=st.none() | st.integers(0, 20),
    crashes=st.lists(st.integers(0, 25), max_size=3).map(tuple),
    fault_at=st.none() | st.integers(0, 120),
    applied=st.booleans(),
    trimmed=st.integers(0, 2),
    trimmer_dies=st.booleans(),
    grows=st.booleans(),
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schedules)
def test_any_world_under_any_schedule(schedule: Schedule) -> None:
    world = World(die_at=schedule.die_at)
    if schedule.partitions:
        topic = world.partitioned_topic(TOPIC, schedule.partitions, schedule.plan)
        topics = [topic.partition(index) for index in range(schedule.partitions)]
    else:
        topic = world.topic(TOPIC, schedule.plan)
        topics = [topic]
    if schedule.loaded:
        world.loaded.update(topics)
    disturb(world, topics[0], schedule)
    faults = OneFault(schedule.fault_at, schedule.applied)
    lives = [*(CrashAt(number) for number in schedule.crashes), CrashAt()]
    for number, steps in enumerate(lives):
        try:
            sidecar = (
                Sidecar(world, steps=steps, wrap=faults.wrap)
                if number == 0
                else restarted(world, steps=steps, wrap=faults.wrap)
            )
            if number == 0:
                attempt(sidecar, topic, bool(schedule.partitions))
            sidecar.work()
        except Crash:
            continue
        break
    check(world)


def disturb(world: World, topic: TopicName, schedule: Schedule) -> None:
    """A busy topic: it is trimmed and gains a ledger while the records are sent."""
    if schedule.grows:
        world.topics.hooks.before("publish", lambda: world.rollover(topic) and None)
    if schedule.trimmed:
        world.topics.hooks.before(
            "publisher",
            lambda: (
                world.trim(topic, min(schedule.trimmed, schedule.plan.ledgers), dies_between=schedule.trimmer_dies)
                and None
            ),
        )
