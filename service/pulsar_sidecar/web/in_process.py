"""A request to the REST door from within the process: the gate is called as a server would call it.

The request's id goes with the work by itself (`observability.tracing`), so log lines of both name the same request.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from starlette.types import ASGIApp, Message, Scope

from pulsar_sidecar.api.authentication import CLIENT_CERTIFICATE
from pulsar_sidecar.model.errors import InvalidInputError

_JSON_LINES = "application/x-ndjson"

Parameters = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the REST door answered.

    Attributes:
        value: the JSON, or a list of it from JSON lines; None for an empty body, or one that is not JSON.
        location: where a redirect leads.
    """

    status: int
    value: Any
    size: int = 0
    location: str = ""

    @property
    def reason(self) -> str:
        """Why it refused or failed."""
        named = self.value.get("reason") if isinstance(self.value, dict) else None
        return str(named) if named else f"the sidecar answered with status {self.status} and no reason"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request to a route.

    Attributes:
        path: encoded, as it is sent.
        query: encoded.
        body: JSON; None for none.
    """

    method: str
    path: str
    query: str = ""
    body: Any = None

    @property
    def target(self) -> str:
        """The path with the query."""
        return f"{self.path}?{self.query}" if self.query else self.path


def encoded_path(prefix: str, *segments: str) -> str:
    """``prefix`` and, below it, segments of any characters."""
    return "/".join((prefix, *(quote(segment, safe="") for segment in segments)))


def encoded_query(parameters: Parameters | None) -> str:
    """Those that have a value, booleans as JSON writes them."""
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    return urlencode({name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()})


async def ask_gate(gate: ASGIApp, caller: Scope, authorization: str | None, asked: Asked) -> Answer:
    """What the gate answers to ``asked``, by this credential, from the address that ``caller`` came from.

    `InvalidInputError` if its body has a number that is infinite, or not a number: JSON's null in its place is a limit
    that is taken away.
    """
    body = b"" if asked.body is None else _json(asked.body)
    received = _Received()
    scope = _scope_of(caller, authorization, asked, len(body))
    try:
        await gate(scope, _Body(body), received)
    except Exception:
        if not received.status:  # otherwise the answer to a defect is there, and the log has it
            raise
    return received.answer


def _json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise InvalidInputError("nothing was done: a number must be finite, such as 500") from error


def _scope_of(caller: Scope, authorization: str | None, asked: Asked, length: int) -> Scope:
    host = next((value for name, value in caller["headers"] if name == b"host"), b"")
    headers = [(b"host", host), (b"content-length", str(length).encode())]
    if asked.body is not None:
        headers.append((b"content-type", b"application/json"))
    if authorization is not None:
        headers.append((b"authorization", authorization.encode("latin-1", "replace")))
    certificate = caller.get("state", {}).get(CLIENT_CERTIFICATE)
    raw = asked.path.encode("ascii")
    return {
        **{name: caller[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")},
        "method": asked.method,
        "path": asked.path,
        "raw_path": raw,
        "root_path": "",
        "query_string": asked.query.encode("ascii"),
        "headers": headers,
        "state": {} if certificate is None else {CLIENT_CERTIFICATE: certificate},
    }


class _Body:
    """The whole body at once; afterwards a client that stays."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Received:
    """Puts the messages of an answer together."""

    def __init__(self) -> None:
        self.status = 0
        self._location = ""
        self._media_type = ""
        self._body = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = {bytes(name).lower(): bytes(value) for name, value in message.get("headers", ())}
            self._location = headers.get(b"location", b"").decode("latin-1")
            self._media_type = headers.get(b"content-type", b"").decode("latin-1")
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    @property
    def answer(self) -> Answer:
        return answer_of(self.status, bytes(self._body), self._location, self._media_type)


def answer_of(status: int, body: bytes, location: str = "", media_type: str = "") -> Answer:
    """An answer whose body may be JSON, JSON lines, or neither."""
    value: Any = None
    try:
        if media_type.startswith(_JSON_LINES):
            value = [orjson.loads(line) for line in body.splitlines()]
        elif body:
            value = orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    return Answer(status, value, len(body), location)
