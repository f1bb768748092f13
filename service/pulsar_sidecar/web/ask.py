"""How pages ask the REST door: for the signed-in caller, through the gate, with what was read kept for seconds.

A redirect is followed once, and only to a sidecar that the service itself lists, so a token goes nowhere else.
"""

import hashlib
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.types import ASGIApp

from pulsar_sidecar.api.authentication import CLIENT_CERTIFICATE
from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.web.cookies import token_of
from pulsar_sidecar.web.in_process import Answer, Asked, Parameters, ask_gate, encoded_path, encoded_query
from pulsar_sidecar.web.readings import Reading, Readings, RefusedError

__all__ = ["Asker", "Reading", "RefusedError", "SignInNeededError", "change", "path", "read"]

KEEP_SECONDS = 4.0
"""Less than a page's period, so that what it reads again is new."""
_INSTANCES = "/admin/v2/ledger-deletion/status"

Elsewhere = Callable[[str, str, str | None, Any], Awaitable[Answer]]
"""Asks another sidecar: method, URL, Authorization, JSON body; `UnreachableError` if no answer comes."""

path = encoded_path


class SignInNeededError(RefusedError):
    """The caller has no credential, or none that verifies any more."""


class Asker:
    """What the pages of one process ask through."""

    def __init__(self, gate: ASGIApp, clock: Clock, elsewhere: Elsewhere) -> None:
        self._gate, self._elsewhere = gate, elsewhere
        self.readings = Readings(clock)

    async def ask(self, request: Request, asked: Asked, token: str | None) -> Answer:
        """The answer to one request, by this credential; of another sidecar where the service redirects to one."""
        authorization = None if token is None else f"Bearer {token}"
        answer = await ask_gate(self._gate, request.scope, authorization, asked)
        if answer.status != 307:
            return answer
        place = urlsplit(answer.location)
        listed = await ask_gate(self._gate, request.scope, authorization, Asked("GET", _INSTANCES))
        if not _is_listed(answer.location, listed.value):
            return Answer(502, {"reason": f"redirected to {place.netloc}, which is not a registered sidecar"})
        try:
            followed = await self._elsewhere(asked.method, answer.location, authorization, asked.body)
        except UnreachableError as error:
            return Answer(503, {"reason": str(error)})
        if followed.status == 401:  # this sidecar knows the caller, if only by a certificate
            reason = f"only the sidecar at {place.netloc} answers this, and it wants a token: look at its dashboard"
            return Answer(403, {"reason": reason})
        return followed


async def read(
    request: Request, path: str, parameters: Parameters | None = None, keep_seconds: float = KEEP_SECONDS
) -> Reading:
    """What a GET of an encoded path answers now, or answered ``keep_seconds`` ago at most.

    It raises nothing but `SignInNeededError`; what cannot be read is a reading with a problem.
    """
    asker, token = _asker(request), token_of(request)
    asked = Asked("GET", path, encoded_query(parameters))
    key = (asked.target, _credential(request, token), request.headers.get("host"))
    reading = await asker.readings.read(key, lambda: asker.ask(request, asked, token), keep_seconds)
    if reading.status == 401:
        raise SignInNeededError(401, reading.problem or "")
    return reading


async def change(
    request: Request, method: str, path: str, body: Any = None, parameters: Parameters | None = None
) -> Any:
    """Ask for a change, once; the answer's JSON.

    Raises:
        SignInNeededError: the caller has to sign in.
        RefusedError: the REST door refused, or it failed.
    """
    asker = _asker(request)
    try:
        answer = await asker.ask(request, Asked(method, path, encoded_query(parameters), body), token_of(request))
    finally:
        asker.readings.something_changed()
    if answer.status == 401:
        raise SignInNeededError(401, answer.reason)
    if answer.status >= 300:
        raise RefusedError(answer.status, answer.reason)
    return answer.value


async def verified_caller(request: Request, token: str) -> Answer:
    """Who calls by this token, as the REST door answers it."""
    return await _asker(request).ask(request, Asked("GET", "/admin/v2/caller"), token)


def _asker(request: Request) -> Asker:
    asker = request.app.state.asker
    assert isinstance(asker, Asker)
    return asker


def _credential(request: Request, token: str | None) -> bytes:
    shown = request.scope.get("state", {}).get(CLIENT_CERTIFICATE, b"") if token is None else token.encode()
    return hashlib.sha256(shown).digest()


def _is_listed(location: str, status: Any) -> bool:
    instances = status.get("instances", []) if isinstance(status, dict) else []
    return _place(location) in {_place(str(each.get("advertisedUrl"))) for each in instances}


def _place(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"
