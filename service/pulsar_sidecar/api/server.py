"""The HTTP server around the app: one process, and an orderly end.

It parses with httptools and runs on uvloop, where that exists: while a backlog drains, each answer has to wait for the
interpreter, and with h11 and asyncio it needs it longer and more often (docs/benchmarks.md).

Invariants: even a request that is not HTTP at all is answered with ``{"reason": ...}``; no client can shut others out
by holding connections. No more are open than `Limits` allows, those in a TLS handshake included; one more takes the
place of the connection that has waited longest without a request, and is refused only where every one has a request in
hand; a handshake, a request's head and its body come within their time, or the connection ends.
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

from pulsar_sidecar.api.authentication import CLIENT_CERTIFICATE
from pulsar_sidecar.api.guard import READS_IN_PARTS
from pulsar_sidecar.api.listener_tls import ListenerTls, reloaded_context
from pulsar_sidecar.model.errors import InvalidInputError

_THREADS = 1_000
"""As many as connections by default; `guard` keeps one kind of request from taking most of them."""
_GRACE_SECONDS = 30
_ACCEPT_AGAIN_SECONDS = 0.1
_MAX_HEAD_BYTES = 64 * 1024
_AROUND_HEADER_BYTES = len(": \r\n")
_MOST_PIPELINED = 512
"""Each request that waits takes a few kilobytes, and a piece of 256 KiB may hold ten thousand and more."""
_FULL = "every connection has a request in hand (maxHttpServerConnections); try again"
_log = structlog.get_logger(__name__)


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


class _OnePieceAhead(FlowControl):
    """Reads nothing more while requests of the last piece wait for their turn; all but the last of them are whole."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class _Connection(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with limits for a request's size and time, and our body for what cannot be parsed."""

    _begun_head_bytes = 0
    """What has been read of a head whose end has not come, without the piece in which it began."""
    _in_head = False
    _head_goes_on = False
    """The head is not one that began in the piece that is being read."""
    _deadline: asyncio.TimerHandle | None = None
    _asked = False
    _unread: asyncio.TimerHandle | None = None
    """Runs while the client does not take what was written for it."""

    def __init__(self, server: "DrainingServer") -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._server, self._limits = server, server.limits
        self.end: Callable[[], object] = lambda: None
        """Ends the connection now, because another one needs its place."""

    def leave(self) -> None:
        """The connection is closed."""
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
        if self not in self._server.taken:  # its place was needed meanwhile; uvloop does not report that it is lost
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
            self._expect_within(self._limits.head_seconds)  # an empty line, which begins nothing

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
        self._finish()  # it is the client who takes its time
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
        """A request is in hand."""
        self._server.waiting.pop(self, None)

    def _finish(self) -> None:
        """It is answered; the connection waits for the next one."""
        if self in self._server.taken:
            self._server.waiting[self] = None

    def _expect_within(self, seconds: float | None) -> None:
        """The next part of a request comes within this time; None: nothing is expected."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._too_slow)

    def _is_answering(self) -> bool:
        return self._asked and not self.cycle.response_complete

    def _expect_reading(self) -> None:
        """The client takes some of what was written within the time for a body, and again until little is left."""
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
        if self.flow.read_paused or (self._in_head and answering):  # it is us who take their time
            self._expect_within(self._limits.body_seconds)
        elif self._in_head or (answering and not self.cycle.response_started):
            self._end_with(408, "Request Timeout", "the request did not come in time; send it again")
        else:
            self._close()

    def _end_with(self, status: int, phrase: str, reason: str) -> None:
        if not self.transport.is_closing():
            self.transport.write(_error_answer(status, phrase, reason))
            self._close()

    def _close(self) -> None:
        """It lasts until the client has taken what was written; it keeps no other client out and holds nothing."""
        self.transport.close()
        self.pipeline.clear()
        self._finish()
        self._expect_reading()


class DrainingServer(uvicorn.Server):
    """A server that reports that it is stopping before it stops, and accepts connections itself.

    asyncio's own server reports a connection only after the TLS handshake: it cannot limit those that begin none.

    Attributes:
        taken: the connections that are open.
        waiting: those of them that wait for a request, the longest first.
        closing: called at the end, on the event loop.
    """

    def __init__(
        self,
        app: ASGIApp,
        draining: threading.Event,
        limits: Limits | None = None,
        tls: ListenerTls | None = None,
    ) -> None:
        """A server that is not running yet; ``run(sockets)`` blocks until SIGTERM or SIGINT has been obeyed.

        With ``tls`` it speaks HTTPS; `InvalidInputError` if its files cannot be used.
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
        """As uvicorn's, except that it is us who accept."""
        current_default_thread_limiter().total_tokens = _THREADS
        self.servers = []
        self._accepting = [asyncio.create_task(self._accept(listening)) for listening in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more; then as uvicorn's."""
        for accepting in self._accepting:
            accepting.cancel()
        await super().shutdown(sockets)
        for close in self.closing:
            await close()

    def end(self) -> None:
        """End as after a signal; any thread may call it."""
        self._draining.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """As uvicorn's, except that the process then ends with 0 and not by the signal it has obeyed."""
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
        """A connection that waits for its first request; None where there is no room."""
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
        except (OSError, asyncio.CancelledError):  # no TLS, none in time, or the place was needed
            connection.leave()
            accepted.close()


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that accepts connections from now on; they wait until the server runs.

    `InvalidInputError` if the address is taken, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another one with listen"
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name TCP's number, which this one does not; without
    # it an answer's body waits up to 40 ms for the client's delayed acknowledgement of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _error_answer(status: int, phrase: str, reason: str) -> bytes:
    """An answer without the app's help, after which the connection is closed."""
    body = json.dumps({"reason": reason}).encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
