"""Pulsar's Java client as a process that tests drive; it comes from the distribution that is tested.

Invariant: the error of a failed call has the client's log.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.java_programs import QUICK, JavaProgram, java_program
from tests.cluster.patience import until

PROGRAM = Path(__file__).with_name("JavaClient.java")
_RECEIVE_MS = 60_000
_LINES_OF_A_LOG = 40


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """A message as the Java client shows it; ``key`` and ``ordering_key`` are None where it has none."""

    message_id: str
    topic: str
    payload: str
    key: str | None
    ordering_key: str | None
    event_time_ms: int
    redelivery_count: int
    properties: Mapping[str, str]

    @property
    def ledger_id(self) -> int | None:
        """The ledger that a record names; None for other messages."""
        try:
            document = json.loads(self.payload)
        except ValueError:
            return None
        return document.get("ledgerId") if isinstance(document, dict) else None


class JavaClient:
    """A Java client with one consumer at a time."""

    def __init__(self, program: JavaProgram, log: Path) -> None:
        self._program = program
        self._log = log

    def subscribe(
        self,
        topic: str,
        subscription: str,
        *,
        retry_letter_topic: str,
        dead_letter_topic: str,
        max_redeliver_count: int,
    ) -> None:
        """Subscribe with ``enableRetry`` and this ``DeadLetterPolicy`` in Shared mode."""
        self._call(
            "subscribe",
            topic=topic,
            subscription=subscription,
            retryLetterTopic=retry_letter_topic,
            deadLetterTopic=dead_letter_topic,
            maxRedeliverCount=max_redeliver_count,
        )

    def receive(self, timeout_ms: int = _RECEIVE_MS) -> JavaMessage:
        """Return the next message, which must come."""
        message = self.receive_if_any(timeout_ms)
        assert message is not None, f"Java received nothing within {timeout_ms} ms\n{self.log()}"
        return message

    def receive_if_any(self, timeout_ms: int) -> JavaMessage | None:
        found = self._call("receive", timeoutMs=timeout_ms)["message"]
        return None if found is None else _message(found)

    def reconsume_later(self, message: JavaMessage, delay_ms: int) -> None:
        """Call ``Consumer.reconsumeLater``."""
        self._call("reconsumeLater", messageId=message.message_id, delayMs=delay_ms)

    def negative_acknowledge(self, message: JavaMessage) -> None:
        self._call("negativeAcknowledge", messageId=message.message_id)

    def leave(self) -> None:
        """Close the consumer; its unacknowledged messages go to the others."""
        self._call("leave")

    def send(
        self,
        topic: str,
        payloads: Sequence[str],
        *,
        batching: bool = False,
        key: str | None = None,
        event_time_ms: int | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Produce messages, and return their ids as Java prints them."""
        call = {"key": key, "eventTimeMs": event_time_ms, "properties": dict(properties or {})}
        return self._call("send", topic=topic, payloads=list(payloads), batching=batching, **call)["messageIds"]

    def partitions_of(self, keys: Sequence[str], topic: str, hashing_scheme: str) -> list[int]:
        """Publish a message under each key; which partition each went to."""
        call = self._call("partitionsOf", topic=topic, keys=list(keys), hashingScheme=hashing_scheme)
        return call["partitions"]

    def read_all(self, topic: str) -> list[JavaMessage]:
        """Return everything on a topic without partitions, acknowledged or not."""
        return [_message(each) for each in self._call("readAll", topic=topic)["messages"]]

    def log(self) -> str:
        """Return the end of the client's log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LINES_OF_A_LOG:])

    def _call(self, what: str, **arguments: object) -> dict[str, Any]:
        self._program.write_line(json.dumps({"do": what, **arguments}))
        answer: dict[str, Any] = json.loads(self._program.read())
        assert "error" not in answer, f"{what}: {answer['error']}\n{self.log()}"
        return answer


@contextmanager
def java_client(version: str, broker_service_url: str, directory: Path) -> Iterator[JavaClient]:
    """Yield a client of that version of Pulsar."""
    options = ["-Xmx128m", *QUICK, "-Dpulsar.allocator.exit_on_oom=true"]
    log = directory / "java-client.log"
    with java_program(PROGRAM, version, options, [broker_service_url], log) as program:
        yield JavaClient(program, log)


def received_record(client: JavaClient, ledger_id: int) -> JavaMessage:
    """Return the next message that is a record of this ledger; anything else is left to come again."""

    def look() -> JavaMessage | None:
        message = client.receive()
        if message.ledger_id == ledger_id:
            return message
        client.negative_acknowledge(message)
        return None

    return until(look, f"Java receives the record of ledger {ledger_id}")


def _message(document: Mapping[str, Any]) -> JavaMessage:
    return JavaMessage(
        message_id=document["messageId"],
        topic=document["topic"],
        payload=document["payload"],
        key=document["key"],
        ordering_key=document["orderingKey"],
        event_time_ms=document["eventTimeMs"],
        redelivery_count=document["redeliveryCount"],
        properties=document["properties"],
    )
