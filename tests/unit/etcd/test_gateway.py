"""Requests to etcd's gateway: the meaning of a response, and of a missing one."""

import json
from collections.abc import Iterator

import pytest
from pulsar_sidecar.adapters.etcd.etcd import EtcdMetadataStore
from pulsar_sidecar.adapters.etcd.gateway import EtcdGateway, RefusedError, endpoints_of
from pulsar_sidecar.adapters.metadata_access import SessionOptions, StoreCredential
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.errors import (
    InvalidInputError,
    OutcomeUnknownError,
    TemporaryError,
    UnreachableError,
)
from pulsar_sidecar.model.ids import NodeVersion
from pulsar_sidecar.model.metadata import DeletionResult, GuardedDeletion

from tests.fakes.http_servers import Answer, Arrived, HttpServer, http_server, json_answer

HASTY = SessionOptions(call_timeout_seconds=1.0)
UNAVAILABLE = json_answer({"code": 14, "message": "etcdserver: request timed out"}, 503)
DENIED = json_answer({"code": 7, "message": "etcdserver: permission denied"}, 403)
DONE = json_answer({"header": {"revision": "5"}, "succeeded": True})


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


def gateway(*urls: str, options: SessionOptions = HASTY) -> EtcdGateway:
    return EtcdGateway("etcd:" + ",".join(urls), SystemClock(), options)


@pytest.mark.parametrize(
    "url", ["etcd:", "etcd:host:2379", "etcd:ftp://h:1", "etcd:http://h", "etcd:http://u:p@h:1", "etcd:http://h:1/a"]
)
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="etcd:http://host:port"):
        endpoints_of(url)


def test_endpoints_have_pulsars_form() -> None:
    assert endpoints_of("etcd:http://a:1,https://[::1]:2/") == ("http://a:1", "https://[::1]:2")


@pytest.mark.parametrize("lost", [Answer(0), UNAVAILABLE, Answer(502, b"<html>"), Answer(200, b"no json")])
def test_a_write_whose_answer_is_lost_is_sent_once_and_unknown(server: HttpServer, lost: Answer) -> None:
    server.answer = lambda _: lost
    with pytest.raises(OutcomeUnknownError):
        gateway(server.url, server.url).writing("write /a", "kv/put", {})
    assert len(server.arrived) == 1


def test_a_read_is_asked_again_until_it_is_answered(server: HttpServer) -> None:
    answers = iter([Answer(0), UNAVAILABLE, Answer(502), DONE])
    server.answer = lambda _: next(answers)
    assert gateway(server.url).reading("read /a", "kv/range", {})["succeeded"]


def test_who_cannot_be_reached_is_passed_over(server: HttpServer) -> None:
    server.answer = lambda _: DONE
    assert gateway("http://127.0.0.1:1", server.url).writing("write /a", "kv/put", {})["succeeded"]
    with pytest.raises(UnreachableError, match="check that it is running"):
        gateway("http://127.0.0.1:1").writing("write /a", "kv/put", {})
    with pytest.raises(UnreachableError, match="check that it is running"):
        gateway("http://127.0.0.1:1").reading("read /a", "kv/range", {})


def test_a_refusal_is_no_absence(server: HttpServer) -> None:
    server.answer = lambda _: DENIED
    with pytest.raises(RefusedError):
        gateway(server.url).reading("read /a", "kv/range", {})
    with EtcdMetadataStore(f"etcd:{server.url}", SystemClock(), HASTY) as store:
        for call in (lambda: store.read("/a"), lambda: store.children("/a"), lambda: store.delete("/a")):
            with pytest.raises(TemporaryError, match=r"permission denied.*give the sidecar a user"):
                call()


def test_deletions_without_an_answer_are_unknown(server: HttpServer) -> None:
    server.answer = lambda _: Answer(0)
    wanted = [GuardedDeletion(f"/{number}", NodeVersion(0)) for number in range(80)]
    with EtcdMetadataStore(f"etcd:{server.url}", SystemClock(), HASTY) as store:
        assert store.delete_many(wanted) == [DeletionResult.UNKNOWN] * 80
    assert len(server.arrived) == 1


def test_a_user_gets_a_token_and_another_when_it_is_too_old(server: HttpServer) -> None:
    tokens = iter(["old", "new"])

    def answer(request: Arrived) -> Answer:
        if request.target.endswith("/auth/authenticate"):
            assert json.loads(request.body) == {"name": "me", "password": "a:b"}
            return json_answer({"token": next(tokens)})
        if request.authorization != "new":
            return json_answer({"code": 16, "message": "etcdserver: invalid auth token"}, 401)
        return DONE

    server.answer = answer
    options = SessionOptions(call_timeout_seconds=1.0, credential=StoreCredential("digest", "me:a:b"))
    assert gateway(server.url, options=options).reading("read /a", "kv/range", {})["succeeded"]
    with pytest.raises(InvalidInputError, match="digest:user:password") as refused:
        gateway("http://127.0.0.1:1", options=SessionOptions(credential=StoreCredential("sasl", "me:secret")))
    assert "secret" not in str(refused.value)
