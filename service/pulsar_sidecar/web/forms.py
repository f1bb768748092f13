"""Forms as browsers post them, and the proof that one of our own pages did.

Invariant: a form is read only if it comes from this origin and shows the secret that this browser's cookie has.
"""

import hmac
from urllib.parse import parse_qsl

from fastapi import Request

from pulsar_sidecar.api.other_sites import is_of_another_site
from pulsar_sidecar.model.errors import InvalidInputError, NotAuthorizedError
from pulsar_sidecar.web.cookies import form_secret_of

FORM_FIELD = "form"
_MOST_BYTES = 1024 * 1024
_MOST_FIELDS = 1_000


async def form_of(request: Request) -> dict[str, str]:
    """The fields with their last values, without space around them.

    Raises:
        NotAuthorizedError: the form is not one of this dashboard's own pages.
        InvalidInputError: it cannot be read.
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
            "the form is too old, another site's, or its cookie is missing; open the page again, at the dashboardUrl "
            "if the sidecar has one, then send it"
        )
    return {name: value.strip() for name, value in fields.items()}


def confirmed(form: dict[str, str], text: str) -> None:
    """Nothing if the form's ``confirmed`` is this text; otherwise `InvalidInputError`."""
    if form.get("confirmed") != text:
        raise InvalidInputError(f"nothing was changed: type {text} to confirm")


def _check_origin(request: Request) -> None:
    if is_of_another_site(request.headers, request.url.scheme):
        raise NotAuthorizedError("forms of other sites are refused")
