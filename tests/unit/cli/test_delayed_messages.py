"""Cancelling from the command line: PIP-423's options, lines from files, a preview before many, and exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulsar_sidecar.features.delayed_messages.cli import delayed_messages
from pulsar_sidecar.features.delayed_messages.http import routes as delayed_delivery
from pulsar_sidecar.features.delayed_messages.results import CancellationStatus, Cause, Verdict

from tests.fakes.delayed_service import FakeDelayedDelivery
from tests.unit.cli.running import Terminal
from tests.unit.server.serving import Served, served

TOPIC = "persistent://public/default/orders"
DUE = "1800000000000"


@pytest.fixture
def fake() -> FakeDelayedDelivery:
    return FakeDelayedDelivery()


@pytest.fixture(autouse=True)
def server(fake: FakeDelayedDelivery, terminal: Terminal) -> Iterator[Served]:
    with served(routers=[delayed_delivery.router(fake)]) as running:
        terminal.set("PULSAR_SIDECAR_ADMIN_URL", running.url)
        yield running


@pytest.mark.parametrize(
    "options",
    [("-l", "7", "-e", "3", "-t", DUE, "-s", "a,b"),
     ("--ledgerId", "7", "--entryId", "3", "--deliverAt", DUE, "--subscriptionNames", "a,b")],
)  # fmt: skip
def test_pip_options_cancel_one_message(
    terminal: Terminal, fake: FakeDelayedDelivery, options: tuple[str, ...]
) -> None:
    ran = terminal.run("topics", "cancel-delayed-message", TOPIC, *options)
    assert ran.code == 0, ran.err
    assert "cancelled 7:3" in ran.err
    assert "PERSISTED" in ran.out
    ((_, target, options_given),) = fake.asked
    assert (str(target.position), target.deliver_at_ms, target.subscriptions) == ("7:3", int(DUE), ("a", "b"))
    assert not options_given.wait_persisted


def test_a_due_time_may_be_iso_8601(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    message = ("topics", "cancel-delayed-message", TOPIC, "-l", "7", "-e", "3", "-t")
    assert terminal.run(*message, "2026-12-24T18:00:00+01:00").code == 0
    assert fake.asked[0][1].deliver_at_ms == 1_798_131_600_000
    ran = terminal.run(*message, "2026-12-24T18:00:00")
    assert (ran.code, len(fake.asked)) == (1, 1)
    assert "ISO 8601 with an offset" in ran.err


def test_failed_cancellation_exits_with_1_and_the_reason(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.verdicts = (Verdict("s", CancellationStatus.TOO_LATE, Cause.DUE, "its due time has passed"),)
    ran = terminal.run("topics", "cancel-delayed-message", TOPIC, "-l", "7", "-e", "3", "-t", DUE)
    assert ran.code == 1
    assert "its due time has passed" in ran.err


def test_logged_cancellations_are_printed(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.verdicts = (Verdict("s", CancellationStatus.ACCEPTED, Cause.ACK_STATE_FULL, "when there is room"),)
    ran = terminal.run(
        "--output", "json", "topics", "cancel-delayed-message", TOPIC, "-l", "7", "-e", "3", "-t", DUE, "--defer"
    )
    assert ran.code == 0
    assert json.loads(ran.out)["verdicts"][0]["proof"] == "ACCEPTED"
    assert fake.asked[0][2].defer


@pytest.mark.parametrize("options", [("-l", "-1", "-e", "3", "-t", DUE), ("-l", "7", "-e", "3"), ()])
def test_wrong_usage_is_1(terminal: Terminal, fake: FakeDelayedDelivery, options: tuple[str, ...]) -> None:
    assert terminal.run("topics", "cancel-delayed-message", TOPIC, *options).code == 1
    assert fake.asked == []


def test_skipping_messages(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    assert terminal.run("topics", "skip-messages", TOPIC, "-s", "my sub", "7:1", "7:2").code == 0
    assert [(str(target.position), target.subscriptions) for _, target, _ in fake.asked] == [
        ("7:1", ("my sub",)),
        ("7:2", ("my sub",)),
    ]
    assert terminal.run("topics", "skip-messages", TOPIC, "-s", "s", "7:x").code == 1


def test_lines_from_a_file_in_parts_that_keep_their_numbers(
    terminal: Terminal, fake: FakeDelayedDelivery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delayed_messages, "_LINES_AT_ONCE", 2)
    file = tmp_path / "ids.jsonl"
    file.write_text("\n".join([*(f'{{"ledgerId":7,"entryId":{n}}}' for n in range(4)), "nonsense"]))
    ran = terminal.run("topics", "cancel-delayed-messages", TOPIC, "--file", str(file))
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert [one["line"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["cancelled"] for one in found] == [True] * 4 + [False]
    assert ran.code == 4
    assert "cancelled 4 of 5 messages" in ran.err


def test_a_selection_after_a_preview(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    ran = terminal.run("topics", "cancel-delayed-messages", TOPIC, "--property", "customer=1", "--yes")
    assert ran.code == 0, ran.err
    assert len(ran.out.splitlines()) == 3
    assert "3 messages, due from" in ran.err
    assert len(fake.asked) == 3


def test_a_selection_that_could_not_read_everything_ends_with_4(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    fake.unreadable, fake.published_later = 2, 1
    ran = terminal.run("topics", "cancel-delayed-messages", TOPIC, "--property", "customer=1", "--yes")
    assert (ran.code, len(ran.out.splitlines()), len(fake.asked)) == (4, 3, 3)
    assert "not included: 2 entries that could not be read" in ran.err
    assert "published since, by their producers' clocks, so not cancelled: 1 message" in ran.err


@pytest.mark.parametrize(
    "options", [(), ("--file", "x", "--key", "k"), ("--property", "nonsense"), ("--file", "/no/such/file")]
)
def test_invalid_combinations_of_options_exit_with_1(terminal: Terminal, options: tuple[str, ...]) -> None:
    assert terminal.run("topics", "cancel-delayed-messages", TOPIC, *options).code == 1


def test_expediting_rescheduling_and_how_far_it_has_come(terminal: Terminal, fake: FakeDelayedDelivery) -> None:
    place = ("-l", "7", "-e", "3")
    assert "7:9:-1" in terminal.run("topics", "expedite-delayed-message", TOPIC, *place).out
    moved = terminal.run("topics", "reschedule-delayed-message", TOPIC, *place, "--newDeliverAt", DUE)
    assert moved.code == 0
    assert fake.new_due_times == [None, int(DUE)]
    assert "PERSISTED" in terminal.run("topics", "cancellations", TOPIC, *place).out
