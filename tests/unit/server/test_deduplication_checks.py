"""The check of brokers, by its command and the route that it calls."""

from collections.abc import Iterator, Sequence

import pytest
from pulsar_sidecar.features.deduplication import http
from pulsar_sidecar.features.deduplication.inspection.canary import (
    DeduplicationChecks,
    DuplicateReceipt,
    SendAnswer,
    SendFailure,
)
from pulsar_sidecar.features.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.features.deduplication.results import CheckOutcome, DeduplicationCheck, PolicyValues
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.server.answers import parse_answer

from tests.fakes.deduplication_policies import NAMESPACE, FakeDeduplication
from tests.unit.cli.running import Terminal
from tests.unit.deduplication.inspection.test_canary import FIRST, NAME, SECOND, FakeNamespace
from tests.unit.server.serving import Served, served

PATH = "/admin/v2/namespaces/public/default/deduplication/check"


@pytest.fixture
def brokers() -> FakeDeduplication:
    return FakeDeduplication()


@pytest.fixture
def namespace() -> FakeNamespace:
    return FakeNamespace()


@pytest.fixture
def server(brokers: FakeDeduplication, namespace: FakeNamespace) -> Iterator[Served]:
    checks = DeduplicationChecks(namespace, namespace, brokers, brokers, lambda: "0123")
    with served(routers=[http.check_router(checks)]) as server:
        yield server


def test_the_answer_of_a_check(server: Served, brokers: FakeDeduplication) -> None:
    brokers.namespaces[DeduplicationPolicy.ENABLED, NAMESPACE] = True
    assert parse_answer(DeduplicationCheck, server.ask("POST", PATH).json) == DeduplicationCheck(
        namespace=NAMESPACE,
        topic=NAME,
        outcome=CheckOutcome.REFUSED,
        reason="the first message is at 7:0, the second was refused as its duplicate",
        policy=PolicyValues.of(False, True),
        as_configured=True,
        status=None,
        first="7:0",
        second="duplicate",
        left_behind=None,
    )
    assert server.ask("POST", PATH.replace("default", "missing")).status == 404


REFUSED, TWICE, UNKNOWN = (f"{NAMESPACE}: {outcome}" for outcome in CheckOutcome)


@pytest.mark.parametrize(
    ("answers", "policy", "code", "outcome", "follows"),
    [
        ([FIRST, DuplicateReceipt()], True, 0, REFUSED, True),
        ([FIRST, DuplicateReceipt()], False, 0, REFUSED, False),
        ([FIRST, SECOND], False, 2, TWICE, True),
        ([FIRST, SECOND], None, 2, TWICE, True),
        ([FIRST, SECOND], True, 2, TWICE, False),
        ([FIRST, SendFailure("cannot determine")], True, 4, f"{UNKNOWN}\n  the broker did not decide", True),
        ([DuplicateReceipt(), DuplicateReceipt()], True, 4, f"{UNKNOWN}\n  the first message was not stored", True),
        ([SendFailure("no"), SECOND], False, 4, f"{UNKNOWN}\n  the first message was not stored (no)", True),
    ],
)
def test_each_outcome_has_an_exit_code(
    shell: Terminal,
    brokers: FakeDeduplication,
    namespace: FakeNamespace,
    answers: Sequence[SendAnswer],
    policy: bool | None,
    code: int,
    outcome: str,
    follows: bool,
) -> None:
    namespace.answers = answers
    brokers.namespaces[DeduplicationPolicy.ENABLED, NAMESPACE] = policy
    ran = shell.run("deduplication", "check", NAMESPACE)
    assert ran.code == code
    assert ran.out.startswith(outcome)
    assert ("did not follow the policy" not in ran.out) == follows, "an unknown outcome accuses nobody"
    assert ("set-deduplication public/default --enable" in ran.out) == (follows and not policy)
    assert namespace.done == [("create", NAME), ("send", NAME), ("delete", NAME)]
    assert namespace.existing == set()


def test_an_undeleted_topic_is_shown(shell: Terminal, namespace: FakeNamespace) -> None:
    namespace.failures = {"delete": TemporaryError("no broker")}
    ran = shell.run("deduplication", "check", NAMESPACE)
    assert ran.code == 4
    assert f"pulsar-admin topics delete -f {NAME}" in ran.out
