"""A publisher's promises where a client fails on request: honest results, no holes, one producer per name."""

import logging
from collections.abc import Callable

import _pulsar
import pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pulsar_sidecar.adapters.pulsar_client.clients import SEQUENCE_ID
from pulsar_sidecar.adapters.pulsar_client.publisher import PublisherSettings, TopicPublisher, check_ids, partition_of
from pulsar_sidecar.features.ledger_deletion.ports import OutgoingMessage, PublishResult
from pulsar_sidecar.model.errors import ConflictError, InvalidInputError

from tests.fakes.clock import FakeClock

STORED, ALREADY_STORED, NOT_STORED, UNKNOWN = PublishResult
TOPIC = "persistent://pulsar/system/__ledger_deletion"
SETTINGS = PublisherSettings(batching=True, deadline_seconds=0.05, window=3)

Receipt = Callable[[pulsar.Result, _pulsar.MessageId], None]


class ScriptedClient:
    """Stands in for ``pulsar.Client``: what it stores, and which payloads fail how, is the test's."""

    def __init__(self, partitions: int = 1) -> None:
        self.uris = [f"{TOPIC}-partition-{index}" for index in range(partitions)]
        self.stored: dict[str, list[tuple[bytes, dict[str, str], str]]] = {uri: [] for uri in self.uris}
        self.outcomes: dict[bytes, str | None] = {}
        self.refused: dict[str, pulsar.PulsarException] = {}
        self.open: list[ScriptedProducer] = []
        self.opened: list[tuple[str, bool]] = []
        self.read_back = 0

    def get_topic_partitions(self, topic: str) -> list[str]:
        assert topic == TOPIC
        return self.uris

    def create_producer(
        self, topic: str, name: str, *, batching_enabled: bool, **options: object
    ) -> "ScriptedProducer":
        assert options["send_timeout_millis"] == 0
        if topic in self.refused:
            raise self.refused[topic]
        if any(producer.uri == topic and producer.name == name for producer in self.open):
            raise pulsar.exceptions.ProducerBusy("busy")
        self.opened.append((topic, batching_enabled))
        self.open.append(ScriptedProducer(self, topic, name))
        return self.open[-1]

    def create_reader(self, topic: str, start: object, *, start_message_id_inclusive: bool = False) -> "ScriptedReader":
        stored = list(enumerate(self.stored[topic]))
        if start_message_id_inclusive:
            return ScriptedReader(stored[-1:])
        self.read_back += 1
        return ScriptedReader(stored)

    def payloads(self) -> list[bytes]:
        return [payload for messages in self.stored.values() for payload, _, _ in messages]


class ScriptedProducer:
    def __init__(self, client: ScriptedClient, uri: str, name: str) -> None:
        self.client = client
        self.uri = uri
        self.name = name
        self._producer = self

    def last_sequence_id(self) -> int:
        return -1

    def send_async(self, message: pulsar.Message, receipt: Receipt) -> None:
        outcome = self.client.outcomes.get(message.data(), "Ok")
        if outcome == "Ok":
            self.client.stored[self.uri].append((message.data(), message.properties(), self.name))
            receipt(pulsar.Result.__members__["Ok"], _pulsar.MessageId(-1, 1, 1, -1))
        elif outcome is not None:
            receipt(pulsar.Result.__members__[outcome], _pulsar.MessageId(-1, -1, -1, -1))

    def close(self) -> None:
        self.client.open.remove(self)

    def close_async(self, done: Callable[[pulsar.Result], None] | None) -> None:
        assert done is None, "it would be called when the interpreter may be ending"
        self.close()


class ScriptedReader:
    def __init__(self, stored: list[tuple[int, tuple[bytes, dict[str, str], str]]]) -> None:
        self._waiting = [ScriptedMessage(entry, *message) for entry, message in stored]

    def seek(self, since_ms: int) -> None:
        pass

    def has_message_available(self) -> bool:
        return bool(self._waiting)

    def read_next(self, timeout_ms: int) -> "ScriptedMessage":
        return self._waiting.pop(0)

    def close(self) -> None:
        pass


class ScriptedMessage:
    def __init__(self, entry: int, payload: bytes, properties: dict[str, str], name: str) -> None:
        self.message_id: Callable[[], _pulsar.MessageId] = lambda: _pulsar.MessageId(-1, 1, entry, -1)
        self.publish_timestamp: Callable[[], int] = lambda: FakeClock().now_ms()
        self.properties: Callable[[], dict[str, str]] = lambda: properties
        self.producer_name: Callable[[], str] = lambda: name


def publisher_of(client: ScriptedClient, name: str = "name") -> TopicPublisher:
    return TopicPublisher(client, TOPIC, name, SETTINGS, FakeClock())  # type: ignore[arg-type]


def plain(*payloads: bytes) -> list[OutgoingMessage]:
    return [OutgoingMessage(payload) for payload in payloads]


def numbered(*numbers: int) -> list[OutgoingMessage]:
    return [OutgoingMessage(b"%d" % number, sequence_id=number) for number in numbers]


def test_only_a_name_that_may_have_stored_something_is_read_back() -> None:
    client = ScriptedClient()
    first = TopicPublisher(client, TOPIC, "name", SETTINGS, FakeClock(), first_use=True)  # type: ignore[arg-type]
    assert first.publish(numbered(0, 1)) == [STORED, STORED]
    assert client.read_back == 0
    client.outcomes = {b"2": None}
    assert first.publish(numbered(2)) == [UNKNOWN]
    client.outcomes = {}
    assert first.publish(numbered(2)) == [STORED]
    assert client.read_back == 1
    first.close()
    assert publisher_of(client).publish(numbered(0, 1, 2)) == [PublishResult.ALREADY_STORED] * 3
    assert client.read_back == 2


def test_more_than_a_window_is_sent_in_order() -> None:
    client = ScriptedClient()
    payloads = [b"%d" % number for number in range(10)]
    assert publisher_of(client).publish(plain(*payloads)) == [STORED] * 10
    assert client.payloads() == payloads


def test_a_missing_receipt_is_unknown_and_what_is_behind_it_stays(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient()
    publisher = publisher_of(client)
    client.outcomes = {b"b": None}
    assert publisher.publish(plain(b"a", b"b", b"c", b"d", b"e")) == [STORED, UNKNOWN, STORED, NOT_STORED, NOT_STORED]
    assert not client.open
    client.outcomes = {}
    assert publisher.publish(plain(b"f")) == [STORED]
    assert client.payloads() == [b"a", b"c", b"f"]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        ("MessageTooBig", NOT_STORED),
        ("ProducerQueueIsFull", NOT_STORED),
        ("Timeout", UNKNOWN),
        ("AlreadyClosed", UNKNOWN),
    ],
)
def test_failures_map_to_publish_results(outcome: str, expected: PublishResult) -> None:
    client = ScriptedClient()
    client.outcomes = {b"b": outcome}
    assert publisher_of(client).publish(plain(b"a", b"b", b"c")) == [STORED, expected, STORED]


def test_without_ids_a_refused_message_holds_up_no_other() -> None:
    client = ScriptedClient()
    client.outcomes = {b"a": "MessageTooBig"}
    assert publisher_of(client).publish(plain(b"a", b"b", b"c", b"d", b"e")) == [NOT_STORED] + [STORED] * 4


def test_an_id_that_was_not_stored_holds_up_the_higher_ones_until_it_is() -> None:
    client = ScriptedClient()
    publisher = publisher_of(client)
    client.outcomes = {b"2": "MessageTooBig"}
    assert publisher.publish(numbered(0, 1, 2, 3, 4)) == [STORED, STORED, NOT_STORED, NOT_STORED, NOT_STORED]
    assert publisher.publish(numbered(5)) == [NOT_STORED]
    client.outcomes = {}
    assert publisher.publish(numbered(2, 3, 4, 5)) == [STORED] * 4
    assert client.payloads() == [b"0", b"1", b"2", b"3", b"4", b"5"]


def test_after_an_unknown_outcome_the_topic_shows_what_is_stored() -> None:
    client = ScriptedClient()
    publisher = publisher_of(client)
    client.outcomes = {b"1": None}
    assert publisher.publish(numbered(0, 1)) == [STORED, UNKNOWN]
    client.outcomes = {}
    client.stored[client.uris[0]].append((b"1", {SEQUENCE_ID: "1"}, "name"))
    assert publisher.publish(numbered(0, 1, 2)) == [ALREADY_STORED, ALREADY_STORED, STORED]
    assert client.payloads() == [b"0", b"1", b"2"]


def test_another_producer_s_ids_and_properties_count_for_nothing() -> None:
    client = ScriptedClient()
    client.stored[client.uris[0]] += [(b"x", {SEQUENCE_ID: "0"}, "other"), (b"y", {SEQUENCE_ID: "nonsense"}, "name")]
    assert publisher_of(client).publish(numbered(0)) == [STORED]


def test_an_inherited_id_is_not_passed_on() -> None:
    client = ScriptedClient()
    publisher_of(client).publish([OutgoingMessage(b"x", properties={SEQUENCE_ID: "7", "a": "b"})])
    assert client.stored[client.uris[0]] == [(b"x", {"a": "b"}, "name")]


def test_explicit_ids_are_not_batched() -> None:
    client = ScriptedClient()
    publisher = publisher_of(client)
    publisher.publish(numbered(0))
    publisher.publish(plain(b"a"))
    assert [batching for _, batching in client.opened] == [True, False, True]


def test_the_first_partition_stands_for_the_name() -> None:
    client = ScriptedClient(4)
    publisher = publisher_of(client)
    with pytest.raises(ConflictError):
        publisher_of(client)
    assert client.opened == [(client.uris[0], True)]
    publisher.close()
    publisher_of(client).close()


def test_a_partition_that_cannot_be_opened_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    client = ScriptedClient(2)
    keys = {partition_of(key, 2): key for key in ("a", "b", "c", "d")}
    publisher = publisher_of(client)
    client.refused = {client.uris[1]: pulsar.exceptions.ConnectError("down")}
    messages = [OutgoingMessage(b"%d" % number, key=keys[number % 2]) for number in range(8)]
    with caplog.at_level(logging.WARNING):
        assert publisher.publish(messages) == [STORED, NOT_STORED] * 4
    assert "partition-1" in caplog.text
    client.refused = {}
    assert publisher.publish(messages[1::2]) == [STORED] * 4


@pytest.mark.parametrize("ids", [[0, None], [None, 0], [1, 0], [1, 1], [-1]])
def test_ids_that_make_no_sequence(ids: list[int | None]) -> None:
    with pytest.raises(InvalidInputError):
        check_ids([OutgoingMessage(b"x", sequence_id=number) for number in ids])


def test_ids_may_have_gaps() -> None:
    for messages in (numbered(3, 7, 2**62), plain(b"x"), []):
        check_ids(messages)


# --- partitions ------------------------------------------------------------------------------------------------------


@given(st.text(min_size=1), st.integers(1, 64))
def test_a_key_has_one_partition_of_those_there_are(key: str, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions


def test_without_a_key_everything_goes_to_the_first() -> None:
    assert partition_of(None, 4) == partition_of("", 4) == 0
