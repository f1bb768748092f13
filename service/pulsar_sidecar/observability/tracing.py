"""The request that this thread or task works for: its id in each log line, and its spans where tracing is configured.

The id and the spans travel as a `RequestTrace`, in nodes and messages' properties; `continuing` takes up the work
elsewhere. Spans are OpenTelemetry's; without a tracer (`record_with`) there are none, and nothing is carried on.

Invariant: no span holds what a log line would not: no query, no body, no header, and errors' texts are redacted.
"""

import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    get_current_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pulsar_sidecar.model.request_traces import TRACE_PARENT, RequestTrace
from pulsar_sidecar.observability.redaction import redacted_text

Attributes = Mapping[str, str | int | float | bool]
_MAX_ERROR = 300
_PROPAGATOR = TraceContextTextMapPropagator()
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)


class _Recording:
    tracer: Tracer | None = None


def record_with(tracer: Tracer | None) -> None:
    """Begin spans with this tracer from now on; with None, the initial state, there are no spans."""
    _Recording.tracer = tracer


def current_trace() -> RequestTrace:
    """Return the trace to hand over to work that continues elsewhere."""
    carrier: dict[str, str] = {}
    if _Recording.tracer is not None:
        _PROPAGATOR.inject(carrier)
    return RequestTrace(_request_id.get(), carrier.get(TRACE_PARENT))


@contextmanager
def identified(request_id: str | None) -> Iterator[None]:
    """Add the request's id to each log line of this thread or task inside the context."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)


@contextmanager
def continuing(
    request: RequestTrace, name: str, attributes: Attributes | None = None, kind: SpanKind = SpanKind.INTERNAL
) -> Iterator[Span]:
    """Work for this request: `identified`, and in a span of its trace, or of a new one if it has none."""
    with identified(request.request_id), _span(name, attributes, kind, request) as begun:
        yield begun


@contextmanager
def span(name: str, attributes: Attributes | None = None) -> Iterator[Span]:
    """Open a span below the present one."""
    with _span(name, attributes, SpanKind.INTERNAL, None) as begun:
        yield begun


def record_share(request: RequestTrace, name: str, seconds: float, attributes: Attributes) -> None:
    """Record a span of the request's own trace for its share of the present span, which serves many requests.

    Does nothing for a request without a trace.
    """
    tracer = _Recording.tracer
    if tracer is None or request.parent is None:
        return
    end_ns = time.time_ns()
    begin_ns = end_ns - int(seconds * 1e9)
    links = [Link(get_current_span().get_span_context())]
    begun = tracer.start_span(name, _context_of(request), SpanKind.CONSUMER, attributes, links, begin_ns)
    begun.end(end_ns)


def _context_of(request: RequestTrace) -> Context:
    return _PROPAGATOR.extract({} if request.parent is None else {TRACE_PARENT: request.parent}, Context())


def add_request(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Structlog processor: add the ids of the request and the span that a line belongs to."""
    request_id = _request_id.get()
    if request_id is not None:
        event.setdefault("request_id", request_id)
    if _Recording.tracer is not None and (present := get_current_span().get_span_context()).is_valid:
        event.setdefault("trace_id", format_trace_id(present.trace_id))
        event.setdefault("span_id", format_span_id(present.span_id))
    return event


@contextmanager
def _span(name: str, attributes: Attributes | None, kind: SpanKind, request: RequestTrace | None) -> Iterator[Span]:
    tracer = _Recording.tracer
    if tracer is None:  # then nothing reads the parent, which would cost every request more than its id
        yield INVALID_SPAN
        return
    context = None if request is None else _context_of(request)
    with tracer.start_as_current_span(
        name, context, kind, attributes, record_exception=False, set_status_on_exception=False
    ) as begun:
        try:
            yield begun
        except BaseException as error:
            text = redacted_text(f"{type(error).__name__}: {error}")[:_MAX_ERROR]
            begun.set_status(Status(StatusCode.ERROR, text))
            raise
