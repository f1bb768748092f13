"""Frame of every page with navigation and caller, and the return from a form to its page."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from fastapi import Request
from jinja2 import Environment
from starlette.responses import HTMLResponse, RedirectResponse, Response

from pulsar_sidecar.model.clocks import Clock
from pulsar_sidecar.reports.audit_pages import with_audits
from pulsar_sidecar.reports.pages import page_environment
from pulsar_sidecar.server.answers import parse_answer
from pulsar_sidecar.server.callers import CallerRights
from pulsar_sidecar.web import ask
from pulsar_sidecar.web.cookies import forget_message, keep_message, message_of
from pulsar_sidecar.web.forms import FORM_FIELD, form_of
from pulsar_sidecar.web.in_process import Parameters
from pulsar_sidecar.web.scopes import is_system
from pulsar_sidecar.web.static_files import versioned

__all__ = ["NavigationItem", "act", "form_of", "page"]

_CALLER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NavigationItem:
    """A page of the dashboard in the navigation."""

    path: str
    title: str


@cache
def environment() -> Environment:
    made = with_audits(page_environment("pulsar_sidecar.web", *_packages_with_pages()))
    made.globals |= {"static": versioned, "form_field": FORM_FIELD, "element_id": element_id}
    made.tests["system"] = is_system
    made.filters["path"] = lambda text: quote(str(text), safe="")
    return made


def _packages_with_pages() -> Iterator[str]:
    """Yield the features that have templates, the dashboard's only view of them."""
    for feature in files("pulsar_sidecar.features").iterdir():
        if feature.joinpath("templates").is_dir():
            yield f"pulsar_sidecar.features.{feature.name}"


def element_id(text: str) -> str:
    """Return a stable id of an element for a text."""
    return "e" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


async def page(request: Request, template: str, *, view: Any, title: str, status: int = 200) -> HTMLResponse:
    """Return a page as HTML.

    The template gets ``view``, ``title``, ``now_ms``, ``who`` (the caller's rights, or None), ``here``
    (path and query of this page), and the variables of `shell.html.j2`.
    """
    reading = await ask.read(request, "/admin/v2/caller", keep_seconds=_CALLER_SECONDS)
    return framed(request, template, view=view, title=title, status=status, who=reading.parsed(CallerRights))


def framed(
    request: Request, template: str, *, view: Any, title: str, status: int = 200, who: CallerRights | None = None
) -> HTMLResponse:
    """Return a page like `page`, for a caller that is known already or not signed in."""
    state = request.app.state
    clock: Clock = state.clock
    message = message_of(request)
    text = (
        environment()
        .get_template(template)
        .render(
            view=view,
            title=title,
            who=who,
            sign_in=state.sign_in,
            navigation=state.navigation,
            message=message,
            now_ms=clock.now_ms(),
            path=request.url.path,
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            form_secret=request.state.form_secret,
        )
    )
    response = HTMLResponse(text, status)
    if message is not None and "hx-request" not in request.headers:
        forget_message(request, response)
    return response


async def act(
    request: Request,
    method: str,
    path: str,
    body: Any = None,
    *,
    back: str,
    done: str | Callable[[Any], str | tuple[str, str]],
    kind: type[Any] = object,
    parameters: Parameters | None = None,
) -> Response:
    """Send a change, then redirect to ``back`` with its outcome or the reason of its failure.

    ``done`` may make the text from the response, read as ``kind``; or the style of the message ("warn": not all was
    done) and the text.
    """
    try:
        answer = await ask.change(request, method, path, body, parameters)
    except ask.SignInNeededError:
        raise
    except ask.RefusedError as error:
        if error.status >= 500:  # the response may be lost, so the change may have taken effect
            return returning(request, back, "unconfirmed", f"Look before you repeat it ({error.status}): {error}")
        return returning(request, back, "bad", f"Nothing was done ({error.status}): {error}")
    ended = done if isinstance(done, str) else done(parse_answer(kind, answer))
    style, text = ("good", ended) if isinstance(ended, str) else ended
    return returning(request, back, style, text)


def returning(request: Request, back: str, kind: str, text: str) -> Response:
    """Redirect to ``back`` with a message."""
    response = RedirectResponse(back, 303)
    keep_message(request, response, kind, text)
    return response
