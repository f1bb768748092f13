"""Who calls: the one place where a credential becomes a role.

Invariants: without a verified credential there is no role; neither a credential nor a key appears in a message or a
log.
"""

from starlette.datastructures import Headers
from starlette.types import Scope

from pulsar_sidecar.api.authentication_tokens import TokenVerifier
from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.model.errors import NotAuthenticatedError

_MAX_TOKEN_CHARACTERS = 16_384


class Authentication:
    """The credentials that this sidecar verifies."""

    def __init__(self, tokens: TokenVerifier) -> None:
        self._tokens = tokens

    async def caller(self, scope: Scope) -> Caller:
        """Who sent this request; `NotAuthenticatedError` without a credential that verifies."""
        return Caller(self._tokens.role(_bearer_token(scope)), "token", address_of(scope))


def address_of(scope: Scope) -> str:
    """The host that a request comes from, empty where the connection has none."""
    client = scope.get("client")
    return "" if client is None else str(client[0])


def _bearer_token(scope: Scope) -> str:
    credentials = Headers(scope=scope).getlist("authorization")
    if len(credentials) > 1:
        raise NotAuthenticatedError("send one Authorization header, not several")
    scheme, _, token = (credentials[0] if credentials else "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise NotAuthenticatedError("send a token: Authorization: Bearer ...")
    if len(token) > _MAX_TOKEN_CHARACTERS:
        raise NotAuthenticatedError("the token is too long")
    return token
