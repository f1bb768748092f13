"""The door while the rooms behind it are not open yet: the process lives, and says what it waits for.

Invariant: every path but ``/livez`` answers 503 with the reason, to those whom the gate lets pass.
"""

from collections.abc import Callable

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from pulsar_sidecar.api import errors
from pulsar_sidecar.api.schemas import Healthy
from pulsar_sidecar.model.errors import TemporaryError

_METHODS = ["DELETE", "GET", "HEAD", "PATCH", "POST", "PUT"]


class Front:
    """The app that callers reach at this moment."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


def add_starting_routes(app: FastAPI, missing: Callable[[], str]) -> None:
    """Let the app answer for rooms that are not open.

    Args:
        app: has no routes yet.
        missing: what the start waits for.
    """
    errors.install(app)

    @app.get("/livez")
    async def livez() -> Healthy:
        return Healthy()

    @app.api_route("/{path:path}", methods=_METHODS)
    def wait(path: str) -> None:
        raise TemporaryError(f"the sidecar is starting: {missing()}")
