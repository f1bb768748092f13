"""Who calls: Pulsar's own tokens (JWT), and only superusers.

Invariants: the family of algorithms follows from the configured key, never from the token, so a public key can never
verify an HMAC; a token appears in no message and no log; without a verified ``sub`` there is no role.
"""

import base64
import binascii
import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote_to_bytes, urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from service.model.clocks import Clock
from service.model.errors import InvalidInputError, NotAuthenticatedError, NotAuthorizedError

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_MIN_SECRET_BYTES = 32
_MAX_TOKEN_CHARACTERS = 16_384


class Authenticator(Protocol):
    """Decides who a request comes from."""

    @property
    def required(self) -> bool:
        """Whether a credential is demanded."""
        ...

    def role(self, authorization: str | None) -> str | None:
        """The caller's role from the ``Authorization`` header, or None when nobody is asked.

        Raises:
            NotAuthenticatedError: no token, or one that does not verify.
            NotAuthorizedError: a verified role that is no superuser.
        """
        ...


class NoAuthentication:
    """Everybody may call; fit for a loopback address only."""

    required = False

    def role(self, authorization: str | None) -> str | None:
        return None


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key together with the only algorithms it may be used with."""

    key: "bytes | RSAPublicKey | EllipticCurvePublicKey"
    algorithms: tuple[str, ...]


class TokenAuthentication:
    """Pulsar's ``AuthenticationProviderToken`` with superuser roles."""

    required = True

    def __init__(self, key: VerificationKey, super_user_roles: Collection[str], clock: Clock) -> None:
        self._key = key
        self._super_user_roles = frozenset(super_user_roles)
        self._clock = clock

    def role(self, authorization: str | None) -> str | None:
        role = self._verified_subject(_bearer_token(authorization))
        if role not in self._super_user_roles:
            raise NotAuthorizedError(f"role {role[:100]!r} is not among superUserRoles")
        return role

    def _verified_subject(self, token: str) -> str:
        options: jwt.types.Options = {
            "verify_exp": False,
            "verify_nbf": False,
            "verify_iat": False,
            "verify_aud": False,
            "verify_sub": False,
        }
        try:
            claims = jwt.decode(token, self._key.key, algorithms=list(self._key.algorithms), options=options)
        except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
            raise NotAuthenticatedError(f"the token does not verify ({type(error).__name__})") from None
        self._check_times(claims)
        subject = claims.get("sub")
        if not isinstance(subject, str) or not subject:
            raise NotAuthenticatedError("the token names no role (claim sub)")
        return subject

    def _check_times(self, claims: dict[str, object]) -> None:
        now_seconds = self._clock.now_ms() / 1000
        expires = _seconds_claim(claims, "exp")
        begins = _seconds_claim(claims, "nbf")
        if expires is not None and now_seconds >= expires:
            raise NotAuthenticatedError("the token has expired; get a new one")
        if begins is not None and now_seconds < begins:
            raise NotAuthenticatedError("the token is not valid yet (claim nbf); compare the clocks")


def secret_key(text: str) -> VerificationKey:
    """Read ``tokenSecretKey``.

    Raises:
        InvalidInputError: it cannot be read or is too short to resist guessing; the message never contains the key.
    """
    secret = _key_bytes(text, "tokenSecretKey")
    if len(secret) < _MIN_SECRET_BYTES:
        raise InvalidInputError(f"tokenSecretKey has {len(secret)} bytes; HS256 needs at least {_MIN_SECRET_BYTES}")
    return VerificationKey(secret, ("HS256", "HS384", "HS512"))


def public_key(text: str) -> VerificationKey:
    """Read ``tokenPublicKey``: RSA or an elliptic curve, DER as Pulsar writes it, or PEM.

    Raises:
        InvalidInputError: it cannot be read, or is another kind of key.
    """
    encoded = _key_bytes(text, "tokenPublicKey")
    load = load_pem_public_key if encoded.lstrip().startswith(b"-----BEGIN") else load_der_public_key
    try:
        key = load(encoded)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError("tokenPublicKey holds no public key in DER or PEM form") from error
    if isinstance(key, RSAPublicKey):
        return VerificationKey(key, ("RS256", "RS384", "RS512"))
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return VerificationKey(key, (_CURVES[key.curve.name],))
    raise InvalidInputError("tokenPublicKey is neither an RSA key nor on the curve P-256, P-384 or P-521")


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


def _key_bytes(text: str, setting: str) -> bytes:
    """Pulsar's ``AuthTokenUtils.readKeyFromUrl``: a data URL, a file URL, a path, or base64."""
    try:
        if text.startswith("data:"):
            return _data_url_bytes(text)
        if text.startswith("file:"):
            return Path(unquote_to_bytes(urlsplit(text).path).decode()).read_bytes()
        if Path(text).is_file():
            return Path(text).read_bytes()
        return base64.b64decode(text, validate=True)
    except (OSError, ValueError, binascii.Error) as error:
        raise InvalidInputError(
            f"{setting} cannot be read ({type(error).__name__}); write file:///path/to/key or data:;base64,..."
        ) from None


def _data_url_bytes(url: str) -> bytes:
    kind, comma, content = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError(url)
    return base64.b64decode(content, validate=True) if kind.endswith(";base64") else unquote_to_bytes(content)
