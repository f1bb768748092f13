"""Pulsar's own tokens (JWT), signed with a key that the sidecar knows.

Invariants: the configured key determines the family of algorithms, never the token, so a public key can never verify
an HMAC; the sidecar accepts no algorithm for which brokers find the key too short; it rereads a key file that changes,
and keeps the previous key if the new one cannot be used; neither a token nor a key appears in a message or a log;
without a verified claim that names a role there is none.
"""

import base64
import binascii
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError
from pulsar_sidecar.model.file_urls import path_of
from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.server.reloading import Reloaded

_SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Shortest secret of each algorithm: as long as its hash (RFC 7518)."""
_MIN_RSA_BITS = 2048
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_NOT_BY_THE_LIBRARY: jwt.types.Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
    "verify_sub": False,
}
Claims = dict[str, object]


class VerificationKey(NamedTuple):
    """A key and the only algorithms that it may be used with."""

    key: bytes | RSAPublicKey | EllipticCurvePublicKey
    algorithms: list[str]


TokenKey = Reloaded[VerificationKey]
"""Current key, from the places that Pulsar reads; made by `secret_key` or `public_key`."""


def secret_key(text: str) -> TokenKey:
    """Read ``tokenSecretKey``; raise `InvalidInputError` if it cannot be read or is too short to resist guessing."""
    return _key("tokenSecretKey", text, _secret)


def public_key(text: str) -> TokenKey:
    """Read ``tokenPublicKey`` (RSA or elliptic curve, in Pulsar's DER or in PEM); else raise `InvalidInputError`."""
    return _key("tokenPublicKey", text, _public)


def _key(setting: str, text: str, parse: Callable[[bytes], VerificationKey]) -> TokenKey:
    file = _file_of(text)

    def read() -> VerificationKey:
        try:
            encoded = _decoded(text) if file is None else file.read_bytes()
        except (OSError, ValueError, binascii.Error) as error:
            raise InvalidInputError(
                f"{setting} cannot be read ({type(error).__name__}); write file:///path/to/key or data:;base64,..."
            ) from None
        return parse(encoded)

    return Reloaded(setting, [] if file is None else [file], read)


class TokenVerifier:
    """Pulsar's ``AuthenticationProviderToken``."""

    def __init__(
        self,
        key: TokenKey,
        clock: Clock,
        *,
        role_claim: str = "sub",
        audience: str | None = None,
        audience_claim: str = "aud",
    ) -> None:
        """Initialise with ``tokenAuthClaim`` and ``tokenAudienceClaim`` of ``broker.conf`` as the claims.

        ``audience`` is ``tokenAudience``, which a token must have; None accepts every audience.
        """
        self._key = key
        self._clock = clock
        self._role_claim = role_claim
        self._audience, self._audience_claim = audience, audience_claim

    def role(self, token: str) -> str:
        """Return the role that the token names; raise `NotAuthenticatedError` if the token does not verify."""
        claims = verified_claims(token, self._key.current())
        check_times(claims, self._clock)
        self._check_audience(claims)
        return role_in(claims, self._role_claim)

    def _check_audience(self, claims: Claims) -> None:
        if self._audience is None:
            return
        meant_for = claims.get(self._audience_claim)
        if meant_for is None:
            raise NotAuthenticatedError(f"the token names no audience (claim {self._audience_claim})")
        if self._audience not in (meant_for if isinstance(meant_for, list) else [meant_for]):
            raise NotAuthenticatedError(
                f"the token has another audience than tokenAudience (claim {self._audience_claim})"
            )


def verified_claims(token: str, key: VerificationKey) -> Claims:
    """Return the unchecked claims of a token; raise `NotAuthenticatedError` if the key has not signed them."""
    try:
        return jwt.decode(token, key.key, algorithms=key.algorithms, options=_NOT_BY_THE_LIBRARY)
    except jwt.InvalidAlgorithmError:
        accepted = ", ".join(key.algorithms)
        raise NotAuthenticatedError(f"the token does not verify: this key is for {accepted} only") from None
    except (jwt.InvalidTokenError, ValueError, RecursionError) as error:
        raise NotAuthenticatedError(f"the token does not verify ({type(error).__name__})") from None


def check_times(claims: Claims, clock: Clock, leeway_seconds: int = 0) -> None:
    """Raise `NotAuthenticatedError` if the token has expired or is not valid yet."""
    now_seconds = clock.now_ms() / 1000
    expires = _seconds_claim(claims, "exp")
    begins = _seconds_claim(claims, "nbf")
    if expires is not None and now_seconds >= expires + leeway_seconds:
        raise NotAuthenticatedError("the token has expired; get a new one")
    if begins is not None and now_seconds < begins - leeway_seconds:
        raise NotAuthenticatedError("the token is not valid yet (claim nbf); compare the clocks")


def role_in(claims: Claims, claim: str) -> str:
    """Return the role that a claim names, the first of several like brokers; raise `NotAuthenticatedError` if none."""
    role = claims.get(claim)
    if isinstance(role, list) and role:
        role = role[0]
    if not isinstance(role, str) or not role:
        raise NotAuthenticatedError(f"the token names no role (claim {claim})")
    return role


def verification_key(key: object) -> VerificationKey | None:
    """Return a public key with those of its algorithms that brokers know; None for another kind of key."""
    if isinstance(key, RSAPublicKey) and key.key_size >= _MIN_RSA_BITS:
        return VerificationKey(key, ["RS256", "RS384", "RS512"])
    if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return VerificationKey(key, [_CURVES[key.curve.name]])
    return None


def _seconds_claim(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise NotAuthenticatedError(f"the token's claim {name} is not a time")
    return float(value)


def _secret(secret: bytes) -> VerificationKey:
    algorithms = [name for name, least in _SECRET_BYTES.items() if len(secret) >= least]
    if not algorithms:
        raise InvalidInputError(
            f"tokenSecretKey has {format_count(len(secret), 'byte')}; HS256 needs at least {_SECRET_BYTES['HS256']}"
        )
    return VerificationKey(secret, algorithms)


def _public(encoded: bytes) -> VerificationKey:
    load = load_pem_public_key if encoded.lstrip().startswith(b"-----BEGIN") else load_der_public_key
    try:
        key = load(encoded)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInputError("tokenPublicKey holds no public key in DER or PEM form") from error
    usable = verification_key(key)
    if usable is None:
        raise InvalidInputError(
            f"tokenPublicKey is neither RSA of {_MIN_RSA_BITS:,} bits or more nor on the curve P-256, P-384 or P-521; "
            "make another one (pulsar tokens create-key-pair), since brokers refuse this one's tokens as well"
        )
    return usable


def _file_of(text: str) -> Path | None:
    """Return the key's file, if any: Pulsar's ``readKeyFromUrl`` takes a data URL, a file URL, a path or base64."""
    if text.startswith("file:"):
        return path_of(text)
    try:
        return Path(text) if not text.startswith("data:") and Path(text).is_file() else None
    except (OSError, ValueError):
        return None  # base64, longer than any file name


def _decoded(text: str) -> bytes:
    if not text.startswith("data:"):
        return base64.b64decode(text, validate=True)
    kind, comma, content = text.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError(text)
    return base64.b64decode(content, validate=True) if kind.endswith(";base64") else unquote_to_bytes(content)
