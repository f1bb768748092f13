"""The app on a real HTTP server in this process, and a client that sends bytes as they are."""

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from pulsar_sidecar.features.ledger_deletion.http import routes as ledger_deletion
from pulsar_sidecar.features.ledger_deletion.metrics import DeletionMetrics
from pulsar_sidecar.features.ledger_deletion.workflow.serving import LedgerDeletion
from pulsar_sidecar.model.clocks import SystemClock
from pulsar_sidecar.model.passed_requests import Brokers
from pulsar_sidecar.server.app import create_app
from pulsar_sidecar.server.authentication import Authentication
from pulsar_sidecar.server.gate import Gate
from pulsar_sidecar.server.listener_tls import ListenerTls
from pulsar_sidecar.server.pass_through import PassThrough
from pulsar_sidecar.server.request_ids import RequestIds
from pulsar_sidecar.server.rights import Rights, Roles
from pulsar_sidecar.server.server import DrainingServer, Limits, listening_socket


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> object:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        document = self.json
        assert isinstance(document, dict)
        assert set(document) == {"reason"}, document
        assert isinstance(document["reason"], str)
        return document["reason"]


@dataclass(frozen=True, slots=True)
class Served:
    port: int
    draining: threading.Event
    metrics: DeletionMetrics

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> Answer:
        """Send the path as it is; a body that is not bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, sent)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


@contextmanager
def served(
    service: LedgerDeletion | None = None,
    authentication: Authentication | None = None,
    routers: Sequence[APIRouter] = (),
    limits: Limits | None = None,
    tls: ListenerTls | None = None,
    brokers: Brokers | None = None,
    rights: Rights | None = None,
    cluster: str = "local",
) -> Iterator[Served]:
    """Routes of ledger deletion only with its service: making them takes longer than all the rest."""
    metrics = DeletionMetrics("east")
    registry = CollectorRegistry()
    registry.register(metrics)
    draining = threading.Event()
    app = create_app(
        [*([ledger_deletion.router(service)] if service else []), *routers],
        service.ready if service else lambda: None,
        registry,
        draining,
        rights or Rights(Roles(frozenset({"admin", "ops"})), enforced=authentication is not None),
        token_required=authentication is not None,
        docs=True,
        cluster=cluster,
    )
    gate = Gate(authentication, ["sidecar.example"], SystemClock(), lambda: "nothing")
    gate.app = app
    with listening_socket("127.0.0.1", 0) as listening:
        server = DrainingServer(RequestIds(gate), draining, limits, tls)
        if brokers is not None:
            gate.passing = PassThrough(brokers, app.routes, app.state.rights)
            server.closing.append(brokers.close)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield Served(listening.getsockname()[1], draining, metrics)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def asked(server: Served, path: str, times: int, headers: dict[str, str] | None = None) -> Iterator[list[Answer]]:
    """Requests on their way; their responses are there when the block has ended."""
    answers: list[Answer] = []
    with ThreadPoolExecutor(times) as callers:
        asked = [callers.submit(server.ask, "GET", path, None, headers) for _ in range(times)]
        yield answers
        answers += [each.result() for each in asked]
