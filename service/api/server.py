"""The HTTP server around the app: one process, and an orderly end.

It parses with httptools and runs on uvloop, where that exists: while a backlog drains, each answer has to wait for the
interpreter, and with h11 and asyncio it needs it longer and more often (docs/benchmarks.md).

Invariant: even a request that is not HTTP at all is answered with ``{"reason": ...}``.
"""

import json
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.model.errors import InvalidInputError

_GRACE_SECONDS = 30
_MAX_HEAD_BYTES = 64 * 1024
_AROUND_HEADER_BYTES = len(": \r\n")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to listen; with both files the server speaks HTTPS."""

    host: str
    port: int
    certificate_file: Path | None = None
    key_file: Path | None = None


class ReasonProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with a limit for a request's line and headers, and our body for what cannot be parsed."""

    _begun_head_bytes = 0
    """What has been read of a head whose end has not come, without the piece in which it began."""
    _in_head = False
    _head_goes_on = False
    """The head is not one that began in the piece that is being read."""

    def data_received(self, data: bytes) -> None:
        self._head_goes_on = self._in_head
        super().data_received(data)
        if self._in_head and self._head_goes_on:
            self._begun_head_bytes += len(data)
            if self._begun_head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("its head does not end")

    def on_message_begin(self) -> None:
        self._in_head, self._head_goes_on, self._begun_head_bytes = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        lines = sum(len(name) + len(value) + _AROUND_HEADER_BYTES for name, value in self.headers)
        if len(self.url) + lines > _MAX_HEAD_BYTES:
            raise ValueError("the head is too large")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        reason = f"this is no HTTP/1.1 request, or its line or headers exceed {_MAX_HEAD_BYTES // 1024} KiB: {msg}"
        body = json.dumps({"reason": reason}).encode()
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class DrainingServer(uvicorn.Server):
    """A server that says that it is stopping before it stops."""

    def __init__(self, config: uvicorn.Config, draining: threading.Event) -> None:
        super().__init__(config)
        self._draining = draining

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


def server_for(app: FastAPI, endpoint: Endpoint, draining: threading.Event) -> DrainingServer:
    """A server that is not running yet; ``run(sockets)`` blocks until SIGTERM or SIGINT has been obeyed."""
    config = uvicorn.Config(
        app,
        http=ReasonProtocol,
        ws="none",
        loop="asyncio" if sys.platform == "win32" else "uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_SECONDS,
        ssl_certfile=endpoint.certificate_file,
        ssl_keyfile=endpoint.key_file,
    )
    return DrainingServer(config, draining)
