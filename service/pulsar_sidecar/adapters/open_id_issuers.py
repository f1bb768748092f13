"""Keys of OpenID Connect issuers: found by their discovery documents, cached, and refreshed when they rotate.

Invariants: an issuer's last keys stay valid while it cannot be reached, until they expire; the sidecar queries the
issuer about unknown keys at most once in a while, so that a flood of tokens does not reach it; the sidecar reads only
the addresses in the settings and in the issuer's own document.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import jwt
import structlog

from pulsar_sidecar.identity.discovery import TIMEOUT_SECONDS, discovered_url
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import NotAuthenticatedError, TemporaryError, UnreachableError
from pulsar_sidecar.model.tls import trusting

_AFTER_FAILURE_SECONDS = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class KeyCaching:
    """Lifetimes of an issuer's cached keys, in seconds (``openIDCacheRefreshAfterWriteSeconds`` and so on).

    Attributes:
        refresh_after: age at which the keys are refreshed; they stay valid while the issuer does not respond.
        expire_after: age at which the keys expire.
        unknown_after: least time between two requests to the issuer because of an unknown key.
    """

    refresh_after: float = 64_800
    expire_after: float = 86_400
    unknown_after: float = 300


class OpenIdIssuers:
    """`server.authentication_open_id.IssuerKeys` over HTTP."""

    def __init__(self, issuers: Collection[str], clock: Clock, caching: KeyCaching, trusted: Path | None) -> None:
        """Trust the CA certificates in the PEM file ``trusted``; raise `InvalidInputError` if it is unusable."""
        trusting(trusted)
        self._issuers = {issuer: _Issuer(issuer, clock, caching, trusted) for issuer in issuers}

    def cached(self, issuer: str, key_id: str) -> jwt.PyJWK | None:
        return self._issuers[issuer].cached(key_id)

    def fetched(self, issuer: str, key_id: str) -> jwt.PyJWK:
        return self._issuers[issuer].fetched(key_id)


class _Issuer:
    def __init__(self, url: str, clock: Clock, caching: KeyCaching, trusted: Path | None) -> None:
        self._url, self._clock, self._caching, self._trusted = url, clock, caching, trusted
        self._refreshing = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = self._attempted_at = float("-inf")
        self._failure: str | None = None

    def cached(self, key_id: str) -> jwt.PyJWK | None:
        now = self._clock.monotonic_seconds()
        if now - self._read_at >= self._caching.expire_after:
            return None
        stale = now - self._read_at >= self._caching.refresh_after
        return None if stale and self._may_refresh(now) else self._keys.get(key_id)

    def fetched(self, key_id: str) -> jwt.PyJWK:
        with self._refreshing:
            key = self.cached(key_id)
            if key is not None:
                return key
            if self._may_refresh(self._clock.monotonic_seconds()):
                self._refresh()
            key = self.cached(key_id)
        if key is not None:
            return key
        if self._failure is not None:
            raise UnreachableError(f"the keys of the issuer {self._url} cannot be read: {self._failure}")
        raise NotAuthenticatedError("the token's issuer has no such key (header kid); get a new token")

    def _may_refresh(self, now: float) -> bool:
        pause = self._caching.unknown_after if self._failure is None else _AFTER_FAILURE_SECONDS
        stale = now - self._read_at >= self._caching.refresh_after
        return now - self._attempted_at >= (min(pause, _AFTER_FAILURE_SECONDS) if stale else pause)

    def _refresh(self) -> None:
        self._attempted_at = self._clock.monotonic_seconds()
        try:
            keys = self._read()
        except TemporaryError as error:
            self._failure = str(error)
            _log.warning("reading issuer keys failed", issuer=self._url, error=self._failure)
            return
        self._keys = {key.key_id: key for key in keys if key.key_id is not None}
        self._read_at, self._failure = self._clock.monotonic_seconds(), None

    def _read(self) -> list[jwt.PyJWK]:
        try:
            client = jwt.PyJWKClient(
                discovered_url(self._url, "jwks_uri", self._trusted),
                cache_jwk_set=False,
                timeout=TIMEOUT_SECONDS,
                ssl_context=trusting(self._trusted),
            )
            return client.get_signing_keys()
        except (jwt.PyJWTError, OSError, ValueError) as error:
            raise TemporaryError(type(error).__name__) from error
