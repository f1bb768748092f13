"""Who holds a connection, and for how long: no client can shut others out by holding connections.

Invariants: no more connections are open than `Limits` allows, those in a TLS handshake included; one more takes the
place of the connection that has waited longest without a request, and is refused only where every one has a request in
hand; a handshake, a request's head and its body come within their time, or the connection ends.
"""

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

_ACCEPT_AGAIN_SECONDS = 0.1
_log = structlog.get_logger(__name__)
_FULL = "every connection has a request in hand (maxHttpServerConnections); try again"


@dataclass(frozen=True, slots=True)
class Limits:
    """How many connections there may be, and how long each part of a request may take.

    Attributes:
        connections: open at the same time.
        head_seconds: for a TLS handshake, and for a request's line and headers.
        body_seconds: for a body; of one that is read while it is carried out, for each pause.
    """

    connections: int = 1_000
    head_seconds: float = 10.0
    body_seconds: float = 60.0


class Place:
    """What one connection holds while it is open."""

    def __init__(self, places: "Places") -> None:
        self._places = places
        self.end: Callable[[], object] = lambda: None
        """Ends the connection now, because another one needs the place."""

    def begin(self) -> None:
        """The connection has a request in hand."""
        self._places.waiting.pop(self, None)

    def finish(self) -> None:
        """It has answered, and waits for the next request."""
        if self in self._places.taken:
            self._places.waiting[self] = None

    def leave(self) -> None:
        """It is closed."""
        self._places.taken.discard(self)
        self._places.waiting.pop(self, None)


class Places:
    """The connections that are open, and which of them wait for a request, the longest first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken: set[Place] = set()
        self.waiting: dict[Place, None] = {}

    def take(self) -> Place | None:
        """A place for a connection that waits for its first request; None where there is no room."""
        if len(self.taken) >= self._most:
            longest = next(iter(self.waiting), None)
            if longest is None:
                return None
            longest.leave()
            longest.end()
        place = Place(self)
        self.taken.add(place)
        self.waiting[place] = None
        return place


class Entrance:
    """Accepts connections, gives each its place, secures it, and hands it to who speaks HTTP.

    asyncio's own server tells of a connection only after the TLS handshake: it cannot limit those that begin none.
    """

    def __init__(
        self, limits: Limits, tls: ssl.SSLContext | None, speaker: Callable[[Place], asyncio.Protocol]
    ) -> None:
        self._limits = limits
        self._places = Places(limits.connections)
        self._tls = tls
        self._speaker = speaker
        self._opening: set[asyncio.Task[None]] = set()

    async def accept(self, listening: socket.socket) -> None:
        """Accept until cancelled."""
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("a connection could not be accepted", error=str(error))
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            place = self._places.take()
            if place is None:
                self._refuse(accepted)
                continue
            opening = loop.create_task(self._open(loop, accepted, place))
            place.end = opening.cancel
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, place: Place) -> None:
        seconds = None if self._tls is None else self._limits.head_seconds
        try:
            await loop.connect_accepted_socket(
                lambda: self._speaker(place),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, asyncio.CancelledError):  # no TLS, none in time, or the place was needed
            place.leave()
            accepted.close()

    def _refuse(self, accepted: socket.socket) -> None:
        with accepted, suppress(OSError):
            if self._tls is None:
                accepted.send(error_answer(503, "Service Unavailable", _FULL))


def error_answer(status: int, phrase: str, reason: str) -> bytes:
    """An answer without the app's help, after which the connection is closed."""
    body = json.dumps({"reason": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
