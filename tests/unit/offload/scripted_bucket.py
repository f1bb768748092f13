"""A bucket behind HTTP that answers as a test wants, for what no well-behaved server does."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

EMPTY_LISTING = (
    b'<?xml version="1.0"?><ListBucketResult><Name>copies</Name><Prefix></Prefix><KeyCount>0</KeyCount>'
    b"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)


@dataclass(frozen=True, slots=True)
class Request:
    """What arrived: the path is decoded and without its query."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


ABSENT = Answer(404)


def present(prefix: str, **user_metadata: str) -> Answer:
    """A HEAD's answer, with user metadata under the provider's own header prefix."""
    named = {f"{prefix}{name}": value for name, value in user_metadata.items()}
    return Answer(200, {"Last-Modified": "Fri, 20 Nov 2026 11:35:40 GMT", "ETag": '"x"', **named})


class ScriptedBucket:
    """Answers from a function; keeps what arrived.

    Attributes:
        url: where it listens.
        requests: what arrived, in order.
        answer: decides; replace it at any time.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.answer: Callable[[Request], Answer] = lambda _: ABSENT

    def methods(self) -> list[str]:
        return [request.method for request in self.requests]


@contextmanager
def scripted_bucket() -> Iterator[ScriptedBucket]:
    """A bucket that listens on the loopback address until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def _respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, unquote(urlsplit(self.path).path), dict(self.headers.items()))
            bucket.requests.append(request)
            answer = bucket.answer(request)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - the names the server looks for

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bucket = ScriptedBucket(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield bucket
        finally:
            server.shutdown()
            thread.join()
