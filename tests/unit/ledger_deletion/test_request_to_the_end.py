"""A request's id is in all that follows from it, whichever sidecar does it, up to the last outcome of its records."""

from dataclasses import replace

import structlog
from pulsar_sidecar.features.ledger_deletion.ports import DeletionTopic
from pulsar_sidecar.features.ledger_deletion.record import encode_record
from pulsar_sidecar.features.ledger_deletion.results import OperationState, SidecarInstance
from pulsar_sidecar.features.ledger_deletion.second_phase.retry import RetryPolicy, fresh, reconsume
from pulsar_sidecar.features.ledger_deletion.send import list_dead_letters
from pulsar_sidecar.features.ledger_deletion.topic_deletion.following import end_of
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import TopicName
from pulsar_sidecar.model.request_traces import NO_REQUEST, REQUEST_ID, TRACE_PARENT, RequestTrace
from pulsar_sidecar.observability.tracing import add_request, identified
from structlog.typing import EventDict

from tests.fakes.pulsar import FakePulsar
from tests.unit.ledger_deletion.namespace_sidecars import NAMESPACE, filled
from tests.unit.ledger_deletion.orphans import about, orphan
from tests.unit.ledger_deletion.sidecars import processed_entries, send
from tests.unit.ledger_deletion.test_namespace_calls import running
from tests.unit.ledger_deletion.test_serving import delete, ready_service, service_of

OTHER, THIRD = (SidecarInstance(f"sidecar-{number}", "http://b", None, 0) for number in (2, 3))
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def second_phase(fake_pulsar: FakePulsar) -> list[EventDict]:
    """Let another sidecar process the waiting records; return its log lines."""
    runtime = service_of(fake_pulsar, instance=THIRD)._runtime
    pending = fake_pulsar.topics.pending()
    with structlog.testing.capture_logs([add_request]) as lines:
        while deliveries := pending.receive():
            runtime._process(runtime.processor(), pending, deliveries)
    return [line for line in lines if line["event"] == "records decided"]


def test_from_the_call_to_the_last_outcome(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    ledgers = set(fake_pulsar.referenced())
    service = ready_service(fake_pulsar)
    with identified("r-1"), structlog.testing.capture_logs([add_request]) as lines:
        delete(service, topic)
    assert [(line["event"], line["request_id"]) for line in lines] == [("topic deletion ended", "r-1")]
    decided = second_phase(fake_pulsar)
    assert {line["request_id"] for line in decided} == {"r-1"}
    assert {ledger_id for line in decided for ledger_id in line["ledger_ids"]} == ledgers
    assert sum(line["ledgers"] for line in decided) == len(ledgers)
    assert {entry["requestId"] for entry in processed_entries(fake_pulsar)} == {"r-1"}


def test_a_sidecar_that_takes_the_deletion_over_goes_on_with_the_id(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    fake_pulsar.admin.hooks.fail_next("delete_topic", TemporaryError("the broker restarts"))
    with identified("r-1"):
        status = delete(ready_service(fake_pulsar), topic)
    assert (status.state, status.request_id) == (OperationState.RUNNING, "r-1")
    fake_pulsar.clock.advance_ms(60_000)
    second = service_of(fake_pulsar, instance=OTHER)._runtime
    held = second.deleter.take_due()
    assert held is not None
    with structlog.testing.capture_logs([add_request]) as lines:
        second.driver._continue(held)
    events = [(line["event"], line["request_id"]) for line in lines]
    assert events == [("continuing a topic deletion", "r-1"), ("topic deletion ended", "r-1")]
    ended = end_of(fake_pulsar.topics, status.operation_id, 0)
    assert (ended.state, ended.request_id) == (OperationState.DONE, "r-1")
    assert {line["request_id"] for line in second_phase(fake_pulsar)} == {"r-1"}


def test_each_record_of_a_namespace_has_the_id_of_the_call() -> None:
    fake_pulsar, brokers = filled(5)
    with running(fake_pulsar, brokers) as deletions, identified("r-1"):
        assert deletions.delete(NAMESPACE, force=True, requested_by="me", wait_ms=30_000).state is OperationState.DONE
    messages = fake_pulsar.topics.messages(DeletionTopic.PENDING)
    assert len(messages) > 5
    assert {RequestTrace.of(message.properties).request_id for message in messages} == {"r-1"}


def test_a_retry_and_a_redriven_dead_letter_keep_the_request(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    trace = RequestTrace("r-1", PARENT)
    record = encode_record(about(topic, next(iter(fake_pulsar.referenced()))))
    fake_pulsar.topics.put(DeletionTopic.PENDING, record, key=str(topic), properties=trace.properties())
    pending = fake_pulsar.topics.pending()
    (delivery,) = pending.receive()
    policy = RetryPolicy(reconsume_later_ms=1, max_redeliver_count=1)
    again = reconsume(delivery, policy, "in use").message
    assert RequestTrace.of(again.properties) == trace
    fake_pulsar.topics.put(DeletionTopic.DEAD_LETTER, again.payload, key=again.key, properties=again.properties)
    assert [letter.request_id for letter in list_dead_letters(fake_pulsar.topics.dead_letters(), 10)] == ["r-1"]
    assert RequestTrace.of(fresh(replace(delivery, properties=again.properties)).properties) == trace


def test_malformed_request_properties_are_ignored() -> None:
    hostile = {REQUEST_ID: "x" * 129, TRACE_PARENT: "01-" + "0" * 60}
    assert RequestTrace.of(hostile) == NO_REQUEST
    assert RequestTrace.of({REQUEST_ID: "a\nb"}) == NO_REQUEST
    assert NO_REQUEST.properties() == {}


def test_a_record_of_no_request_is_a_line_for_debugging_only(fake_pulsar: FakePulsar, topic: TopicName) -> None:
    send(fake_pulsar, about(topic, orphan(fake_pulsar, topic), unreferenced=True))
    (line,) = second_phase(fake_pulsar)
    assert (line["log_level"], line["request_id"], line["decision"]) == ("debug", None, "deleted")
