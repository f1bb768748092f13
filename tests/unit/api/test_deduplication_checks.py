"""The route of a check, and its command."""

from collections.abc import Iterator, Sequence

import pytest
from pulsar_sidecar.api.rooms import deduplication_policies
from pulsar_sidecar.deduplication.inspection.canary import (
    DeduplicationChecks,
    DuplicateReceipt,
    SendAnswer,
    SendFailure,
)
from pulsar_sidecar.deduplication.policies import DeduplicationPolicy
from pulsar_sidecar.model.errors import TemporaryError

from tests.fakes.deduplication_policies import NAMESPACE, FakeDeduplication
from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import Served, served
from tests.unit.cli.running import Terminal
from tests.unit.deduplication.inspection.test_canary import FIRST, NAME, SECOND, FakeNamespace

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
    with served(FakeDeletionService(), routers=[deduplication_policies.check_router(checks)]) as server:
        yield server


def test_the_answer_names_who_decides_and_what_came(server: Served, brokers: FakeDeduplication) -> None:
    brokers.namespaces[DeduplicationPolicy.ENABLED, NAMESPACE] = True
    found = server.ask("POST", PATH).json
    assert isinstance(found, dict)
    assert (found["outcome"], found["asConfigured"], found["leftBehind"]) == ("refused as duplicate", True, None)
    assert (found["first"], found["second"], found["topic"]) == ("7:0", "duplicate", NAME)
    assert (found["policy"]["applied"], found["policy"]["decidedBy"]) == (True, "namespace")
    assert server.ask("POST", PATH.replace("default", "missing")).status == 404


@pytest.mark.parametrize(
    ("answers", "policy", "code", "lines"),
    [
        ([FIRST, DuplicateReceipt()], True, 0, ["public/default: refused as duplicate", "deduplication is on"]),
        ([FIRST, SECOND], False, 2, ["public/default: stored twice", "set-deduplication public/default --enable"]),
        ([FIRST, SECOND], True, 2, ["the broker did not follow the policy"]),
        ([FIRST, SendFailure("cannot determine")], True, 4, ["public/default: unknown", "cannot determine"]),
    ],
)
def test_the_exit_code_is_the_outcomes(
    shell: Terminal,
    brokers: FakeDeduplication,
    namespace: FakeNamespace,
    answers: Sequence[SendAnswer],
    policy: bool,
    code: int,
    lines: Sequence[str],
) -> None:
    namespace.answers = answers
    brokers.namespaces[DeduplicationPolicy.ENABLED, NAMESPACE] = policy
    ran = shell.run("deduplication", "check", NAMESPACE)
    assert ran.code == code
    for line in lines:
        assert line in ran.out
    assert ("did not follow the policy" in ran.out) == (code == 2 and policy), "an unknown outcome accuses nobody"


def test_what_is_left_behind_is_shown(shell: Terminal, namespace: FakeNamespace) -> None:
    namespace.failures = {"delete": TemporaryError("no broker")}
    ran = shell.run("deduplication", "check", NAMESPACE)
    assert ran.code == 4
    assert f"pulsar-admin topics delete -f {NAME}" in ran.out
