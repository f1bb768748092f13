"""A topic's deletion is followed until it ends: reasons to wait, stuck deletions, the remainder, and the end."""

import json

import pytest
from msgspec.structs import replace
from pulsar_sidecar.features.ledger_deletion.outcomes import note_message
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.results import OperationState, TopicDeletionStatus
from pulsar_sidecar.features.ledger_deletion.topic_deletion.driver import EndedElsewhereError
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import (
    END_STEP,
    KnownStatuses,
    after_failure,
    end_document,
    end_of,
    follow,
    running,
    running_deletion_of,
    warnings_of,
)
from pulsar_sidecar.features.ledger_deletion.topic_deletion.operation import (
    OPERATIONS,
    STUCK_AFTER,
    driver_path,
    new_operation_id,
    operation_path,
)
from pulsar_sidecar.model.errors import NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import OperationId
from pulsar_sidecar.model.names import CursorName, TopicName
from pulsar_sidecar.ownership.paths import cursor_path, managed_ledger_path, schema_path

from tests.fakes.deletion_topics import FakeDeletionTopics
from tests.fakes.metadata import FakeMetadataStore
from tests.fakes.pulsar import FakePulsar, TopicPlan
from tests.unit.ledger_deletion.driving import OP, asked, begin
from tests.unit.ledger_deletion.driving import running as running_nodes
from tests.unit.ledger_deletion.orphans import NAME
from tests.unit.ledger_deletion.sidecars import Sidecar, accepted_records
from tests.unit.ledger_deletion.test_operation import OPERATION

DAMAGED = b"not proto\xff"
DUE_MS = OPERATION.not_before_ms


def damaged(fake_pulsar: FakePulsar) -> tuple[TopicName, str, bytes]:
    """A topic whose node cannot be read; the node's path and its content."""
    topic = fake_pulsar.topic(NAME)
    path = managed_ledger_path(topic.managed_ledger_name)
    node = fake_pulsar.store.peek(path)
    fake_pulsar.store.put(path, DAMAGED)
    return topic, path, node.data


def driven_until_stuck(fake_pulsar: FakePulsar, sidecar: Sidecar) -> TopicDeletionStatus:
    known: KnownStatuses = {}
    for _ in range(STUCK_AFTER):
        (status,) = running(fake_pulsar.store, "/ledgers", known)
        assert running(fake_pulsar.store, "/ledgers", known) == running(fake_pulsar.store, "/ledgers", {})
        if status.state is OperationState.STUCK:
            return status
        fake_pulsar.clock.advance_ms(max(0, status.next_attempt_ms - fake_pulsar.clock.now_ms()))
        sidecar.drive()
    (status,) = running(fake_pulsar.store, "/ledgers", known)
    return status


def test_a_deletion_says_what_its_first_attempt_waits_for(fake_pulsar: FakePulsar) -> None:
    sidecar, store = Sidecar(fake_pulsar), fake_pulsar.store
    begin(sidecar, fake_pulsar.topic(NAME))
    store.put("/ledgers/cookies/down:3181")
    (status,) = running(store, "/ledgers", {})
    followed = follow(store, OP, "/ledgers")
    assert status.reason == followed.reason
    assert status.reason == (
        "brokers or bookies have not answered yet; bookies registered as writable: 1 of 2 "
        "(pulsar-sidecar pins bookies shows them); the sidecar keeps trying"
    )


def test_an_attempt_that_is_due_is_due_now(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    begin(sidecar, fake_pulsar.topic(NAME))
    fake_pulsar.clock.advance_ms(3_600_000)
    (status,) = running(fake_pulsar.store, "/ledgers", {})
    followed = follow(fake_pulsar.store, OP, "/ledgers")
    assert status.next_attempt_ms == followed.next_attempt_ms == fake_pulsar.store.now_ms()


def test_the_promise_of_a_topic_as_it_is_now(fake_pulsar: FakePulsar) -> None:
    sidecar, store = Sidecar(fake_pulsar), fake_pulsar.store
    topic, other = fake_pulsar.topic(NAME), fake_pulsar.topic(f"{NAME}-2")
    assert running_deletion_of(store, topic, partitioned=False, force=True) is None
    begin(sidecar, topic)
    assert running_deletion_of(store, topic, partitioned=False, force=True) == OP
    assert running_deletion_of(store, topic, partitioned=False, force=False) is None
    assert running_deletion_of(store, other, partitioned=False, force=True) is None
    path = managed_ledger_path(topic.managed_ledger_name)
    node = store.peek(path)
    store.remove(path)
    store.put(path, node.data)
    assert running_deletion_of(store, topic, partitioned=False, force=True) is None


def test_the_running_deletions_of_other_topics_are_not_read(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    store = fake_pulsar.store
    topics = [fake_pulsar.topic(f"{NAME}-{number}") for number in range(200)]
    topic, *others = topics
    for other in others:
        begin(sidecar, other, new_operation_id(other))
    of_an_older_version = OperationId("0" * 32)
    begin(sidecar, others[0], of_an_older_version)
    store.journal.clear()
    assert running_deletion_of(store, topic, partitioned=False, force=True) is None
    assert operations_read(store) == [operation_path(of_an_older_version)]
    own = new_operation_id(topic)
    begin(sidecar, topic, own)
    store.journal.clear()
    assert running_deletion_of(store, topic, partitioned=False, force=True) == own
    assert operations_read(store) == sorted(map(operation_path, (of_an_older_version, own)))


def operations_read(store: FakeMetadataStore) -> list[str]:
    reads = [operation.paths for operation in store.journal if operation.method in ("read", "read_many")]
    return sorted(path for paths in reads for path in paths if path.startswith(OPERATIONS))


def test_listing_that_failed_is_not_the_absence_of_a_running_deletion(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME)
    fake_pulsar.store.fail_next("children", TemporaryError("the session is lost"))
    with pytest.raises(TemporaryError):
        running_deletion_of(fake_pulsar.store, topic, partitioned=False, force=True)


# --- the same failure --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ("the broker does not respond", "the broker does not respond", True),
        ("10 bytes are not a ManagedLedgerInfo", "12 bytes are not a ManagedLedgerInfo", True),
        ("/managed-ledgers/t/n/persistent/a-1 still exists", "/managed-ledgers/t/n/persistent/a-2 still exists", True),
        ("broker-1:8080 answered 503", "broker-2:8080 answered 503", True),
        ("the broker does not respond", "the metadata store does not respond", False),
        ("", "the metadata store does not respond", False),
    ],
)
def test_failures_are_the_same_apart_from_words_with_digits(before: str, now: str, same: bool) -> None:
    failed = after_failure(
        replace(OPERATION, last_reason=before, failures=4, failing_since_ms=5), now, 20, lasting=False
    )
    assert (failed.failures, failed.failing_since_ms) == ((5, 5) if same else (1, 20))
    assert failed.last_reason == now


def test_the_first_failure_counts_although_the_operation_waited_for_the_brokers_from_the_beginning() -> None:
    failed = after_failure(OPERATION, OPERATION.last_reason or "", 20, lasting=False)
    assert (failed.failures, failed.failing_since_ms) == (1, 20)


def test_failure_before_the_due_time_is_not_counted() -> None:
    """A caller that waits has it tried every second; a broker that restarts makes no deletion stuck."""
    operation, now_ms = OPERATION, DUE_MS - 1_000
    for _ in range(30):
        operation = after_failure(operation, "no broker answers", now_ms, lasting=False)
        now_ms += 1_000
    assert operation.failures == 1
    assert not operation.stuck


def test_backoff_grows_with_failures_up_to_the_stuck_interval() -> None:
    operation, waits = replace(OPERATION, attempts=0), []
    for _ in range(STUCK_AFTER):
        now_ms = operation.not_before_ms
        operation = after_failure(operation, "no bookie answers", now_ms, lasting=False)
        waits.append(operation.not_before_ms - now_ms)
    assert waits == [2_000, 4_000, 8_000, 16_000, 32_000, *[60_000] * 5]
    assert operation.stuck


def test_lasting_failure_is_retried_quickly_until_stuck() -> None:
    operation, waits = replace(OPERATION, attempts=0), []
    for _ in range(STUCK_AFTER + 1):
        now_ms = operation.not_before_ms
        operation = after_failure(operation, "10 bytes are not a ManagedLedgerInfo", now_ms, lasting=True)
        waits.append(operation.not_before_ms - now_ms)
    assert waits == [1_000] * (STUCK_AFTER - 1) + [60_000] * 2


# --- stuck -------------------------------------------------------------------------------------------------------


def test_a_damaged_node_makes_a_deletion_stuck_with_its_path_and_the_remedy(fake_pulsar: FakePulsar) -> None:
    topic, path, _ = damaged(fake_pulsar)
    sidecar = Sidecar(fake_pulsar)
    began_ms = fake_pulsar.clock.now_ms()
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    assert (tried.state, tried.lasting) == (OperationState.RUNNING, True)
    sidecar.deleter.operations.release(tried.held.operation.operation_id)
    status = driven_until_stuck(fake_pulsar, sidecar)
    assert (status.state, status.failures, status.failing_since_ms) == (OperationState.STUCK, STUCK_AFTER, began_ms)
    assert status.reason.startswith(f"{path} cannot be read: {len(DAMAGED)} bytes are not a ManagedLedgerInfo")
    assert status.remedy is not None
    assert f"pulsar-sidecar ledger-deletion abandon {OP}" in status.remedy
    assert asked(fake_pulsar) == []
    assert warnings_of([status]) == [f"the deletion of {topic} ({OP}) is stuck: {status.reason}; {status.remedy}"]


@pytest.mark.parametrize("of", ["cursor", "schema"])
def test_whichever_node_is_damaged_the_reason_names_it(fake_pulsar: FakePulsar, sidecar: Sidecar, of: str) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(subscriptions=("sub",), schema_versions=1))
    cursor = cursor_path(topic.managed_ledger_name, CursorName("sub"))
    path = cursor if of == "cursor" else schema_path(topic.schema_id)
    fake_pulsar.store.put(path, DAMAGED)
    tried = sidecar.deleter.attempt(begin(sidecar, topic))
    assert tried.lasting
    assert (tried.held.operation.last_reason or "").startswith(f"{path} cannot be read: ")
    assert asked(fake_pulsar) == []
    assert accepted_records(fake_pulsar) == []


def test_a_stuck_deletion_continues_once_its_cause_is_removed(fake_pulsar: FakePulsar, sidecar: Sidecar) -> None:
    topic, path, content = damaged(fake_pulsar)
    sidecar.delete_topic(topic)
    driven_until_stuck(fake_pulsar, sidecar)
    fake_pulsar.store.put(path, content)
    sidecar.work_and_check()
    assert fake_pulsar.ledgers() == set()


def test_warnings_name_the_first_five() -> None:
    stuck = TopicDeletionStatus(OP, NAME, None, OperationState.STUCK, 3, 2, 1, "it fails", remedy="abandon it")
    texts = warnings_of([stuck] * 7)
    assert len(texts) == 6
    assert texts[-1] == "2 more topic deletions cannot continue either"
    assert warnings_of([TopicDeletionStatus(OP, NAME, None, OperationState.RUNNING, 3, 2, 1)]) == []


# --- remainders --------------------------------------------------------------------------------------------------


def test_status_lists_marked_nodes_and_existing_ledgers(fake_pulsar: FakePulsar) -> None:
    topic = fake_pulsar.topic(NAME, TopicPlan(ledgers=3, offloaded=(0,)))
    fake_pulsar.admin.lose_answer_next(applied=False)
    assert Sidecar(fake_pulsar).delete_topic(topic) is OperationState.RUNNING
    gone, *left = sorted({record.ledger_id for record in accepted_records(fake_pulsar)})
    fake_pulsar.remove_ledger(gone)
    found = follow(fake_pulsar.store, OP, "/ledgers")
    assert found.left_nodes == (managed_ledger_path(topic.managed_ledger_name),)
    assert (found.left_ledgers, list(found.left_ledger_ids or ())) == (len(left), left)
    assert found.driver is None
    fake_pulsar.store.create(driver_path(OP), b"sidecar-2", ephemeral=True)
    found = follow(fake_pulsar.store, OP, "/ledgers")
    assert found.driver == "sidecar-2"


def test_of_an_unreadable_deletion_only_what_is_known_is_shown(fake_pulsar: FakePulsar) -> None:
    node = fake_pulsar.store.create(operation_path(OP), b'{"newer":"version"}')
    found = follow(fake_pulsar.store, OP, "/ledgers")
    assert (found.state, found.topic, found.attempts, found.recorded_ledgers) == (
        OperationState.UNREADABLE, None, None, None
    )  # fmt: skip
    assert (found.requested_ms, found.left_nodes, found.left_ledgers) == (node.created_ms, None, None)
    assert "the version of pulsar-sidecar that began it" in (found.remedy or "")


# --- abandoned ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["read_many", "shadows_of", "delete_topic"])
def test_the_driver_notices_that_its_deletion_was_abandoned(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, moment: str
) -> None:
    held = begin(sidecar, topic)
    other = Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session())

    def abandon() -> None:
        other.deleter.operations.abandon(OP)

    match moment:
        case "read_many":
            fake_pulsar.store.before("read_many", abandon)
        case "shadows_of":
            fake_pulsar.shadows.hooks.before("shadows_of", abandon)
        case _:
            fake_pulsar.admin.hooks.before("delete_topic", abandon)
            fake_pulsar.admin.lose_answer_next(applied=False)
    tried = sidecar.deleter.attempt(held)
    assert tried.state is OperationState.REFUSED
    assert isinstance(tried.refusal, EndedElsewhereError)
    assert asked(fake_pulsar) == []
    assert running_nodes(fake_pulsar) == []
    assert sidecar.drive() is None


def test_abandon_wins_over_a_concurrent_takeover(fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar) -> None:
    held = begin(sidecar, topic)
    sidecar.deleter.operations.release(held.operation.operation_id)
    other = fake_pulsar.store.other_session()
    fake_pulsar.store.before(
        "delete", lambda: other.create(driver_path(OP), b"sidecar-2", ephemeral=True), path=operation_path(OP)
    )
    assert sidecar.deleter.operations.abandon(OP) is not None
    assert running_nodes(fake_pulsar) == []


@pytest.mark.parametrize("applied", [True, False])
@pytest.mark.parametrize("call", ["delete_together", "delete"])
def test_abandon_survives_one_lost_response(
    fake_pulsar: FakePulsar, topic: TopicName, sidecar: Sidecar, call: str, applied: bool
) -> None:
    begin(sidecar, topic)
    if call == "delete":  # without a driver the two nodes cannot be removed together
        sidecar.deleter.operations.release(OP)
        fake_pulsar.store.before(
            "delete", lambda: fake_pulsar.store.lose_answer_next("delete", applied=applied), path=driver_path(OP)
        )
    else:
        fake_pulsar.store.lose_answer_next(call, applied=applied)
    assert sidecar.deleter.operations.abandon(OP) is not None
    assert running_nodes(fake_pulsar) == []


def test_unknown_or_finished_deletion_is_not_abandoned(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    sidecar = Sidecar(fake_pulsar)
    assert sidecar.deleter.operations.abandon(OP) is None
    held = begin(sidecar, topic)
    other = Sidecar(fake_pulsar, name="sidecar-2", store=fake_pulsar.store.other_session())
    fake_pulsar.store.before("delete_together", lambda: other.deleter.operations.end(held.operation.operation_id))
    assert sidecar.deleter.operations.abandon(OP) is None


# --- its end -----------------------------------------------------------------------------------------------------


def noted(fake_pulsar: FakePulsar, document: dict[str, object], step: str = END_STEP) -> FakeDeletionTopics:
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, note_message("sidecar-1", 77, step, document), key="")
    return fake_pulsar.topics


@pytest.mark.parametrize("topic", [NAME, None])
@pytest.mark.parametrize("state", [OperationState.DONE, OperationState.REFUSED, OperationState.ABANDONED])
def test_an_end_is_what_the_outcome_topic_has(
    state: OperationState, topic: str | None, fake_pulsar: FakePulsar
) -> None:
    known = None if topic is None else 3
    status = TopicDeletionStatus(OP, topic, None, state, known, known, 5, "a reason")
    found = end_of(noted(fake_pulsar, end_document(status, "an operator")), OP, 0)
    assert found == status.followed(
        ended_ms=77, abandoned_by="an operator" if state is OperationState.ABANDONED else None
    )


GOOD = end_document(TopicDeletionStatus(OP, NAME, None, OperationState.DONE, 3, 2, 5))


@pytest.mark.parametrize(
    ("document", "step"),
    [
        (GOOD | {"operationId": "another"}, END_STEP),
        (GOOD, "undeleted"),
        (GOOD | {"state": "asleep"}, END_STEP),
        (GOOD | {"topicName": "a/b"}, END_STEP),
        (GOOD | {"requestedMs": None}, END_STEP),
    ],
)
def test_an_end_that_was_not_noted_is_not_known(document: dict[str, object], step: str) -> None:
    fake_pulsar = FakePulsar()
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, f"{OP} is not JSON".encode(), key="")
    fake_pulsar.topics.put(DeletionTopic.OUTCOME, json.dumps({"step": END_STEP, "of": OP}).encode(), key="")
    with pytest.raises(NotFoundError, match="either its end was not noted"):
        end_of(noted(fake_pulsar, document, step), OP, 0)
