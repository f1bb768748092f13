"""Tokens from OAuth2 client credentials, by the same ``authParams`` as Java's ``AuthenticationOAuth2``.

Invariants: the secret goes only to the issuer's token endpoint, over TLS, and never into an error or a log; the client
refreshes a token before it expires, and uses the old one until then while the issuer does not respond.
"""

import base64
import binascii
import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import requests

from pulsar_sidecar.identity.discovery import TIMEOUT_SECONDS, discovered_url, verified_by
from pulsar_sidecar.model.addresses import is_loopback
from pulsar_sidecar.model.clocks import Clock, SystemClock
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthenticatedError, TemporaryError, UnreachableError
from pulsar_sidecar.model.file_urls import path_of

_LIFETIME_SECONDS: Final = 60.0
"""Lifetime of a token without ``expires_in``."""
_REFRESHED_AT: Final = 0.9
_AFTER_FAILURE_SECONDS: Final = 2.0
_FORM = '{"issuerUrl": "https://...", "privateKey": "file:///path/to/key.json", "audience": "..."}'


@dataclass(frozen=True, slots=True)
class OAuth2Request:
    """Token request in ``authParams``.

    Attributes:
        private_key: URL of the key's file, ``file:`` or ``data:``, which is read for each token.
        trusted: PEM file with the CA certificates that verify the issuer.
    """

    issuer: str
    private_key: str = field(repr=False)
    audience: str | None = None
    scope: str | None = None
    trusted: Path | None = None


def parse_oauth2(document: dict[str, object]) -> OAuth2Request:
    """Read ``authParams``; `InvalidInputError`, without a secret in it, if they cannot be used."""

    def text(name: str) -> str | None:
        value = document.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidInputError(f"authParams: {name} must be a string; write {_FORM}")
        return value or None

    if text("type") not in (None, "client_credentials"):
        raise InvalidInputError("authParams: type must be client_credentials, the one flow that needs no person")
    issuer, key, trusted = text("issuerUrl"), text("privateKey"), text("trustCertsFilePath")
    if issuer is None or key is None or not key.startswith(("file:", "data:")):
        raise InvalidInputError(f"authParams lack issuerUrl, or a privateKey by file: or data:; write {_FORM}")
    if not _is_safe(issuer):
        raise InvalidInputError("authParams: issuerUrl must begin with https: (http: only for a loopback address)")
    return OAuth2Request(issuer, key, text("audience"), text("scope"), Path(trusted) if trusted else None)


class OAuth2Tokens:
    """The current token of one request; thread-safe."""

    def __init__(self, request: OAuth2Request, clock: Clock | None = None) -> None:
        self._request, self._clock = request, clock or SystemClock()
        self._fetching = threading.Lock()
        self._token = ""
        self._refresh_at = self._expires_at = self._again_at = float("-inf")
        self._failure: TemporaryError | None = None

    def current(self) -> str:
        """Return a token that has not expired.

        Raises:
            NotAuthenticatedError: the key's file cannot be used, or the issuer refuses the client.
            TemporaryError: the issuer does not respond.
        """
        with self._fetching:
            now = self._clock.monotonic_seconds()
            if now >= self._refresh_at and now >= self._again_at:
                self._fetch()
                now = self._clock.monotonic_seconds()
            if now < self._expires_at:
                return self._token
            raise self._failure or UnreachableError(f"the issuer {self._request.issuer} has not issued a token")

    def _fetch(self) -> None:
        try:
            token, seconds = self._answered(_client(self._request.private_key))
        except TemporaryError as error:
            self._failure = error
            self._again_at = self._clock.monotonic_seconds() + _AFTER_FAILURE_SECONDS
            return
        now = self._clock.monotonic_seconds()
        self._token, self._refresh_at, self._expires_at = token, now + _REFRESHED_AT * seconds, now + seconds

    def _answered(self, client: tuple[str, str]) -> tuple[str, float]:
        asked = self._request
        form = {"grant_type": "client_credentials", "client_id": client[0], "client_secret": client[1]}
        form |= {name: text for name, text in (("audience", asked.audience), ("scope", asked.scope)) if text}
        url = discovered_url(asked.issuer, "token_endpoint", asked.trusted)
        if not _is_safe(url):
            raise TemporaryError(f"the issuer {asked.issuer} names a token_endpoint without TLS")
        try:
            answer = requests.post(
                url, data=form, timeout=TIMEOUT_SECONDS, verify=verified_by(asked.trusted), allow_redirects=False
            )
        except (requests.RequestException, OSError) as error:
            raise UnreachableError(f"no token from the issuer {asked.issuer} ({type(error).__name__})") from error
        document = _json(answer)
        if answer.status_code in (400, 401, 403):
            raise NotAuthenticatedError(
                f"the issuer {asked.issuer} refused the client ({_code(document)}); check privateKey, audience and "
                "scope in authParams"
            )
        token = document.get("access_token")
        if answer.status_code != requests.codes.ok or not isinstance(token, str) or not token:
            raise TemporaryError(f"the issuer {asked.issuer} answered {answer.status_code} without a token")
        seconds = document.get("expires_in")
        return token, float(seconds) if isinstance(seconds, int | float) and seconds > 0 else _LIFETIME_SECONDS


def _client(private_key: str) -> tuple[str, str]:
    try:
        document = json.loads(_bytes_of(private_key))
    except (OSError, ValueError, binascii.Error) as error:
        raise NotAuthenticatedError(f"the privateKey in authParams cannot be read ({type(error).__name__})") from None
    names = document if isinstance(document, dict) else {}
    client, secret = names.get("client_id"), names.get("client_secret")
    if not isinstance(client, str) or not isinstance(secret, str):
        raise NotAuthenticatedError("the privateKey in authParams must be JSON with client_id and client_secret")
    return client, secret


def _bytes_of(url: str) -> bytes:
    if url.startswith("file:"):
        return path_of(url).read_bytes()
    kind, _, content = url.partition(",")
    return base64.b64decode(content, validate=True) if kind.endswith(";base64") else unquote(content).encode()


def _is_safe(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))


def _json(answer: requests.Response) -> dict[str, object]:
    try:
        document = answer.json()
    except requests.JSONDecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _code(document: dict[str, object]) -> str:
    code = document.get("error")
    return code[:60] if isinstance(code, str) and code.isascii() and code.isprintable() else "without a reason"
