"""OpenTelemetry's variables that enable traces, refused values, and spans at a collector."""

import builtins
from collections.abc import Mapping
from contextlib import AbstractContextManager

import pytest
from pulsar_sidecar.bootstrap import telemetry
from pulsar_sidecar.bootstrap.telemetry import traces_sent, traces_wanted
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import InvalidInputError
from pulsar_sidecar.model.request_traces import NO_REQUEST, RequestTrace
from pulsar_sidecar.observability.tracing import continuing, current_trace, record_share, span

from tests.fakes.otlp_receiver import receiving

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
CALLER = RequestTrace("r-1", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_traces_are_off_until_the_environment_names_where_to(environment: Mapping[str, str], *, wanted: bool) -> None:
    assert traces_wanted(environment) is wanted


@pytest.mark.parametrize(
    ("environment", "next_step"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "set it to otlp or none"),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is grpc; remove it"),
    ],
)
def test_unsupported_telemetry_fails_the_start(environment: Mapping[str, str], next_step: str) -> None:
    with pytest.raises(InvalidInputError, match=next_step):
        traces_wanted(environment)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_sdk(name: str, *arguments: object) -> object:
        if name.startswith("opentelemetry.exporter"):
            raise ModuleNotFoundError(name, name=name)
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_sdk)
    with pytest.raises(InvalidInputError, match=r"pip install 'pulsar-sidecar\[telemetry\]'"), _sent(ENDPOINT):
        pass


def test_a_collector_gets_the_spans_and_no_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        with _sent({"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url}):
            with continuing(CALLER, "call", {"topic": "a"}):
                with pytest.raises(ValueError, match="token"), span("step"):
                    _fail()
                handed_on = current_trace()
            with span("a batch of many"):
                record_share(handed_on, "share", 0.25, {"ledgers": 2})
                record_share(RequestTrace("r-2"), "without a trace", 1.0, {})
        spans = {each.name: each for each in receiver.spans}
    assert set(spans) == {"call", "step", "a batch of many", "share"}
    call, step, batch, share = (spans[name] for name in ("call", "step", "a batch of many", "share"))
    assert handed_on.request_id == "r-1"
    assert {each.trace_id for each in (call, step, share)} == {"0af7651916cd43dd8448eb211c80319c"}
    assert (call.parent_id, step.parent_id, share.parent_id) == ("b7ad6b7169203331", call.span_id, call.span_id)
    assert share.links == (batch.trace_id,)
    assert share.seconds == pytest.approx(0.25, abs=0.001)
    assert step.failed == "ValueError: token=[redacted]"
    assert call.resource["service.instance.id"] == "sidecar-1"


def test_a_collector_that_is_away_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(telemetry, "_LAST_SPANS_SECONDS", 0.1)
    began = SystemClock().monotonic_seconds()
    with _sent({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}), span("lost"):
        pass
    assert SystemClock().monotonic_seconds() - began < 2
    assert current_trace() == NO_REQUEST


def _sent(environment: Mapping[str, str]) -> AbstractContextManager[None]:
    return traces_sent(environment, "sidecar-1", "1.2.3")


def _fail() -> None:
    raise ValueError("token=abc123")
