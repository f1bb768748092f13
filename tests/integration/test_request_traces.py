"""Trace of a deletion on two sidecars in their logs and a collector of traces: from the request to the last ledger."""

import json
from collections.abc import Iterator
from typing import Any

import requests

from tests.cluster.deletion import Scene
from tests.cluster.patience import OPERATION_SECONDS, until
from tests.cluster.sidecars import SidecarProcess
from tests.fakes.otlp_receiver import OtlpReceiver, receiving

TRACE, CALLERS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "not-for-logs"


def lines_of(sidecar: SidecarProcess, request_id: str) -> Iterator[dict[str, Any]]:
    for text in sidecar.whole_log.splitlines():
        line = json.loads(text)
        if line.get("request_id") == request_id:
            yield line


def started(scene: Scene, receiver: OtlpReceiver) -> list[SidecarProcess]:
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-collector-token={SECRET}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
    }
    scene.sidecars.end_all()
    sidecars = [scene.sidecars.launch_in(environment, log_format="json") for _ in range(2)]
    for sidecar in sidecars:
        sidecar.wait_until_ready()
    return sidecars


def test_a_deletion_is_one_story_in_logs_and_traces(scene: Scene) -> None:
    topic = scene.topic("story")
    scene.workload.fill_with_everything(topic)
    with receiving() as receiver:
        sidecars = started(scene, receiver)
        before = scene.workload.ledgers(topic)
        answer = requests.delete(
            f"{sidecars[0].url}/admin/v2/{scene.workload.of_topic(topic)}",
            headers={"X-Request-Id": "story-1", "traceparent": f"00-{TRACE}-{CALLERS_SPAN}-01"},
            timeout=OPERATION_SECONDS,
        )
        assert (answer.status_code, answer.headers["X-Request-Id"]) == (204, "story-1")
        scene.oracles.add_accepted(before.all)
        scene.oracles.wait_for_finals(before.all)

        def lines() -> list[dict[str, Any]]:
            return [line for sidecar in sidecars for line in lines_of(sidecar, "story-1")]

        def decided() -> set[int]:
            return {each for line in lines() if line["event"] == "records decided" for each in line["ledger_ids"]}

        until(lambda: decided() >= before.all, "the log has the end of each ledger")
        events = {line["event"] for line in lines()}
        assert events >= {"topic deletion ended", "admin request", "records decided"}
        assert {line["trace_id"] for line in lines_of(sidecars[0], "story-1") if line["event"] == "admin request"} == {
            TRACE
        }

        def names() -> set[str]:
            return {span.name for span in receiver.of_trace(TRACE)}

        story = {"operation-created", "references-gathered", "records-sent", "broker-asked", "operation-ended"}
        until(lambda: names() >= {*story, "records decided"}, "the collector has the whole story")
        (server,) = [span for span in receiver.of_trace(TRACE) if span.parent_id == CALLERS_SPAN]
        assert server.name.startswith("DELETE /admin/v2/persistent/{")
        assert server.attributes["http.response.status_code"] == 204
        assert server.resource["service.name"] == "pulsar-sidecar"
        assert server.resource["service.instance.id"] == sidecars[0].name
        assert server.resource["deployment.environment.name"] == "tests"
        ends = [span for span in receiver.of_trace(TRACE) if span.name == "records decided"]
        assert {span.parent_id for span in ends} <= {span.span_id for span in receiver.of_trace(TRACE)}
        assert all(span.links for span in ends)
        assert {headers["x-collector-token"] for headers in receiver.headers} == {SECRET}
    # The collector is away from here on, which hinders neither the sidecars nor their end.
    assert [sidecar.terminate() for sidecar in sidecars] == [0, 0]
    assert not any(SECRET in sidecar.whole_log for sidecar in sidecars)
