"""The REST server with a test's responses, and a browser without a screen for the dashboard."""

import asyncio
import json
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlencode

from pulsar_sidecar.bootstrap.features import PAGES
from pulsar_sidecar.model.errors import UnreachableError
from pulsar_sidecar.server.answers import as_json
from pulsar_sidecar.server.callers import CallerRights
from pulsar_sidecar.web.app import Dashboard
from pulsar_sidecar.web.in_process import Answer
from pulsar_sidecar.web.open_id import SignInIssuer
from pulsar_sidecar.web.pages import Page
from starlette.types import Receive, Scope, Send

from tests.fakes.clock import FakeClock

OPERATOR = CallerRights(cluster=None, role=None, authenticated_by="none", super_user=True, operator=True, viewer=True)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    body: Any
    headers: Mapping[str, str]
    address: str


class FakeRestApi:
    """Fake REST server.

    ``answers`` maps method and path (or method, path and query) to JSON, a feature's result, a pair of status and JSON,
    or an exception; ``token`` is the token that a caller must send, None for none.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"GET /admin/v2/caller": OPERATOR}
        self.asked: list[Request] = []
        self.token: str | None = None

    def calls(self, method: str) -> list[tuple[str, Any]]:
        """Return target and body of each request of that method."""
        return [(request.target, request.body) for request in self.asked if request.method == method]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        sent = (await receive())["body"]
        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        request = Request(scope["method"], target, json.loads(sent) if sent else None, headers, scope["client"][0])
        self.asked.append(request)
        status, value, location = self._answer(request)
        await send({"type": "http.response.start", "status": status, "headers": location})
        await send(
            {
                "type": "http.response.body",
                "body": b"" if value is None else json.dumps(value, default=as_json).encode(),
            }
        )

    def _answer(self, request: Request) -> tuple[int, Any, list[tuple[bytes, bytes]]]:
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            return 401, {"reason": "send a credential"}, []
        path = request.target.partition("?")[0]
        names = (f"{request.method} {request.target}", f"{request.method} {path}")
        found = next((self.answers[name] for name in names if name in self.answers), (404, {"reason": "no such path"}))
        if isinstance(found, Exception):
            raise found
        if isinstance(found, tuple):
            status, value = found
            return (status, None, [(b"location", value.encode())]) if status == 307 else (status, value, [])
        return 200, found, []


@dataclass(frozen=True, slots=True)
class Shown:
    status: int
    headers: Sequence[tuple[str, str]]
    text: str

    def header(self, name: str) -> str | None:
        return next((value for each, value in self.headers if each == name), None)

    @property
    def words(self) -> str:
        """Return the text without markup, on one line."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.text).split())


@dataclass(slots=True)
class FakeBrowser:
    """A browser that keeps cookies and returns redirects without following them."""

    api: FakeRestApi = field(default_factory=FakeRestApi)
    clock: FakeClock = field(default_factory=FakeClock)
    sign_in: bool = False
    issuer: SignInIssuer | None = None
    pages: Sequence[Page] = PAGES
    scheme: str = "http"
    behind_tls: bool = False
    leaves: bool = False
    """True to disconnect before the end of the request."""
    cookies: dict[str, str] = field(default_factory=dict)
    others: dict[str, Answer] = field(default_factory=dict)
    """Results of other sidecars by URL."""
    sent_elsewhere: list[tuple[str, str, str | None, Any]] = field(default_factory=list)
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)
    _dashboard: Dashboard | None = None

    def get(self, target: str, **headers: str) -> Shown:
        return self.runner.run(self._send("GET", target, b"", headers))

    def post(self, target: str, fields: Mapping[str, str] | None = None, **headers: str) -> Shown:
        """Post like a form of this browser's own page; ``form`` overrides its secret."""
        secret = next((value for name, value in self.cookies.items() if name.endswith("sidecar-form")), "")
        body = urlencode({"form": secret, **(fields or {})}).encode()
        scheme = "https" if self.behind_tls else self.scheme
        sent = {"origin": f"{scheme}://localhost:8750", "sec-fetch-site": "same-origin", **headers}
        return self.runner.run(self._send("POST", target, body, sent))

    async def _elsewhere(self, method: str, url: str, authorization: str | None, body: Any) -> Answer:
        self.sent_elsewhere.append((method, url, authorization, body))
        if url not in self.others:
            raise UnreachableError(f"{url} does not respond")
        return self.others[url]

    async def _send(self, method: str, target: str, body: bytes, headers: Mapping[str, str]) -> Shown:
        if self._dashboard is None:
            self._dashboard = Dashboard(
                self.api,
                self.clock,
                self._elsewhere,
                sign_in=self.sign_in,
                issuer=self.issuer,
                behind_tls=self.behind_tls,
                pages=self.pages,
            )
        sent = {"host": "localhost:8750", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if self.cookies:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
            "client": ("192.0.2.7", 4711),
            "server": ("127.0.0.1", 8750),
            "state": {},
        }
        messages: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.disconnect"} if self.leaves else {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            messages.append(message)

        await self._dashboard(scope, receive, send)
        start, *rest = messages
        answered = [(name.decode().lower(), value.decode()) for name, value in start["headers"]]
        self._keep([value for name, value in answered if name == "set-cookie"])
        return Shown(start["status"], answered, b"".join(each.get("body", b"") for each in rest).decode())

    def _keep(self, cookies: Sequence[str]) -> None:
        for each in cookies:
            for name, morsel in SimpleCookie(each).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
