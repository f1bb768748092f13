"""Sign-in with a token, and sign-out.

Invariants: the REST server verifies the token before the dashboard keeps it, and the token is in no page, address or
log; a sign-in leads only to pages of this dashboard, and invalidates all earlier forms; so does a sign-out.
"""

from urllib.parse import unquote, urlencode, urlsplit

from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from pulsar_sidecar.reports.formatting import format_count
from pulsar_sidecar.server.paths import is_ambiguous
from pulsar_sidecar.web.ask import verified_caller
from pulsar_sidecar.web.cookies import forget_token, keep_token, renew_form_secret
from pulsar_sidecar.web.forms import form_of
from pulsar_sidecar.web.shell import framed

PATH = "/ui/sign-in"
_HOME = "/ui/"

router = APIRouter()


def address(next_page: str) -> str:
    """Return the address of the sign-in page, which leads to ``next_page``."""
    return f"{PATH}?{urlencode({'next': next_page})}"


@router.get(PATH)
async def sign_in_page(request: Request) -> Response:
    next_page = own_page(request.query_params.get("next", ""))
    return _page(request, next_page) if request.app.state.sign_in else RedirectResponse(next_page, 303)


@router.post(PATH)
async def sign_in(request: Request) -> Response:
    form = await form_of(request)
    token, next_page = form.get("token", "").removeprefix("Bearer ").strip(), own_page(form.get("next", ""))
    if not token or not token.isascii() or any(each.isspace() for each in token):
        return _page(request, next_page, "paste a token: three parts separated by dots", 400)
    refusal = too_often(request, next_page)
    if refusal is not None:
        return refusal
    answer = await verified_caller(request, token)
    if answer.status >= 300:
        return _page(request, next_page, answer.reason, answer.status)
    signed_in(request)
    response = RedirectResponse(next_page, 303)
    keep_token(request, response, token)
    return response


@router.post("/ui/sign-out")
async def sign_out(request: Request) -> Response:
    await form_of(request)
    renew_form_secret(request)
    response = RedirectResponse(PATH, 303)
    forget_token(request, response)
    return response


def too_often(request: Request, next_page: str) -> Response | None:
    """Return the refusal of another try to sign in from the same place; None if the caller may try."""
    seconds: int = request.app.state.sign_in_rate_limit.wait_seconds(request)
    if not seconds:
        return None
    response = _page(
        request, next_page, f"too many tries to sign in; try again in {format_count(seconds, 'second')}", 429
    )
    response.headers["Retry-After"] = str(seconds)
    return response


def signed_in(request: Request) -> None:
    """Record a successful sign-in."""
    request.app.state.sign_in_rate_limit.succeeded(request)
    renew_form_secret(request)


def own_page(next_page: str) -> str:
    """Return ``next_page`` if it is a page of the dashboard apart from the sign-in, else the home page."""
    path = next_page.partition("?")[0].partition("#")[0]
    read = unquote(path)  # browsers decode dots, and a proxy in front of the sidecar may decode the rest
    fits = path.startswith(_HOME) and not read.startswith(PATH) and (next_page + read).isprintable()
    return next_page if fits and "\\" not in read and not is_ambiguous(path) and not is_ambiguous(read) else _HOME


def _page(request: Request, next_page: str, problem: str | None = None, status: int = 200) -> Response:
    issuer = request.app.state.issuer
    view = {
        "next": next_page,
        "problem": problem,
        "issuer": None if issuer is None else urlsplit(issuer.url).netloc,
        "issuer_href": f"{PATH}/issuer?{urlencode({'next': next_page})}",
    }
    return framed(request, "sign_in.html.j2", view=view, title="Sign in", status=status)
