"""Signing in with a token, and out again.

Invariants: the token is verified by the REST door before it is kept, and is in no page, address or log; signing in
leads to a page of this dashboard and nowhere else, and leaves no form of before usable; so does signing out.
"""

from urllib.parse import unquote, urlencode, urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from pulsar_sidecar.analysis.formatting import format_count
from pulsar_sidecar.api.paths import is_ambiguous
from pulsar_sidecar.web.ask import verified_caller
from pulsar_sidecar.web.cookies import forget_token, keep_token, renew_form_secret
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
    refusal = too_often(request, onward)
    if refusal is not None:
        return refusal
    answer = await verified_caller(request, token)
    if answer.status >= 300:
        return _page(request, onward, answer.reason, answer.status)
    signed_in(request)
    response = RedirectResponse(onward, 303)
    keep_token(request, response, token)
    return response


@router.post("/ui/sign-out")
async def sign_out(request: Request) -> Response:
    await form_of(request)
    renew_form_secret(request)
    response = RedirectResponse(PATH, 303)
    forget_token(request, response)
    return response


def too_often(request: Request, onward: str) -> Response | None:
    """The refusal of another try to sign in from there; None where it may be made."""
    seconds: int = request.app.state.sign_in_limit.wait_seconds(request)
    if not seconds:
        return None
    response = _page(request, onward, f"too many tries to sign in; try again in {format_count(seconds, 'second')}", 429)
    response.headers["Retry-After"] = str(seconds)
    return response


def signed_in(request: Request) -> None:
    """Note that the caller's token is kept from now on."""
    request.app.state.sign_in_limit.succeeded(request)
    renew_form_secret(request)


def own_page(onward: str) -> str:
    """``onward`` if it is a page of the dashboard to come back to, else the first one."""
    path = onward.partition("?")[0].partition("#")[0]
    read = unquote(path)  # as browsers do with dots, and what stands before the sidecar may with the rest
    fits = path.startswith(_HOME) and not read.startswith(PATH) and (onward + read).isprintable()
    return onward if fits and "\\" not in read and not is_ambiguous(path) and not is_ambiguous(read) else _HOME


def _page(request: Request, onward: str, problem: str | None = None, status: int = 200) -> Response:
    issuer = request.app.state.issuer
    view = {
        "next": onward,
        "problem": problem,
        "issuer": None if issuer is None else urlsplit(issuer.url).netloc,
        "issuer_href": f"{PATH}/issuer?{urlencode({'next': onward})}",
    }
    return framed(request, "sign_in.html.j2", view=view, title="Sign in", status=status)
