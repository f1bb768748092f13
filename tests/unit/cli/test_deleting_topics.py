"""``topics delete``: one topic is followed until it has ended, many are deleted beside each other."""

import io
import json
import sys
import threading

import pytest
from pulsar_sidecar.features.ledger_deletion.cli import following as topic_deletion
from pulsar_sidecar.features.ledger_deletion.results import (
    FollowedDeletion,
    OperationState,
    TopicDeletionStatus,
)
from pulsar_sidecar.model.errors import BrokerRefusedError, NotFoundError, TemporaryError
from pulsar_sidecar.model.ids import LedgerId, OperationId
from pulsar_sidecar.model.names import TopicName, parse_topic_name

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Ran, Terminal

pytestmark = pytest.mark.usefixtures("server")
TOPIC = parse_topic_name("persistent://public/default/orders")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_deletion, "_FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def waiting(service: FakeDeletionService) -> FakeDeletionService:
    service.deletion_state, service.deletion_reason = OperationState.RUNNING, "the broker is down"
    return service


def seen(state: OperationState, reason: str | None = None, *, left: int = 2) -> FollowedDeletion:
    remedy = "abandon it" if state is OperationState.STUCK else None
    status = TopicDeletionStatus(OperationId("op-1"), str(TOPIC), None, state, 3, 2, 5, reason, remedy=remedy)
    return status.followed(left_nodes=(), left=tuple(map(LedgerId, range(left))))


def with_input(monkeypatch: pytest.MonkeyPatch, terminal: Terminal, text: str, *arguments: str) -> Ran:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return terminal.run("topics", "delete", "-", *arguments)


def deleted(service: FakeDeletionService) -> list[str]:
    calls: list[tuple[TopicName, bool, bool, str | None]] = service.calls("delete_topic")  # type: ignore[assignment]
    return [call[0].local_name for call in calls]


# --- one ---------------------------------------------------------------------------------------------------------


def test_a_deletion_that_continues_is_followed_to_its_end(terminal: Terminal, waiting: FakeDeletionService) -> None:
    waiting.followed = [
        seen(OperationState.RUNNING, "the broker is down"),
        seen(OperationState.RUNNING, "the broker restarts", left=1),
        seen(OperationState.DONE),
    ]
    ran = terminal.run("topics", "delete", "orders")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines() == [
        "waiting; attempts: 1; 3 ledgers recorded: the broker is down",
        "waiting; attempts: 2; 3 ledgers recorded, 2 left: the broker is down",
        "waiting; attempts: 2; 3 ledgers recorded, 1 left: the broker restarts",
        "deleted orders",
    ]


def test_details_of_the_finished_deletion_are_printed(terminal: Terminal, waiting: FakeDeletionService) -> None:
    waiting.followed = [seen(OperationState.DONE, "it was gone before a broker was asked")]
    ran = terminal.run("topics", "delete", "orders")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.endswith("the deletion of orders is done: it was gone before a broker was asked\n")
    assert "deleted orders" not in ran.err


def test_of_many_too(terminal: Terminal, waiting: FakeDeletionService) -> None:
    waiting.followed = [seen(OperationState.DONE, "it was gone before"), seen(OperationState.DONE)]
    ran = terminal.run("topics", "delete", "orders", "others", "--parallel", "1", "--output", "json")
    assert ran.code == 0
    assert [(each["state"], each["reason"]) for each in json.loads(ran.out)] == [("done", "it was gone before")]
    assert "deleted 1 of 2 topics" in ran.err


def test_when_it_stops_waiting_it_prints_the_state(terminal: Terminal, waiting: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete", "orders", "--wait-seconds", "0", "--output", "json")
    assert ran.code == 4
    assert json.loads(ran.out)["reason"] == "the broker is down"
    assert "pulsar-sidecar ledger-deletion topic-deletions op-1" in ran.err
    assert waiting.calls("topic_deletion") == []


def test_command_does_not_wait_for_a_stuck_deletion(terminal: Terminal, waiting: FakeDeletionService) -> None:
    waiting.followed = [seen(OperationState.STUCK, "10 bytes are not a ManagedLedgerInfo")]
    ran = terminal.run("topics", "delete", "orders", "--output", "json")
    assert (ran.code, json.loads(ran.out)["state"]) == (4, "stuck")
    assert ran.err.endswith("abandon it\n")


@pytest.mark.parametrize("state", [OperationState.REFUSED, OperationState.ABANDONED])
def test_another_end_than_the_topic_s_is_a_failure(
    state: OperationState, terminal: Terminal, waiting: FakeDeletionService
) -> None:
    waiting.followed = [seen(state, "it has subscriptions")]
    ran = terminal.run("topics", "delete", "orders")
    assert (ran.code, ran.out) == (1, "")
    assert f"was {state.value}: it has subscriptions" in ran.err


def test_an_end_that_is_not_known_is_never_a_success(terminal: Terminal, waiting: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete", "orders")
    assert (ran.code, ran.out) == (3, "")
    assert "is not known" in ran.err
    assert "deleted" not in ran.err
    assert len(waiting.calls("topic_deletion")) == 5


def test_the_end_may_be_noted_a_moment_later(
    terminal: Terminal, waiting: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([NotFoundError("not noted yet"), TemporaryError("the brokers do not respond"), None])

    def look(operation_id: OperationId) -> FollowedDeletion:
        if (error := next(answers)) is not None:
            raise error
        return seen(OperationState.DONE)

    monkeypatch.setattr(waiting.__class__, "topic_deletion", lambda _self, operation_id: look(operation_id))
    assert terminal.run("topics", "delete", "orders").code == 0


def test_a_deletion_whose_answer_did_not_come_is_followed(
    terminal: Terminal, waiting: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_again = threading.Event()

    def hang(self: FakeDeletionService, topic: TopicName, **_: object) -> TopicDeletionStatus:
        self.running = [
            TopicDeletionStatus(OperationId("op-1"), str(topic), None, OperationState.RUNNING, 3, 1, 5, "no bookies")
        ]
        asked_again.wait(5)
        raise TemporaryError("nobody hears this")

    monkeypatch.setattr(FakeDeletionService, "delete_topic", hang)
    waiting.followed = [seen(OperationState.DONE)]
    try:
        ran = terminal.run("--request-timeout", "0.5", "topics", "delete", "orders")
    finally:
        asked_again.set()
    assert (ran.code, ran.err.splitlines()) == (
        0,
        ["waiting; attempts: 1; 3 ledgers recorded: no bookies", "deleted orders"],
    )


# --- many --------------------------------------------------------------------------------------------------------


def test_several_topics_are_deleted_with_progress(terminal: Terminal, service: FakeDeletionService) -> None:
    names = [f"topic-{index}" for index in range(40)]
    ran = terminal.run("topics", "delete", *names, "--force", "--partitioned")
    assert (ran.code, ran.out) == (0, "")
    assert sorted(deleted(service)) == sorted(names)
    assert {call[1:3] for call in service.calls("delete_topic")} == {(True, True)}  # type: ignore[index]
    lines = ran.err.splitlines()
    assert lines[0] == "deleting topics: 0 of 40"
    assert lines[-2].startswith("deleting topics: 40 of 40, ")
    assert lines[-2].endswith("/s, 0 s left")
    assert lines[-1] == "deleted 40 of 40 topics"


def test_one_failed_deletion_does_not_stop_the_others(terminal: Terminal, service: FakeDeletionService) -> None:
    service.topic_failures = {"persistent://public/default/b": BrokerRefusedError(412, "it has subscriptions")}
    ran = terminal.run("topics", "delete", "a", "b", "c", "--output", "json")
    assert ran.code == 4
    (failed,) = json.loads(ran.out)
    assert (failed["topic"], failed["state"], failed["operationId"]) == ("b", "failed", None)
    assert "it has subscriptions (HTTP 412)" in failed["reason"]
    assert sorted(deleted(service)) == ["a", "b", "c"]
    assert ran.err.splitlines()[-1] == "deleted 2 of 3 topics"
    table = terminal.run("topics", "delete", "a", "b", "c").out.splitlines()
    assert len(table) == 2
    assert table[1].split()[:2] == ["b", "failed"]


def test_deletions_that_time_out_are_named(terminal: Terminal, waiting: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete", "a", "b", "--wait-seconds", "0", "--output", "json")
    assert ran.code == 4
    assert [(each["topic"], each["state"], each["operationId"]) for each in json.loads(ran.out)] == [
        ("a", "running", "op-1"),
        ("b", "running", "op-1"),
    ]


def test_an_end_of_many_that_is_not_known_is_unknown(terminal: Terminal, waiting: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete", "a", "b", "--output", "json")
    assert ran.code == 4
    assert [each["state"] for each in json.loads(ran.out)] == ["unknown"] * 2
    assert waiting.running == []


def test_parallel_option_limits_concurrent_deletions(
    terminal: Terminal, service: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, now, most = threading.Lock(), [0], [0]
    delete = FakeDeletionService.delete_topic

    def counted(self: FakeDeletionService, *arguments: object, **named: object) -> TopicDeletionStatus:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with lock:
            now[0] -= 1
        return delete(self, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(FakeDeletionService, "delete_topic", counted)
    names = [f"topic-{index}" for index in range(12)]
    assert terminal.run("topics", "delete", *names, "--parallel", "3").code == 0
    assert 1 < most[0] <= 3


# --- names -------------------------------------------------------------------------------------------------------


def test_names_come_from_standard_input(
    terminal: Terminal, service: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "# of last year\na\n\n  \r\npersistent://public/default/#b\r\nc \na\npersistent://public/default/a"
    ran = with_input(monkeypatch, terminal, text)
    assert (ran.code, ran.out) == (0, "")
    assert sorted(deleted(service)) == ["#b", "a", "c "]


def test_single_name_from_standard_input_is_one_topic(
    terminal: Terminal, service: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = with_input(monkeypatch, terminal, "orders\n", "--confirm-source-data-loss", str(TOPIC))
    assert (ran.code, ran.out, ran.err) == (0, "", "deleted orders\n")
    assert service.confirmed == [str(TOPIC)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a\nnon-persistent://a/b/c\n", "line 2: "),
        ("a\n\na/b\n", "line 3: "),
        ("# nothing\n\n", "no topics on standard input"),
    ],
)
def test_a_list_that_cannot_be_used_deletes_nothing(
    text: str, complaint: str, terminal: Terminal, service: FakeDeletionService, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = with_input(monkeypatch, terminal, text)
    assert (ran.code, ran.out) == (1, "")
    assert complaint in ran.err
    assert service.asked == []


def test_a_loss_is_confirmed_for_one_topic_only(terminal: Terminal, service: FakeDeletionService) -> None:
    ran = terminal.run("topics", "delete", "a", "b", "--confirm-source-data-loss", "a")
    assert ran.code == 1
    assert "--confirm-source-data-loss accepts a single topic" in ran.err
    assert service.asked == []


@pytest.mark.parametrize("parallel", ["0", "101", "x"])
def test_a_number_that_cannot_be_used_deletes_nothing(
    parallel: str, terminal: Terminal, service: FakeDeletionService
) -> None:
    assert terminal.run("topics", "delete", "a", "b", "--parallel", parallel).code == 1
    assert service.asked == []
