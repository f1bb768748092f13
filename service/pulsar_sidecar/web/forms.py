"""Forms that browsers post, and the proof that they come from one of the dashboard's pages.

Invariant: the dashboard reads a form only if it comes from this origin and has the secret in this browser's cookie.
"""

import hmac
from urllib.parse import parse_qsl

from fastapi import Request

from pulsar_sidecar.model.errors import InvalidInputError, NotAuthorizedError
from pulsar_sidecar.server.csrf import is_cross_site
from pulsar_sidecar.web.cookies import form_secret_of

FORM_FIELD = "form"
_MOST_BYTES = 1024 * 1024
_MOST_FIELDS = 1_000


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields with their last values, stripped.

    Raises:
        NotAuthorizedError: the form does not come from one of the dashboard's pages.
        InvalidInputError: the form cannot be read.
    """
    _check_origin(request)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MOST_BYTES:
            raise InvalidInputError(f"the form is larger than {_MOST_BYTES} bytes; use the command line")
    try:
        fields = dict(
            parse_qsl(body.decode("ascii"), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
        )
    except ValueError as error:
        raise InvalidInputError("the form cannot be read; load the page again") from error
    secret, is_new = form_secret_of(request)
    if is_new or not hmac.compare_digest(fields.pop(FORM_FIELD, "").encode(), secret.encode()):
        raise NotAuthorizedError(
            "the form is too old, from another site, or its cookie is missing; open the page again, at the "
            "dashboardUrl if the sidecar has one, then send it"
        )
    return {name: value.strip() for name, value in fields.items()}


def confirmed(form: dict[str, str], text: str) -> None:
    """Raise `InvalidInputError` unless the form's ``confirmed`` is this text."""
    if form.get("confirmed") != text:
        raise InvalidInputError(f"nothing was changed: type {text} to confirm")


def _check_origin(request: Request) -> None:
    if is_cross_site(request.headers, request.url.scheme):
        raise NotAuthorizedError("forms from other sites are refused")
