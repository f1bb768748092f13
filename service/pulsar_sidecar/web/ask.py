"""Pages' requests to the REST server: for the signed-in caller, through the gate, with a cache of some seconds.

Pages follow a redirect once, and only to a sidecar that the service itself lists, so a token goes nowhere else.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import ASGIApp

from pulsar_sidecar.model.addresses import names_sidecar_at
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.server.answers import parse_answer
from pulsar_sidecar.server.authentication import CLIENT_CERTIFICATE
from pulsar_sidecar.web.cookies import token_of
from pulsar_sidecar.web.in_process import Answer, Parameters, RestRequest, call_gate, encoded_path, encoded_query
from pulsar_sidecar.web.readings import Reading, Readings, RefusedError

__all__ = ["Reading", "RefusedError", "RestClient", "SignInNeededError", "change", "changed", "path", "read"]

_T = TypeVar("_T")
KEEP_SECONDS = 4.0
"""Less than a page's refresh period, so that each refresh is new."""
_INSTANCES = "/admin/v2/ledger-deletion/status"

SendToPeer = Callable[[str, str, str | None, Any], Awaitable[Answer]]
"""Request to another sidecar: method, URL, Authorization, JSON body; raises `UnreachableError`."""

path = encoded_path


class SignInNeededError(RefusedError):
    """Raised when the caller has no credential, or an expired or invalid one."""


class RestClient:
    """Client of the pages of one process."""

    def __init__(self, gate: ASGIApp, clock: Clock, send_to_peer: SendToPeer) -> None:
        self._gate, self._send_to_peer = gate, send_to_peer
        self.readings = Readings(clock)

    async def call(self, request: Request, rest_request: RestRequest, token: str | None) -> Answer:
        """Return the response to a request by this credential, from another sidecar if the service redirects."""
        authorization = None if token is None else f"Bearer {token}"
        answer = await call_gate(self._gate, request.scope, authorization, rest_request)
        if answer.status != 307:
            return answer
        place = urlsplit(answer.location)
        listed = await call_gate(self._gate, request.scope, authorization, RestRequest("GET", _INSTANCES))
        if not names_sidecar_at(listed.value, answer.location):
            return Answer(502, {"reason": f"redirected to {place.netloc}, which is not a registered sidecar"})
        try:
            followed = await self._send_to_peer(rest_request.method, answer.location, authorization, rest_request.body)
        except UnreachableError as error:
            return Answer(503, {"reason": str(error)})
        if followed.status == 401:  # this sidecar knows the caller, perhaps only by a certificate
            reason = f"only the sidecar at {place.netloc} answers this, and it requires a token: use its dashboard"
            return Answer(403, {"reason": reason})
        return followed


async def read(
    request: Request, path: str, parameters: Parameters | None = None, keep_seconds: float = KEEP_SECONDS
) -> Reading:
    """Return the response to a GET of an encoded path, at most ``keep_seconds`` old.

    Raises only `SignInNeededError`; a failed read is a reading with a problem.
    """
    client, token = _client(request), token_of(request)
    rest_request = RestRequest("GET", path, encoded_query(parameters))
    key = (rest_request.target, _credential(request, token), request.headers.get("host"))
    reading = await client.readings.read(key, lambda: client.call(request, rest_request, token), keep_seconds)
    if reading.status == 401:
        raise SignInNeededError(401, reading.problem or "")
    return reading


async def change(
    request: Request, method: str, path: str, body: Any = None, parameters: Parameters | None = None
) -> Any:
    """Send a change once and return the response's JSON.

    Raises:
        SignInNeededError: the caller has to sign in.
        RefusedError: the REST server refused the change, or failed.
    """
    client = _client(request)
    try:
        answer = await client.call(
            request, RestRequest(method, path, encoded_query(parameters), body), token_of(request)
        )
    finally:
        client.readings.something_changed()
    if answer.status == 401:
        raise SignInNeededError(401, answer.reason)
    if answer.status >= 300:
        raise RefusedError(answer.status, answer.reason)
    return answer.value


async def changed(request: Request, kind: type[_T], method: str, path: str, body: object = None) -> _T:
    """Send a change once and return the response as ``kind``, or a list of it; raises as `change`."""
    return parse_answer(kind, await change(request, method, path, body))


async def verified_caller(request: Request, token: str) -> Answer:
    """Return the REST server's response on the caller with this token."""
    return await _client(request).call(request, RestRequest("GET", "/admin/v2/caller"), token)


def _client(request: Request) -> RestClient:
    client = request.app.state.client
    assert isinstance(client, RestClient)
    return client


def _credential(request: Request, token: str | None) -> bytes:
    shown = request.scope.get("state", {}).get(CLIENT_CERTIFICATE, b"") if token is None else token.encode()
    return hashlib.sha256(shown).digest()
