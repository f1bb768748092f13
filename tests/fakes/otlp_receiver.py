"""A collector of traces: an HTTP server that takes OTLP as protobuf, and keeps the spans."""

import gzip
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Attributes: ``resource`` and ``attributes`` have only texts and numbers; ids are hexadecimal."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[str, ...]
    seconds: float
    failed: str | None
    attributes: dict[str, str | int | float]
    resource: dict[str, str | int | float]


@dataclass(slots=True)
class OtlpReceiver:
    """Attributes: ``headers`` are the names and values of the requests' headers, in lower case."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """A collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            known = self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if known:
                receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                receiver.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        resource = _values(of_resource.resource.attributes)
        for span in (each for scope in of_resource.scope_spans for each in scope.spans):
            yield ReceivedSpan(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                tuple(link.trace_id.hex() for link in span.links),
                (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None,
                _values(span.attributes),
                resource,
            )


def _values(attributes: Sequence[KeyValue]) -> dict[str, str | int | float]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}
