"""No deletion destroys the ledgers that a shadow and its source share, unless the caller confirms the source's loss."""

import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
from pulsar_sidecar.features.ledger_deletion.record import PendingDeleteLedgerInfo
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import OPERATIONS, operation_path
from pulsar_sidecar.model.errors import DataLossError, OutcomeUnknownError, TemporaryError, UndecodableError
from pulsar_sidecar.model.ids import LedgerId
from pulsar_sidecar.model.ledgers import LedgerType
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import compressed, data_custom_metadata, managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.driving import OP, begin
from tests.unit.ledger_deletion.orphans import about
from tests.unit.ledger_deletion.sidecars import (
    Crash,
    CrashAt,
    Sidecar,
    accepted_records,
    check,
    endings,
    restarted,
    send,
)

SOURCE = "persistent://public/default/orders"
SHADOW = "persistent://public/default/orders-shadow"
ELSEWHERE = "persistent://other/space/orders-shadow"


def untouched(fake_pulsar: FakePulsar, before: set[int]) -> None:
    """Nothing was recorded, asked for or begun."""
    assert accepted_records(fake_pulsar) == []
    assert fake_pulsar.admin.deletions == []
    assert fake_pulsar.admin.loads == []
    node = fake_pulsar.store.peek(OPERATIONS)
    assert node is None or not node.children_count
    assert fake_pulsar.ledgers() == before


def with_source() -> tuple[FakePulsar, TopicName]:
    fake_pulsar = FakePulsar()
    return fake_pulsar, fake_pulsar.topic(SOURCE, TopicPlan(offloaded=(0,), bookkeeper_deleted=(1,), schema_versions=1))


# --- a shadow ----------------------------------------------------------------------------------------------------


def compressed_node(fake_pulsar: FakePulsar, source: TopicName) -> tuple[TopicName, bool]:
    topic = fake_pulsar.shadow(SHADOW, source)
    path = managed_ledger_path(topic.managed_ledger_name)
    node = fake_pulsar.store.peek(path)
    fake_pulsar.store.put(path, compressed("ZLIB", node.data, zlib.compress(node.data)))
    return topic, False


def mixed(fake_pulsar: FakePulsar, source: TopicName) -> tuple[TopicName, bool]:
    topic = fake_pulsar.partitioned_topic(SHADOW, 2)
    fake_pulsar.shadow(str(topic.partition(1)), source)
    return topic, True


Make = Callable[[FakePulsar, TopicName], tuple[TopicName, bool]]
KINDS: dict[str, Make] = {
    "plain": lambda fake_pulsar, source: (fake_pulsar.shadow(SHADOW, source), False),
    "compressed node": compressed_node,
    "partitioned": lambda fake_pulsar, source: (fake_pulsar.partitioned_shadow(SHADOW, source, 2), True),
    "partition": lambda fake_pulsar, source: (
        fake_pulsar.partitioned_shadow(SHADOW, source, 2).partition(1),
        False,
    ),
    "one shadow among partitions": mixed,
}
"""Shadows, and whether they are partitioned topics."""


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_shadow_is_refused(kind: str, force: bool) -> None:
    fake_pulsar, source = with_source()
    topic, is_partitioned = KINDS[kind](fake_pulsar, source)
    before = fake_pulsar.ledgers()
    with pytest.raises(DataLossError, match=f"shadow of {SOURCE}.*pulsar-sidecar topics delete-shadow {SHADOW}"):
        Sidecar(fake_pulsar).delete_topic(topic, partitioned=is_partitioned, force=force, confirmed=True)
    untouched(fake_pulsar, before)


def set_source(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    """Turn the topic into a shadow in place."""
    listed = managed_ledger_bytes(fake_pulsar.listed(topic), properties={SHADOW_SOURCE: SOURCE})
    fake_pulsar.store.put(managed_ledger_path(topic.managed_ledger_name), listed)


@pytest.mark.parametrize("former", [False, True])
def test_topic_turned_shadow_during_deletion_is_refused(fake_pulsar: FakePulsar, former: bool) -> None:
    source, topic = fake_pulsar.topic(SOURCE), fake_pulsar.topic(SHADOW)
    begin(Sidecar(fake_pulsar), topic)
    if former:
        former_shadow(fake_pulsar, SHADOW, source)
    else:
        set_source(fake_pulsar, topic)
    before = fake_pulsar.ledgers()
    resumed = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(3_600_000)
    assert resumed.drive() is OperationState.REFUSED
    untouched(fake_pulsar, before)


@pytest.mark.parametrize("turns_into", ["shadow", "former shadow", "source"])
def test_the_topic_is_looked_at_again_right_before_the_broker_is_asked(
    fake_pulsar: FakePulsar, turns_into: str
) -> None:
    other, topic = fake_pulsar.topic(SOURCE), fake_pulsar.topic(SHADOW)

    def turn() -> None:
        match turns_into:
            case "shadow":
                set_source(fake_pulsar, topic)
            case "former shadow":
                former_shadow(fake_pulsar, SHADOW, other)
            case _:
                fake_pulsar.shadow(ELSEWHERE, topic)

    fake_pulsar.admin.hooks.before("load_topics", turn)
    with pytest.raises(DataLossError):
        Sidecar(fake_pulsar).delete_topic(topic)
    assert fake_pulsar.admin.deletions == []
    assert not {record.ledger_id for record in accepted_records(fake_pulsar)} & set(fake_pulsar.listed(other))
    restarted(fake_pulsar).work_and_check()


def test_list_turned_shadow_during_the_read_is_not_recorded() -> None:
    fake_pulsar, source = with_source()
    topic = fake_pulsar.topic(SHADOW)
    path = managed_ledger_path(topic.managed_ledger_name)
    listed = managed_ledger_bytes(fake_pulsar.listed(source), properties={SHADOW_SOURCE: SOURCE})
    reads = [0]

    def become_shadow() -> None:
        reads[0] += 1
        fake_pulsar.store.put(path, listed)

    sidecar = Sidecar(fake_pulsar)
    held = begin(sidecar, topic)
    fake_pulsar.store.before("read_many", become_shadow, path=path)
    assert isinstance(sidecar.deleter.attempt(replace(held, seen=None)).refusal, DataLossError)
    assert reads == [1]
    assert accepted_records(fake_pulsar) == []
    assert fake_pulsar.admin.deletions == []


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x47\x78\x00"])
def test_a_node_that_cannot_be_read_is_refused_for_now(fake_pulsar: FakePulsar, data: bytes) -> None:
    topic = fake_pulsar.topic(SHADOW)
    fake_pulsar.store.put(managed_ledger_path(topic.managed_ledger_name), b"PULSAR.SHADOW_SOURCE" + data)
    with pytest.raises(UndecodableError, match=r"orders-shadow cannot be read, so it may be a shadow's"):
        Sidecar(fake_pulsar).delete_topic(topic)
    assert fake_pulsar.admin.deletions == []


# --- a former shadow ---------------------------------------------------------------------------------------------


def former_shadow(fake_pulsar: FakePulsar, name: str, source: TopicName) -> TopicName:
    """A shadow without its property; a load has given it a ledger of its own."""
    topic = parse_topic_name(name)
    own = fake_pulsar.ledger(data_custom_metadata(topic.managed_ledger_name))
    fake_pulsar.store.put(
        managed_ledger_path(topic.managed_ledger_name), managed_ledger_bytes([*fake_pulsar.listed(source), own])
    )
    return topic


FORMER = f"lists ledgers of {SOURCE}.*ledger [0-9]+ and 2 more.*PULSAR.SHADOW_SOURCE.*delete-shadow {SHADOW}"


@pytest.mark.parametrize("force", [False, True])
def test_a_former_shadow_is_refused(force: bool) -> None:
    fake_pulsar, source = FakePulsar(), parse_topic_name(SOURCE)
    fake_pulsar.topic(SOURCE)
    topic = former_shadow(fake_pulsar, SHADOW, source)
    before = fake_pulsar.ledgers()
    with pytest.raises(DataLossError, match=FORMER):
        Sidecar(fake_pulsar).delete_topic(topic, force=force, confirmed=True)
    untouched(fake_pulsar, before)


def test_a_partitioned_topic_with_a_former_shadow_among_its_partitions_is_refused(fake_pulsar: FakePulsar) -> None:
    source = fake_pulsar.topic(SOURCE)
    topic = fake_pulsar.partitioned_topic(SHADOW, 2)
    former_shadow(fake_pulsar, str(topic.partition(1)), source)
    before = fake_pulsar.ledgers()
    with pytest.raises(DataLossError, match=f"{SHADOW}-partition-1 {FORMER}"):
        Sidecar(fake_pulsar).delete_topic(topic, partitioned=True)
    untouched(fake_pulsar, before)


@pytest.mark.parametrize("data", [None, b"no metadata"])
def test_a_ledger_that_names_no_owner_holds_up_no_deletion(fake_pulsar: FakePulsar, data: bytes | None) -> None:
    topic = fake_pulsar.topic(SHADOW)
    silent = fake_pulsar.listed(topic)[0]
    fake_pulsar.remove_ledger(silent)
    if data is not None:
        fake_pulsar.store.put(ledger_path(silent), data)
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE


@pytest.mark.parametrize("name", ["persistent://a/cluster/b/orders", "persistent://a/b/or%2Fders ~é"])
def test_names_of_either_version_are_their_own_ledgers_names(fake_pulsar: FakePulsar, name: str) -> None:
    topic = fake_pulsar.topic(name)
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.DONE


# --- a source ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "spelled"),
    [
        (SHADOW, None),
        (SHADOW, "public/default/orders"),
        (ELSEWHERE, None),
        ("persistent://other/cluster/space/orders-shadow", None),
    ],
)
def test_a_source_that_a_shadow_maps_is_refused_unless_confirmed(name: str, spelled: str | None) -> None:
    fake_pulsar, source = with_source()
    shadow = fake_pulsar.shadow(name, source, spelled=spelled)
    before = fake_pulsar.ledgers()
    sidecar = Sidecar(fake_pulsar, operation_ids=("op-1", "op-2"))
    with pytest.raises(DataLossError, match=f"source of the shadow {shadow}.*confirmSourceDataLoss={SOURCE}"):
        sidecar.delete_topic(source, force=True)
    untouched(fake_pulsar, before)
    assert sidecar.delete_topic(source, force=True, confirmed=True) is OperationState.DONE
    assert [deletion.topic for deletion in fake_pulsar.admin.deletions] == [source]


@pytest.mark.parametrize("alone", [False, True])
def test_a_partitioned_source_is_refused_as_a_whole_and_in_parts(fake_pulsar: FakePulsar, alone: bool) -> None:
    source = fake_pulsar.partitioned_topic(SOURCE, 2)
    fake_pulsar.partitioned_shadow(SHADOW, source, 2)
    before = fake_pulsar.ledgers()
    with pytest.raises(DataLossError, match=f"source of the shadow {SHADOW}"):
        Sidecar(fake_pulsar).delete_topic(source.partition(1) if alone else source, partitioned=not alone)
    untouched(fake_pulsar, before)


def test_a_shadow_that_maps_one_partition_is_enough(fake_pulsar: FakePulsar) -> None:
    source = fake_pulsar.partitioned_topic(SOURCE, 2)
    fake_pulsar.shadow(SHADOW, source.partition(1))
    with pytest.raises(DataLossError):
        Sidecar(fake_pulsar).delete_topic(source, partitioned=True)
    assert Sidecar(fake_pulsar).delete_topic(source.partition(0)) is OperationState.DONE


@pytest.mark.parametrize("is_of_older_version", [False, True])
def test_the_sidecar_that_goes_on_needs_the_confirmation_in_the_node(is_of_older_version: bool) -> None:
    fake_pulsar, source = with_source()
    fake_pulsar.shadow(SHADOW, source)
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert Sidecar(fake_pulsar).delete_topic(source, confirmed=True) is OperationState.RUNNING
    if is_of_older_version:
        node = fake_pulsar.store.peek(operation_path(OP))
        fake_pulsar.store.put(operation_path(OP), node.data.replace(b',"sourceDataLossConfirmed":true', b""))
    resumed = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(60_000)
    assert resumed.drive() is (OperationState.REFUSED if is_of_older_version else OperationState.DONE)
    assert [each.topic for each in fake_pulsar.admin.deletions] == ([] if is_of_older_version else [source])


def test_source_that_gains_a_shadow_during_deletion_is_refused() -> None:
    fake_pulsar, source = with_source()
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert Sidecar(fake_pulsar).delete_topic(source) is OperationState.RUNNING
    before = fake_pulsar.ledgers()
    fake_pulsar.shadow(SHADOW, source)
    resumed = restarted(fake_pulsar)
    fake_pulsar.clock.advance_ms(60_000)
    assert resumed.drive() is OperationState.REFUSED
    resumed.work_and_check()
    assert before <= fake_pulsar.ledgers()


def test_a_shadow_of_another_source_does_not_count() -> None:
    fake_pulsar, source = with_source()
    fake_pulsar.topic("persistent://public/default/ordinary")
    fake_pulsar.shadow(SHADOW, fake_pulsar.topic("persistent://public/default/another"))
    assert Sidecar(fake_pulsar).delete_topic(source) is OperationState.DONE


@pytest.mark.parametrize("error", [TemporaryError("no broker"), OutcomeUnknownError("lost")])
def test_failed_shadow_lookup_prevents_deletion(error: Exception) -> None:
    fake_pulsar, source = with_source()
    before = fake_pulsar.ledgers()
    fake_pulsar.shadows.hooks.fail_next("shadows_of", error, times=-1)
    assert Sidecar(fake_pulsar).delete_topic(source) is OperationState.RUNNING, (
        "it is promised, as while brokers are away"
    )
    assert fake_pulsar.admin.deletions == []
    assert before <= fake_pulsar.ledgers()


def test_unreadable_neighbour_requires_confirmation() -> None:
    fake_pulsar, source = with_source()
    before = fake_pulsar.ledgers()
    fake_pulsar.store.put(managed_ledger_path(parse_topic_name(SHADOW).managed_ledger_name), b"\x47\x78\x00")
    sidecar = Sidecar(fake_pulsar, operation_ids=("op-1", "op-2"))
    with pytest.raises(UndecodableError, match=r"orders-shadow cannot be read.*confirmSourceDataLoss"):
        sidecar.delete_topic(source)
    untouched(fake_pulsar, before)
    assert sidecar.delete_topic(source, confirmed=True) is OperationState.DONE


def test_a_damaged_node_elsewhere_holds_up_nothing() -> None:
    fake_pulsar, source = with_source()
    fake_pulsar.store.put(managed_ledger_path(parse_topic_name(ELSEWHERE).managed_ledger_name), b"\x47\x78\x00")
    assert Sidecar(fake_pulsar).delete_topic(source) is OperationState.DONE


def test_a_refusal_of_ours_survives_a_crash_while_it_is_noted() -> None:
    points = 0
    for number in range(200):
        fake_pulsar, source = with_source()
        before = fake_pulsar.ledgers()
        fake_pulsar.admin.hooks.before(
            "load_topics", lambda fake_pulsar=fake_pulsar, source=source: fake_pulsar.shadow(SHADOW, source) and None
        )
        try:
            Sidecar(fake_pulsar, steps=CrashAt(number)).delete_topic(source)
        except Crash:
            restarted(fake_pulsar).work()
        except DataLossError:
            break
        points += 1
        check(fake_pulsar)
        assert before <= fake_pulsar.ledgers()
        assert fake_pulsar.admin.deletions == []
    assert points > 10


# --- records from a shadow's list, by whomever -----------------------------------------------------------------------


def with_shadow() -> tuple[FakePulsar, TopicName, TopicName]:
    fake_pulsar = FakePulsar()
    source = fake_pulsar.topic(SOURCE, TopicPlan(ledgers=4, offloaded=(0, 1), bookkeeper_deleted=(1,)))
    return fake_pulsar, source, fake_pulsar.shadow(SHADOW, source)


def records(fake_pulsar: FakePulsar, topic: TopicName) -> list[PendingDeleteLedgerInfo]:
    """Records of a version that knew no shadows."""
    return [about(topic, each) for each in fake_pulsar.listed(topic)] + [
        replace(about(topic, each), ledger_type=LedgerType.OFFLOAD_LEDGER, offload_context=context)
        for each, context in fake_pulsar.copies_of(topic).items()
    ]


@pytest.mark.parametrize("shadow_is", ["there", "emptied", "gone"])
def test_ledgers_of_the_source_are_kept(shadow_is: str) -> None:
    fake_pulsar, source, shadow = with_shadow()
    before, kept = fake_pulsar.ledgers() & set(fake_pulsar.listed(source)), fake_pulsar.copies_of(source)
    sent = records(fake_pulsar, shadow)
    path = managed_ledger_path(shadow.managed_ledger_name)
    if shadow_is == "emptied":
        fake_pulsar.store.put(path, managed_ledger_bytes([], properties={SHADOW_SOURCE: SOURCE}))
    elif shadow_is == "gone":
        fake_pulsar.store.remove(f"{path}/of-the-shadow")
        fake_pulsar.store.remove(path)
    send(fake_pulsar, *sent)
    Sidecar(fake_pulsar).work()
    check(fake_pulsar, foreign_ok=True)
    assert before <= fake_pulsar.ledgers()
    assert all(
        fake_pulsar.offloaded.parts(ledger_id, context) == {"data", "index"} for ledger_id, context in kept.items()
    )
    assert {decision for ends in endings(fake_pulsar).values() for decision, _ in ends} == {"kept"}


def test_a_ledger_that_source_and_shadow_list_is_in_use_whichever_the_record_names() -> None:
    fake_pulsar, source, shadow = with_shadow()
    both = LedgerId(fake_pulsar.listed(source)[2])
    for topic in (source, shadow):
        send(fake_pulsar, about(topic, both))
    Sidecar(fake_pulsar).work_and_check()
    assert both in fake_pulsar.ledgers()
    reasons = {reason for _, reason in endings(fake_pulsar)[both, "LEDGER"]}
    assert reasons == {"ledger-still-in-use", "metadata-mismatch"}
