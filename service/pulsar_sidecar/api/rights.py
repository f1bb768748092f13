"""Who may do what: what each route takes, and which callers have it, by the rights that brokers give.

Invariants: the decision is pure; what cannot be read refuses; where callers are authenticated, a caller without a role
has no right.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.model.errors import NotAuthorizedError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.permissions import Action, TenantPolicies

_EITHER = frozenset(Action)
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Holders:
    """Who has a right, beside superusers.

    Attributes:
        words: the same for readers of errors and of the reference.
        viewers: also operators; ``operators`` means them alone.
        admins: the tenant's admin roles.
        actions: a role with one of them, on the topic or in its namespace.
        by_owner: the tenant is that of the topic which owns what the request names; the route finds it.
        changes: whether the route changes anything, and so is audited.
    """

    words: str
    viewers: bool = False
    operators: bool = False
    admins: bool = False
    actions: frozenset[str] = frozenset()
    by_owner: bool = False
    changes: bool = False


class Right(Enum):
    """What a route takes."""

    OPEN = Holders("nothing")
    """No credential either."""
    ROLE = Holders("a valid credential")
    BROKERS = Holders("what the broker asks for, by the caller's own credential", changes=True)
    """The request is passed on; the sidecar serves it only by what it does before."""
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
    """What a request is about, as far as brokers' rights go.

    Attributes:
        namespace: with its tenant; None where the request is about a whole tenant.
        topic: None where it is about a whole namespace.
    """

    tenant: str
    namespace: str | None = None
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles that have rights by this sidecar's settings."""

    super_users: frozenset[str] = frozenset()
    operators: frozenset[str] = frozenset()
    viewers: frozenset[str] = frozenset()

    def suffice(self, right: Right, role: str) -> bool:
        """Whether the role has the right whatever the request is about."""
        holders = right.value
        return (
            right is Right.ROLE
            or role in self.super_users
            or ((holders.operators or holders.viewers) and role in self.operators)
            or (holders.viewers and role in self.viewers)
        )


@dataclass(frozen=True, slots=True)
class Grants:
    """What brokers grant for one subject: to whom they grant all, and what they grant to the caller."""

    admin_roles: frozenset[str] = frozenset()
    actions: frozenset[str] = frozenset()

    def suffice(self, right: Right, role: str) -> bool:
        """Whether the role has the right by them."""
        holders = right.value
        return (holders.admins and role in self.admin_roles) or not holders.actions.isdisjoint(self.actions)


@dataclass(frozen=True, slots=True)
class Rights:
    """Decides for the door; without ``policies`` only the settings' roles have rights.

    Attributes:
        enforced: whether callers are authenticated; if not, each of them may do everything.
    """

    roles: Roles = field(default_factory=Roles)
    policies: TenantPolicies | None = None
    enforced: bool = True

    def suffice(self, caller: Caller, right: Right) -> bool:
        """Whether the caller has the right whatever the request is about; asks nothing of the metadata store."""
        if right is Right.OPEN or not self.enforced:
            return True
        return caller.role is not None and self.roles.suffice(right, caller.role)

    def require(self, caller: Caller, right: Right, subject: Subject | None) -> None:
        """Nothing if the caller has the right on that subject; None is one on which only settings give rights.

        `NotAuthorizedError` names what the call takes. `TemporaryError` if the rights cannot be read.
        """
        if self.suffice(caller, right):
            return
        role = caller.role
        if role is None or subject is None or not self._grants(role, right, subject).suffice(right, role):
            raise NotAuthorizedError(f"role {(role or '')[:100]!r} may not do this; it takes {right.value.words}")

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
    """What a route of `Holders.by_owner` asks, once it knows what it was asked about."""

    rights: Rights
    caller: Caller
    right: Right

    def require(self, owners: Callable[[], Iterable[str | None]]) -> None:
        """Nothing if the caller has the right for all of these tenants; None is an owner that nothing names.

        ``owners`` is called only if the settings' roles do not decide. Raises what `Rights.require` does.
        """
        if not self.rights.suffice(self.caller, self.right):
            for tenant in set(owners()) or {None}:
                self.rights.require(self.caller, self.right, None if tenant is None else Subject(tenant))


def takes(right: Right, *, in_parts: bool = False) -> Callable[[_Endpoint], _Endpoint]:
    """Declares what the route of this endpoint takes.

    ``in_parts``: the endpoint reads the body while it comes in, however long it is.
    """

    def declared(endpoint: _Endpoint) -> _Endpoint:
        endpoint.__dict__.update(right=right, reads_in_parts=in_parts)
        return endpoint

    return declared


def right_of(endpoint: Callable[..., object]) -> Right:
    """What the endpoint declares; `TypeError` if it declares nothing."""
    right = getattr(endpoint, "right", None)
    if not isinstance(right, Right):
        raise TypeError(f"{endpoint!r} does not declare what it takes; decorate it with @takes(Right....)")
    return right


def reads_in_parts(endpoint: Callable[..., object]) -> bool:
    """Whether the endpoint reads the body while it comes in."""
    return bool(getattr(endpoint, "reads_in_parts", False))
