"""The outermost layer: it gives each request an id, which the response names, and a span if tracing is configured.

Both follow the work across threads and processes (`observability.tracing`).
"""

import uuid
from dataclasses import replace

from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_sidecar.model.request_traces import TRACE_PARENT, RequestTrace
from pulsar_sidecar.observability.tracing import continuing, identified
from pulsar_sidecar.server.gate import OPEN_PATHS
from pulsar_sidecar.server.guard import ROUTE

HEADER = "x-request-id"
_MOST_OF_A_PATH = 500


class RequestIds:
    """The layer around the gate."""

    def __init__(self, gate: ASGIApp) -> None:
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._gate(scope, receive, send)
            return
        request = _request_of(scope)
        answered = [(HEADER.encode(), str(request.request_id).encode())]

        async def name(message: Message) -> None:
            if message["type"] == "http.response.start":
                others = (each for each in message.get("headers", ()) if each[0].lower() != HEADER.encode())
                message = {**message, "headers": [*others, *answered]}
            await send(message)

        path = scope["raw_path"].decode("latin-1")
        if path in OPEN_PATHS:  # called every few seconds: they would cause most recorded spans
            with identified(request.request_id):
                await self._gate(scope, receive, name)
            return
        attributes = {"http.request.method": scope["method"], "url.path": path[:_MOST_OF_A_PATH]}
        with continuing(request, scope["method"], attributes, SpanKind.SERVER) as span:
            await self._gate(scope, receive, _noting(scope, span, name))


def _request_of(scope: Scope) -> RequestTrace:
    """Return the caller's trace and request id, with a new id if the caller sent no valid one."""
    headers = Headers(scope=scope)
    request = RequestTrace.read(headers.get(HEADER), headers.get(TRACE_PARENT))
    return request if request.request_id is not None else replace(request, request_id=uuid.uuid4().hex)


def _noting(scope: Scope, span: Span, send: Send) -> Send:
    async def note(message: Message) -> None:
        if message["type"] == "http.response.start":
            span.set_attribute("http.response.status_code", message["status"])
            if message["status"] >= 500:
                span.set_status(Status(StatusCode.ERROR))
            if (route := scope.get("state", {}).get(ROUTE)) is not None:
                span.set_attribute("http.route", route)
                span.update_name(f"{scope['method']} {route}")
        await send(message)

    return note
