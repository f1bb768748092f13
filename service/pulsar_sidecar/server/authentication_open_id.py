"""Tokens of an OpenID Connect issuer, verified like brokers' ``AuthenticationProviderOpenID`` does.

Invariants: the sidecar looks up keys only of issuers that a setting names; the issuer's key determines the algorithm;
an issuer that does not respond is a `TemporaryError`, never a bad token.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

import jwt
from anyio import CapacityLimiter, to_thread

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotAuthenticatedError
from pulsar_sidecar.server.authentication_tokens import (
    Claims,
    VerificationKey,
    check_times,
    role_in,
    verification_key,
    verified_claims,
)

_MOST_WAITING = 4
"""Threads that wait for issuers, apart from the routes' threads."""


class IssuerKeys(Protocol):
    """Public keys of the issuers that settings name; safe to call from any thread."""

    def cached(self, issuer: str, key_id: str) -> jwt.PyJWK | None:
        """Return the key if it is cached, without waiting."""

    def fetched(self, issuer: str, key_id: str) -> jwt.PyJWK:
        """Return the key, fetched from the issuer if necessary.

        Raises:
            NotAuthenticatedError: the issuer has no such key.
            TemporaryError: the issuer's keys cannot be read.
        """


@dataclass(frozen=True, slots=True)
class OpenIdRules:
    """Settings such as ``openIDAllowedTokenIssuers`` of ``broker.conf``."""

    issuers: Collection[str]
    audiences: Collection[str]
    role_claim: str = "sub"
    leeway_seconds: int = 0


class OpenIdVerifier:
    """Verifier of the tokens of allowed issuers."""

    def __init__(self, rules: OpenIdRules, keys: IssuerKeys, clock: Clock) -> None:
        self._rules, self._keys, self._clock = rules, keys, clock
        self._waiting = CapacityLimiter(_MOST_WAITING)

    def issuer_of(self, token: str) -> str | None:
        """Return the allowed issuer that the token names, still unverified; None if it names another or none."""
        try:
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except (jwt.InvalidTokenError, ValueError, RecursionError):
            return None
        return issuer if isinstance(issuer, str) and issuer in self._rules.issuers else None

    async def role(self, token: str, issuer: str) -> str:
        """Return the role that a token of this issuer names.

        Raises:
            NotAuthenticatedError: the token does not verify.
            TemporaryError: the issuer's keys cannot be read.
        """
        claims = verified_claims(token, await self._key(token, issuer))
        if claims.get("exp") is None:
            raise NotAuthenticatedError("the token does not expire (claim exp), which an issuer's token must")
        check_times(claims, self._clock, self._rules.leeway_seconds)
        self._check_audience(claims)
        return role_in(claims, self._rules.role_claim)

    async def _key(self, token: str, issuer: str) -> VerificationKey:
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
        except jwt.InvalidTokenError:
            key_id = None
        if not isinstance(key_id, str) or not key_id:
            raise NotAuthenticatedError("the token does not name its issuer's key (header kid)")
        found = self._keys.cached(issuer, key_id)
        if found is None:
            found = await to_thread.run_sync(self._keys.fetched, issuer, key_id, limiter=self._waiting)
        usable = verification_key(found.key)
        if usable is None:
            raise NotAuthenticatedError(
                "the issuer's key is neither RSA of 2,048 bits or more nor on the curve P-256, P-384 or P-521"
            )
        return usable

    def _check_audience(self, claims: Claims) -> None:
        meant_for = claims.get("aud")
        named = meant_for if isinstance(meant_for, list) else [meant_for]
        if not any(isinstance(audience, str) and audience in self._rules.audiences for audience in named):
            raise NotAuthenticatedError("the token's audience is not among openIDAllowedAudiences (claim aud)")
