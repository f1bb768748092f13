"""A bookie's HTTP admin API in this process, in good order and in trouble."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from tests.fakes.http_servers import Answer, Arrived, http_server


@dataclass(slots=True)
class BookieHttpServer:
    """A bookie's HTTP server.

    Attributes:
        trouble: verbs and paths that return 500.
        answers: bodies by verb and path; others return 500.
    """

    url: str = ""
    trouble: set[str] = field(default_factory=set)
    answers: dict[str, bytes] = field(default_factory=dict)
    delay_seconds: float = 0.0

    def answer(self, arrived: Arrived) -> Answer:
        what = f"{arrived.method} {urlsplit(arrived.target).path}"
        time.sleep(self.delay_seconds)
        body = None if what in self.trouble else self.answers.get(what)
        return Answer(500, b"Internal Server Error") if body is None else Answer(200, body)


@contextmanager
def bookie_http_server() -> Iterator[BookieHttpServer]:
    bookie = BookieHttpServer()
    with http_server(bookie.answer) as server:
        bookie.url = server.url
        yield bookie
