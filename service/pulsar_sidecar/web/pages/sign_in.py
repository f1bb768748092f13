"""Signing in with a token, and out again.

Invariants: the token is verified by the REST door before it is kept, and is in no page, address or log; signing in
leads to a page of this dashboard and nowhere else.
"""

from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from pulsar_sidecar.web.ask import verified_caller
from pulsar_sidecar.web.cookies import forget_token, keep_token
from pulsar_sidecar.web.forms import form_of
from pulsar_sidecar.web.shell import framed

PATH = "/ui/sign-in"
_HOME = "/ui/"

router = APIRouter()


def address(onward: str) -> str:
    """The page to sign in, which leads to ``onward``."""
    return f"{PATH}?{urlencode({'next': onward})}"


@router.get(PATH)
async def sign_in_page(request: Request) -> Response:
    onward = own_page(request.query_params.get("next", ""))
    return _page(request, onward) if request.app.state.sign_in else RedirectResponse(onward, 303)


@router.post(PATH)
async def sign_in(request: Request) -> Response:
    form = await form_of(request)
    token, onward = form.get("token", "").removeprefix("Bearer ").strip(), own_page(form.get("next", ""))
    if not token or not token.isascii() or any(each.isspace() for each in token):
        return _page(request, onward, "paste a token: three parts with dots between them", 400)
    answer = await verified_caller(request, token)
    if answer.status >= 300:
        return _page(request, onward, answer.reason, answer.status)
    response = RedirectResponse(onward, 303)
    keep_token(request, response, token)
    return response


@router.post("/ui/sign-out")
async def sign_out(request: Request) -> Response:
    await form_of(request)
    response = RedirectResponse(PATH, 303)
    forget_token(request, response)
    return response


def own_page(onward: str) -> str:
    """``onward`` if it is a page of the dashboard to come back to, else the first one."""
    fits = onward.startswith(_HOME) and not onward.startswith(PATH) and onward.isprintable() and "\\" not in onward
    return onward if fits else _HOME


def _page(request: Request, onward: str, problem: str | None = None, status: int = 200) -> Response:
    issuer = request.app.state.issuer
    view = {
        "next": onward,
        "problem": problem,
        "issuer": None if issuer is None else urlsplit(issuer.url).netloc,
        "issuer_href": f"{PATH}/issuer?{urlencode({'next': onward})}",
    }
    return framed(request, "sign_in.html.j2", view=view, title="Sign in", status=status)
