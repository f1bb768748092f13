"""The status names every shadow topic that endangers its source, and reports when that is not known."""

import threading

import pytest
from pulsar_sidecar.features.ledger_deletion.workflow.shadow_watch import ShadowWatch
from pulsar_sidecar.model.clocks import StopSignal
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import managed_ledger_path
from structlog.testing import capture_logs

from tests.fakes.clock import FakeClock
from tests.fakes.pulsar import FakePulsar

SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://other/space/orders-shadow"
NOT_KNOWN = "shadow topics are not known yet"
NOT_READ = "shadow topics could not be read"


class FakeEndangeredSources:
    """Every shadow that is asked for endangers `SOURCE`, but for those whose retention is infinite."""

    def __init__(self) -> None:
        self.infinite: set[str] = set()
        self.unanswered: set[str] = set()
        self.asked: list[str] = []

    def endangered_source(self, topic: TopicName) -> str | None:
        self.asked.append(str(topic))
        if str(topic) in self.unanswered:
            raise TemporaryError("no broker answers")
        return None if str(topic) in self.infinite else SOURCE


class PausedClock(FakeClock):
    """Stops the watch in its first long wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait_seconds(self, seconds: float, stop: StopSignal | None = None) -> bool:
        self.waits.append(seconds)
        assert isinstance(stop, threading.Event)
        stop.set()
        return super().wait_seconds(seconds, stop)


class Watched:
    """A watch over a fake Pulsar; `look` runs it from its start to its first long wait."""

    def __init__(self) -> None:
        self.fake_pulsar = FakePulsar()
        self.source = self.fake_pulsar.topic(SOURCE)
        self.brokers = FakeEndangeredSources()
        self.clock = PausedClock()
        self.watch = ShadowWatch(self.fake_pulsar.shadows, self.brokers.endangered_source, self.clock)

    def look(self) -> tuple[str, ...]:
        self.watch.run(threading.Event())
        return self.watch.warnings()


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_before_the_first_look_nothing_is_claimed(watched: Watched) -> None:
    (warning,) = watched.watch.warnings()
    assert NOT_KNOWN in warning


def test_a_shadow_without_infinite_retention_is_named_with_its_source_and_the_way_out(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    (warning,) = watched.look()
    assert f"shadow topic {SHADOW} has no infinite retention" in warning
    assert f"its source {SOURCE};" in warning
    assert f"set-retention -s -1 -t -1 {SHADOW}" in warning
    assert f"topics delete-shadow {SHADOW}" in warning
    assert watched.clock.waits[-1] == 600


def test_a_shadow_with_infinite_retention_and_ordinary_topics_are_not_named(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    watched.fake_pulsar.partitioned_topic("persistent://public/default/plain", 2)
    watched.brokers.infinite.add(SHADOW)
    assert watched.look() == ()
    assert watched.brokers.asked == [SHADOW]


def test_a_partitioned_shadow_is_asked_for_and_named_once(watched: Watched) -> None:
    shadow = watched.fake_pulsar.partitioned_shadow(SHADOW, watched.source, 2)
    for index in range(2):
        watched.fake_pulsar.shadow(str(shadow.partition(index)), watched.source)
    (warning,) = watched.look()
    assert f"shadow topic {SHADOW} has" in warning
    assert watched.brokers.asked == [SHADOW]


def test_a_node_that_cannot_be_read_may_be_a_shadows(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    broken = managed_ledger_path(parse_topic_name("persistent://public/default/broken").managed_ledger_name)
    watched.fake_pulsar.store.put(broken, b"\x47\x78\x00")
    unreadable, named = watched.look()
    assert f"{broken} cannot be read, so it may be a shadow's" in unreadable
    assert SHADOW in named


def test_brokers_that_do_not_answer_hide_no_shadow(watched: Watched) -> None:
    other = "persistent://other/space/second-shadow"
    for name in (SHADOW, other):
        watched.fake_pulsar.shadow(name, watched.source)
    watched.brokers.unanswered.add(SHADOW)
    unknown, named = watched.look()
    assert f"shadow topic {SHADOW}: brokers did not report whether its retention is infinite: no broker" in unknown
    assert other in named


def test_a_look_that_failed_is_reported_and_soon_tried_again(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    watched.fake_pulsar.shadows.hooks.fail_next("all_shadows", TemporaryError("ZooKeeper is away"))
    (warning,) = watched.look()
    assert NOT_READ in warning
    assert "ZooKeeper is away; no search has ended yet" in warning
    assert watched.clock.waits[-1] == 30
    (warning,) = watched.look()
    assert SHADOW in warning


def test_findings_stay_while_later_searches_fail(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    (found,) = watched.look()
    watched.fake_pulsar.shadows.hooks.fail_next("all_shadows", TemporaryError("ZooKeeper is away"))
    failed, kept = watched.look()
    assert "the last search ended at 20" in failed
    assert kept == found


def test_a_defect_does_not_leave_the_last_answer_in_place(watched: Watched) -> None:
    def defect() -> None:
        raise ZeroDivisionError

    assert watched.look() == ()
    watched.fake_pulsar.shadows.hooks.before("all_shadows", defect)
    with pytest.raises(ZeroDivisionError):
        watched.look()
    assert NOT_READ in watched.watch.warnings()[0]


def test_search_interrupted_by_shutdown_is_not_a_failure(watched: Watched) -> None:
    stop = threading.Event()

    def stopped() -> None:
        stop.set()
        raise TemporaryError("the sidecar is shutting down")

    watched.fake_pulsar.shadows.hooks.before("all_shadows", stopped)
    watched.watch.run(stop)
    (warning,) = watched.watch.warnings()
    assert NOT_KNOWN in warning


def test_a_hundred_are_named_and_the_others_counted(watched: Watched) -> None:
    for number in range(103):
        watched.fake_pulsar.shadow(f"{SHADOW}-{number:03}", watched.source)
    warnings = watched.look()
    assert len(warnings) == 101
    assert "orders-shadow-099" in warnings[99]
    assert warnings[100].startswith("and 3 more")


def test_the_log_names_each_change_once(watched: Watched) -> None:
    watched.fake_pulsar.shadow(SHADOW, watched.source)
    with capture_logs() as logged:
        for _ in range(3):
            watched.look()
        watched.brokers.infinite.add(SHADOW)
        for _ in range(3):
            watched.look()
    assert [(line["log_level"], SHADOW in line.get("warning", "")) for line in logged] == [
        ("warning", True),
        ("info", False),
    ]
