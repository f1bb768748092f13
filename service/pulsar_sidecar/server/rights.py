"""Authorisation: the right that each route takes, and the callers that have it by the brokers' grants.

Invariants: the decision is pure; rights that cannot be read are refused; where callers are authenticated, a caller
without a role has no right.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from pulsar_sidecar.model.errors import NotAuthorizedError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.permissions import Action, TenantPolicies
from pulsar_sidecar.server.callers import Caller

_EITHER = frozenset(Action)
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Holders:
    """The holders of a right, besides superusers.

    Attributes:
        words: description of the holders, in errors and in the reference.
        viewers: True for viewers and operators.
        operators: True for operators alone.
        admins: True for the tenant's admin roles.
        actions: sufficient permissions on the topic or in its namespace.
        by_owner: True if the tenant is that of the topic that owns the named resource; the route finds it.
        changes: True if the route changes anything, and so is audited.
    """

    words: str
    viewers: bool = False
    operators: bool = False
    admins: bool = False
    actions: frozenset[str] = frozenset()
    by_owner: bool = False
    changes: bool = False


class Right(Enum):
    """The right that a route takes."""

    OPEN = Holders("no credential")
    """Not even a credential."""
    ROLE = Holders("a valid credential")
    BROKERS = Holders("whatever the broker requires of the caller's own credential", changes=True)
    """The sidecar only prepares the request, and passes it to a broker."""
    EVERYTHING = Holders("a superuser's role")
    STATE = Holders(
        "produce or consume permission, an admin role of the tenant, or a viewer's or operator's role",
        viewers=True,
        admins=True,
        actions=_EITHER,
    )
    MESSAGES = Holders(
        "consume permission, or an admin role of the tenant", admins=True, actions=frozenset({Action.CONSUME})
    )
    POLICY = Holders("an admin role of the tenant, or a viewer's or operator's role", viewers=True, admins=True)
    CHANGE = Holders("an admin role of the tenant", admins=True, changes=True)
    CLUSTER_STATE = Holders("a viewer's or operator's role", viewers=True)
    CLUSTER_CHANGE = Holders("an operator's role", operators=True, changes=True)
    OWNED_STATE = Holders(
        "a viewer's or operator's role, or an admin role of the tenant that owns it",
        viewers=True,
        admins=True,
        by_owner=True,
    )
    OWNED_CHANGE = Holders(
        "an operator's role, or an admin role of the tenant that owns it",
        operators=True,
        admins=True,
        by_owner=True,
        changes=True,
    )


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a request, to which brokers grant rights.

    Attributes:
        namespace: namespace with its tenant; None for a whole tenant.
        topic: topic; None for a whole namespace or tenant.
    """

    tenant: str
    namespace: str | None = None
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """Roles with rights by this sidecar's settings."""

    super_users: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    viewers: frozenset[str] = frozenset()

    def suffice(self, right: Right, role: str) -> bool:
        """Return True if the role has the right on every subject."""
        holders = right.value
        return (
            right is Right.ROLE
            or role in self.super_users
            or ((holders.operators or holders.viewers) and role in self.operators)
            or (holders.viewers and role in self.viewers)
        )


@dataclass(frozen=True, slots=True)
class Grants:
    """Brokers' grants for one subject: the tenant's admin roles, and the caller's permissions."""

    admin_roles: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()

    def suffice(self, right: Right, role: str) -> bool:
        """Return True if these grants give the role the right."""
        holders = right.value
        return (holders.admins and role in self.admin_roles) or not holders.actions.isdisjoint(self.actions)


@dataclass(frozen=True, slots=True)
class Rights:
    """Decisions of the server; without ``policies`` only the settings' roles have rights.

    Attributes:
        enforced: True if callers are authenticated; otherwise each of them may do everything.
    """

    roles: Roles = field(default_factory=Roles)
    policies: TenantPolicies | None = None
    enforced: bool = True

    def suffice(self, caller: Caller, right: Right) -> bool:
        """Return True if the caller has the right on every subject; does not read the metadata store."""
        if right is Right.OPEN or not self.enforced:
            return True
        return caller.role is not None and self.roles.suffice(right, caller.role)

    def require(self, caller: Caller, right: Right, subject: Subject | None) -> None:
        """Require the right on a subject; on None only settings give rights.

        Raises:
            NotAuthorizedError: the caller does not have the right, which the error names.
            TemporaryError: the rights cannot be read.
        """
        if self.suffice(caller, right):
            return
        role = caller.role
        if role is None or subject is None or not self._grants(role, right, subject).suffice(right, role):
            raise NotAuthorizedError(f"role {(role or '')[:100]!r} may not do this; it requires {right.value.words}")

    def _grants(self, role: str, right: Right, subject: Subject) -> Grants:
        if self.policies is None:
            return Grants()
        if right.value.admins and role in (admins := self.policies.admin_roles(subject.tenant)):
            return Grants(admins)
        if not right.value.actions or subject.namespace is None:
            return Grants()
        return Grants(actions=self.policies.permissions(subject.namespace).actions(role, subject.topic))


@dataclass(frozen=True, slots=True)
class OwnerCheck:
    """The check that a route of `Holders.by_owner` makes once it knows the owners of the named resource."""

    rights: Rights
    caller: Caller
    right: Right

    def require(self, owners: Callable[[], Iterable[str | None]]) -> None:
        """Require the right for all of these tenants; None is an unknown owner.

        ``owners`` is called only if the settings' roles do not suffice. Raises the errors of `Rights.require`.
        """
        if not self.rights.suffice(self.caller, self.right):
            for tenant in set(owners()) or {None}:
                self.rights.require(self.caller, self.right, None if tenant is None else Subject(tenant))


def takes(right: Right, *, in_parts: bool = False) -> Callable[[_Endpoint], _Endpoint]:
    """Declare the right that the route of this endpoint takes.

    ``in_parts``: the endpoint streams the body, however long it is.
    """

    def declared(endpoint: _Endpoint) -> _Endpoint:
        endpoint.__dict__.update(right=right, reads_in_parts=in_parts)
        return endpoint

    return declared


def right_of(endpoint: Callable[..., object]) -> Right:
    """Return the right that the endpoint declares; raise `TypeError` if it declares none."""
    right = getattr(endpoint, "right", None)
    if not isinstance(right, Right):
        raise TypeError(f"{endpoint!r} does not declare what it takes; decorate it with @takes(Right....)")
    return right


def reads_in_parts(endpoint: Callable[..., object]) -> bool:
    """Return True if the endpoint streams the body."""
    return bool(getattr(endpoint, "reads_in_parts", False))
