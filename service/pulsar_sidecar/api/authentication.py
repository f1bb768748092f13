"""Who calls: Pulsar's own tokens (JWT), and only superusers.

Invariants: the family of algorithms follows from the configured key, never from the token, so a public key can never
verify an HMAC; a token appears in no message and no log; without a verified claim that names it there is no role.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import jwt

from pulsar_sidecar.api.token_keys import TokenKey
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotAuthenticatedError, NotAuthorizedError

_MAX_TOKEN_CHARACTERS = 16_384


class Authenticator(Protocol):
    """Decides who a request comes from."""

    @property
    def required(self) -> bool:
        """Whether a credential is demanded."""
        ...

    def role(self, authorization: str | None) -> str | None:
        """The caller's role from the ``Authorization`` header, or None when no caller needs a credential.

        Raises:
            NotAuthenticatedError: no token, or one that does not verify.
            NotAuthorizedError: a verified role that is not a superuser.
        """
        ...


class NoAuthentication:
    """Everybody may call; fit for a loopback address only."""

    required = False

    def role(self, authorization: str | None) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Which claims of a token are looked at, by the names of ``broker.conf``.

    Attributes:
        role: ``tokenAuthClaim``, the claim that names the role.
        audience: ``tokenAudience``, the audience that a token must have; None accepts every audience.
        audience_claim: ``tokenAudienceClaim``, the claim that says so.
    """

    role: str = "sub"
    audience: str | None = None
    audience_claim: str = "aud"


class TokenAuthentication:
    """Pulsar's ``AuthenticationProviderToken`` with superuser roles."""

    required = True

    def __init__(
        self, key: TokenKey, super_user_roles: Collection[str], clock: Clock, looked_at: TokenClaims | None = None
    ) -> None:
        self._key = key
        self._super_user_roles = frozenset(super_user_roles)
        self._clock = clock
        self._looked_at = looked_at or TokenClaims()

    def role(self, authorization: str | None) -> str | None:
        role = self._verified_role(_bearer_token(authorization))
        if role not in self._super_user_roles:
            raise NotAuthorizedError(f"role {role[:100]!r} is not among superUserRoles")
        return role

    def _verified_role(self, token: str) -> str:
        options: jwt.types.Options = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "verify_aud": False,
            "verify_sub": False,
        }
        key = self._key.current()
        try:
            claims = jwt.decode(token, key.key, algorithms=list(key.algorithms), options=options)
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise NotAuthenticatedError(f"the token does not verify ({type(error).__name__})") from None
        self._check_times(claims)
        self._check_audience(claims)
        role = claims.get(self._looked_at.role)
        if isinstance(role, list) and role:
            role = role[0]  # as brokers take it
        if not isinstance(role, str) or not role:
            raise NotAuthenticatedError(f"the token names no role (claim {self._looked_at.role})")
        return role

    def _check_audience(self, claims: dict[str, object]) -> None:
        expected, claim = self._looked_at.audience, self._looked_at.audience_claim
        if expected is None:
            return
        meant_for = claims.get(claim)
        if meant_for is None:
            raise NotAuthenticatedError(f"the token names no audience (claim {claim})")
        if expected not in (meant_for if isinstance(meant_for, list) else [meant_for]):
            raise NotAuthenticatedError(f"the token has another audience than tokenAudience (claim {claim})")

    def _check_times(self, claims: dict[str, object]) -> None:
        now_seconds = self._clock.now_ms() / 1000
        expires = _seconds_claim(claims, "exp")
        begins = _seconds_claim(claims, "nbf")
        if expires is not None and now_seconds >= expires:
            raise NotAuthenticatedError("the token has expired; get a new one")
        if begins is not None and now_seconds < begins:
            raise NotAuthenticatedError("the token is not valid yet (claim nbf); compare the clocks")


def _bearer_token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise NotAuthenticatedError("send a token: Authorization: Bearer ...")
    if len(token) > _MAX_TOKEN_CHARACTERS:
        raise NotAuthenticatedError("the token is too long")
    return token


def _seconds_claim(claims: dict[str, object], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotAuthenticatedError(f"the token's claim {name} is not a time")
    return float(value)
