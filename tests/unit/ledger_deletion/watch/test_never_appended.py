"""Ledgers that the watch never appends, and the copy that tiered storage replaced."""

import pytest
from pulsar_sidecar.features.ledger_deletion.watch.results import LeakState
from pulsar_sidecar.model.errors import PermanentError, SidecarError, TemporaryError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path

from tests.fakes.bookkeeper import data_custom_metadata, managed_ledger_bytes
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.watch.leak_causes import (
    close_cursor,
    delete_topic,
    path_of,
    remove_from_list,
    replace_by_offloaded,
    unsubscribe,
)
from tests.unit.ledger_deletion.watch.watching import A_WHILE, MINUTE, SETTLE_SECONDS, SOON, Watcher, appended, kept


def test_list_of_another_topic_is_not_evidence(fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher) -> None:
    """A list that named another topic's ledger was made by hand, or was a shadow's."""
    stray = fake_pulsar.ledger(data_custom_metadata("public/default/persistent/elsewhere"), age_ms=0)
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), stray]))
    watcher.go(SOON)
    remove_from_list(fake_pulsar, topic, stray)
    watcher.go(SETTLE_SECONDS + MINUTE)
    assert (appended(fake_pulsar), kept(fake_pulsar), watcher.leak(stray)) == ([], [], None)
    assert watcher.status().unlinked == 1


def test_list_of_a_shadow_is_not_evidence(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    shadow = fake_pulsar.shadow("persistent://public/default/shadow", topic)
    with Watcher(fake_pulsar).go(10) as watcher:
        gone = fake_pulsar.trim(topic, 2, dies_between=True)
        watcher.go(SETTLE_SECONDS)
        fake_pulsar.store.put(
            path_of(shadow), managed_ledger_bytes([], properties={"PULSAR.SHADOW_SOURCE": str(topic)})
        )
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
        assert set(gone) <= fake_pulsar.ledgers()


UNKNOWN = {
    "no stamp": {},
    "somebody else's": {"application": b"distributedlog"},
    "an unknown component": {"application": b"pulsar", "component": b"whatever"},
    "no topic's": data_custom_metadata("just-a-name"),
}


@pytest.mark.parametrize("stamp", UNKNOWN)
@pytest.mark.parametrize("was_listed", [True, False])
def test_unknown_kind_of_ledger_is_never_appended(
    fake_pulsar: FakePulsar, topic: TopicName, quick: Watcher, stamp: str, was_listed: bool
) -> None:
    stray = fake_pulsar.ledger(UNKNOWN[stamp])
    if was_listed:
        fake_pulsar.store.put(path_of(topic), managed_ledger_bytes([*fake_pulsar.listed(topic), stray]))
        quick.go(SOON)
        remove_from_list(fake_pulsar, topic, stray)
    quick.go(3 * MINUTE)
    quick.go(12 * MINUTE)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert quick.state(stray) is LeakState.KEPT


def test_a_ledger_whose_metadata_is_not_understood_is_never_appended(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = fake_pulsar.trim(topic, 1, dies_between=True)
    fake_pulsar.store.put(ledger_path(first), b"no metadata")
    watcher.go(13 * MINUTE)
    assert appended(fake_pulsar) == []
    assert "its metadata is not understood" in watcher.detail(first)


def test_the_deletion_services_own_topics_are_left_to_their_brokers(fake_pulsar: FakePulsar) -> None:
    own = fake_pulsar.topic("persistent://pulsar/system/__ledger_deletion-partition-0", TopicPlan(schema_versions=1))
    with Watcher(fake_pulsar).go(10) as watcher:
        gone = {*fake_pulsar.trim(own, 2, dies_between=True), *unsubscribe(fake_pulsar, own)}
        watcher.go(SETTLE_SECONDS + A_WHILE)
        assert appended(fake_pulsar) == []
        assert {watcher.state(each) for each in gone} == {LeakState.LEAKED}
        assert {watcher.detail(each) for each in gone} == {"its topic belongs to the deletion service itself"}


def test_a_topic_whose_deletion_is_recorded_is_not_counted_twice(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    watcher.recorded.add(topic)
    gone = delete_topic(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])
    assert watcher.status().vanished == 0
    assert watcher.status().unlinked == len(gone)


def test_evidence_is_taken_back_when_a_recorded_deletion_explains_it(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    before = fake_pulsar.listed(topic)
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SOON)
    assert kept(fake_pulsar) == [gone]
    fake_pulsar.store.put(path_of(topic), managed_ledger_bytes(before))
    watcher.go(0.2)
    watcher.recorded.add(topic)
    delete_topic(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])


def test_the_partition_of_a_topic_whose_deletion_is_recorded(fake_pulsar: FakePulsar) -> None:
    base = fake_pulsar.partitioned_topic("persistent://public/default/parts", 2)
    with Watcher(fake_pulsar) as watcher:
        watcher.recorded.add(base)
        watcher.go(10)
        delete_topic(fake_pulsar, base.partition(1))
        watcher.go(SETTLE_SECONDS + SOON)
        assert (appended(fake_pulsar), kept(fake_pulsar)) == ([], [])


def test_a_node_that_is_not_understood_protects_as_in_an_audit(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    broken = parse_topic_name("persistent://public/default/broken")
    fake_pulsar.store.put(path_of(broken), b"\x47\x78\x00")
    (gone,) = fake_pulsar.trim(topic, 1, dies_between=True)
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert f"{path_of(broken)} was not read, and may reference it" in watcher.detail(gone)
    assert watcher.status().unreadable_nodes == (path_of(broken),)
    fake_pulsar.store.remove(path_of(broken))
    watcher.go(SOON + 60)
    assert appended(fake_pulsar) == [gone]


# --- the copy that tiered storage replaced ---------------------------------------------------------------------------


def test_a_replaced_copy_stays_while_the_other_one_is_not_whole(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher
) -> None:
    (first,) = replace_by_offloaded(fake_pulsar, topic)
    context = fake_pulsar.context(first, deleted=False)
    fake_pulsar.offloaded.put(first, context, topic.managed_ledger_name, parts={"data"})
    watcher.go(SETTLE_SECONDS + A_WHILE)
    assert appended(fake_pulsar) == []
    assert "this one may be the last" in watcher.detail(first)
    fake_pulsar.offloaded.put(first, context, topic.managed_ledger_name)
    watcher.go(SOON + 60)
    assert appended(fake_pulsar) == [first]


@pytest.mark.parametrize("error", [PermanentError("no credentials are configured"), TemporaryError("S3 is away")])
def test_tiered_storage_that_cannot_be_asked_keeps_that_ledger_and_holds_up_no_other(
    fake_pulsar: FakePulsar, topic: TopicName, watcher: Watcher, error: SidecarError
) -> None:
    watcher.offload_error = error
    (first,) = replace_by_offloaded(fake_pulsar, topic)
    other = close_cursor(fake_pulsar, topic)
    watcher.go(SETTLE_SECONDS + SOON)
    assert set(appended(fake_pulsar)) == other
    assert watcher.state(first) is LeakState.KEPT
    assert str(error) in watcher.detail(first)
    watcher.offload_error = None
    watcher.go(SOON + 60)
    assert set(appended(fake_pulsar)) == {first, *other}
