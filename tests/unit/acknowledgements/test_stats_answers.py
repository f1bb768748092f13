"""``blockedOnAckStatePersistent`` in brokers' responses, and everything else as it was."""

import json
from collections.abc import Callable

import pytest
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.model.errors import TemporaryError
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker, FakeTopic

TOPIC = parse_topic_name("persistent://public/default/orders")
KEY = "blockedOnAckStatePersistent"
MORE = ',"x":[0.10,{}]'


def of(ranges: int, kind: str = "Shared", more: str = "") -> str:
    return f'{{"type":"{kind}","nonContiguousDeletedMessagesRanges":{ranges}{more}}}'


def stats(subscriptions: str, more: str = "") -> bytes:
    return f'{{"msgRateIn":1.0E-7,"ownerBroker":"b:8080","subscriptions":{{{subscriptions}}}{more}}}'.encode()


@pytest.fixture
def broker() -> FakeAcknowledgingBroker:
    broker = FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=3))
    broker.topics[TOPIC] = FakeTopic(pause=True)
    return broker


@pytest.fixture
def amended(broker: FakeAcknowledgingBroker) -> Callable[[bytes], bytes]:
    pauses = PausesInStats(broker, broker)
    return lambda body: pauses.amended(TOPIC, body)


def keys(body: bytes) -> dict[str, object]:
    return {name: each.get(KEY, "absent") for name, each in json.loads(body)["subscriptions"].items()}


def test_the_key_is_added_and_everything_else_stays_to_the_letter(amended: Callable[[bytes], bytes]) -> None:
    body = stats(f'"a":{of(4, more=MORE)},"bü":{of(3)}', ',"last":1e400')
    expected = body.replace(b"[0.10,{}]}", b'[0.10,{}],"%b":true}' % KEY.encode())
    expected = expected.replace(b'Ranges":3}', b'Ranges":3,"%b":false}' % KEY.encode())
    assert amended(body) == expected


def test_subscription_without_pause_policy_is_not_blocked(
    broker: FakeAcknowledgingBroker, amended: Callable[[bytes], bytes]
) -> None:
    body = stats(f'"full":{of(4)},"one":{of(4, "Exclusive")},"new":{of(4, "None")}')
    assert keys(amended(body)) == {"full": True, "one": False, "new": False}
    broker.topics[TOPIC].pause = None
    assert keys(amended(body)) == {"full": False, "one": False, "new": False}
    broker.namespaces["public/default"] = True
    assert keys(amended(body))["full"] is None, "the topic's own false cannot be told from none"


def test_unavailable_state_is_null_and_the_brokers_own_key_wins(
    broker: FakeAcknowledgingBroker, amended: Callable[[bytes], bytes]
) -> None:
    def fail(*_: object) -> AckStateLimits:
        raise TemporaryError("not now")

    broker.limits = fail  # type: ignore[method-assign]
    known = of(4, more=f',"{KEY}":true')
    assert keys(amended(stats(f'"full":{of(4)},"older":{{"type":"Shared"}},"newer":{known}'))) == {
        "full": None, "older": None, "newer": True
    }  # fmt: skip


def test_partitions_have_the_key_and_all_together_if_one_has(amended: Callable[[bytes], bytes]) -> None:
    sums = f'"s":{of(5)},"t":{of(2)}'
    parts = ",".join(
        f'"{TOPIC}-partition-{number}":{stats(each).decode()}'
        for number, each in enumerate((f'"s":{of(4)},"t":{of(1)}', f'"s":{of(1)},"t":{of(1)}'))
    )
    body = amended(stats(sums, f',"metadata":{{"partitions":2}},"partitions":{{{parts}}}'))
    assert keys(body) == {"s": True, "t": False}
    found = [keys(json.dumps(each).encode()) for each in json.loads(body)["partitions"].values()]
    assert found == [{"s": True, "t": False}, {"s": False, "t": False}]


def test_of_a_sum_over_partitions_only_false_is_known(amended: Callable[[bytes], bytes]) -> None:
    body = stats(f'"s":{of(5)},"t":{of(3)}', ',"metadata":{"partitions":2},"partitions":{}')
    assert keys(amended(body)) == {"s": None, "t": False}


@pytest.mark.parametrize("body", [b"", b"null", b"[1]", b'{"subscriptions":[]}', b'{"subscriptions":{"s":1}}', b"{}"])
def test_unrecognised_statistics_are_unchanged(body: bytes, amended: Callable[[bytes], bytes]) -> None:
    assert amended(body) == body
