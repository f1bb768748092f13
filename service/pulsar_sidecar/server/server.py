"""The HTTP server around the app: one process, with a graceful shutdown.

It parses with httptools and runs on uvloop where that exists: while a backlog drains, each response waits for the
interpreter, which h11 and asyncio need longer and more often (docs/benchmarks.md).

Invariants: the server returns ``{"reason": ...}`` even for bytes that are not HTTP; no client can shut others out by
holding connections. At most as many are open as `Limits` allows, those in a TLS handshake included; a new one evicts
the connection that has been idle longest, and is refused only if every connection has a current request; a handshake,
a request's head and its body arrive within their time, or the server ends the connection.
"""

import asyncio
import json
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType

import structlog
import uvicorn
from anyio.to_thread import current_default_thread_limiter
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.server.authentication import CLIENT_CERTIFICATE
from pulsar_sidecar.server.guard import READS_IN_PARTS
from pulsar_sidecar.server.listener_tls import ListenerTls, reloaded_context

_THREADS = 1_000
"""The default number of connections; `guard` keeps one kind of request from taking most threads."""
_GRACE_SECONDS = 30
_ACCEPT_AGAIN_SECONDS = 0.1
_MAX_HEAD_BYTES = 64 * 1024
_AROUND_HEADER_BYTES = len(": \r\n")
_MOST_PIPELINED = 512
"""A waiting request takes a few kilobytes, and a piece of 256 KiB may hold more than ten thousand."""
_FULL = "every connection is busy with a request (maxHttpServerConnections); try again"
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the number of connections and of the time for each part of a request.

    Attributes:
        connections: most connections open at the same time.
        head_seconds: time for a TLS handshake, and for a request's line and headers.
        body_seconds: time for a body; for each pause of a streamed one.
    """

    connections: int = 1_000
    head_seconds: float = 10.0
    body_seconds: float = 60.0


class _OnePieceAhead(FlowControl):
    """Flow control that pauses reads until the pipelined requests of the last piece finish.

    All but the last of these requests are complete.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class _Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 with limits of a request's size and time, and a response to unparsable requests."""

    _begun_head_bytes = 0
    """Bytes read of an unfinished head, without the piece in which it began."""
    _in_head = False
    _head_goes_on = False
    """True if the head began before the current piece."""
    _deadline: asyncio.TimerHandle | None = None
    _asked = False
    _unread: asyncio.TimerHandle | None = None
    """Timer that runs while the client does not read the response."""

    def __init__(self, server: "DrainingServer") -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._server, self._limits = server, server.limits
        self.end: Callable[[], object] = lambda: None
        """Aborts the connection at once, because a new one evicts it."""

    def leave(self) -> None:
        """Release the connection's place."""
        self._server.taken.discard(self)
        self._server.waiting.pop(self, None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.flow = _OnePieceAhead(transport, self.pipeline)
        self.end = transport.abort
        encrypted = transport.get_extra_info("ssl_object")
        if encrypted is not None:
            shown = encrypted.getpeercert(binary_form=True)
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: shown}
        if self not in self._server.taken:  # evicted meanwhile; uvloop does not report the loss
            self.connections.discard(self)
            transport.abort()
            return
        self._expect_within(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        self._cancel_unread()
        self.leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_goes_on = self._in_head
        super().data_received(data)
        if self._in_head and self._head_goes_on:
            self._begun_head_bytes += len(data)
            if self._begun_head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("its head does not end")
        waits = self._deadline is not None or self.timeout_keep_alive_task is not None
        if not waits and not self._is_answering() and not self.transport.is_closing():
            self._expect_within(self._limits.head_seconds)  # an empty line begins no request

    def on_message_begin(self) -> None:
        self._in_head, self._head_goes_on, self._begun_head_bytes = True, False, 0
        self._expect_within(self._limits.head_seconds)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._asked = False, True
        self._expect_within(self._limits.body_seconds)
        if not self.flow.write_paused:
            self._begin()
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many requests wait behind one another")
        lines = sum(len(name) + len(value) + _AROUND_HEADER_BYTES for name, value in self.headers)
        if len(self.url) + lines > _MAX_HEAD_BYTES:
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.scope["state"].get(READS_IN_PARTS) and not self.cycle.response_complete:
            self._expect_within(self._limits.body_seconds)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect_within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline or self.transport.is_closing():
            self._finish()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._finish()  # the client is slow, not the server
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_unread()
            if self._is_answering():
                self._begin()

    def send_400_response(self, msg: str) -> None:
        reason = (
            f"this is not an HTTP/1.1 request, or its line or headers exceed {_MAX_HEAD_BYTES // 1024} KiB, "
            f"or more than {_MOST_PIPELINED} were sent without waiting for answers: {msg}"
        )
        self._end_with(400, "Bad Request", reason)

    def _begin(self) -> None:
        """Mark the connection as busy with a request."""
        self._server.waiting.pop(self, None)

    def _finish(self) -> None:
        """Mark the connection as idle after a response."""
        if self in self._server.taken:
            self._server.waiting[self] = None

    def _expect_within(self, seconds: float | None) -> None:
        """Set the deadline for the next part of a request; None sets none."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _is_answering(self) -> bool:
        return self._asked and not self.cycle.response_complete

    def _expect_reading(self) -> None:
        """Require the client to read some of the response within the time for a body, until little is left."""
        self._cancel_unread()
        left = self.transport.get_write_buffer_size()
        self._unread = self.loop.call_later(self._limits.body_seconds, self._abort_unless_read, left)

    def _abort_unless_read(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._expect_reading()
        else:
            self.transport.abort()

    def _cancel_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None

    def _too_slow(self) -> None:
        answering = self._is_answering()
        if self.flow.read_paused or (self._in_head and answering):  # the server is slow, not the client
            self._expect_within(self._limits.body_seconds)
        elif self._in_head or (answering and not self.cycle.response_started):
            self._end_with(408, "Request Timeout", "the request did not arrive in time; send it again")
        else:
            self._close()

    def _end_with(self, status: int, phrase: str, reason: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_error_answer(status, phrase, reason))
            self._close()

    def _close(self) -> None:
        """Close once the client has read the response; until then the connection can be evicted."""
        self.transport.close()
        self.pipeline.clear()
        self._finish()
        self._expect_reading()


class DrainingServer(uvicorn.Server):
    """A server that reports its shutdown before it begins, and accepts connections itself.

    asyncio's own server reports a connection only after the TLS handshake: it cannot limit connections without one.

    Attributes:
        taken: open connections.
        waiting: idle ones among them, the longest idle first.
        closing: functions that the event loop calls at the end.
    """

    def __init__(
        self,
        app: ASGIApp,
        draining: threading.Event,
        limits: Limits | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        """Initialise a server; ``run(sockets)`` blocks until it has shut down after SIGTERM or SIGINT.

        With ``tls`` it speaks HTTPS; raises `InvalidInputError` if its files cannot be used.
        """
        config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        super().__init__(config)
        self._draining = draining
        self.limits = limits or Limits()
        self.closing: list[Callable[[], Awaitable[None]]] = []
        self.taken: set[_Connection] = set()
        self.waiting: dict[_Connection, None] = {}
        self._tls = None if tls is None else reloaded_context(tls)
        self._accepting: list[asyncio.Task[None]] = []
        self._opening: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start like uvicorn, but accept connections here."""
        current_default_thread_limiter().total_tokens = _THREADS
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, then shut down like uvicorn."""
        for accepting in self._accepting:
            accepting.cancel()
        await super().shutdown(sockets)
        for close in self.closing:
            await close()

    def end(self) -> None:
        """Shut down as after a signal; any thread may call it."""
        self._draining.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal like uvicorn, except that the process then exits with 0 instead of by the signal."""
        self.force_exit = self.force_exit or (self.should_exit and sig == signal.SIGINT)
        self.end()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("a connection could not be accepted", error=str(error))
                await asyncio.sleep(_ACCEPT_AGAIN_SECONDS)
                continue
            connection = self._take_place()
            if connection is None:
                with accepted, suppress(OSError):
                    if self._tls is None:
                        accepted.send(_error_answer(503, "Service Unavailable", _FULL))
                continue
            opening = loop.create_task(self._open(loop, accepted, connection))
            connection.end = opening.cancel
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    def _take_place(self) -> _Connection | None:
        """Return a connection that waits for its first request; None if every connection is busy."""
        if len(self.taken) >= self.limits.connections:
            longest = next(iter(self.waiting), None)
            if longest is None:
                return None
            longest.leave()
            longest.end()
        connection = _Connection(self)
        self.taken.add(connection)
        self.waiting[connection] = None
        return connection

    async def _open(self, loop: asyncio.AbstractEventLoop, accepted: socket.socket, connection: _Connection) -> None:
        seconds = None if self._tls is None else self.limits.head_seconds
        try:
            await loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if self._tls is None else self._tls.current(),
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except (OSError, asyncio.CancelledError):  # no TLS, none in time, or evicted
            connection.leave()
            accepted.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that queues connections until the server runs.

    Raises:
        InvalidInputError: the address is taken, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another one with listen"
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name TCP's number, unlike this one; without it an
    # response's body waits up to 40 ms for the client's delayed acknowledgement of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _error_answer(status: int, phrase: str, reason: str) -> bytes:
    """Return a response made without the app, after which the server closes the connection."""
    body = json.dumps({"reason": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
