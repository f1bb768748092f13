"""Authentication: the one place where a credential becomes a role.

Invariants: without a verified credential there is no role; the sidecar never falls back from a credential that does
not verify to a second one of the same request; neither a credential nor a key appears in a message or a log.
"""

from cryptography import x509
from cryptography.x509.oid import NameOID
from starlette.datastructures import Headers
from starlette.types import Scope

from pulsar_sidecar.model.errors import NotAuthenticatedError
from pulsar_sidecar.server.authentication_open_id import OpenIdVerifier
from pulsar_sidecar.server.authentication_tokens import TokenVerifier
from pulsar_sidecar.server.callers import Caller

CLIENT_CERTIFICATE = "client_certificate"
"""Key in a request's ``state`` of the client certificate, in DER, that the TLS handshake has verified."""

_MAX_TOKEN_CHARACTERS = 16_384
_AMBIGUOUS = frozenset(',+"\\<>;=#\r\n')


class Authentication:
    """Verification of callers' credentials, the counterpart of brokers' ``authenticationProviders``."""

    def __init__(
        self,
        tokens: TokenVerifier | None = None,
        open_id: OpenIdVerifier | None = None,
        *,
        certificates: bool = False,
    ) -> None:
        """Accept client certificates that the listener has verified, if ``certificates`` is set."""
        self._tokens, self._open_id, self._certificates = tokens, open_id, certificates

    async def caller(self, scope: Scope) -> Caller:
        """Return the sender of this request.

        Raises:
            NotAuthenticatedError: the request has no credential that verifies.
            TemporaryError: the issuer of its token does not respond.
        """
        authorization = Headers(scope=scope).getlist("authorization")
        if authorization:
            return Caller(await self._role_of(_bearer_token(authorization)), "token", address_of(scope))
        certificate = scope.get("state", {}).get(CLIENT_CERTIFICATE)
        if self._certificates and certificate is not None:
            return Caller(role_of_certificate(certificate), "certificate", address_of(scope))
        raise NotAuthenticatedError(f"send a credential: {self._accepted()}")

    async def _role_of(self, token: str) -> str:
        issuer = None if self._open_id is None else self._open_id.issuer_of(token)
        if self._open_id is not None and issuer is not None:
            return await self._open_id.role(token, issuer)
        if self._tokens is not None:
            return self._tokens.role(token)
        raise NotAuthenticatedError(
            "the token's issuer is not among openIDAllowedTokenIssuers"
            if self._open_id is not None
            else f"this sidecar accepts no tokens; send {self._accepted()}"
        )

    def _accepted(self) -> str:
        ways = []
        if self._tokens is not None or self._open_id is not None:
            ways.append("a token (Authorization: Bearer ...)")
        if self._certificates:
            ways.append("a client certificate")
        return " or ".join(ways)


def has_token(headers: Headers) -> bool:
    """Return True if the request has a bearer token, which browsers, unlike Basic, never add automatically."""
    return headers.get("authorization", "").lower().startswith("bearer ")


def address_of(scope: Scope) -> str:
    """Return the host that a request comes from, empty if the connection has none."""
    client = scope.get("client")
    return "" if client is None else str(client[0])


def role_of_certificate(certificate: bytes) -> str:
    """Return the subject's last common name, as brokers read it with ``AuthenticationProviderTls``.

    Raises:
        NotAuthenticatedError: the subject has no common name, or one that brokers would read differently, because they
            split the subject's text at its commas.
    """
    subject = x509.load_der_x509_certificate(certificate).subject
    for part in reversed(subject.rdns):
        names = part.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not names:
            continue
        name = names[0].value
        if len(list(part)) > 1 or not isinstance(name, str) or not name.strip() or name != name.strip():
            break
        if _AMBIGUOUS.intersection(name):
            break
        return name
    raise NotAuthenticatedError(
        "the client certificate names no role: its subject needs one common name (CN) of plain characters"
    )


def _bearer_token(authorization: list[str]) -> str:
    if len(authorization) > 1:
        raise NotAuthenticatedError("send one Authorization header, not several")
    scheme, _, token = authorization[0].partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise NotAuthenticatedError("send a token: Authorization: Bearer ...")
    if len(token) > _MAX_TOKEN_CHARACTERS:
        raise NotAuthenticatedError("the token is too long")
    return token
