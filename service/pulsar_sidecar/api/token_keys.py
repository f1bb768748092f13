"""The key that tokens are verified with, from the places and in the forms that Pulsar reads.

Invariants: a key allows only its own family of algorithms; a file that changes is read again, and one that cannot be
used leaves the key before it in force; no message contains a key.
"""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

import structlog
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from pulsar_sidecar.model.errors import InvalidInputError

_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_MIN_SECRET_BYTES = 32
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A key together with the only algorithms it may be used with."""

    key: "bytes | RSAPublicKey | EllipticCurvePublicKey"
    algorithms: tuple[str, ...]


class TokenKey:
    """The key as it is now; make it with `secret_key` or `public_key`."""

    def __init__(self, setting: str, text: str, parse: Callable[[bytes], VerificationKey]) -> None:
        self._setting, self._text, self._parse = setting, text, parse
        self._file = _file_of(text)
        self._version = self._version_now()
        self._key = self._read()

    def current(self) -> VerificationKey:
        """The key that the file holds, or held when it was last readable."""
        version = self._version_now()
        if version != self._version:
            self._version = version
            try:
                self._key = self._read()
                _log.info("the key's file has changed; the new key is in force", setting=self._setting)
            except InvalidInputError as error:
                _log.warning(
                    "the key's file has changed and cannot be used; the key before it stays in force",
                    setting=self._setting,
                    error=str(error),
                )
        return self._key

    def _read(self) -> VerificationKey:
        return self._parse(_key_bytes(self._setting, self._text, self._file))

    def _version_now(self) -> tuple[int, ...]:
        try:
            # Kubernetes exchanges a link, an editor the file, others write into it.
            stat = None if self._file is None else self._file.stat()
        except OSError:
            stat = None
        return () if stat is None else (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)


def secret_key(text: str) -> TokenKey:
    """Read ``tokenSecretKey``.

    Raises:
        InvalidInputError: it cannot be read or is too short to resist guessing.
    """
    return TokenKey("tokenSecretKey", text, _secret)


def public_key(text: str) -> TokenKey:
    """Read ``tokenPublicKey``: RSA or an elliptic curve, DER as Pulsar writes it, or PEM.

    Raises:
        InvalidInputError: it cannot be read, or is another kind of key.
    """
    return TokenKey("tokenPublicKey", text, _public)


def _secret(secret: bytes) -> VerificationKey:
    if len(secret) < _MIN_SECRET_BYTES:
        raise InvalidInputError(f"tokenSecretKey has {len(secret)} bytes; HS256 needs at least {_MIN_SECRET_BYTES}")
    return VerificationKey(secret, ("HS256", "HS384", "HS512"))


def _public(encoded: bytes) -> VerificationKey:
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


def _file_of(text: str) -> Path | None:
    """Pulsar's ``AuthTokenUtils.readKeyFromUrl``: a data URL, a file URL, a path, or base64."""
    if text.startswith("file:"):
        return Path(unquote_to_bytes(urlsplit(text).path).decode(errors="surrogateescape"))
    try:
        return Path(text) if not text.startswith("data:") and Path(text).is_file() else None
    except (OSError, ValueError):
        return None  # base64 that is longer than a file's name can be


def _key_bytes(setting: str, text: str, file: Path | None) -> bytes:
    try:
        if file is not None:
            return file.read_bytes()
        return _data_url_bytes(text) if text.startswith("data:") else base64.b64decode(text, validate=True)
    except (OSError, ValueError, binascii.Error) as error:
        raise InvalidInputError(
            f"{setting} cannot be read ({type(error).__name__}); write file:///path/to/key or data:;base64,..."
        ) from None


def _data_url_bytes(url: str) -> bytes:
    kind, comma, content = url.removeprefix("data:").partition(",")
    if not comma:
        raise ValueError(url)
    return base64.b64decode(content, validate=True) if kind.endswith(";base64") else unquote_to_bytes(content)
