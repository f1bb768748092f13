"""A deletion is killed at any point, and what comes back under the topic's name meanwhile is not what was marked.

A partitioned topic is partly created again, or the topic comes back as a shadow whose list is another topic's.
The sidecar that goes on must leave all of that alone (`sidecars.check`, and no new or foreign ledger gone).
"""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.ownership.paths import managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.references import managed_ledger_references
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.fakes.brokers import TopicDeletion
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.replay_settings import Setting, create_again, partitioned, standard
from tests.unit.ledger_deletion.sidecars import Crash, CrashAt, Sidecar, check, restarted

SOURCE = "persistent://public/default/source"
PARTITIONS = 2
THOROUGH = settings.get_current_profile_name() == "thorough"

Happens = Callable[[Setting], set[LedgerId]]
"""Others' changes while no sidecar runs; returns the ledgers that must exist at the end."""


def with_source(setting: Setting) -> TopicName:
    return setting.fake_pulsar.topic(SOURCE, TopicPlan(ledgers=3, offloaded=(0,), bookkeeper_deleted=(1,)))


def partly_created_again(partitions: int) -> Happens:
    def happens(setting: Setting) -> set[LedgerId]:
        new = create_again(setting.fake_pulsar, setting.topic, gone=(0,), partitions=partitions)
        straggler = setting.topic.partition(1)
        if partitions > 1 and setting.fake_pulsar.listed(straggler):
            # Producers of the new topic go on in the old partition's managed ledger.
            new |= {setting.fake_pulsar.rollover(straggler), *setting.fake_pulsar.listed(straggler)}
        return new & setting.fake_pulsar.ledgers()

    return happens


def back_as_a_shadow(setting: Setting) -> set[LedgerId]:
    fake_pulsar, source = setting.fake_pulsar, with_source(setting)
    if fake_pulsar.listed(setting.topic):
        fake_pulsar.delete_by_broker(TopicDeletion(setting.topic, partitioned=False, force=True))
    fake_pulsar.shadow(str(setting.topic), source)
    return set(fake_pulsar.listed(source)) & fake_pulsar.ledgers()


def turned_into_a_shadow_in_place(setting: Setting) -> set[LedgerId]:
    """An operator sets the property on the managed ledger, and it is loaded."""
    fake_pulsar, source = setting.fake_pulsar, with_source(setting)
    listed, copies = fake_pulsar.listed(source), fake_pulsar.copies_of(source)
    data = managed_ledger_bytes(listed, properties={SHADOW_SOURCE: str(source)}, offloaded=copies)
    fake_pulsar.store.put(managed_ledger_path(setting.topic.managed_ledger_name), data)
    return set(listed) & fake_pulsar.ledgers()


def back_as_a_partitioned_shadow(setting: Setting) -> set[LedgerId]:
    """The shadow's partitions are loaded with the sources' lists; one partition of the old topic has stayed behind."""
    fake_pulsar = setting.fake_pulsar
    source = fake_pulsar.partitioned_topic(SOURCE, PARTITIONS, TopicPlan(ledgers=2, offloaded=(0,)))
    create_again(fake_pulsar, setting.topic, gone=(0,), partitions=PARTITIONS)
    fake_pulsar.delete_by_broker(TopicDeletion(setting.topic.partition(0), partitioned=False, force=True))
    fake_pulsar.partitioned_shadow(str(setting.topic), source, PARTITIONS)
    fake_pulsar.shadow(str(setting.topic.partition(0)), source.partition(0))
    return {ledger_id for index in range(PARTITIONS) for ledger_id in fake_pulsar.listed(source.partition(index))}


STORIES: dict[str, tuple[Callable[[], Setting], Happens]] = {
    "a straggler beside a smaller new topic": (partitioned, partly_created_again(1)),
    "a straggler that the new topic has taken in": (partitioned, partly_created_again(2)),
    "loaded, and partly created again": (lambda: partitioned(loaded=True), partly_created_again(2)),
    "back as a shadow": (standard, back_as_a_shadow),
    "turned into a shadow in place": (lambda: standard(loaded=True), turned_into_a_shadow_in_place),
    "back as a partitioned shadow": (partitioned, back_as_a_partitioned_shadow),
}


@pytest.fixture(params=STORIES)
def story(request: pytest.FixtureRequest) -> tuple[Callable[[], Setting], Happens]:
    return STORIES[request.param]


def crashed(setting: Setting, number: int) -> bool:
    try:
        Sidecar(setting.fake_pulsar, steps=CrashAt(number)).delete_topic(
            setting.topic, partitioned=setting.partitioned, force=True
        )
    except Crash:
        return True
    return False


def go_on(setting: Setting, happens: Happens, crashes: Sequence[int] = ()) -> None:
    fake_pulsar = setting.fake_pulsar
    fake_pulsar.kill_broker()
    needed = happens(setting)
    copies = contexts(fake_pulsar)
    asked = len(fake_pulsar.admin.deletions)
    for number in crashes:
        try:
            restarted(fake_pulsar, steps=CrashAt(number)).work()
        except Crash:
            continue
    restarted(fake_pulsar).work_and_check()
    assert needed <= fake_pulsar.ledgers()
    assert all(fake_pulsar.offloaded.parts(*copy) == {"data", "index"} for copy in copies)
    later = fake_pulsar.admin.deletions[asked:]
    assert all(not deletion.partitioned for deletion in later)
    assert fake_pulsar.store.peek(managed_ledger_path(setting.topic.managed_ledger_name)) is None or not later
    if setting.partitioned:
        assert fake_pulsar.store.peek(partitioned_topic_path(setting.topic)) is not None


def contexts(fake_pulsar: FakePulsar) -> list[tuple[LedgerId, object]]:
    """The offloaded copies of sources."""
    found = []
    for path in fake_pulsar.store.paths():
        node = fake_pulsar.store.peek(path)
        if "/persistent/source" in path and path.startswith("/managed-ledgers") and path.count("/") == 5 and node:
            listed = managed_ledger_references(node.data).ledgers
            found += [(ledger_id, entry.offload) for ledger_id, entry in listed.items() if entry.offload]
    return found


def test_a_crash_at_any_point_and_another_incarnation_after_it(story: tuple[Callable[[], Setting], Happens]) -> None:
    build, happens = story
    for number in range(1000):
        setting = build()
        if not crashed(setting, number):
            assert number > 14
            return
        go_on(setting, happens)
    raise AssertionError("never runs to its end")


@pytest.mark.parametrize("second", [0, 3, 6, 9, 14])
def test_the_sidecar_that_goes_on_is_killed_as_well(story: tuple[Callable[[], Setting], Happens], second: int) -> None:
    build, happens = story
    stride = 3 if THOROUGH else 7
    for number in range(second % stride, 1000, stride):
        setting = build()
        if not crashed(setting, number):
            return
        go_on(setting, happens, [second])


def test_a_broker_dies_on_the_way_and_another_incarnation_follows(
    story: tuple[Callable[[], Setting], Happens],
) -> None:
    build, happens = story
    for die_at in range(100):
        setting = build()
        setting.fake_pulsar.die_at = die_at
        sidecar = Sidecar(setting.fake_pulsar)
        try:
            sidecar.delete_topic(setting.topic, partitioned=setting.partitioned, force=True)
        except SidecarError:
            raise AssertionError("a broker's death is no error of the caller's") from None
        if setting.fake_pulsar.die_at is not None:
            assert die_at > 2
            return
        go_on(setting, happens)


def test_a_confirmed_source_goes_whatever_is_killed_and_its_shadow_stays_as_it_is() -> None:
    for number in range(1000):
        setting = standard()
        fake_pulsar = setting.fake_pulsar
        shadow = managed_ledger_path(fake_pulsar.shadow(SOURCE, setting.topic).managed_ledger_name)
        before = fake_pulsar.store.peek(shadow)
        try:
            Sidecar(fake_pulsar, steps=CrashAt(number)).delete_topic(setting.topic, confirmed=True)
        except Crash:
            restarted(fake_pulsar).work()
        else:
            assert number > 14
            return
        check(fake_pulsar)
        assert fake_pulsar.store.peek(shadow) == before
        gone = fake_pulsar.store.peek(managed_ledger_path(setting.topic.managed_ledger_name)) is None
        # The third point is the promise.
        assert gone is (number > 2)
