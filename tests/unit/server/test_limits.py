"""Requests of one kind that wait for the cluster leave threads and connections to all others."""

import threading
from contextlib import ExitStack
from functools import partial

import pytest
from pulsar_sidecar.adapters.pulsar_rest import pass_through as passing
from pulsar_sidecar.features.ledger_deletion.results import TopicDeletionStatus
from pulsar_sidecar.server import guard, pass_through

from tests.cluster.hanging import STATUS
from tests.cluster.patience import until
from tests.cluster.sidecars import BASE
from tests.fakes.deletion_service import FakeDeletionService
from tests.fakes.http_servers import Answer, Arrived
from tests.unit.server.serving import asked, served
from tests.unit.server.test_pass_through import TENANTS, front

MOST = 2
TOPIC_DELETIONS = f"{BASE}/topic-deletions"


class HangingList(FakeDeletionService):
    """Service whose list of topic deletions waits for the metadata store until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.ended = threading.Semaphore(0), threading.Event()

    def topic_deletions(self) -> list[TopicDeletionStatus]:
        self.waiting.release()
        self.ended.wait(20)
        return super().topic_deletions()


def test_requests_of_one_kind_leave_threads_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_AT_ONCE", MOST)
    monkeypatch.setattr(guard, "_PLACE_SECONDS", 0.1)
    service = HangingList()
    with served(service) as server:
        with asked(server, TOPIC_DELETIONS, MOST) as waited:
            for _ in range(MOST):
                assert service.waiting.acquire(timeout=10)
            refused, other = server.ask("GET", TOPIC_DELETIONS), server.ask("GET", STATUS)
            service.ended.set()
        assert (refused.status, refused.reason) == (503, "2 requests of this kind wait for the cluster; try again")
        assert other.status == 200
        assert [answer.status for answer in waited] == [200] * MOST
        assert server.ask("GET", TOPIC_DELETIONS).status == 200, "their places are free again"


def test_passed_requests_leave_connections_to_the_sidecars_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.server.serving.PassThrough", partial(pass_through.PassThrough, at_once=MOST))
    ended = threading.Event()
    with ExitStack() as stack:
        opened = front(stack)
        opened.brokers[0].answer = partial(_hung, ended)
        with asked(opened.server, TENANTS, MOST) as waited:
            until(lambda: len(opened.arrived()) == MOST, "they wait for the broker")
            refused, own = opened.server.ask("GET", TENANTS), opened.server.ask("GET", STATUS)
            ended.set()
        assert (refused.status, refused.reason) == (503, "2 passed requests already wait for brokers; try again")
        assert own.status == 200
        assert [answer.status for answer in waited] == [200] * MOST


def test_more_requests_than_connections_go_past_a_hung_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "_MOST_OF_ONE_BROKER", MOST)
    ended = threading.Event()
    with ExitStack() as stack:
        stack.callback(ended.set)
        opened = front(stack, check_after_seconds=0.2)
        opened.brokers[0].answer = partial(_hung, ended)
        with asked(opened.server, TENANTS, 3 * MOST) as answered:
            pass
        assert [(answer.status, answer.body) for answer in answered] == [(200, b'["t"]')] * 3 * MOST


def _hung(ended: threading.Event, arrived: Arrived) -> Answer:
    ended.wait(20)
    return Answer(200, b'["late"]')
