"""Sign-in at the OpenID Connect issuer, and the return with a code."""

import hmac
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from pulsar_sidecar.model.errors import NotAuthenticatedError, NotFoundError
from pulsar_sidecar.web.ask import verified_caller
from pulsar_sidecar.web.cookies import flow_of, forget_flow, keep_flow, keep_token
from pulsar_sidecar.web.open_id import CALLBACK, Flow, SignInIssuer
from pulsar_sidecar.web.pages.sign_in import PATH, own_page, signed_in, too_often
from pulsar_sidecar.web.shell import framed

router = APIRouter()


@router.get(f"{PATH}/issuer")
async def go_to_issuer(request: Request) -> Response:
    issuer, flow = _issuer(request), Flow.begun(own_page(request.query_params.get("next", "")))
    refusal = too_often(request, flow.next_page)
    if refusal is not None:
        return refusal
    address = await run_in_threadpool(issuer.address, flow)
    response = RedirectResponse(address, 303)
    keep_flow(request, response, flow.text)
    return response


@router.get(CALLBACK)
async def callback(request: Request) -> Response:
    issuer, flow = _issuer(request), Flow.read(flow_of(request))
    given = request.query_params
    if flow is None or not hmac.compare_digest(given.get("state", "").encode(), flow.state.encode()):
        raise NotAuthenticatedError(f"this browser did not begin this sign-in, or took too long; begin again at {PATH}")
    if "code" not in given:
        reason = given.get("error_description") or given.get("error", "no code")
        raise NotAuthenticatedError(f"{urlsplit(issuer.url).netloc} did not sign you in: {reason[:200]}")
    refusal = too_often(request, own_page(flow.next_page))
    if refusal is not None:
        return refusal
    reason = ""
    for token in await run_in_threadpool(issuer.tokens, given["code"], flow):
        answer = await verified_caller(request, token)
        if answer.status < 300:
            signed_in(request)
            # After the issuer's page the browser would not send a Strict cookie with a redirect.
            response = framed(request, "next_page.html.j2", view=own_page(flow.next_page), title="Signed in")
            keep_token(request, response, token)
            forget_flow(request, response)
            return response
        reason = answer.reason
    raise NotAuthenticatedError(f"the sidecar does not accept the issuer's token: {reason}")


def _issuer(request: Request) -> SignInIssuer:
    issuer = request.app.state.issuer
    if not isinstance(issuer, SignInIssuer):
        raise NotFoundError("this dashboard signs in by token only; see openIDClientId")
    return issuer
