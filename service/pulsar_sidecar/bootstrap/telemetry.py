"""Traces, configured only by OpenTelemetry's own environment variables: off until these name a destination.

The SDK and its exporter are the extra ``telemetry``; the process imports them only if traces are on.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import structlog

from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.observability.tracing import record_with

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_LAST_SPANS_SECONDS = 3.0
"""Time for the last spans, because an unreachable collector must not delay the end of the process."""
log = structlog.get_logger("pulsar-sidecar")


def traces_wanted(environment: Mapping[str, str]) -> bool:
    """Return True if the environment names an exporter of traces, or an exporter's endpoint.

    Raises:
        InvalidInputError: the environment names an exporter or a protocol that the sidecar does not support.
    """
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip()
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return False
    if not exporter and not any(environment.get(name) for name in _ENDPOINTS):
        return False
    if exporter not in ("", "otlp"):
        raise InvalidInputError(f"OTEL_TRACES_EXPORTER={exporter} is unknown; set it to otlp or none")
    name, protocol = next(((name, environment[name]) for name in _PROTOCOLS if environment.get(name)), ("", _PROTOCOL))
    if protocol != _PROTOCOL:
        raise InvalidInputError(
            f"the sidecar sends traces over {_PROTOCOL} only, and {name} is {protocol}; remove it, and name the "
            "collector's HTTP port, which is 4318 by default"
        )
    return True


@contextmanager
def traces_sent(environment: Mapping[str, str], instance: str, version: str) -> Iterator[None]:
    """Send spans inside the ``with`` if the environment enables traces; flush within a few seconds at the end.

    Raises:
        InvalidInputError: see `traces_wanted`, or the extra is not installed.
    """
    if not traces_wanted(environment):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, SERVICE_VERSION, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise InvalidInputError(
            f"OTEL_* variables enable traces, but {error.name} is not installed: pip install "
            "'pulsar-sidecar[telemetry]', or set OTEL_TRACES_EXPORTER=none"
        ) from error
    own = Resource({SERVICE_NAME: "pulsar-sidecar", SERVICE_INSTANCE_ID: instance, SERVICE_VERSION: version})
    named = {SERVICE_NAME: name} if (name := environment.get("OTEL_SERVICE_NAME")) else {}
    resource = Resource.create().merge(own).merge(Resource(named))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    record_with(provider.get_tracer("pulsar-sidecar", version))
    log.info(
        "trace export enabled", endpoint=next((environment[each] for each in _ENDPOINTS if environment.get(each)), None)
    )
    try:
        yield
    finally:
        record_with(None)
        ending = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(_LAST_SPANS_SECONDS)
