"""What the routes learn of who calls."""

import pytest
from fastapi import Request
from pulsar_sidecar.api.authentication import Authentication
from pulsar_sidecar.api.authentication_tokens import TokenVerifier, secret_key
from pulsar_sidecar.api.callers import Caller
from pulsar_sidecar.api.guard import guarded_router
from pulsar_sidecar.api.rights import Right, takes
from pulsar_sidecar.model.clocks import SystemClock

from tests.fakes.deletion_service import FakeDeletionService
from tests.unit.api.serving import served
from tests.unit.api.test_authentication import ADMIN, SECRET, data_url, hs256


class Listening:
    """A route that remembers who called it."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []
        self.router = guarded_router("test")
        self.router.add_api_route("/who", self.who)

    @takes(Right.ROLE)
    def who(self, request: Request) -> None:
        self.callers.append(request.state.caller)


@pytest.fixture
def listening() -> Listening:
    return Listening()


def test_a_token_names_its_role(listening: Listening) -> None:
    tokens = Authentication(TokenVerifier(secret_key(data_url(SECRET)), SystemClock()))
    with served(FakeDeletionService(), tokens, [listening.router]) as server:
        server.ask("GET", "/who", headers={"Authorization": f"Bearer {hs256(ADMIN)}"})
    assert listening.callers == [Caller("admin", "token", "127.0.0.1")]


def test_without_authentication_every_caller_is_the_same(listening: Listening) -> None:
    with served(FakeDeletionService(), routers=[listening.router]) as server:
        server.ask("GET", "/who", headers={"Authorization": f"Bearer {hs256(ADMIN)}"})
    assert listening.callers == [Caller(None, "none", "127.0.0.1")]
