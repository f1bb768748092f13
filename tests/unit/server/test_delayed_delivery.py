"""Cancelling, by its routes and commands: PIP-423's status codes and options, and lines that fail alone."""

import base64
import http.client
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from pulsar_sidecar.features.delayed_messages.cli import delayed_messages
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.delayed_messages.results import (
    CancellationStatus,
    Cause,
    KnownCancellation,
    MessageOutcome,
    Verdict,
)
from pulsar_sidecar.model.errors import (
    NotAuthorizedError,
    NotFoundError,
    OutcomeUnknownError,
    SidecarError,
    TemporaryError,
)
from pulsar_sidecar.protobuf import PulsarApi_pb2 as api
from pulsar_sidecar.server.answers import parse_answer

from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Answer, Served, served

TOPIC = "/admin/v2/persistent/public/default/orders"
DUE = 1_800_000_000_000
GOOD = f"ledgerId=7&entryId=3&deliverAt={DUE}"


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[FakeDelayedDelivery, Served]]:
    fake = FakeDelayedDelivery()
    with served(routers=[delayed_delivery.router(fake)]) as server:
        yield fake, server


@pytest.fixture
def fake(_shared: tuple[FakeDelayedDelivery, Served]) -> FakeDelayedDelivery:
    fresh, shared = FakeDelayedDelivery(), _shared[0]
    for each in fields(FakeDelayedDelivery):
        setattr(shared, each.name, getattr(fresh, each.name))
    return shared


@pytest.fixture
def server(_shared: tuple[FakeDelayedDelivery, Served], fake: FakeDelayedDelivery) -> Served:
    return _shared[1]


def test_a_cancelled_message_is_204_and_headers_name_what_is_proven(server: Served, fake: FakeDelayedDelivery) -> None:
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{GOOD}")
    assert (answer.status, answer.body) == (204, b"")
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["x-pulsar-sidecar-proof"] == "ACKED"
    assert headers["x-pulsar-sidecar-cancellation"] == "7:3"
    assert headers["x-pulsar-sidecar-warning"] == "a warning"
    ((topic, target, options),) = fake.asked
    assert str(topic) == "persistent://public/default/orders"
    assert (str(target.position), target.deliver_at_ms, target.subscriptions) == ("7:3", DUE, ())
    assert not options.wait_persisted


def test_the_weakest_status_is_the_answers(server: Served, fake: FakeDelayedDelivery) -> None:
    fake.verdicts = (
        Verdict("a", CancellationStatus.PERSISTED),
        Verdict("b", CancellationStatus.ACKED),
    )
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{GOOD}&wait=persisted")
    assert {name.lower(): value for name, value in answer.headers.items()}["x-pulsar-sidecar-proof"] == "ACKED"
    assert fake.asked[0][2].wait_persisted


@pytest.mark.parametrize("version", ["/admin", "/admin/v1"], ids=["as brokers spell it", "as the PIP spells it"])
def test_the_path_of_a_v1_topic(server: Served, fake: FakeDelayedDelivery, version: str) -> None:
    path = f"{version}/persistent/prop/cluster/ns/a%2Fb"
    assert server.ask("POST", f"{path}/cancelDelayedMessage?{GOOD}").status == 204
    assert str(fake.asked[0][0]) == "persistent://prop/cluster/ns/a/b"
    (found,) = parse_answer(list[KnownCancellation], server.ask("GET", f"{path}/cancellations/7:3").json)
    assert (found.topic, found.proof) == ("persistent://prop/cluster/ns/a/b", CancellationStatus.PERSISTED)


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        ("", ()),
        ("&subscriptionNames=", ()),
        ("&subscriptionNames=a,b", ("a", "b")),
        ("&subscriptionNames=a&subscriptionNames=b,a", ("a", "b")),
        ("&subscriptionNames=sub%20a%2Fb", ("sub a/b",)),
    ],
)
def test_subscription_names_repeated_or_comma_separated(
    server: Served, fake: FakeDelayedDelivery, names: str, meant: tuple[str, ...]
) -> None:
    assert server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{GOOD}{names}").status == 204
    assert fake.asked[0][1].subscriptions == meant


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "ledgerId is missing"),
        (f"ledgerId=-1&entryId=0&deliverAt={DUE}", "ledgerId must be a number"),
        (f"ledgerId=1&entryId=-5&deliverAt={DUE}", "entryId must be a number"),
        (f"ledgerId=1&entryId=9223372036854775808&deliverAt={DUE}", "entryId must be a number"),
        ("ledgerId=1&entryId=0&deliverAt=0", "must be positive"),
        ("ledgerId=1&entryId=0&deliverAt=1800000000", "looks like seconds"),
        (f"ledgerId=x&entryId=0&deliverAt={DUE}", "ledgerId must be a number"),
        (f"{GOOD}&subscriptionNames=a,,b", "name must not be empty"),
        (f"{GOOD}&subscriptionNames=%20", "name must not be empty"),
        (f"{GOOD}&subscriptionNames=%09", "name must not be empty"),
        (f"{GOOD}&subscriptionNames={'x' * 2000}", "at most 1024 bytes"),
        (f"{GOOD}&wait=forever", "wait must be persisted"),
        (f"{GOOD}&defer=maybe", "defer must be true or false"),
    ],
)
def test_wrong_parameters_are_412_and_change_nothing(
    server: Served, fake: FakeDelayedDelivery, query: str, message: str
) -> None:
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{query}")
    assert answer.status == 412
    assert message in answer.reason
    assert fake.asked == []


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        (Verdict("s", CancellationStatus.NOT_FOUND, Cause.NO_SUBSCRIPTION, "there is none"), 404),
        (Verdict(None, CancellationStatus.TOO_LATE, Cause.DUE, "its due time has passed"), 412),
        (Verdict("s", CancellationStatus.RACED, Cause.DISPATCHED, "it may have gone"), 412),
        (Verdict("s", CancellationStatus.REFUSED, Cause.BATCH, "a batch"), 412),
    ],
)
def test_failed_cancellation_has_the_pips_code_and_the_reason(
    server: Served, fake: FakeDelayedDelivery, verdict: Verdict, status: int
) -> None:
    fake.verdicts = (Verdict("ok", CancellationStatus.ACKED), verdict)
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{GOOD}")
    assert answer.status == status
    assert verdict.proof.value in answer.reason
    assert (verdict.reason or "") in answer.reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("subscriptionName=x", "subscriptionName"),
        ("&".join(f"subscriptionNames=s{number}" for number in range(1001)), "1000"),
    ],
    ids=["a parameter that the PIP does not have", "more subscriptions than one call takes"],
)
def test_refused_where_the_pip_is_silent(server: Served, fake: FakeDelayedDelivery, more: str, reason: str) -> None:
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessage?{GOOD}&{more}")
    assert (answer.status, reason in answer.reason, fake.asked) == (400, True, [])


@pytest.mark.parametrize("place", ["/admin/v2/{}/t/n/x", "/admin/{}/t/c/n/x", "/admin/v1/{}/t/c/n/x"])
def test_a_non_persistent_topic_is_405(server: Served, place: str) -> None:
    answer = server.ask("POST", f"{place.format('non-persistent')}/cancelDelayedMessage?{GOOD}")
    assert answer.status == 405
    assert "none can be cancelled" in answer.reason


def message_id(ledger_id: int, entry_id: int, partition: int = -1) -> str:
    found = api.MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=partition)
    return base64.b64encode(found.SerializeToString()).decode()


def test_skipping_by_message_ids_of_both_forms(server: Served, fake: FakeDelayedDelivery) -> None:
    body = {"messageIds": [{"ledgerId": 7, "entryId": 1}, message_id(7, 2, 4), {"messageId": message_id(8, 0)}]}
    assert server.ask("POST", f"{TOPIC}/subscription/my%20sub/skipByMessageIds", body).status == 204
    asked = [(str(target.position), target.partition, target.subscriptions) for _, target, _ in fake.asked]
    assert asked == [("7:1", None, ("my sub",)), ("7:2", 4, ("my sub",)), ("8:0", None, ("my sub",))]


@pytest.mark.parametrize(
    "ids",
    [
        [],
        ["not base64!"],
        [base64.b64encode(b"\xff\xff").decode()],
        [{"ledgerId": 7}],
        [{"ledgerId": 7, "entryId": 1, "messageId": message_id(7, 1)}],
        [{"ledgerId": -1, "entryId": 1}],
        [{"ledgerId": 7, "entryId": 1, "more": 1}],
    ],
)
def test_wrong_message_ids_are_400_and_change_nothing(
    server: Served, fake: FakeDelayedDelivery, ids: list[object]
) -> None:
    answer = server.ask("POST", f"{TOPIC}/subscription/s/skipByMessageIds", {"messageIds": ids})
    assert answer.status == 400
    assert answer.reason
    assert fake.asked == []


def outcomes(answer: Answer) -> list[MessageOutcome]:
    assert answer.status == 200
    return [parse_answer(MessageOutcome, json.loads(line)) for line in answer.body.splitlines()]


def lines(server: Served, text: str) -> list[MessageOutcome]:
    return outcomes(server.ask("POST", f"{TOPIC}/cancelDelayedMessages", text.encode()))


def confirmed(server: Served) -> list[MessageOutcome]:
    return outcomes(server.ask("POST", f"{TOPIC}/delayedMessages/cancel", {"key": "k", "hash": "x"}))


def test_a_bad_line_fails_alone(server: Served, fake: FakeDelayedDelivery) -> None:
    good = [json.dumps({"ledgerId": 7, "entryId": n, "deliverAt": DUE}) for n in range(3)]
    bad = [
        "nonsense",
        "[]",
        '{"ledgerId":7}',
        '{"ledgerId":7,"entryId":1,"deliverAt":5}',
        '{"messageId":"?"}',
        "x" * 70_000,
    ]
    found = lines(server, "\n".join([good[0], *bad, "", good[1], good[2]]))
    assert [one.line for one in found] == [1, 2, 3, 4, 5, 6, 7, 9, 10]
    assert [one.cancelled for one in found] == [True] + [False] * 6 + [True, True]
    assert all(one.verdicts[0].cause is Cause.INVALID for one in found[1:7])
    assert [str(target.position) for _, target, _ in fake.asked] == ["7:0", "7:1", "7:2"]


def test_many_lines_are_answered_in_order(server: Served, fake: FakeDelayedDelivery) -> None:
    text = "\n".join(f'{{"ledgerId":7,"entryId":{n}}}' for n in range(12_001))
    found = lines(server, text)
    assert [(one.line, one.cancellation_id) for one in found] == [(n + 1, f"7:{n}") for n in range(12_001)]


@pytest.mark.parametrize("body", [b"", b"\n \n"])
def test_empty_body_is_400(server: Served, body: bytes) -> None:
    answer = server.ask("POST", f"{TOPIC}/cancelDelayedMessages", body)
    assert answer.status == 400
    assert "no lines" in answer.reason


def test_a_selection_that_finds_other_messages_now_is_409(server: Served) -> None:
    assert server.ask("POST", f"{TOPIC}/delayedMessages/cancel", {"key": "k", "hash": "stale"}).status == 409


def test_a_selections_batches_follow_each_other_as_each_looks_at_the_room_left(
    server: Served, fake: FakeDelayedDelivery
) -> None:
    fake.batch_seconds = 0.1
    assert [one.line for one in confirmed(server)] == [1, 2, 3]
    assert fake.most_batches_running == 1


def test_a_selections_verdicts_leave_before_the_next_batch_is_done(server: Served, fake: FakeDelayedDelivery) -> None:
    fake.holds_at = 2
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        body = json.dumps({"key": "k", "hash": "x"})
        connection.request("POST", f"{TOPIC}/delayedMessages/cancel", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        first = [json.loads(answer.readline())["line"] for _ in range(2)]
        fake.released.set()
        assert (first, [json.loads(line)["cancelled"] for line in answer]) == ([1, 2], [True])
    finally:
        connection.close()


def test_a_batch_of_a_selection_that_fails_is_reported_and_the_others_go_on(
    server: Served, fake: FakeDelayedDelivery
) -> None:
    fake.fails_at = 0
    found = confirmed(server)
    assert [(one.line, one.cancelled) for one in found] == [(1, False), (2, False), (3, True)]
    assert [(one.verdicts[0].proof, one.verdicts[0].cause) for one in found] == [
        *[(CancellationStatus.UNKNOWN, Cause.BROKER)] * 2,
        (CancellationStatus.ACKED, None),
    ]


@pytest.mark.parametrize(("error", "proof", "cause"), [
    (TemporaryError("the log could not be written"), CancellationStatus.UNKNOWN, Cause.BROKER),
    (OutcomeUnknownError("the answer was lost"), CancellationStatus.UNKNOWN, Cause.BROKER),
    (NotFoundError("there is no topic"), CancellationStatus.NOT_FOUND, Cause.NO_TOPIC),
    (NotAuthorizedError("not this role"), CancellationStatus.REFUSED, Cause.BROKER),
])  # fmt: skip
def test_a_line_is_called_refused_only_if_nothing_was_changed(
    server: Served, fake: FakeDelayedDelivery, error: SidecarError, proof: CancellationStatus, cause: Cause
) -> None:
    fake.fails = error
    (found,) = lines(server, '{"ledgerId":7,"entryId":1}')
    assert found.verdicts == (Verdict(None, proof, cause, str(error)),)


@pytest.mark.parametrize("selection", [{}, {"dueFrom": 5, "dueTo": 5}, {"dueFrom": -1}])
def test_a_selection_of_everything_or_nothing_is_400(server: Served, selection: dict[str, int]) -> None:
    assert server.ask("POST", f"{TOPIC}/delayedMessages/preview", selection).status == 400


@pytest.mark.parametrize(
    ("verb", "due"),
    [
        ("expediteDelayedMessage", {"newDeliverAt": DUE}),
        ("rescheduleDelayedMessage", {}),
        ("rescheduleDelayedMessage", {"newDeliverAt": 5}),
    ],
)
def test_a_new_due_time_is_for_rescheduling_alone(
    server: Served, fake: FakeDelayedDelivery, verb: str, due: dict[str, int]
) -> None:
    assert server.ask("POST", f"{TOPIC}/{verb}", {"ledgerId": 7, "entryId": 1, **due}).status == 400
    assert fake.new_due_times == []


@pytest.mark.parametrize(("named", "status"), [("7%3A3", 200), ("7", 400), ("a:b", 400)])
def test_a_cancellations_id_is_two_numbers(server: Served, named: str, status: int) -> None:
    assert server.ask("GET", f"{TOPIC}/cancellations/{named}").status == status


# --- commands --------------------------------------------------------------------------------------------------------


ORDERS = "persistent://public/default/orders"


@pytest.mark.parametrize(
    "options",
    [("-l", "7", "-e", "3", "-t", f"{DUE}", "-s", "a,b"),
     ("--ledgerId", "7", "--entryId", "3", "--deliverAt", f"{DUE}", "--subscriptionNames", "a,b")],
)  # fmt: skip
def test_pip_options_cancel_one_message(shell: Terminal, fake: FakeDelayedDelivery, options: tuple[str, ...]) -> None:
    ran = shell.run("topics", "cancel-delayed-message", ORDERS, *options)
    assert ran.code == 0, ran.err
    assert "cancelled 7:3" in ran.err
    assert "PERSISTED" in ran.out
    ((_, target, options_given),) = fake.asked
    assert (str(target.position), target.deliver_at_ms, target.subscriptions) == ("7:3", DUE, ("a", "b"))
    assert not options_given.wait_persisted


def test_a_due_time_may_be_iso_8601(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    message = ("topics", "cancel-delayed-message", ORDERS, "-l", "7", "-e", "3", "-t")
    assert shell.run(*message, "2026-12-24T18:00:00+01:00").code == 0
    assert fake.asked[0][1].deliver_at_ms == 1_798_131_600_000
    ran = shell.run(*message, "2026-12-24T18:00:00")
    assert (ran.code, len(fake.asked)) == (1, 1)
    assert "ISO 8601 with an offset" in ran.err


def test_failed_cancellation_exits_with_1_and_the_reason(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.verdicts = (Verdict("s", CancellationStatus.TOO_LATE, Cause.DUE, "its due time has passed"),)
    ran = shell.run("topics", "cancel-delayed-message", ORDERS, "-l", "7", "-e", "3", "-t", f"{DUE}")
    assert ran.code == 1
    assert "its due time has passed" in ran.err


def test_logged_cancellations_are_printed(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.verdicts = (Verdict("s", CancellationStatus.ACCEPTED, Cause.ACK_STATE_FULL, "when there is room"),)
    ran = shell.run(
        "--output", "json", "topics", "cancel-delayed-message", ORDERS, "-l", "7", "-e", "3", "-t", f"{DUE}", "--defer"
    )
    assert ran.code == 0
    assert json.loads(ran.out)["verdicts"][0]["proof"] == "ACCEPTED"
    assert fake.asked[0][2].defer


@pytest.mark.parametrize("options", [("-l", "-1", "-e", "3", "-t", f"{DUE}"), ("-l", "7", "-e", "3"), ()])
def test_wrong_usage_is_1(shell: Terminal, fake: FakeDelayedDelivery, options: tuple[str, ...]) -> None:
    assert shell.run("topics", "cancel-delayed-message", ORDERS, *options).code == 1
    assert fake.asked == []


def test_skipping_messages(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    assert shell.run("topics", "skip-messages", ORDERS, "-s", "my sub", "7:1", "7:2").code == 0
    assert [(str(target.position), target.subscriptions) for _, target, _ in fake.asked] == [
        ("7:1", ("my sub",)),
        ("7:2", ("my sub",)),
    ]
    assert shell.run("topics", "skip-messages", ORDERS, "-s", "s", "7:x").code == 1


def test_lines_from_a_file_in_parts_that_keep_their_numbers(
    shell: Terminal, fake: FakeDelayedDelivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_messages, "_LINES_AT_ONCE", 2)
    file = tmp_path / "ids.jsonl"
    file.write_text("\n".join([*(f'{{"ledgerId":7,"entryId":{n}}}' for n in range(4)), "nonsense"]))
    ran = shell.run("topics", "cancel-delayed-messages", ORDERS, "--file", str(file))
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["line"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["cancelled"] for one in found] == [True] * 4 + [False]
    assert ran.code == 4
    assert "cancelled 4 of 5 messages" in ran.err


def test_a_selection_after_a_preview(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    ran = shell.run("topics", "cancel-delayed-messages", ORDERS, "--property", "customer=1", "--yes")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 3
    assert "3 messages, due from" in ran.err
    assert len(fake.asked) == 3


def test_a_selection_that_could_not_read_everything_ends_with_4(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.unreadable, fake.published_later = 2, 1
    ran = shell.run("topics", "cancel-delayed-messages", ORDERS, "--property", "customer=1", "--yes")
    assert (ran.code, len(ran.out.splitlines()), len(fake.asked)) == (4, 3, 3)
    assert "not included: 2 entries that could not be read" in ran.err
    assert "published since, by their producers' clocks, so not cancelled: 1 message" in ran.err


@pytest.mark.parametrize(
    "options", [(), ("--file", "x", "--key", "k"), ("--property", "nonsense"), ("--file", "/no/such/file")]
)
def test_invalid_combinations_of_options_exit_with_1(shell: Terminal, options: tuple[str, ...]) -> None:
    assert shell.run("topics", "cancel-delayed-messages", ORDERS, *options).code == 1


def test_expediting_rescheduling_and_how_far_it_has_come(shell: Terminal, fake: FakeDelayedDelivery) -> None:
    place = ("-l", "7", "-e", "3")
    assert "7:9:-1" in shell.run("topics", "expedite-delayed-message", ORDERS, *place).out
    moved = shell.run("topics", "reschedule-delayed-message", ORDERS, *place, "--newDeliverAt", f"{DUE}")
    assert moved.code == 0
    assert fake.new_due_times == [None, DUE]
    assert "PERSISTED" in shell.run("topics", "cancellations", ORDERS, *place).out
