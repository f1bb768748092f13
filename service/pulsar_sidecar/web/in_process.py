"""Requests to the REST server from within the process: pages call the gate like the HTTP server does.

The request's id is inherited (`observability.tracing`), so log lines of both name the same request.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import orjson
from starlette.types import ASGIApp, Message, Scope

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.server.authentication import CLIENT_CERTIFICATE

_JSON_LINES = "application/x-ndjson"

Parameters = Mapping[str, str | int | bool | None]


@dataclass(frozen=True, slots=True)
class Answer:
    """A response of the REST server.

    Attributes:
        value: JSON value, or a list from JSON lines; None for a body that is empty or not JSON.
        size: bytes of the body.
        location: target of a redirect.
    """

    status: int
    value: Any
    size: int = 0
    location: str = ""

    @property
    def reason(self) -> str:
        """Reason of a refusal or failure."""
        named = self.value.get("reason") if isinstance(self.value, dict) else None
        return str(named) if named else f"the sidecar answered with status {self.status} and no reason"


@dataclass(frozen=True, slots=True)
class RestRequest:
    """A request to a route.

    Attributes:
        path: encoded path.
        query: encoded query.
        body: JSON body; None for none.
    """

    method: str
    path: str
    query: str = ""
    body: Any = None

    @property
    def target(self) -> str:
        """Path with the query."""
        return f"{self.path}?{self.query}" if self.query else self.path


def encoded_path(prefix: str, *segments: str) -> str:
    """Return a path of ``prefix`` and encoded segments of any characters."""
    return "/".join((prefix, *(quote(segment, safe="") for segment in segments)))


def encoded_query(parameters: Parameters | None) -> str:
    """Return the query of the parameters that have a value, with booleans as in JSON."""
    given = {name: value for name, value in (parameters or {}).items() if value is not None}
    return urlencode({name: str(value).lower() if isinstance(value, bool) else value for name, value in given.items()})


async def call_gate(gate: ASGIApp, caller: Scope, authorization: str | None, rest_request: RestRequest) -> Answer:
    """Return the gate's response to a request by this credential, from the address of ``caller``.

    Raises:
        InvalidInputError: the body has an infinite number or a NaN; JSON's null instead would remove a limit.
    """
    body = b"" if rest_request.body is None else _json(rest_request.body)
    received = _Received()
    scope = _scope_of(caller, authorization, rest_request, len(body))
    try:
        await gate(scope, _Body(body), received)
    except Exception:
        if not received.status:  # otherwise there is a response to the defect, and the log has it
            raise
    return received.answer


def _json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError as error:
        raise InvalidInputError("nothing was done: a number must be finite, such as 500") from error


def _scope_of(caller: Scope, authorization: str | None, rest_request: RestRequest, length: int) -> Scope:
    host = next((value for name, value in caller["headers"] if name == b"host"), b"")
    headers = [(b"host", host), (b"content-length", str(length).encode())]
    if rest_request.body is not None:
        headers.append((b"content-type", b"application/json"))
    if authorization is not None:
        headers.append((b"authorization", authorization.encode("latin-1", "replace")))
    certificate = caller.get("state", {}).get(CLIENT_CERTIFICATE)
    raw = rest_request.path.encode("ascii")
    return {
        **{name: caller[name] for name in ("type", "asgi", "http_version", "scheme", "client", "server")},
        "method": rest_request.method,
        "path": rest_request.path,
        "raw_path": raw,
        "root_path": "",
        "query_string": rest_request.query.encode("ascii"),
        "headers": headers,
        "state": {} if certificate is None else {CLIENT_CERTIFICATE: certificate},
    }


class _Body:
    """ASGI receive of the whole body at once, from a client that stays connected."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body

    async def __call__(self) -> Message:
        if self._body is None:
            await asyncio.get_running_loop().create_future()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Received:
    """ASGI send that collects the messages of a response."""

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
    """Return a response whose body may be JSON, JSON lines, or neither."""
    value: Any = None
    try:
        if media_type.startswith(_JSON_LINES):
            value = [orjson.loads(line) for line in body.splitlines()]
        elif body:
            value = orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    return Answer(status, value, len(body), location)
