"""A bucket behind HTTP that answers as a test wants, for what no well-behaved server does."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from tests.fakes.http_servers import Answer, Arrived, http_server

EMPTY_LISTING = (
    b'<?xml version="1.0"?><ListBucketResult><Name>copies</Name><Prefix></Prefix><KeyCount>0</KeyCount>'
    b"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated></ListBucketResult>"
)


@dataclass(frozen=True, slots=True)
class Request:
    """Received request: the path is decoded, without its query."""

    method: str
    path: str
    headers: Mapping[str, str]


ABSENT = Answer(404)


def present(prefix: str, **user_metadata: str) -> Answer:
    """A HEAD's answer, with user metadata under the provider's own header prefix."""
    named = {f"{prefix}{name}": value for name, value in user_metadata.items()}
    return Answer(200, headers={"Last-Modified": "Fri, 20 Nov 2026 11:35:40 GMT", "ETag": '"x"', **named})


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

    bucket = ScriptedBucket("")

    def answer(arrived: Arrived) -> Answer:
        request = Request(arrived.method, unquote(urlsplit(arrived.target).path), arrived.headers)
        bucket.requests.append(request)
        return bucket.answer(request)

    with http_server(answer) as server:
        bucket.url = server.url
        yield bucket
