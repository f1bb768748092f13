"""Passed statistics with ``blockedOnAckStatePersistent``, over real sockets from the caller to a broker and back."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.pass_through import PassThrough, ProxyIdentity
from pulsar_sidecar.features.acknowledgements.http import BrokersWithPauses
from pulsar_sidecar.features.acknowledgements.limits import AckStateLimits
from pulsar_sidecar.features.acknowledgements.stats_answers import PausesInStats
from pulsar_sidecar.identity.credentials import TlsOptions, parse_credentials
from pulsar_sidecar.model.names import parse_topic_name

from tests.fakes.acknowledging_broker import FakeAcknowledgingBroker, FakeTopic
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.http_servers import Answer, HttpServer, http_server
from tests.fakes.metadata import FakeMetadataStore
from tests.unit.server.serving import Served, served

STATS = b'{"msgRateIn":1.0E-7,"subscriptions":{"s":{"type":"Shared","nonContiguousDeletedMessagesRanges":4}}}'
V2, V1 = "/admin/v2/persistent/t/n/a%2520b", "/admin/persistent/p/c/n/x"


@pytest.fixture(scope="module")
def opened() -> Iterator[tuple[Served, HttpServer]]:
    states = FakeAcknowledgingBroker(AckStateLimits(max_unacked_ranges=3))
    states.namespaces |= {"t/n": None, "p/c/n": None}
    for name in ("persistent://t/n/a%20b", "persistent://p/c/n/x"):
        states.topics[parse_topic_name(name)] = FakeTopic(pause=True)
    with ExitStack() as stack:
        broker = stack.enter_context(http_server(lambda arrived: Answer(200, STATS)))
        rest = AdminRest([broker.url], parse_credentials("token", "token:own"), read_seconds=1.0)
        proxy = ProxyIdentity(parse_credentials("token", "token:sidecar"), "sidecar")
        passing = PassThrough(rest, TlsOptions(), FakeMetadataStore(), proxy)
        brokers = BrokersWithPauses(passing, PausesInStats(states, states))
        yield stack.enter_context(served(FakeDeletionService(), brokers=brokers)), broker


@pytest.mark.parametrize("path", [f"{V2}/stats", f"{V2}/stats?subscriptionBacklogSize=true", f"{V1}/partitioned-stats"])
def test_statistics_have_the_key(opened: tuple[Served, HttpServer], path: str) -> None:
    server, broker = opened
    broker.arrived.clear()
    answer = server.ask("GET", path, headers={"Accept-Encoding": "gzip", "Authorization": "Bearer mine"})
    assert answer.body == STATS.replace(b"}}}", b',"blockedOnAckStatePersistent":true}}}')
    assert answer.headers["content-length"] == str(len(answer.body))
    assert broker.arrived[-1].target == path
    sent = {name.lower(): value for name, value in broker.arrived[-1].headers.items()}
    assert sent["authorization"] == "Bearer mine"
    assert "accept-encoding" not in sent, "a compressed answer could not be read"


@pytest.mark.parametrize(
    "path",
    [
        f"{V2}/internalStats",
        "/admin/v2/non-persistent/t/n/x/stats",
        "/admin/v2/persistent/t/n/bundle/x/stats",
        "/admin/v2/persistent/t/n/a%2Fb/stats",
        "/admin/v2/persistent/t/n/another/statsx",
    ],
)
def test_everything_else_stays(opened: tuple[Served, HttpServer], path: str) -> None:
    assert opened[0].ask("GET", path).body == STATS


def test_a_refusal_stays(opened: tuple[Served, HttpServer]) -> None:
    server, broker = opened
    usual, broker.answer = broker.answer, lambda arrived: Answer(403, b'{"reason":"no"}')
    try:
        answer = server.ask("GET", f"{V2}/stats")
    finally:
        broker.answer = usual
    assert (answer.status, json.loads(answer.body)) == (403, {"reason": "no"})
