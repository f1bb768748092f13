"""The dashboard's cookies: the caller's token, the secret of its forms, a message, a sign-in flow.

Invariants: no script can read them, and no browser sends them with another site's requests; where browsers use TLS,
each is bound to TLS and to this host (`__Host-`).
"""

import secrets
from typing import Literal
from urllib.parse import quote, unquote

from fastapi import Request
from starlette.responses import Response

_PIECE = 3_800
"""Characters of a token in one cookie: browsers keep 4,096 bytes."""
_MOST_PIECES = 5
_MOST_BYTES = 1_000
"""Longest message: each byte may take three characters of a cookie, of which browsers keep 4,096."""
_MESSAGE_SECONDS = 30
_FLOW_SECONDS = 600


def _name(request: Request, name: str) -> str:
    return f"{'__Host-' if request.url.scheme == 'https' else ''}pulsar-sidecar-{name}"


def token_of(request: Request) -> str | None:
    """Return the token that the caller signed in with."""
    pieces = [request.cookies.get(_name(request, f"token-{number}"), "") for number in range(_MOST_PIECES)]
    return "".join(pieces) or None


def keep_token(request: Request, response: Response, token: str) -> None:
    """Keep a token until the browser closes or the caller signs out."""
    for number in range(_MOST_PIECES):
        piece = token[number * _PIECE : (number + 1) * _PIECE]
        if piece:
            _set(request, response, f"token-{number}", piece)
        else:
            _remove(request, response, f"token-{number}")


def forget_token(request: Request, response: Response) -> None:
    keep_token(request, response, "")


def form_secret_of(request: Request) -> tuple[str, bool]:
    """Return the secret that this browser's forms must contain, and True if it is new."""
    kept = request.cookies.get(_name(request, "form"), "")
    return (kept, False) if len(kept) >= 32 else (secrets.token_urlsafe(32), True)


def renew_form_secret(request: Request) -> None:
    """Change the secret with this response, so that the browser cannot send earlier forms after a sign-in."""
    request.state.form_secret, request.state.form_secret_is_new = secrets.token_urlsafe(32), True


def keep_form_secret(request: Request, response: Response, secret: str) -> None:
    _set(request, response, "form", secret)


def keep_flow(request: Request, response: Response, text: str) -> None:
    """Keep the proof that this browser began a sign-in; Lax, so that it comes back with the issuer's redirect."""
    _set(request, response, "flow", quote(text), _FLOW_SECONDS, "lax")


def flow_of(request: Request) -> str | None:
    kept = request.cookies.get(_name(request, "flow"))
    return unquote(kept) if kept else None


def forget_flow(request: Request, response: Response) -> None:
    _remove(request, response, "flow")


def keep_message(request: Request, response: Response, kind: str, text: str) -> None:
    """Keep a message for the next page; ``kind`` as in the macro ``state``, or ``unconfirmed``."""
    whole = text.encode()
    shortened = text if len(whole) <= _MOST_BYTES else whole[:_MOST_BYTES].decode(errors="ignore") + "…"
    _set(request, response, "message", quote(f"{kind}:{shortened}"), _MESSAGE_SECONDS)


def message_of(request: Request) -> tuple[str, str] | None:
    """Return kind and text of the message, None without one."""
    kept = request.cookies.get(_name(request, "message"))
    if not kept:
        return None
    kind, _, text = unquote(kept).partition(":")
    return kind, text


def forget_message(request: Request, response: Response) -> None:
    _remove(request, response, "message")


def _set(
    request: Request,
    response: Response,
    name: str,
    value: str,
    seconds: int | None = None,
    same_site: Literal["lax", "strict"] = "strict",
) -> None:
    secure = request.url.scheme == "https"
    response.set_cookie(
        _name(request, name), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite=same_site
    )


def _remove(request: Request, response: Response, name: str) -> None:
    full = _name(request, name)
    if full in request.cookies:
        response.delete_cookie(full, path="/", secure=request.url.scheme == "https", httponly=True, samesite="strict")
