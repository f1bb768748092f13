import json

import pytest
from pulsar_sidecar.features.ledger_deletion.results import ShadowDeletionStage
from pulsar_sidecar.model.errors import ConflictError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.cli.running import Terminal

pytestmark = pytest.mark.usefixtures("server")


def test_command_repeats_the_call_until_done_and_shows_stages(terminal: Terminal, service: FakeDeletionService) -> None:
    waiting = (ShadowDeletionStage.DISCONNECTING, "the replicator is still connected")
    service.shadow_answers = [
        *((stage, None) for stage in ShadowDeletionStage if stage is not ShadowDeletionStage.DONE),
        (ShadowDeletionStage.DONE, None),
    ]
    service.shadow_answers[2:2] = [waiting, waiting, TemporaryError("the metadata store does not respond")]
    ran = terminal.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["stage"]) == (0, "done")
    assert service.calls("delete_shadow") == [(parse_topic_name("orders-shadow"), None)] * 9
    assert ran.err.splitlines() == [
        "next: set infinite retention, so that brokers trim none of the source's ledgers",
        "next: remove it from the source's shadow topics, and unload the source",
        "waiting: the replicator is still connected",
        "waiting: the metadata store does not respond (HTTP 503)",
        "next: remove the source's ledgers from the shadow's list",
        "next: have the broker delete the shadow",
        "next: check that every ledger of the source exists",
    ]


def test_a_refusal_ends_it(terminal: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [
        (ShadowDeletionStage.PROTECTING, None),
        ConflictError("2 consumers or readers are connected"),
    ]
    ran = terminal.run("topics", "delete-shadow", "orders-shadow")
    assert (ran.code, ran.out) == (1, "")
    assert "2 consumers or readers are connected (HTTP 409)" in ran.err


def test_a_first_call_that_fails_ends_it(terminal: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [TemporaryError("the brokers do not respond")]
    ran = terminal.run("topics", "delete-shadow", "orders-shadow")
    assert (ran.code, "the brokers do not respond" in ran.err) == (1, True)


def test_when_the_time_is_over_it_names_the_next_step(terminal: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [(ShadowDeletionStage.REMOVING, "a broker still has it loaded")]
    ran = terminal.run("topics", "delete-shadow", "orders-shadow", "--wait-seconds", "0")
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.splitlines()[-1] == "orders-shadow is not deleted yet; run the same command again to continue"


def test_a_ledger_that_is_lost_is_a_failure(terminal: Terminal, service: FakeDeletionService) -> None:
    service.shadow_answers = [(ShadowDeletionStage.DONE, None, 7)]
    ran = terminal.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["missingLedgers"]) == (1, [7])
    assert "the source lacks 1 ledger that it had before" in ran.err


def test_unchecked_source_exits_with_1(terminal: Terminal, service: FakeDeletionService) -> None:
    service.missing_sources = ("persistent://public/default/source",)
    ran = terminal.run("topics", "delete-shadow", "orders-shadow", "--output", "json")
    assert (ran.code, json.loads(ran.out)["stage"]) == (1, "done")
    assert "persistent://public/default/source does not exist, so its ledgers could not be checked" in ran.err


def test_a_topic_without_ledgers_is_refused(terminal: Terminal, service: FakeDeletionService) -> None:
    assert terminal.run("topics", "delete-shadow", "non-persistent://a/b/c").code == 1
    assert service.asked == []
