"""The dashboard's own app, and the layer that separates its paths from those of the REST server.

Invariants: no page can be framed, runs an inline script or style, or loads anything from another host; every failure of
a page ends in a page that names it.
"""

from collections.abc import Sequence

import structlog
from fastapi import FastAPI, Request
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.model.errors import SidecarError
from pulsar_sidecar.observability.tracing import current_trace
from pulsar_sidecar.server.errors import ClientDisconnectedError, status_of
from pulsar_sidecar.web import static_files
from pulsar_sidecar.web.ask import RefusedError, RestClient, SendToPeer, SignInNeededError
from pulsar_sidecar.web.cookies import form_secret_of, keep_form_secret
from pulsar_sidecar.web.open_id import SignInIssuer
from pulsar_sidecar.web.pages import Page, sign_in, sign_in_open_id
from pulsar_sidecar.web.shell import NavigationItem, framed
from pulsar_sidecar.web.sign_in_rate_limit import SignInRateLimit

HOME = "/ui/"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_log = structlog.get_logger(__name__)


class Dashboard:
    """ASGI app that serves ``/`` and ``/ui/``, and forwards every other request to the gate."""

    def __init__(
        self,
        gate: ASGIApp,
        clock: Clock,
        send_to_peer: SendToPeer,
        *,
        sign_in: bool,
        issuer: SignInIssuer | None = None,
        behind_tls: bool = False,
        pages: Sequence[Page],
    ) -> None:
        """Initialise; ``sign_in`` is True if the gate requires a credential, ``issuer`` an alternative to tokens.

        ``behind_tls`` is True if browsers use TLS, even if a proxy terminates it and this connection is plain.
        """
        self._gate, self._behind_tls = gate, behind_tls
        self._app = _app_of(RestClient(gate, clock, send_to_peer), clock, pages, signing_in=sign_in)
        self._app.state.issuer = issuer
        self._app.state.sign_in_rate_limit = SignInRateLimit(clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path in ("/", "/ui") or path.startswith(HOME)):
            await self._gate(scope, receive, send)
        elif path != "/" and path != "/ui":
            await self._page(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            await RedirectResponse(HOME, 303)(scope, receive, send)
        else:
            await self._gate(scope, receive, send)

    async def _page(self, scope: Scope, receive: Receive, send: Send) -> None:
        behind_proxy = self._behind_tls and scope["scheme"] == "http"
        if self._behind_tls:
            scope = {**scope, "scheme": "https"}
        request = Request(scope)
        request.state.behind_proxy = behind_proxy
        request.state.form_secret, request.state.form_secret_is_new = form_secret_of(request)

        async def framed_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                if request.state.form_secret_is_new and not scope["path"].startswith(static_files.PREFIX):
                    kept = Response()
                    keep_form_secret(request, kept, request.state.form_secret)
                    headers.append("set-cookie", kept.headers["set-cookie"])
            await send(message)

        await self._app(scope, receive, framed_safely)


def _app_of(client: RestClient, clock: Clock, pages: Sequence[Page], *, signing_in: bool) -> FastAPI:
    app = FastAPI(
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            SignInNeededError: _sign_in_needed,
            SidecarError: _refused,
            StarletteHTTPException: _not_there,
            ClientDisconnect: _disconnected,
            Exception: _unexpected_error,
        },
    )
    app.state.client, app.state.clock, app.state.sign_in = client, clock, signing_in
    app.state.overview = [part for page in pages for part in page.overview]
    app.state.navigation = [NavigationItem(page.path, page.title) for page in pages]
    for router in (
        static_files.router,
        sign_in.router,
        sign_in_open_id.router,
        *(router for page in pages for router in (page.router, *page.below)),
    ):
        app.include_router(router)
    return app


async def _sign_in_needed(request: Request, _: SignInNeededError) -> Response:
    if "hx-request" in request.headers:
        return Response(status_code=204, headers={"HX-Refresh": "true"})
    here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.method not in ("GET", "HEAD"):
        here = HOME
    elif request.headers.get("sec-fetch-site") == "cross-site":
        # After another site's link the browser withholds the token; it sends it when this page sends another request.
        return framed(request, "next_page.html.j2", view=here, title="One moment")
    return RedirectResponse(sign_in.address(here), 303)


async def _refused(request: Request, error: SidecarError) -> Response:
    status = error.status if isinstance(error, RefusedError) else status_of(error)
    return _problem_page(request, status, str(error))


async def _not_there(request: Request, error: StarletteHTTPException) -> Response:
    reason = {404: "the dashboard has no such page", 405: "this address does not support the method"}
    return _problem_page(request, error.status_code, reason.get(error.status_code, str(error.detail)))


async def _disconnected(request: Request, _: ClientDisconnect) -> Response:
    return await _refused(request, ClientDisconnectedError())


async def _unexpected_error(request: Request, error: Exception) -> Response:
    _log.error("a page failed unexpectedly", path=request.url.path, error=type(error).__name__)
    details = f"the sidecar's log has the details, with the request_id {current_trace().request_id}"
    return _problem_page(request, 500, f"unexpected {type(error).__name__}; {details}")


def _problem_page(request: Request, status: int, reason: str) -> Response:
    return framed(request, "problem.html.j2", view={"status": status, "reason": reason}, title="No page", status=status)
