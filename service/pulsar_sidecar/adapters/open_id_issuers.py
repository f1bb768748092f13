"""The keys of OpenID Connect issuers: found by their discovery documents, cached, and read again when they rotate.

Invariants: what an issuer served last stays in force while it cannot be reached, until it expires; an unknown key asks
the issuer again at most once in a while, so no flood of tokens reaches it; nothing is read from another place than the
settings and the issuer's own document name.
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
    """How long an issuer's keys count, in seconds (``openIDCacheRefreshAfterWriteSeconds`` and so on).

    Attributes:
        refresh_after: the issuer is asked again, and what is known stays in force while it does not answer.
        expire_after: what the issuer served then counts no longer.
        unknown_after: at least this time lies between two questions because of a key that is not known.
    """

    refresh_after: float = 64_800
    expire_after: float = 86_400
    unknown_after: float = 300


class OpenIdIssuers:
    """`api.authentication_open_id.IssuerKeys` over HTTP."""

    def __init__(self, issuers: Collection[str], clock: Clock, caching: KeyCaching, trusted: Path | None) -> None:
        """``trusted``: PEM file of the authorities of the issuers' certificates; `InvalidInputError` if unusable."""
        trusting(trusted)
        self._issuers = {issuer: _Issuer(issuer, clock, caching, trusted) for issuer in issuers}

    def at_hand(self, issuer: str, key_id: str) -> jwt.PyJWK | None:
        return self._issuers[issuer].at_hand(key_id)

    def fetched(self, issuer: str, key_id: str) -> jwt.PyJWK:
        return self._issuers[issuer].fetched(key_id)


class _Issuer:
    def __init__(self, url: str, clock: Clock, caching: KeyCaching, trusted: Path | None) -> None:
        self._url, self._clock, self._caching, self._trusted = url, clock, caching, trusted
        self._asking = threading.Lock()
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = self._asked_at = float("-inf")
        self._failure: str | None = None

    def at_hand(self, key_id: str) -> jwt.PyJWK | None:
        now = self._clock.monotonic_seconds()
        if now - self._read_at >= self._caching.expire_after:
            return None
        stale = now - self._read_at >= self._caching.refresh_after
        return None if stale and self._may_ask(now) else self._keys.get(key_id)

    def fetched(self, key_id: str) -> jwt.PyJWK:
        with self._asking:
            key = self.at_hand(key_id)
            if key is not None:
                return key
            if self._may_ask(self._clock.monotonic_seconds()):
                self._ask()
            key = self.at_hand(key_id)
        if key is not None:
            return key
        if self._failure is not None:
            raise UnreachableError(f"the keys of the issuer {self._url} cannot be read: {self._failure}")
        raise NotAuthenticatedError("the token's issuer has no such key (header kid); get a new token")

    def _may_ask(self, now: float) -> bool:
        pause = self._caching.unknown_after if self._failure is None else _AFTER_FAILURE_SECONDS
        stale = now - self._read_at >= self._caching.refresh_after
        return now - self._asked_at >= (min(pause, _AFTER_FAILURE_SECONDS) if stale else pause)

    def _ask(self) -> None:
        self._asked_at = self._clock.monotonic_seconds()
        try:
            keys = self._read()
        except TemporaryError as error:
            self._failure = str(error)
            _log.warning("an issuer's keys cannot be read", issuer=self._url, error=self._failure)
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
