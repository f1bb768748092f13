"""A repair makes exactly the approved changes, and reports those that it cannot make."""

import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial

import pytest
from pulsar_sidecar.features.delayed_index.maintenance.checking import CheckOptions
from pulsar_sidecar.features.delayed_index.maintenance.repair import IndexRepair, RepairPlan
from pulsar_sidecar.features.delayed_index.ports import EntryPayload, UnusableBucket
from pulsar_sidecar.features.delayed_index.results.maintenance import (
    FindingKind,
    LoadedTopic,
    PointerOutcome,
    RepairResult,
    RepairStep,
)
from pulsar_sidecar.features.delayed_index.settings import IN_MEMORY_TRACKER_FACTORY
from pulsar_sidecar.features.delayed_index.snapshot import encode_metadata
from pulsar_sidecar.model.errors import ConflictError, DisabledError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, Position
from pulsar_sidecar.model.ledgers import LedgerState
from pulsar_sidecar.model.lookups import Unreadable
from pulsar_sidecar.model.metadata import Node
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.topic_stats import ConnectedConsumer, Subscription, SubscriptionType, TopicStats
from pulsar_sidecar.ownership.paths import ledger_path
from pulsar_sidecar.ownership.references import cursor_references
from pulsar_sidecar.protobuf import MLDataFormats_pb2 as ml

from tests.fakes import index_damage as damage
from tests.fakes.bookkeeper import bucket_custom_metadata, cursor_bytes, ledger_metadata_bytes
from tests.fakes.checked_index import (
    FIRST,
    HOUR_MS,
    SECOND,
    SUBSCRIPTION,
    CheckedIndex,
    FakeDeletions,
    FakeLoaded,
    repair_of,
    tracker,
)
from tests.fakes.delayed_index import TOPIC, IndexedTopic

KEYS = {FIRST: "#pulsar.internal.delayed.bucket_7_8", SECOND: "#pulsar.internal.delayed.bucket_9_9"}
OPTIONS = CheckOptions(sample=None, orphans=True)
S = RepairStep


class Setup(CheckedIndex):
    def __init__(self) -> None:
        super().__init__()
        self.loaded = FakeLoaded()
        self.deletions = FakeDeletions()

    @property
    def repair(self) -> IndexRepair:
        return repair_of(self, self.loaded, self.deletions)

    def plan(self, *kinds: FindingKind) -> RepairPlan:
        return self.repair.plan(TOPIC, OPTIONS, kinds)

    def steps(self, *kinds: FindingKind) -> list[tuple[RepairStep, int]]:
        return [(each.step, each.ledger_id) for each in self.plan(*kinds).actions]

    def execute(self, *kinds: FindingKind) -> list[RepairResult]:
        return self.repair.execute(TOPIC, OPTIONS, kinds, self.plan(*kinds).hash)

    def named(self) -> dict[str, int]:
        return dict(cursor_references(self.cursor_node.data).buckets)

    def forget(self, bucket_ledger: int) -> None:
        """The cursor names it no longer, for so long that no broker is about to put it back."""
        info = ml.ManagedCursorInfo.FromString(self.cursor_node.data)
        kept = [each for each in info.cursorProperties if each.value != str(bucket_ledger)]
        del info.cursorProperties[:]
        info.cursorProperties.extend(kept)
        self.store.put(damage.CURSOR, info.SerializeToString())
        self.store.advance_ms(HOUR_MS)

    def cut(self, bucket_ledger: int) -> None:
        self.entries.payloads[bucket_ledger, 0] = b"\xff"

    def swap(self, one: int, other: int) -> None:
        payloads = self.entries.payloads
        payloads[FIRST, one], payloads[FIRST, other] = payloads[FIRST, other], payloads[FIRST, one]

    @property
    def cursor_node(self) -> Node:
        node = self.store.peek(damage.CURSOR)
        assert node is not None
        return node


@pytest.fixture
def setup() -> Setup:
    return Setup()


def test_a_sound_index_has_nothing_to_repair(setup: Setup) -> None:
    plan = setup.plan()
    assert (plan.actions, plan.checked.buckets) == ((), 2)
    with pytest.raises(ConflictError, match=r"^there is nothing to repair, or no longer; nothing was changed$"):
        setup.execute()


def test_a_dangling_pointer_is_dropped(setup: Setup) -> None:
    damage.lose_a_ledger(setup)
    setup.deletions.ready = DisabledError("off; it is not needed for this")
    (repaired,) = setup.execute()
    assert (repaired.action.step, repaired.outcome, repaired.done) == (S.DROP_POINTER, PointerOutcome.DONE, True)
    assert setup.named() == {KEYS[SECOND]: SECOND}
    assert setup.deletions.taken == []
    assert setup.plan().actions == ()


def test_an_unreadable_bucket_is_recorded_before_its_cursor_forgets_it(setup: Setup) -> None:
    setup.cut(FIRST)
    seen: list[dict[str, int]] = []
    setup.deletions.before = lambda: seen.append(setup.named())
    cursor, ledger = setup.cursor_node, setup.store.peek(ledger_path(LedgerId(FIRST)))
    assert ledger is not None
    (repaired,) = setup.execute()
    assert (repaired.action.step, repaired.done, repaired.handed_over) == (S.RETIRE, True, True)
    assert seen == [{KEYS[FIRST]: FIRST, KEYS[SECOND]: SECOND}]
    assert setup.named() == {KEYS[SECOND]: SECOND}
    length = sum(len(data) for (id_, number), data in CheckedIndex().entries.payloads.items() if id_ == FIRST)
    taken = UnusableBucket(TOPIC, SUBSCRIPTION, LedgerId(FIRST), ledger.birth, length, cursor.version)
    assert [
        UnusableBucket(*(getattr(each, field.name) for field in fields(taken))) for each in setup.deletions.taken
    ] == [taken]


def test_each_cursor_is_changed_once_and_alone(setup: Setup) -> None:
    setup.topic.seal("t", 102, 7, 8, *setup.rows[FIRST])
    setup.topic.cursor("t", (7, 0))
    for bucket_ledger in (FIRST, SECOND, 102):
        setup.cut(bucket_ledger)
    node = setup.cursor_node
    repaired = setup.execute()
    assert [(each.action.subscription, each.action.ledger_id, each.done) for each in repaired] == [
        (SUBSCRIPTION, FIRST, True),
        (SUBSCRIPTION, SECOND, True),
        ("t", 102, True),
    ]
    assert (setup.named(), setup.cursor_node.version) == ({}, node.version + 1)
    assert setup.plan().actions == ()


def test_the_topics_of_a_namespace_are_repaired_in_their_order(setup: Setup) -> None:
    setup.cut(FIRST)
    other = IndexedTopic(setup.store, setup.entries, parse_topic_name("persistent://public/default/a"))
    other.ledgers(7, 8, 9, 10)
    other.seal("t", 102, 7, 8, *setup.rows[FIRST])
    other.cursor("t", (7, 0))
    setup.cut(102)
    setup.loaded.from_question = 1
    plan = setup.repair.plan("public/default", OPTIONS)
    assert [(each.topic, each.subscription, each.ledger_id) for each in plan.actions] == [
        (other.topic, "t", 102),
        (TOPIC, SUBSCRIPTION, FIRST),
    ]
    assert [each.topic for each in plan.loaded] == [str(other.topic), str(TOPIC)]
    setup.loaded.from_question = None
    repaired = setup.repair.execute("public/default", OPTIONS, (), plan.hash)
    assert [(each.action.ledger_id, each.done) for each in repaired] == [(102, True), (FIRST, True)]


def test_a_plan_of_one_topic_is_not_the_plan_of_another() -> None:
    def hash_of(local_name: str) -> str:
        setup = Setup()
        topic = parse_topic_name(f"persistent://public/default/{local_name}")
        other = IndexedTopic(setup.store, setup.entries, topic)
        other.ledgers(7, 8, 9, 10)
        other.seal(SUBSCRIPTION, 102, 7, 8, *setup.rows[FIRST])
        other.cursor(SUBSCRIPTION, (7, 0))
        setup.cut(102)
        plan = setup.repair.plan(topic, OPTIONS)
        assert [each.topic for each in plan.actions] == [topic]
        return plan.hash

    assert hash_of("a") == hash_of("a") != hash_of("b")


def test_repairs_are_selected_by_kind(setup: Setup) -> None:
    setup.cut(FIRST)
    setup.store.remove(ledger_path(LedgerId(SECOND)))
    (repaired,) = setup.execute(FindingKind.DANGLING_POINTER)
    assert (repaired.action.ledger_id, setup.named()) == (SECOND, {KEYS[FIRST]: FIRST})


def test_a_ledger_of_another_owner_is_never_handed_over_whatever_its_name(setup: Setup) -> None:
    damage.point_to_data(setup)
    damage.misshape_the_key(setup)
    (action,) = setup.plan().actions
    assert (action.step, action.ledger_id) == (S.DROP_POINTER, FIRST)
    assert action.reason.startswith("bad-key: ")
    assert "; foreign-ledger: " in action.reason
    assert all(each.done for each in setup.execute())
    assert (setup.named(), setup.deletions.taken) == ({}, [])


@pytest.mark.parametrize("harm", [damage.lose_bookies, damage.write_a_segment_as_a_newer_broker_may])
def test_unreadable_buckets_are_left_unchanged(setup: Setup, harm: Callable[[Setup], None]) -> None:
    harm(setup)
    plan = setup.plan()
    assert (plan.actions, [each.kind for each in plan.left]) == ((), [FindingKind.UNREAD_SNAPSHOT])


def test_a_bucket_with_a_bad_name_is_retired_though_its_bookies_are_away(setup: Setup) -> None:
    damage.lose_bookies(setup)
    damage.misshape_the_key(setup)
    assert setup.steps(FindingKind.BAD_KEY) == [(S.RETIRE, FIRST)]
    plan = setup.plan(FindingKind.BAD_KEY)
    assert [each.kind for each in plan.left] == [FindingKind.UNREAD_SNAPSHOT]
    assert FindingKind.UNREAD_SNAPSHOT.value not in plan.actions[0].reason, "that is told as what is left"


def test_a_whole_orphan_is_attached_again(setup: Setup) -> None:
    setup.forget(FIRST)
    (repaired,) = setup.execute()
    assert (repaired.action.step, repaired.done, repaired.handed_over) == (S.ATTACH, True, False)
    assert setup.named() == {KEYS[FIRST]: FIRST, KEYS[SECOND]: SECOND}
    assert setup.plan().actions == ()


def fail_to_read(setup: Setup, error: Exception) -> None:
    def fail() -> None:
        raise error

    setup.messages.before = fail


def hide_a_message(setup: Setup) -> None:
    setup.messages.answers[7, 3] = Unreadable("its bookies are away")


def index_a_message_in_two_segments(setup: Setup) -> None:
    """The later of its two times is the message's own."""
    damage.index_a_message_in_two_segments(setup)
    at_ms, *position = setup.rows[FIRST][1][0]
    setup.messages.due_ms[position[0], position[1]] = at_ms


def rewrite_the_ledgers_node(
    setup: Setup, *, key: str = KEYS[FIRST], state: LedgerState = LedgerState.CLOSED, last_entry_id: int = 2
) -> None:
    custom = bucket_custom_metadata(str(TOPIC), SUBSCRIPTION, key)
    data = ledger_metadata_bytes(state, custom, last_entry_id=last_entry_id)
    setup.store.put(ledger_path(LedgerId(FIRST)), data)


def empty_it(setup: Setup) -> None:
    rewrite_the_ledgers_node(setup, last_entry_id=0)
    setup.entries.payloads[FIRST, 0] = encode_metadata([])


def leave_no_room(setup: Setup, *others: tuple[int, int]) -> None:
    setup.brokers["b"] = tracker(max_num_buckets=4)
    for number, at in enumerate(others or [(20, 20), (21, 21)]):
        setup.topic.seal(SUBSCRIPTION, 110 + number, *at, [(HOUR_MS, at[0], 0)])
    setup.name()
    setup.forget(FIRST)


def name_another_badly(setup: Setup) -> None:
    data = cursor_bytes(mark_delete=(7, 0), buckets={"#pulsar.internal.delayed.bucket_7": SECOND})
    setup.store.put(damage.CURSOR, data)


def name_another_over_it(setup: Setup) -> None:
    setup.rows[102] = setup.rows[FIRST]
    setup.topic.seal(SUBSCRIPTION, 102, 8, 8, [setup.rows[FIRST][0][1]])
    setup.name()
    setup.forget(FIRST)


@pytest.mark.parametrize(
    "spoil",
    [
        damage.index_what_does_not_exist,
        damage.move_a_due_time,
        pytest.param(lambda setup: setup.swap(1, 2), id="segments swapped"),
        damage.disorder_a_segment,
        damage.seal_the_later_segment_first,
        index_a_message_in_two_segments,
        pytest.param(lambda setup: setup.messages.due_ms.update({(7, 1): 1}), id="first message moved"),
        pytest.param(lambda setup: setup.messages.due_ms.update({(7, 5): 1}), id="last message moved"),
        pytest.param(partial(fail_to_read, error=NotFoundError("the topic was deleted at this moment")), id="no topic"),
        damage.cut_entry_0,
        pytest.param(partial(rewrite_the_ledgers_node, state=LedgerState.OPEN), id="open"),
        pytest.param(partial(rewrite_the_ledgers_node, key="#pulsar.internal.delayed.bucket_7"), id="misnamed"),
        pytest.param(partial(rewrite_the_ledgers_node, last_entry_id=3), id="longer"),
        empty_it,
        pytest.param(
            lambda setup: setup.brokers.update({"broker-1:8080": tracker(IN_MEMORY_TRACKER_FACTORY)}), id="in memory"
        ),
        leave_no_room,
        name_another_over_it,
    ],
)
def test_an_orphan_of_which_not_every_bit_is_right_is_handed_over(setup: Setup, spoil: Callable[[Setup], None]) -> None:
    setup.forget(FIRST)
    spoil(setup)
    setup.store.advance_ms(HOUR_MS)
    steps = setup.steps(FindingKind.ORPHANED_BUCKET)
    assert steps == [(S.HAND_OVER, FIRST)]
    named = setup.named()
    (repaired,) = setup.execute(FindingKind.ORPHANED_BUCKET)
    assert (repaired.done, repaired.handed_over, repaired.outcome) == (True, True, None)
    assert [(each.ledger_id, each.version) for each in setup.deletions.taken] == [(FIRST, None)]
    assert setup.named() == named


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (hide_a_message, "message 7:3: its bookies are away"),
        (
            partial(fail_to_read, error=TemporaryError("the metadata store does not respond")),
            "the messages of .* cannot be read: the metadata store does not respond",
        ),
        (damage.lose_bookies, "entry 100:1: no bookie answers"),
        (damage.lose_bookies_of_entry_0, "entry 100:0: no bookie answers"),
        (
            damage.write_a_segment_as_a_newer_broker_may,
            "entry 100:2: .* upgrade first",
        ),
        (damage.garble_the_managed_ledger, "the managed ledger of .* cannot be read.*"),
        (damage.downgrade, "brokers run different trackers"),
        (
            damage.merge_three,
            "a broker has a delayedDeliveryMaxNumBuckets of 1, 2 or 3.*",
        ),
        (name_another_badly, ".*bucket_7' does not name a bucket.*"),
    ],
)
def test_an_orphan_of_which_that_is_unknown_is_left(setup: Setup, spoil: Callable[[Setup], None], why: str) -> None:
    setup.forget(FIRST)
    spoil(setup)
    plan = setup.plan(FindingKind.ORPHANED_BUCKET)
    assert plan.actions == ()
    [left] = [each for each in plan.left if each.kind is FindingKind.ORPHANED_BUCKET]
    assert left.ledger_id == FIRST
    assert re.search(f"names ledger {FIRST}; the repair is undecided: {why}$", left.cause)


def test_an_orphan_whose_entry_0_could_not_be_read_at_first_only_is_left(setup: Setup) -> None:
    setup.forget(FIRST)
    damage.lose_bookies_of_entry_0(setup)
    calls: list[Position] = []

    def come_back(position: Position) -> EntryPayload:
        answer = read(position)
        if position == (FIRST, 0):
            calls.append(position)
            setup.entries.unreadable.clear()
        return answer

    read, setup.entries._of = setup.entries._of, come_back  # type: ignore[method-assign]
    plan = setup.plan(FindingKind.ORPHANED_BUCKET)
    assert len(calls) == 2
    assert plan.actions == ()
    assert f"entry {FIRST}:0 could not be read at first; check again" in plan.left[0].cause
    assert setup.steps(FindingKind.ORPHANED_BUCKET) == [(S.ATTACH, FIRST)]


def test_wrong_orphan_is_handed_over_despite_unreadable_message(setup: Setup) -> None:
    setup.forget(FIRST)
    hide_a_message(setup)
    setup.messages.due_ms[7, 5] = 1
    assert setup.steps(FindingKind.ORPHANED_BUCKET) == [(S.HAND_OVER, FIRST)]


def test_an_orphan_is_attached_as_long_as_no_broker_merges_at_its_next_seal(setup: Setup) -> None:
    leave_no_room(setup, (20, 20))
    assert setup.steps(FindingKind.ORPHANED_BUCKET) == [(S.ATTACH, FIRST)]


def test_an_orphan_of_which_something_is_not_known_does_not_hold_up_the_others(setup: Setup) -> None:
    setup.forget(FIRST)
    setup.forget(SECOND)
    hide_a_message(setup)
    plan = setup.plan()
    assert [(each.step, each.ledger_id) for each in plan.actions] == [(S.ATTACH, SECOND)]
    assert [each.ledger_id for each in plan.left] == [FIRST]


def test_orphans_of_two_subscriptions_are_each_attached_to_their_own(setup: Setup) -> None:
    setup.topic.cursor("t", (7, 0))
    setup.topic.seal("t", 102, 7, 8, *setup.rows[FIRST])
    setup.forget(FIRST)
    repaired = setup.execute()
    assert [(each.action.step, each.action.subscription, each.action.ledger_id, each.done) for each in repaired] == [
        (S.ATTACH, SUBSCRIPTION, FIRST, True),
        (S.ATTACH, "t", 102, True),
    ]


def test_of_two_orphans_over_the_same_ledgers_one_is_attached(setup: Setup) -> None:
    setup.topic.seal(SUBSCRIPTION, 102, 7, 8, *setup.rows[FIRST])
    setup.forget(FIRST)
    assert setup.steps() == [(S.ATTACH, FIRST), (S.HAND_OVER, 102)]
    assert all(each.done for each in setup.execute())
    assert setup.named() == {KEYS[FIRST]: FIRST, KEYS[SECOND]: SECOND}


def test_orphans_of_a_deleted_subscription_are_handed_over_while_the_topic_is_loaded(setup: Setup) -> None:
    damage.lose_the_subscription(setup)
    setup.loaded.from_question = 1
    assert [each.action.step for each in setup.execute()] == [S.HAND_OVER, S.HAND_OVER]


def test_sound_buckets_of_a_downgrade_are_retired_on_demand_only(setup: Setup) -> None:
    damage.downgrade(setup)
    plan = setup.plan()
    assert plan.actions == ()
    assert [each.kind for each in plan.left] == [FindingKind.TRACKER_DOWNGRADE] * 2
    assert setup.steps(FindingKind.TRACKER_DOWNGRADE) == [(S.RETIRE, FIRST), (S.RETIRE, SECOND)]


# --- refusals: nothing is changed ------------------------------------------------------------------------------------


def refused(setup: Setup, error: type[Exception], match: str, approved: str | None = None) -> None:
    named = setup.named()
    with pytest.raises(error, match=match):
        setup.repair.execute(TOPIC, OPTIONS, (), approved or setup.plan().hash)
    assert setup.named() == named
    assert setup.deletions.taken == []


def test_another_plan_is_refused(setup: Setup) -> None:
    setup.cut(FIRST)
    approved = setup.plan().hash
    setup.store.put(damage.CURSOR, setup.cursor_node.data)
    assert setup.plan().hash == approved, "unloading the topic does not change the plan"
    setup.cut(SECOND)
    refused(setup, ConflictError, "not the approved one", approved)


def test_a_loaded_topic_is_named_in_the_plan_and_refused(setup: Setup) -> None:
    setup.cut(FIRST)
    setup.loaded.from_question = 1
    consumers = (ConnectedConsumer("c-1", "/10.0.0.7:5", None), ConnectedConsumer(None, None, None))
    subscription = Subscription(SUBSCRIPTION, SubscriptionType.SHARED, consumers)
    setup.clients = TopicStats("broker-1:8080", {SUBSCRIPTION: subscription}, ("p-1",))
    clients = ("producer p-1", "consumer c-1 of s at /10.0.0.7:5", "consumer without a name of s at an unknown address")
    assert setup.plan().loaded == (LoadedTopic(str(TOPIC), "broker-1:8080", clients),)
    setup.clients = TemporaryError("no answer")
    assert setup.plan().loaded == (LoadedTopic(str(TOPIC), "broker-1:8080", None),)
    refused(setup, ConflictError, "broker-1:8080 has .* loaded")


def test_a_deletion_service_that_is_off_is_refused(setup: Setup) -> None:
    setup.cut(FIRST)
    setup.deletions.ready = DisabledError("set topicTwoPhaseDeletionEnabled=true")
    refused(setup, DisabledError, "topicTwoPhaseDeletionEnabled")


# --- failures half-way -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("refusal", ["the broker did not take it", TemporaryError("no broker answers")])
def test_a_ledger_that_is_not_recorded_stays_named(setup: Setup, refusal: str | Exception) -> None:
    setup.cut(FIRST)
    setup.store.remove(ledger_path(LedgerId(SECOND)))
    setup.deletions.refusal = refusal
    first, second = setup.execute()
    assert (first.action.ledger_id, first.done, first.outcome, first.handed_over) == (FIRST, False, None, False)
    assert str(refusal) in str(first.problem)
    assert second.done, "what does not need the deletion service is done"
    assert setup.named() == {KEYS[FIRST]: FIRST}


def test_a_broker_that_loads_the_topic_before_the_change_is_reported_and_nothing_is_changed(setup: Setup) -> None:
    damage.lose_a_ledger(setup)
    approved, named = setup.plan().hash, setup.named()
    setup.loaded.from_question = setup.loaded.asked + 3
    (repaired,) = setup.repair.execute(TOPIC, OPTIONS, (), approved)
    assert (repaired.done, repaired.outcome, repaired.handed_over) == (False, None, False)
    assert "topics unload" in str(repaired.problem)
    assert setup.named() == named


def test_a_change_whose_answer_is_lost_is_reported_as_unknown(setup: Setup) -> None:
    damage.lose_a_ledger(setup)
    approved = setup.plan().hash
    setup.store.lose_answer_next("write", applied=False)
    (repaired,) = setup.repair.execute(TOPIC, OPTIONS, (), approved)
    assert (repaired.done, repaired.outcome) == (False, None)
    assert "the answer to the write" in str(repaired.problem)


def test_cursor_changed_during_repair_is_left_unchanged(setup: Setup) -> None:
    setup.cut(FIRST)
    data = setup.cursor_node.data
    setup.deletions.before = lambda: setup.store.put(damage.CURSOR, data)
    (repaired,) = setup.execute()
    assert (repaired.done, repaired.outcome, repaired.handed_over) == (False, None, True)
    assert "plan again" in str(repaired.problem)
    assert setup.named() == {KEYS[FIRST]: FIRST, KEYS[SECOND]: SECOND}
