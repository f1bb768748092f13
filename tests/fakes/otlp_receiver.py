"""A collector of traces: an HTTP server that receives OTLP as protobuf and keeps the spans."""

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.fakes.http_servers import Answer, Arrived, http_server


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span; ``resource`` and ``attributes`` have only texts and numbers, ids are hexadecimal."""

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
    """A collector; ``headers`` are names and values of the requests' headers, in lower case."""

    url: str
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def of_trace(self, trace_id: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.trace_id == trace_id]


@contextmanager
def receiving() -> Iterator[OtlpReceiver]:
    """Run a collector on a free port of this machine."""

    receiver = OtlpReceiver("")

    def take(arrived: Arrived) -> Answer:
        headers = {name.lower(): value for name, value in arrived.headers.items()}
        if arrived.target != "/v1/traces" or headers["content-type"] != "application/x-protobuf":
            return Answer(404)
        body = gzip.decompress(arrived.body) if headers.get("content-encoding") == "gzip" else arrived.body
        receiver.headers.append(headers)
        receiver.spans.extend(_spans(ExportTraceServiceRequest.FromString(body)))
        return Answer(200)

    with http_server(take) as server:
        receiver.url = server.url
        yield receiver


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
