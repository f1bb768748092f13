"""Deleting a shadow topic: stage by stage, and refusals."""

import dataclasses
import json

import pytest
from pulsar_sidecar.features.ledger_deletion.ports import ConnectedClients
from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import SHADOW_DELETIONS, shadow_deletion_path
from pulsar_sidecar.model.errors import BrokerRefusedError, ConflictError, UndecodableError
from pulsar_sidecar.model.names import TopicName, parse_topic_name
from pulsar_sidecar.ownership.paths import ledger_path, managed_ledger_path, partitioned_topic_path
from pulsar_sidecar.ownership.shadows import SHADOW_SOURCE

from tests.fakes.bookkeeper import managed_ledger_bytes
from tests.unit.ledger_deletion.shadow_settings import SHADOW, SOURCE, Setting, is_refused, setting

DAY_MS = 24 * 3_600_000


def test_the_shadow_goes_and_the_source_stays() -> None:
    made = setting()
    sidecar = made.sidecar()
    taken = [made.advance(sidecar).stage for _ in range(6)]
    assert taken == list(ShadowDeletionStage)
    made.check()
    status = made.advance(sidecar)
    assert (status.source_ledgers, status.missing_ledgers, status.missing_before) == (3, (), ())
    assert made.brokers.asked == [
        "keep orders-shadow", "unload orders", "unload orders-shadow", "unload orders-shadow", "delete orders-shadow",
    ]  # fmt: skip


def test_a_partitioned_shadow_goes_with_its_partitions() -> None:
    made = setting(partitions=3)
    status = made.finish()
    assert status.source_ledgers == 9
    deletions = [asked for asked in made.brokers.asked if asked.startswith("delete")]
    assert deletions == [*(f"delete orders-shadow-partition-{index}" for index in range(3)), "delete orders-shadow"]


def test_many_partitions_take_several_calls_which_show_how_many_are_left() -> None:
    made = setting(partitions=120)
    sidecar, waits = made.sidecar(), []
    while (status := made.advance(sidecar)).stage is not ShadowDeletionStage.DONE:
        waits.append(status.waits_for)
    assert [text for text in waits if text] == [
        "still to be detached: 70 partitions",
        "still to be detached: 20 partitions",
        "still to be deleted: 70 partitions",
        "still to be deleted: 20 partitions",
    ]
    made.check()


@pytest.mark.parametrize("partitions", [None, 2])
def test_the_source_replicates_to_it_no_more(partitions: int | None) -> None:
    made = setting(partitions, listed=True)
    made.delete()
    made.brokers.replicate()
    made.check()
    assert made.brokers.lists[made.source] == ["persistent://public/default/other-shadow"]


def test_topic_that_is_not_a_shadow_is_refused() -> None:
    made = setting()
    made.shadow = made.source
    assert is_refused(made) == (
        f"ConflictError: {SOURCE} is not a shadow topic: none of its nodes has the property PULSAR.SHADOW_SOURCE. "
        "If it was a shadow, make it one again first, as docs/shadow-topics.md shows"
    )
    made.shadow = parse_topic_name("persistent://public/default/nobody")
    assert is_refused(made) == "NotFoundError: there is no topic persistent://public/default/nobody"


def test_a_partition_of_a_shadow_is_refused() -> None:
    made = setting(partitions=2)
    made.shadow = made.shadow.partition(1)
    assert "name the partitioned topic persistent://public/default/orders-shadow" in is_refused(made)


@pytest.mark.parametrize("clients", [ConnectedClients(consumers=2), ConnectedClients(producers=1)])
def test_deletion_is_refused_while_clients_are_connected(clients: ConnectedClients) -> None:
    made = setting()
    made.brokers.kept_forever.add(made.shadow)
    made.brokers.load(made.shadow)
    made.brokers.clients_of[made.shadow] = clients
    assert "close them and run the same command again" in is_refused(made)
    made.brokers.clients_of.clear()
    made.finish()


def test_clients_that_come_on_the_way_stop_it_before_its_nodes_change() -> None:
    made = setting()
    made.advance_to(ShadowDeletionStage.DETACHING)
    made.brokers.load(made.shadow)
    made.brokers.clients_of[made.shadow] = ConnectedClients(consumers=1)
    with pytest.raises(ConflictError, match=r"connected to .*: 1 consumer or reader and 0 producers"):
        made.advance(made.sidecar())
    assert made.brokers.listed(made.shadow) == made.brokers.listed(made.source)
    made.brokers.clients_of.clear()
    made.finish()


def test_deletion_waits_until_brokers_apply_the_retention() -> None:
    made = setting()
    made.brokers.policy_is_late = True
    sidecar = made.sidecar()
    made.advance(sidecar)
    status = made.advance(sidecar)
    assert (status.stage, status.waits_for) == (
        ShadowDeletionStage.PROTECTING,
        f"the broker has not applied infinite retention to {SHADOW} yet",
    )
    made.brokers.policy_is_late = False
    made.finish()


def test_a_replicator_that_connects_again_is_disconnected_again() -> None:
    made = setting(listed=True)
    made.advance_to(ShadowDeletionStage.DETACHING)
    made.brokers.replicating = {made.shadow: made.source}
    made.brokers.replicate()
    assert made.advance(made.sidecar()).stage is ShadowDeletionStage.DISCONNECTING
    made.finish()


def test_a_source_is_not_unloaded_again_and_again_while_its_replicator_goes() -> None:
    made = setting(listed=True)
    made.advance_to(ShadowDeletionStage.DISCONNECTING)
    made.brokers.replicators_linger = True
    sidecar = made.sidecar()
    for _ in range(5):
        status = made.advance(sidecar)
        assert (status.stage, status.waits_for) == (
            ShadowDeletionStage.DISCONNECTING, f"the source's replicator is still connected to {SHADOW}",
        )  # fmt: skip
        made.store.advance_ms(1_000)
    assert made.brokers.asked.count("unload orders") == 1
    made.store.advance_ms(15_000)
    made.advance(sidecar)
    assert made.brokers.asked.count("unload orders") == 2
    made.brokers.replicating.clear()
    assert made.advance(sidecar).stage is ShadowDeletionStage.DETACHING
    assert made.brokers.asked.count("unload orders") == 2
    made.brokers.replicators_linger = False
    made.finish(sidecar)


def test_a_broker_that_lists_the_ledgers_again_is_undone() -> None:
    made = setting()
    made.brokers.kept_forever.add(made.shadow)
    made.advance_to(ShadowDeletionStage.DETACHING)
    made.brokers.begin_load(made.shadow)
    node = made.store.peek(managed_ledger_path(made.shadow.managed_ledger_name))
    made.advance_to(ShadowDeletionStage.REMOVING)
    made.brokers.begin_load(made.shadow)
    made.store.put(node.path, node.data)  # and its broker was killed
    status = made.advance(made.sidecar())
    assert status.stage is ShadowDeletionStage.REMOVING
    assert status.waits_for is not None
    made.finish()


def test_a_broker_that_kept_it_loaded_is_found_out() -> None:
    made = setting(listed=True)
    made.advance_to(ShadowDeletionStage.DETACHING)
    made.brokers.load(made.shadow)
    made.brokers.unloads_missed = 3
    assert made.advance(made.sidecar()).stage is ShadowDeletionStage.REMOVING
    assert made.advance(made.sidecar()).waits_for == f"a broker still has {SHADOW} loaded"
    made.finish()


def test_a_partition_that_lists_the_ledgers_again_is_not_deleted_with_the_others() -> None:
    made = setting(partitions=2)
    first = made.shadow.partition(0)
    listed = made.brokers.listed(made.source.partition(0)) or ()

    def a_late_broker_creates_it_again(topic: TopicName) -> None:
        if topic == made.shadow.partition(1):
            made.store.put(managed_ledger_path(first.managed_ledger_name), managed_ledger_bytes(listed))
            made.brokers.after_deletion = lambda _: None

    made.brokers.after_deletion = a_late_broker_creates_it_again
    made.finish()


def test_deletion_postponed_by_the_broker_is_retried() -> None:
    made = setting()
    made.advance_to(ShadowDeletionStage.REMOVING)
    made.brokers.refusals = [BrokerRefusedError(412, "Topic has active producers/subscriptions")]
    status = made.advance(made.sidecar())
    assert status.waits_for == f"the broker does not delete {SHADOW} yet: Topic has active producers/subscriptions"
    made.finish()


def test_another_refusal_of_the_broker_is_reported_and_it_can_go_on_later() -> None:
    made = setting()
    made.advance_to(ShadowDeletionStage.REMOVING)
    made.brokers.refusals = [BrokerRefusedError(405, "not here")]
    with pytest.raises(BrokerRefusedError, match="not here"):
        made.advance(made.sidecar())
    made.finish()


@pytest.mark.parametrize("late", [False, True])
def test_a_partition_that_is_added_on_the_way_goes_too_and_its_source_stays(late: bool) -> None:
    made = setting(partitions=2)
    made.advance_to(ShadowDeletionStage.REMOVING)
    made.brokers.source(f"{SOURCE}-partition-2")
    if late:
        made.brokers.after_deletion = lambda topic: _add_partition(made) if topic == made.shadow.partition(1) else None
    else:
        _add_partition(made)
    assert made.finish().source_ledgers == 9


def _add_partition(made: Setting) -> None:
    """Add a partition by a broker that had read the source before the partitioned topic's node was changed."""
    path = partitioned_topic_path(made.shadow)
    node = made.store.peek(path)
    if node is None or made.partitions == 3:
        return
    made.partitions = 3
    made.store.put(path, json.dumps({**json.loads(node.data), "partitions": 3}).encode())
    listed = made.brokers.listed(made.source.partition(2)) or ()
    late = made.shadow.partition(2)
    made.store.put(managed_ledger_path(late.managed_ledger_name), managed_ledger_bytes(listed))


def test_a_topic_created_again_under_the_name_is_left_alone() -> None:
    made = setting()
    made.advance_to(ShadowDeletionStage.REMOVING)
    path = managed_ledger_path(made.shadow.managed_ledger_name)
    made.store.remove(path)
    fresh = made.store.put(path, managed_ledger_bytes([7], properties={SHADOW_SOURCE: str(made.source)}))
    made.delete()
    assert made.store.peek(path) == fresh
    assert [asked for asked in made.brokers.asked if asked.startswith("delete")] == []
    # The name is a shadow's again, so the next call begins anew.
    assert made.advance(made.sidecar()).stage is ShadowDeletionStage.PROTECTING


def test_a_partitioned_topic_created_again_keeps_its_partitions() -> None:
    made = setting(partitions=2)
    made.advance_to(ShadowDeletionStage.REMOVING)
    paths = [managed_ledger_path(shadow.managed_ledger_name) for shadow in made.shadows]
    path = partitioned_topic_path(made.shadow)
    node = made.store.peek(path)
    made.store.remove(path)
    made.store.remove(paths[0])
    again = [made.store.put(path, node.data), made.store.put(paths[0], managed_ledger_bytes([7]))]
    made.delete()
    assert [made.store.peek(each.path) for each in again] == again
    assert made.store.peek(paths[1]) is None


def test_the_report_stays_for_a_day() -> None:
    made = setting()
    done = made.delete()
    made.store.put(managed_ledger_path(made.shadow.managed_ledger_name), managed_ledger_bytes([7]))
    assert made.advance(made.sidecar()) == done
    made.store.advance_ms(DAY_MS + 1)
    first, made.shadow = made.shadow, made.brokers.shadow(f"{SHADOW}-2", made.source)
    made.advance(made.sidecar())
    assert made.store.peek(shadow_deletion_path(first)) is None
    assert len(made.store.children(SHADOW_DELETIONS) or []) == 1


def test_ledgers_missing_before_are_distinguished_from_lost_ones() -> None:
    made = setting()
    first, second, _ = made.brokers.listed(made.source) or ()
    made.store.remove(ledger_path(first))
    made.advance_to(ShadowDeletionStage.VERIFYING)
    made.store.remove(ledger_path(second))
    status = made.advance(made.sidecar())
    assert (status.missing_before, status.missing_ledgers) == ((first,), (second,))


def test_ledger_trimmed_by_the_source_is_not_missing() -> None:
    made = setting()
    made.advance_to(ShadowDeletionStage.VERIFYING)
    listed = made.brokers.listed(made.source) or ()
    path = managed_ledger_path(made.source.managed_ledger_name)

    def trim() -> None:
        made.store.put(path, managed_ledger_bytes(listed[1:]))
        made.store.remove(ledger_path(listed[0]))

    made.store.before("read_many", trim)
    sidecar = dataclasses.replace(made.sidecar(), store=made.store)
    assert made.advance(sidecar).missing_ledgers == ()


def test_a_source_that_does_not_exist_is_reported() -> None:
    made = setting()
    made.store.remove(managed_ledger_path(made.source.managed_ledger_name))
    assert made.delete().missing_sources == (str(made.source),)
    assert made.store.peek(managed_ledger_path(made.shadow.managed_ledger_name)) is None
    assert made.brokers.destroyed == set()


def test_a_node_of_another_version_is_left_alone() -> None:
    made = setting()
    made.store.put(shadow_deletion_path(made.shadow), b'{"stage":"unheard of"}')
    with pytest.raises(UndecodableError, match="the version of pulsar-sidecar that began it"):
        made.advance(made.sidecar())
