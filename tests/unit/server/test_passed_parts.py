"""Deletions of subscriptions and schemas: what is recorded for whom, before a broker gets the caller's own request."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import structlog
from pulsar_sidecar.features.ledger_deletion.http import routes as ledger_deletion
from pulsar_sidecar.features.ledger_deletion.results import OperationState
from pulsar_sidecar.model.errors import (
    BrokerRefusedError,
    PassedChangeUnansweredError,
    SidecarError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.server.pass_through import PassThrough
from pulsar_sidecar.server.rights import Rights

from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.passed_requests import FakeBrokerAnswer, FakeBrokers
from tests.fakes.tenant_policies import FakeTenantPolicies
from tests.unit.server.test_every_route import CALLERS, GatedApp
from tests.unit.server.test_rights import ROLES, policies

TOPIC = "/admin/v2/persistent/t/n/x"
SUBSCRIPTION = f"{TOPIC}/subscription/a%2Fb+c"
SCHEMA = "/admin/v2/schemas/t/n/x/schema"
UNANSWERED = PassedChangeUnansweredError("no answer")


@dataclass(slots=True)
class Passing:
    """A gated app that passes on, and what its service and brokers were asked."""

    service: FakeDeletionService
    brokers: FakeBrokers
    gated: GatedApp

    def delete(self, path: str, name: str = "root", query: str = "") -> int | None:
        return self.gated.ask("DELETE", path, CALLERS[name], query=query)

    @property
    def asked(self) -> list[str]:
        return [name for name, _ in self.service.asked]


def passing_app(rights: Rights) -> Passing:
    service, brokers = FakeDeletionService(), FakeBrokers(FakeBrokerAnswer(204, (), b""))
    gated = GatedApp(rights, [ledger_deletion.router(service)])
    gated.gate.passing = PassThrough(brokers, gated.app.routes, rights)
    return Passing(service, brokers, gated)


@pytest.fixture
def passing() -> Iterator[Passing]:
    with structlog.testing.capture_logs():
        yield passing_app(Rights(ROLES, policies()))


@pytest.mark.parametrize(
    ("path", "topic", "subscription"),
    [
        (SUBSCRIPTION, "persistent://t/n/x", "a/b c"),
        (f"{SUBSCRIPTION}/", "persistent://t/n/x", "a/b c"),
        ("/admin/v2/p%65rsistent/t/n/x-partition-1/subscription/s", "persistent://t/n/x-partition-1", "s"),
        ("/admin/persistent/t/c/n/x%2Fy/subscription/s", "persistent://t/c/n/x/y", "s"),
    ],
)
def test_a_subscription_is_recorded_and_then_passed_as_it_came(
    path: str, topic: str, subscription: str, passing: Passing
) -> None:
    passing.brokers.given = FakeBrokerAnswer(412, (), b'{"reason": "the broker\'s own"}')
    assert passing.delete(path, query="force=True&authoritative=false") == 412
    assert passing.service.asked == [("record_part", (parse_topic_name(topic), subscription, True, "root"))]
    (request,) = passing.brokers.passed
    assert request.target == f"{path}?force=True&authoritative=false"
    assert dict(request.headers)["authorization"] == f"Bearer {CALLERS['root']}"


@pytest.mark.parametrize(
    ("path", "topic"),
    [
        (SCHEMA, "persistent://t/n/x"),
        ("/admin/v2/schemas/t/n/x-partition-1/schema", "persistent://t/n/x"),
        ("/admin/schemas/t/c/n/x/schema", "persistent://t/c/n/x"),
    ],
)
def test_a_schema_is_recorded_where_brokers_delete_its_ledgers(path: str, topic: str, passing: Passing) -> None:
    assert passing.delete(path, query="force=true") == 204
    assert passing.service.asked == [("record_part", (parse_topic_name(topic), None, True, "root"))]
    for query in ("", "force=false", "force", "force=1", "force=false&force=true"):
        assert passing.delete(path, query=query) == 204
    assert len(passing.service.asked) == 1
    assert len(passing.brokers.passed) == 6


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", SUBSCRIPTION),
        ("POST", f"{SUBSCRIPTION}/skip_all"),
        ("DELETE", f"{TOPIC}/subscription/a%ZZ"),
        ("DELETE", "/admin/v2/non-persistent/t/n/x/subscription/s"),
        ("GET", SCHEMA),
        ("POST", SCHEMA),
        ("DELETE", f"{SCHEMA}s"),
    ],
)
def test_requests_for_other_parts_are_only_passed(method: str, path: str, passing: Passing) -> None:
    assert passing.gated.ask(method, path, CALLERS["root"], query="force=true") == 204
    assert passing.service.asked == []
    assert len(passing.brokers.passed) == 1


# --- for whom ------------------------------------------------------------------------------------------------------


def test_nothing_is_recorded_for_callers_brokers_would_refuse(passing: Passing) -> None:
    recorded: dict[str, set[str]] = {}
    for path in (SUBSCRIPTION, SCHEMA):
        for name in CALLERS:
            passing.service.asked.clear()
            assert passing.delete(path, name, "force=true") == 204
            if passing.asked:
                recorded.setdefault(path, set()).add(name)
    assert recorded == {SUBSCRIPTION: {"root", "admin", "consumer"}, SCHEMA: {"root", "admin"}}
    assert len(passing.brokers.passed) == 2 * len(CALLERS)


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [("admin", SUBSCRIPTION, 202), ("admin", SCHEMA, 202), ("consumer", SUBSCRIPTION, 502), ("stranger", SCHEMA, 502)],
)
def test_the_sidecars_continue_for_admins_of_the_tenant_only(
    name: str, path: str, status: int, passing: Passing
) -> None:
    passing.brokers.failure = UNANSWERED
    passing.service.deletion_state = OperationState.RUNNING
    assert passing.delete(path, name, "force=true") == status
    assert ("continue_part" in passing.asked) == (status == 202)


def test_part_is_deleted_for_all_without_authentication() -> None:
    passing = passing_app(Rights(ROLES, enforced=False))
    passing.brokers.failure = UNANSWERED
    assert passing.delete(SUBSCRIPTION, "stranger") == 204
    assert passing.asked == ["record_part", "continue_part"]


def test_rights_that_cannot_be_read_keep_the_request() -> None:
    passing = passing_app(Rights(ROLES, FakeTenantPolicies(failure=TemporaryError("ZooKeeper does not respond"))))
    assert passing.delete(SUBSCRIPTION, "admin") == 503
    assert passing.brokers.passed == []


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "failure", "status"),
    [
        (OperationState.DONE, None, 204),
        (OperationState.RUNNING, None, 202),
        (OperationState.STUCK, None, 202),
        (OperationState.ABANDONED, None, 409),
        (OperationState.DONE, BrokerRefusedError(412, "Subscription has active connected consumers"), 412),
        (OperationState.DONE, TemporaryError("too many"), 503),
    ],
)
def test_a_broker_that_does_not_answer_leaves_it_to_the_sidecars(
    state: OperationState, failure: SidecarError | None, status: int, passing: Passing
) -> None:
    passing.brokers.failure = UNANSWERED
    passing.service.deletion_state = state
    if failure is not None:
        passing.service.topic_failures["persistent://t/n/x"] = failure
    assert passing.delete(SUBSCRIPTION) == status
    assert passing.asked == ["record_part", "continue_part"]


def test_unanswered_request_for_a_missing_part_is_502(passing: Passing) -> None:
    passing.brokers.failure = UNANSWERED
    passing.service.part_is_there = False
    assert passing.delete(SUBSCRIPTION) == 502


def test_a_request_that_reached_no_broker_is_not_continued(passing: Passing) -> None:
    passing.brokers.failure = UnreachableError("nothing listens there")
    assert passing.delete(SUBSCRIPTION) == 503
    assert passing.asked == ["record_part"]


@pytest.mark.parametrize("failure", [TemporaryError("no receipt"), UNANSWERED])
def test_brokers_are_not_asked_before_the_part_is_recorded(failure: SidecarError, passing: Passing) -> None:
    passing.service.failure = failure
    assert passing.delete(SUBSCRIPTION) == 503
    assert passing.brokers.passed == []


def test_without_passing_nothing_is_done(passing: Passing) -> None:
    passing.gated.gate.passing = None
    assert passing.delete(SUBSCRIPTION) == 405
    assert passing.delete(SCHEMA, "admin") == 403
    assert passing.service.asked == []
