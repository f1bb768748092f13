"""Rights: every combination of a right and a caller, and the reads for the decision."""

import pytest
from pulsar_sidecar.model.errors import NotAuthorizedError, TemporaryError
from pulsar_sidecar.model.names import parse_topic_name
from pulsar_sidecar.model.permissions import NamespacePermissions
from pulsar_sidecar.server.callers import Caller
from pulsar_sidecar.server.rights import OwnerCheck, Right, Rights, Roles, Subject, right_of, takes

from tests.fakes.tenant_policies import FakeTenantPolicies

ROLES = Roles(frozenset({"root"}), frozenset({"operator"}), frozenset({"viewer"}))
EVERY_ROLE = frozenset({"root", "operator", "viewer", "admin", "producer", "consumer", "stranger", "other-admin"})
HOLDERS = {
    Right.OPEN: EVERY_ROLE,
    Right.BROKERS: {"root"},
    Right.EVERYTHING: {"root"},
    Right.ROLE: EVERY_ROLE,
    Right.STATE: {"root", "operator", "viewer", "admin", "producer", "consumer"},
    Right.MESSAGES: {"root", "admin", "consumer"},
    Right.POLICY: {"root", "operator", "viewer", "admin"},
    Right.CHANGE: {"root", "admin"},
    Right.CLUSTER_STATE: {"root", "operator", "viewer"},
    Right.CLUSTER_CHANGE: {"root", "operator"},
    Right.OWNED_STATE: {"root", "operator", "viewer", "admin"},
    Right.OWNED_CHANGE: {"root", "operator", "admin"},
}
TOPIC = parse_topic_name("persistent://t/n/x")
OF_TOPIC = Subject("t", "t/n", TOPIC)


def policies() -> FakeTenantPolicies:
    permissions = {"producer": frozenset({"produce"}), "consumer": frozenset({"consume", "functions"})}
    return FakeTenantPolicies(
        {"t": frozenset({"admin"}), "u": frozenset({"other-admin"})},
        {"t/n": NamespacePermissions(permissions)},
    )


def caller(role: str | None) -> Caller:
    return Caller(role, "none" if role is None else "token", "127.0.0.1")


def has(rights: Rights, role: str | None, right: Right, subject: Subject | None = OF_TOPIC) -> bool:
    try:
        rights.require(caller(role), right, subject)
    except NotAuthorizedError:
        return False
    return True


@pytest.mark.parametrize("right", Right)
def test_each_right_has_its_holders(right: Right) -> None:
    rights = Rights(ROLES, policies())
    # Rights of the whole cluster stand where no tenant is named.
    subject = None if right in (Right.CLUSTER_STATE, Right.CLUSTER_CHANGE) else OF_TOPIC
    assert {role for role in EVERY_ROLE if has(rights, role, right, subject)} == HOLDERS[right]


@pytest.mark.parametrize("right", [right for right in Right if right is not Right.OPEN])
def test_a_caller_without_a_role_has_no_right_unless_every_client_may_call(right: Right) -> None:
    assert not has(Rights(ROLES, policies()), None, right)
    assert has(Rights(ROLES, policies(), enforced=False), None, right)


def test_a_refusal_names_what_the_call_takes() -> None:
    with pytest.raises(
        NotAuthorizedError, match="role 'stranger' may not do this; it requires an admin role of the tenant"
    ):
        Rights(ROLES, policies()).require(caller("stranger"), Right.CHANGE, OF_TOPIC)


@pytest.mark.parametrize("right", Right)
def test_settings_decide_without_asking_the_metadata_store(right: Right) -> None:
    asked = policies()
    assert has(Rights(ROLES, asked), "root", right)
    assert asked.asked == []


def test_permissions_on_a_topic_are_those_of_its_partitions_and_of_no_other_topic() -> None:
    granted = NamespacePermissions({}, {str(TOPIC): {"producer": frozenset({"produce"})}})
    rights = Rights(ROLES, FakeTenantPolicies(granted={"t/n": granted}))
    for name, expected in (("x", True), ("x-partition-3", True), ("y", False), ("x-partition-03", False)):
        topic = parse_topic_name(f"persistent://t/n/{name}")
        assert has(rights, "producer", Right.STATE, Subject("t", "t/n", topic)) is expected
    assert not has(rights, "producer", Right.STATE, Subject("t", "t/n"))


def test_permission_elsewhere_grants_no_right() -> None:
    functions = NamespacePermissions({"producer": frozenset({"functions", "packages"})})
    elsewhere = NamespacePermissions({"producer": frozenset({"produce", "consume"})})
    rights = Rights(ROLES, FakeTenantPolicies(granted={"t/n": functions, "t/m": elsewhere}))
    assert not has(rights, "producer", Right.STATE)


def test_unreadable_policies_are_not_treated_as_missing() -> None:
    rights = Rights(ROLES, FakeTenantPolicies(failure=TemporaryError("ZooKeeper does not respond")))
    with pytest.raises(TemporaryError, match="ZooKeeper"):
        rights.require(caller("admin"), Right.CHANGE, OF_TOPIC)


def owner_check(role: str) -> OwnerCheck:
    return OwnerCheck(Rights(ROLES, policies()), caller(role), Right.OWNED_CHANGE)


@pytest.mark.parametrize(
    ("role", "owners", "allowed"),
    [
        ("admin", ["t"], True),
        ("admin", ["t", "t"], True),
        ("admin", ["t", "u"], False),
        ("admin", ["t", None], False),
        ("admin", [None], False),
        ("admin", [], False),
        ("viewer", ["t"], False),
        ("operator", [None], True),
        ("operator", [], True),
    ],
)
def test_the_right_is_wanted_for_every_owner(role: str, owners: list[str | None], allowed: bool) -> None:
    if allowed:
        owner_check(role).require(lambda: owners)
    else:
        with pytest.raises(NotAuthorizedError):
            owner_check(role).require(lambda: owners)


def test_owners_are_not_looked_up_for_those_whose_role_decides() -> None:
    def unasked() -> list[str | None]:
        raise AssertionError

    owner_check("operator").require(unasked)


def test_an_endpoint_without_a_right_is_refused() -> None:
    with pytest.raises(TypeError, match="@takes"):
        right_of(lambda: None)
    assert right_of(takes(Right.STATE)(lambda: None)) is Right.STATE
