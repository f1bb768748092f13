"""A limit for tries to sign in, so that guessing, and what each guess costs, has an end.

Invariants: it costs the same and takes no more room whatever was tried before; after a minute all begin anew;
where many fail, who has not failed yet still gets a try.
"""

from ipaddress import ip_network

import structlog
from fastapi import Request

from pulsar_sidecar.model.clocks import Clock

_SECONDS = 60
_TRIES = 10
_TRIES_OF_ALL = 100
"""Beyond it, everyone has one."""
_MOST_PLACES = 10_000
_NETWORK_BITS = 64
_MOST_CHARACTERS = 45
_log = structlog.get_logger(__name__)


class SignInLimit:
    """Counts the tries of each minute, by where they come from; used on the event loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun = 0.0
        self._tries: dict[str, int] = {}
        self._of_all = 0

    def wait_seconds(self, request: Request) -> int:
        """0 for a try that may be made, which is counted; otherwise when to try again."""
        passed = self._clock.monotonic_seconds() - self._begun
        if passed >= _SECONDS:
            self._begun, passed = self._begun + passed, 0.0
            self._tries.clear()
            self._of_all = 0
        place = _place(request)
        tries = self._tries.get(place, 0)
        if tries >= (_TRIES if self._of_all < _TRIES_OF_ALL else 1):
            _log.warning("too many tries to sign in", address=place)
            return int(_SECONDS - passed) + 1
        self._of_all += 1
        if tries or len(self._tries) < _MOST_PLACES:
            self._tries[place] = tries + 1
        return 0

    def succeeded(self, request: Request) -> None:
        """The try that was counted last was no guess."""
        self._of_all -= self._tries.pop(_place(request), 0)


def _place(request: Request) -> str:
    """The browser's address, which a proxy that ends TLS adds at the end; of IPv6 the network, as one has all of it."""
    place = "" if request.client is None else request.client.host
    if request.state.behind_proxy:
        place = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip() or place
    try:
        return str(ip_network((place, _NETWORK_BITS), strict=False)) if ":" in place else place[:_MOST_CHARACTERS]
    except ValueError:
        return place[:_MOST_CHARACTERS]
