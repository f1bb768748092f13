"""Any setting, any schedule: crashes, failing calls, dying brokers, a busy topic, and two sidecars in each other's way.

The oracles are those of `test_crash_replay`. A schedule is data, so a failing one prints as what it is and stays as an
``@example``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pulsar_sidecar.features.ledger_deletion.ports import Delivery
from pulsar_sidecar.features.ledger_deletion.steps import Step, Steps
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.names import TopicName

from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.faults import Failure, OneFault
from tests.unit.ledger_deletion.replay_settings import TOPIC, Setting, attempt
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, check, restarted

MODERATE = settings(suppress_health_check=[HealthCheck.too_slow])

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


@dataclass(frozen=True, slots=True)
class Planned:
    """A setting that has not been built."""

    plan: TopicPlan
    partitions: int
    loaded: bool
    die_at: int | None

    def build(self) -> tuple[Setting, TopicName]:
        """The setting, and the topic, or the first partition, that has a managed ledger."""
        fake_pulsar = FakePulsar(die_at=self.die_at)
        if self.partitions:
            topic = fake_pulsar.partitioned_topic(TOPIC, self.partitions, self.plan)
            topics = [topic.partition(index) for index in range(self.partitions)]
        else:
            topic = fake_pulsar.topic(TOPIC, self.plan)
            topics = [topic]
        if self.loaded:
            fake_pulsar.loaded.update(topics)
        return Setting(fake_pulsar, topic, partitioned=bool(self.partitions)), topics[0]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Faults around one sidecar."""

    crashes: tuple[int, ...]
    fault_at: int | None
    failure: Failure
    trimmed: int
    trimmer_dies: bool
    grows: bool


planned_settings = st.builds(
    Planned,
    plan=plans,
    partitions=st.integers(0, 2),
    loaded=st.booleans(),
    die_at=st.none() | st.integers(0, 20),
)
schedules = st.builds(
    Schedule,
    crashes=st.lists(st.integers(0, 50), max_size=3).map(tuple),
    fault_at=st.none() | st.integers(0, 120),
    failure=st.sampled_from(Failure),
    trimmed=st.integers(0, 2),
    trimmer_dies=st.booleans(),
    grows=st.booleans(),
)


@MODERATE
@given(planned_settings, schedules)
def test_any_setting_under_any_schedule(planned: Planned, schedule: Schedule) -> None:
    setting, first = planned.build()
    fake_pulsar = setting.fake_pulsar
    disturb(fake_pulsar, first, planned.plan, schedule)
    faults = OneFault(schedule.fault_at, schedule.failure)
    lives = [*(CrashAt(number) for number in schedule.crashes), CrashAt()]
    for number, steps in enumerate(lives):
        try:
            if number == 0:
                sidecar = Sidecar(fake_pulsar, steps=steps, wrap=faults.wrap)
                attempt(sidecar, setting)
            else:
                sidecar = restarted(fake_pulsar, steps=steps, wrap=faults.wrap)
            sidecar.work()
        except Crash:
            continue
        break
    check(fake_pulsar)


def disturb(fake_pulsar: FakePulsar, topic: TopicName, plan: TopicPlan, schedule: Schedule) -> None:
    """A busy topic: it is trimmed and gains a ledger while the records are sent."""
    if schedule.grows:
        fake_pulsar.topics.hooks.before("publish", lambda: fake_pulsar.rollover(topic) and None)
    if schedule.trimmed:
        fake_pulsar.topics.hooks.before(
            "publisher",
            lambda: (
                fake_pulsar.trim(topic, min(schedule.trimmed, plan.ledgers), dies_between=schedule.trimmer_dies)
                and None
            ),
        )


# --- two sidecars --------------------------------------------------------------------------------------------------


@dataclass
class Interrupted(Steps):
    """Lets others act at points of a sidecar's life, as if it were frozen there; points are counted from 0."""

    at: dict[int, Callable[[], None]] = field(default_factory=dict)
    passed: int = 0
    busy: bool = False

    def about_to(self, step: Step) -> None:
        self._pass()

    def reached(self, step: Step) -> None:
        self._pass()

    def _pass(self) -> None:
        action = None if self.busy else self.at.get(self.passed)
        self.passed += 1
        if action is not None:
            self.busy = True
            try:
                action()
            finally:
                self.busy = False


@dataclass
class Rivals:
    """Two sidecars beside one Pulsar. What the first one does is interrupted by what the others do."""

    setting: Setting
    interruptions: dict[int, str]
    first: Sidecar = field(init=False)
    second: Sidecar = field(init=False)
    held: list[Delivery] = field(default_factory=list)

    def __post_init__(self) -> None:
        fake_pulsar = self.setting.fake_pulsar
        steps = Interrupted({point: getattr(self, name) for point, name in self.interruptions.items()})
        self.first = Sidecar(fake_pulsar, steps=steps)
        ids = [f"op-{number}" for number in range(2, 30)]
        self.second = Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session(), operation_ids=ids)

    def first_works(self) -> None:
        self._quietly(self.first.drive)
        self._quietly(self.first.process)

    def second_works(self) -> None:
        self._quietly(self.second.drive)
        self._quietly(self.second.process)

    def second_asks_too(self) -> None:
        self._quietly(lambda: self.second.delete_topic(self.setting.topic, partitioned=self.setting.partitioned))

    def second_receives(self) -> None:
        """Let the second sidecar receive a batch without working on it yet."""
        self._quietly(lambda: self.held.extend(self.second.pending().receive()))

    def second_processes_what_it_holds(self) -> None:
        """Late, backwards, and each delivery twice, whichever sidecar got it in the meantime."""
        held, self.held = self.held, []
        processor, pending = self.second.processor(), self.second.pending()
        self._quietly(lambda: held and processor.process(pending, [*reversed(held), *held]))

    def connections_break(self) -> None:
        """Everything that is held is delivered again, to any sidecar."""
        self.setting.fake_pulsar.topics.drop_connections()
        for sidecar in (self.first, self.second):
            sidecar.forget_connections()

    def first_session_expires(self) -> None:
        self.setting.fake_pulsar.store.end_session()

    def a_second_passes(self) -> None:
        self.setting.fake_pulsar.clock.advance_ms(1_000)

    def an_hour_passes(self) -> None:
        self.setting.fake_pulsar.clock.advance_ms(3_600_000)

    def tracker_stalls(self) -> None:
        self.setting.fake_pulsar.topics.stall_delayed_tracker()

    def tracker_goes_on(self) -> None:
        self.setting.fake_pulsar.topics.stall_delayed_tracker(stalled=False)

    @staticmethod
    def _quietly(act: Callable[[], object]) -> None:
        """Suppress errors like the loops: an error ends the attempt."""
        try:
            act()
        except SidecarError:
            return


ACTIONS = (
    "second_works",
    "second_asks_too",
    "second_receives",
    "second_processes_what_it_holds",
    "connections_break",
    "first_session_expires",
    "a_second_passes",
    "an_hour_passes",
    "tracker_stalls",
    "tracker_goes_on",
)


@MODERATE
@given(
    planned_settings,
    st.dictionaries(st.integers(0, 60), st.sampled_from(ACTIONS), max_size=8),
    st.lists(st.sampled_from(("first_works", *ACTIONS)), max_size=10),
)
def test_two_sidecars_in_each_others_way(
    planned: Planned, interruptions: dict[int, str], afterwards: list[str]
) -> None:
    setting, _ = planned.build()
    rivals = Rivals(setting, interruptions)
    attempt(rivals.first, setting)
    for name in ("first_works", *afterwards):
        getattr(rivals, name)()
    # Both go; whatever they left is a third one's to finish.
    rivals.tracker_goes_on()
    rivals.second.store.end_session()
    restarted(setting.fake_pulsar, name="sidecar-3").work_and_check()
