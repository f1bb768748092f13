"""The HTTP server around the app: one process, and an orderly end.

It parses with httptools and runs on uvloop, where that exists: while a backlog drains, each answer has to wait for the
interpreter, and with h11 and asyncio it needs it longer and more often (docs/benchmarks.md).

Invariant: even a request that is not HTTP at all is answered with ``{"reason": ...}``.
"""

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from pulsar_sidecar.api.connections import Entrance, Limits, Place, error_answer
from pulsar_sidecar.api.gate import STREAMED
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.tls import load_certificate

_GRACE_SECONDS = 30
_MAX_HEAD_BYTES = 64 * 1024
_AROUND_HEADER_BYTES = len(": \r\n")
_MOST_PIPELINED = 512
"""Each request that waits takes a few kilobytes, and a piece of 256 KiB may hold ten thousand and more."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen; with both files the server speaks HTTPS."""

    host: str
    port: int
    certificate_file: Path | None = None
    key_file: Path | None = None


class _OnePieceAhead(FlowControl):
    """Reads nothing more while requests of the last piece wait for their turn; all but the last of them are whole."""

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class ReasonProtocol(HttpToolsProtocol):
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

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        limits: Limits,
        place: Place,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._limits = limits
        self._place = place

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.flow = _OnePieceAhead(transport, self.pipeline)
        self._place.end = transport.abort
        self._expect_within(self._limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_within(None)
        self._cancel_unread()
        self._place.leave()
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
            self._place.begin()
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise ValueError("too many requests wait behind one another")
        lines = sum(len(name) + len(value) + _AROUND_HEADER_BYTES for name, value in self.headers)
        if len(self.url) + lines > _MAX_HEAD_BYTES:
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.scope["path"].endswith(STREAMED) and not self.cycle.response_complete:
            self._expect_within(self._limits.body_seconds)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect_within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if not self.pipeline or self.transport.is_closing():
            self._place.finish()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._place.finish()  # it is the client who takes its time
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._cancel_unread()
            if self._is_answering():
                self._place.begin()

    def send_400_response(self, msg: str) -> None:
        reason = (
            f"this is not an HTTP/1.1 request, or its line or headers exceed {_MAX_HEAD_BYTES // 1024} KiB, "
            f"or more than {_MOST_PIPELINED} were sent without waiting for answers: {msg}"
        )
        self._end_with(400, "Bad Request", reason)

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
            self.transport.write(error_answer(status, phrase, reason))
            self._close()

    def _close(self) -> None:
        """The connection lasts until the client has taken what was written, but keeps nobody out and holds nothing."""
        self.transport.close()
        self.pipeline.clear()
        self._place.finish()
        self._expect_reading()


class DrainingServer(uvicorn.Server):
    """A server that says that it is stopping before it stops."""

    def __init__(
        self, config: uvicorn.Config, draining: threading.Event, limits: Limits, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(config)
        self._draining = draining
        self._limits = limits
        self._entrance = Entrance(limits, tls, self._speaker)
        self._accepting: list[asyncio.Task[None]] = []

    def _speaker(self, place: Place) -> ReasonProtocol:
        return ReasonProtocol(self.config, self.server_state, self.lifespan.state, self._limits, place)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's, except that it is us who accept."""
        await self.lifespan.startup()
        self.should_exit = self.should_exit or self.lifespan.should_exit
        self.servers = []
        self._accepting = [asyncio.create_task(self._entrance.accept(listening)) for listening in sockets or ()]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more; then as uvicorn's."""
        for accepting in self._accepting:
            accepting.cancel()
        await super().shutdown(sockets)

    def end(self) -> None:
        """End as after a signal; any thread may call it."""
        self._draining.set()
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._draining.set()
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, except that the process then ends with 0 and not by the signal it has obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in previous.items():
                signal.signal(sig, handler)


def listening_socket(endpoint: Endpoint) -> socket.socket:
    """A socket that accepts connections from now on; they wait until the server runs.

    Raises:
        InvalidInputError: the address is taken, or is not this machine's.
    """
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        listening = socket.create_server((endpoint.host, endpoint.port), family=family, backlog=512)
    except OSError as error:
        raise InvalidInputError(
            f"cannot listen on {endpoint.host} port {endpoint.port}: {error.strerror}; choose another one with listen"
        ) from error
    # Connections inherit it. asyncio sets it only on sockets that name TCP's number, which this one does not; without
    # it an answer's body waits up to 40 ms for the client's delayed acknowledgement of its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def server_for(
    app: ASGIApp, endpoint: Endpoint, draining: threading.Event, limits: Limits | None = None
) -> DrainingServer:
    """A server that is not running yet; ``run(sockets)`` blocks until SIGTERM or SIGINT has been obeyed.

    Raises:
        InvalidInputError: the certificate or its key cannot be used.
    """
    config = uvicorn.Config(
        app,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
    )
    return DrainingServer(config, draining, limits or Limits(), _tls(endpoint))


def _tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    if endpoint.certificate_file is None or endpoint.key_file is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, endpoint.certificate_file, endpoint.key_file)
    return context
