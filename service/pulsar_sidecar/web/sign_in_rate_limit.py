"""Rate limit of sign-ins, which bounds guesses and their cost.

Invariants: time and memory stay bounded whatever callers try; each minute begins a new count; if many callers fail, a
caller that has not failed yet still gets an attempt.
"""

from ipaddress import ip_network

import structlog
from fastapi import Request

from pulsar_sidecar.model.clocks import Clock

_SECONDS = 60
_ATTEMPTS = 10
_ATTEMPTS_OF_ALL = 100
"""Attempts of all callers in a minute, beyond which each caller has one."""
_MOST_PLACES = 10_000
_NETWORK_BITS = 64
_MOST_CHARACTERS = 45
_log = structlog.get_logger(__name__)


class SignInRateLimit:
    """Counter of each minute's attempts by address; only the event loop calls it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = 0.0
        self._attempts: dict[str, int] = {}
        self._of_all = 0

    def wait_seconds(self, request: Request) -> int:
        """Count an attempt and return 0 if it is allowed; otherwise return the seconds until the next one."""
        passed = self._clock.monotonic_seconds() - self._begun
        if passed >= _SECONDS:
            self._begun, passed = self._begun + passed, 0.0
            self._attempts.clear()
            self._of_all = 0
        place = _place(request)
        attempts = self._attempts.get(place, 0)
        if attempts >= (_ATTEMPTS if self._of_all < _ATTEMPTS_OF_ALL else 1):
            _log.warning("sign-in rate limit exceeded", address=place)
            return int(_SECONDS - passed) + 1
        self._of_all += 1
        if attempts or len(self._attempts) < _MOST_PLACES:
            self._attempts[place] = attempts + 1
        return 0

    def succeeded(self, request: Request) -> None:
        """Remove the caller's attempts from the count after a successful sign-in."""
        self._of_all -= self._attempts.pop(_place(request), 0)


def _place(request: Request) -> str:
    """Return the browser's address, last in a TLS proxy's header; for IPv6 the network, which one caller owns."""
    place = "" if request.client is None else request.client.host
    if request.state.behind_proxy:
        place = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() or place
    try:
        return str(ip_network((place, _NETWORK_BITS), strict=False)) if ":" in place else place[:_MOST_CHARACTERS]
    except ValueError:
        return place[:_MOST_CHARACTERS]
