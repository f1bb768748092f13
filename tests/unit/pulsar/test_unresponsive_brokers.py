"""Brokers that take connections and answer nothing."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.pulsar_rest.admin_rest import AdminRest
from pulsar_sidecar.adapters.pulsar_rest.unresponsive_brokers import UnresponsiveBrokers
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import OutcomeUnknownError, TemporaryError, UnreachableError

from tests.cluster.patience import until
from tests.fakes.http_servers import Answer, HttpServer, http_server, register_broker
from tests.fakes.metadata import FakeMetadataStore

BROKER = "http://a:8080"


class Broker:
    """One that is asked whether it is unresponsive; it answers when the test lets it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Event()
        self.may_be_known = threading.Event()

    def is_unresponsive(self, base: str) -> bool:
        self.asked.append(base)
        self.may_be_known.wait(10)
        return not self.answers.is_set()


@pytest.fixture
def hung_url() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.fixture
def other() -> Iterator[HttpServer]:
    with http_server(lambda arrived: Answer(200, b'"answered"')) as broker:
        yield broker


def test_all_who_suspect_a_broker_share_one_question() -> None:
    broker = Broker()
    unresponsive = UnresponsiveBrokers(broker.is_unresponsive, SystemClock())
    verdicts = [unresponsive.suspect(f"{BROKER}/{n}") for n in range(50)]
    assert f"{BROKER}/x" not in unresponsive
    broker.answers.set()
    broker.may_be_known.set()
    assert [verdict.result(10) for verdict in verdicts] == [False] * 50
    assert broker.asked == [f"{BROKER}/"]


def test_a_broker_is_unresponsive_until_it_answers() -> None:
    broker = Broker()
    broker.may_be_known.set()
    unresponsive = UnresponsiveBrokers(broker.is_unresponsive, SystemClock(), between_seconds=0.01)
    assert unresponsive.suspect(BROKER).result(10)
    assert f"{BROKER}/admin/v2/clusters" in unresponsive
    broker.answers.set()
    until(lambda: BROKER not in unresponsive, "it answers again", 10)
    assert unresponsive.suspect(BROKER).result(10) is False


def test_a_read_goes_past_an_unresponsive_broker_and_a_change_never_reaches_it(
    hung_url: str, other: HttpServer
) -> None:
    rest = AdminRest([hung_url, other.url], read_seconds=0.1)
    assert rest.get("/x") == "answered"
    until(lambda: hung_url in rest.unresponsive, "it is known", 10)
    assert (rest.get("/x"), rest.change("PUT", "/x")) == ("answered", "answered")
    with pytest.raises(TemporaryError, match="is not responding"):
        rest.get_exactly(hung_url, "/x")


def test_registered_brokers_are_asked_once_all_configured_ones_are_unresponsive(
    hung_url: str, other: HttpServer
) -> None:
    store = FakeMetadataStore()
    register_broker(store, other.url)
    rest = AdminRest([hung_url], store=store, read_seconds=0.1)
    with pytest.raises(UnreachableError):
        rest.get("/x")
    until(lambda: hung_url in rest.unresponsive, "it is known", 10)
    assert (rest.get("/x"), rest.change("PUT", "/x")) == ("answered", "answered")


def test_a_change_without_an_answer_is_sent_to_no_other_broker(hung_url: str, other: HttpServer) -> None:
    rest = AdminRest([hung_url, other.url], read_seconds=0.1)
    with pytest.raises(OutcomeUnknownError):
        rest.change("PUT", "/x")
    assert other.arrived == []


def test_a_broker_that_is_only_slow_is_waited_for(other: HttpServer) -> None:
    def slowly(arrived: object) -> Answer:
        time.sleep(0.15)
        return Answer(200, b'"late"')

    rest = AdminRest([other.url], read_seconds=0.3, first_read_seconds=0.05)
    other.answer = lambda arrived: slowly(arrived) if arrived.target == "/x" else Answer(200, b'"4.0.8"')
    assert rest.get("/x") == "late"
    assert [arrived.target for arrived in other.arrived] == ["/x", "/admin/v2/brokers/version", "/x"]
